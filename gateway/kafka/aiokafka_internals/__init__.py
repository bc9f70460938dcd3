"""The parts of aiokafka beyond its documented interface. No other module of the gateway touches a
private attribute of aiokafka (enforced by ruff's SLF001 and TID251).
tests/kafka/test_aiokafka_internals.py fails for each dependency that a new version breaks.

    version     the version whose source was read
    connection  one connection, and the errors of connecting
    client      brokers, metadata, connections, and when a broker that does not answer is given up
    producer    queueing of batches, and the requests of transactions
    admin       requests of the admin client and the consumer

Each module gives the reason for each of its changes, and says what would make the change
unnecessary.

In: options of clients, batches, and names of topics. Out: requests to brokers, and their answers.
This package must not know what a record or a topic means.
"""
