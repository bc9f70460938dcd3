"""Descriptions of relations.

    type_catalog.py    the queries about types and keys, and the facts in their rows
    attributes.py      the attribute number of each column of a message
    describe.py        a Relation message and the facts -> RelationDescription
    relation_cache.py  which version of a relation the next change is encoded with

In: Relation messages and rows of the catalog. Out: RelationDescriptions (schemas/relation.py). This
package is pure: callers run its queries. It must not know Avro, Kafka, or values of rows.
"""
