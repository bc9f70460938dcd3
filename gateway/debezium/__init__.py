"""Debezium's record format: its types, schemas, records and topics, and the adoption of a slot that
a Debezium connector has read.

connect_type, envelope_schema,
connect_json                    PostgreSQL types and relations -> Kafka Connect schemas
connect_codec, connect_forms,
connect_times                   values
row_encoder, source_block,
column_defaults, json_encoder   records
dialect, record_writer,
json_sink                       what the gateway asks of a format; the writer of records
registrar                       topics and schemas of relations
find_written, written_checks    which changes Debezium wrote before the gateway took over

In: relations, rows, and positions of a connector. Out: schemas, records and topics in Debezium's
format. Only gateway/runtime and the commands import this package; it must not know the order of
transactions, which gateway/transactions keeps.
"""
