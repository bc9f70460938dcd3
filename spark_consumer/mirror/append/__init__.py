"""The append of a micro-batch to a mirror: its contents are examined, and its committed changes are
stored as they are in Kafka. It does not wait for a merge.

In: a micro-batch of raw rows. Out: rows of `changes`, a report, and a request for a merge. This
package must not know how changes are decoded and folded.
"""
