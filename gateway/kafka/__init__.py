"""Kafka's side of the gateway: encoded records, markers and a position come in; they leave in Kafka
transactions. Topics are created and checked here too.

    aiokafka_internals.py                          all that touches aiokafka's private attributes
    batches.py delivery.py producer.py             records -> batches -> Kafka transactions
    position_topic.py last_commit.py               what earlier runs have written
    topics.py topic_admin.py durability.py         topics: names, creation, replicas
    fixed_topics.py                                topics that belong to no relation
    cluster_facts.py listener_probe.py probe.py    facts for `walgate check` and for health checks
    errors.py shutdown.py                          what follows an error; closing with a time limit

This package knows neither PostgreSQL nor rows: a record's key and value are bytes, and
gateway/transactions decides when a Kafka transaction is closed.
"""
