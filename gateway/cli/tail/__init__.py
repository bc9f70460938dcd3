"""Decoded messages for people: `walgate tail` and `walgate decode`. What they print are row values,
on stdout and nowhere else.

shown.py        one pgoutput message -> a JSON object; remembers relations and whether a stream segment is open
lines.py        that object -> a line for people
chosen.py       filters by table and operation
from_slot.py    a temporary slot -> messages
from_topics.py  change events, markers and logical messages of the topics
records.py      Confluent-framed records, by the registry
given.py        hexadecimal text and files
output.py       stdout, and signals
"""
