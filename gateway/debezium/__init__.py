"""Debezium's record format: its types, schemas, records and topics, and the adoption of a slot that
a Debezium connector has read.

connect_type, envelope_schema,
connect_json                    PostgreSQL types and relations -> Kafka Connect schemas
connect_codec, connect_forms,
connect_times                   values
row_encoder, source_block,
column_defaults, json_encoder   records
record_writer, json_sink,
relation_version                what the state machine receives -> records
registrar                       relations: schemas and encoders
dialect                         what a session asks of a dialect (gateway/runtime/dialect.py)
find_written, written_checks    which changes Debezium wrote before the gateway took over
key_checks                      whether the keys stay as Debezium wrote them

In: relations, rows, and positions of a connector. Out: schemas, records and topics in Debezium's
format. No other package imports this one, except gateway/runtime/dialect.py, and only if
kafka.dialect is debezium. This package must not know the order of transactions,
which gateway/transactions keeps.
"""
