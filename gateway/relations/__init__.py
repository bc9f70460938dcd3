"""Descriptions of relations: Relation messages and rows of the catalog come in,
RelationDescriptions (schemas/relation.py) go out.

    type_catalog.py    the queries about types and keys, and the facts in their rows
    attributes.py      the attribute number of each column of a message
    describe.py        a Relation message and the facts -> RelationDescription
    relation_cache.py  which version of a relation the next change is encoded with

This package is pure: it has no connection and no driver, and callers run its queries. It knows
neither Avro nor Kafka, and reads no values of rows.
"""
