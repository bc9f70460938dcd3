"""Measured figures: `make bench ARGS="--only W1 --repeat 3"`. What they mean and how they came
about: docs/performance.md.

workloads   what PostgreSQL is made to do
scene       the local parts, a backlog, and a fresh copy of its slot for every run
floor       pg_recvlogical to nowhere: what the walsender gives at all
walgate     the gateway, drained and timed
large       one large transaction, live
latency     from commit to a consumer
report      tables, plot and JSON of all that
encode      the gateway's work on a row by stages, without network
"""
