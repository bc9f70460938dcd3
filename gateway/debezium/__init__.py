"""Debezium's record format: its types, schemas, records and topics, and the adoption of a slot that
a Debezium connector has read.

connect_type, envelope_schema,
connect_json                    PostgreSQL types and relations -> Kafka Connect schemas
connect_codec, connect_forms,
connect_times                   values
row_encoder, source_block,
column_defaults, json_encoder   records
machine, json_machine           the state machine, which writes Debezium's records
registrar                       topics and schemas of relations
find_written, written_checks    which changes Debezium wrote before the gateway took over
"""
