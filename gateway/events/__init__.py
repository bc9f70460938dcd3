"""Events and their Avro bytes: changes of rows, logical messages, markers and manifests. No I/O.

    row_encoder  row_encoder_slow     row messages -> framed keys and change events
    transaction_context               the fields that all events of a transaction have in common
    change_key                        the keys of row messages, without their rows
    missing_values                    values that existing rows have in columns added later
    logical_message                   logical messages
    manifest                          where the records of a transaction are in Kafka
    marker_encoder                    markers, with their manifests
    errors                            rows that cannot be encoded

In: pgoutput messages, and descriptions of relations with their schema ids. Out: bytes of records.
The package must not know when and where records are sent: no state of transactions, no Kafka.
"""
