"""Kafka's side of the gateway: transactions, the position topic, and topics.

    aiokafka_internals                              all that touches aiokafka's private attributes
    batches.py transaction_delivery.py producer.py  records -> batches -> Kafka transactions
    position_topic.py last_commit.py                what earlier runs have written
    partition_reader.py                             consumers of given partitions, and their ends
    topics.py topic_admin.py durability.py          all topics: creation, loss, replicas; names of
                                                    the topics of relations
    fixed_topics.py                                 schemas and sinks of topics without a relation
    cluster_facts.py listener_probe.py              facts for `walgate check`
    health_probe.py                                 whether a broker answers, for health checks
    classify_errors.py shutdown.py                  what follows an error; closing with a time limit

In: encoded records, markers and a position. Out: Kafka transactions, and facts about the cluster.
This package must not know PostgreSQL or rows: a record's key and value are bytes, and
gateway/runtime/kafka_transactions.py decides when a Kafka transaction is closed.
"""
