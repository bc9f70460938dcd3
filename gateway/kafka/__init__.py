"""Kafka's side of the gateway: encoded records and a position come in; they leave in Kafka
transactions. Checks and topic creation go through the same client.

    aiokafka_internals.py                 the only module that touches aiokafka's private attributes
    batches.py delivery.py producer.py    records -> batches -> Kafka transactions -> broker
    position_topic.py last_commit.py      what earlier runs have written
    topics.py topic_admin.py durability.py    topics: names, creation, replicas
    cluster_facts.py listener_probe.py probe.py    what `walgate check` and the health checks ask
    errors.py shutdown.py                 what happens after an error; closing with a time limit

This package knows neither PostgreSQL nor rows: keys and values are bytes, and when a Kafka
transaction is closed is decided by gateway/transactions.
"""
