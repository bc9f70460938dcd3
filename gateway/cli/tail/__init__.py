"""`walgate tail` and `walgate decode`: decoded messages as text or JSON. They contain row values,
and are written to stdout only.

message_json.py    one pgoutput message -> a JSON object; remembers relations and stream segments
format.py          that object -> a line of text or JSON
filters.py         filters by table and operation
from_slot.py       messages from a temporary slot
from_topics.py     change events, markers and logical messages from the topics
record_json.py     Confluent-framed records -> JSON objects, with the registry's schemas
decode_input.py    hexadecimal text and files
output.py          stdout and signals

In: messages of a slot, records of topics, files. Out: lines on stdout. This package must not know
positions or the gateway's own slot: it acknowledges nothing and writes nothing to Kafka.
"""
