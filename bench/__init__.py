"""Benchmarks: `make bench ARGS="--only W1 --repeat 3"`. docs/performance.md explains the figures
and how they are measured.

    program     the options, and the order of the measurements
    workloads   the statements that PostgreSQL runs
    scene       the local servers, a backlog, and a new copy of its slot for every run
    floor       pg_recvlogical to /dev/null: the rate of the walsender alone
    walgate     the gateway, drained and timed
    large       one large transaction, live
    latency     from commit to a consumer
    report      tables, plot and JSON of all these
    encode      the gateway's work per row by stages, without network
"""
