"""Debezium's record format: its types, schemas, records and topics, and what a slot that Debezium
has read needs.

connect_type, envelope_schema, connect_json    PostgreSQL types and relations -> Kafka Connect's schemas
connect_codec, connect_forms, connect_times    values
row_encoder, source_block, column_defaults, json_encoder    records
machine, json_machine    the state machine, which writes Debezium's records instead of Walgate's
registrar                topics and schemas of relations
find_written, written_checks    which transactions Debezium has written before the gateway took over
"""
