"""Decisions from facts: whether the gateway waits, tries again, goes on, or stops for the operator.

    facts.py findings.py        what is known, and what a check may report
    position_checks.py          whether slot and server still have what follows the position, and
                                what was lost if not
    slot_checks.py timeline_checks.py server_checks.py role_checks.py publication_checks.py
    filters.py synchronous_standby.py kafka_checks.py listener_checks.py
                                the other checks; each takes facts and yields findings
    start.py                    the steps of a start, in their order
    position_changes.py         the steps of `walgate skip`, `readmit`, `accept-gap` and `adopt`
    periodic_check.py           the checks that are repeated while the stream runs
    server_notices.py reaction_by_sqlstate.py repeated_failure.py
                                what follows from the server's messages and errors, at any time
    wal_release.py              when the slot is advanced without delivery
    connect_offset.py           the offset of a Debezium connector that the gateway replaces

In: facts that gateway/postgres and gateway/kafka have read, the stored position, and settings as
values. Out: findings (errors and warnings), and the steps that gateway/runtime carries out. The
package is pure: it must not know a connection, a clock or an event loop. Only connect_offset reads
a file.

Theory
======

Two gateways may run at the same time, a server may be promoted, a broker may answer late. A fact is
true at the moment when it was read, and may be outdated when it is judged. Three rules follow, and
tests/startup simulates them:

1. Nothing is judged while another process holds the slot. The gateway that loses the race waits.
2. A gateway makes its position durable in Kafka before it confirms it to PostgreSQL. Therefore a
   position that was read *after* the slot is never before the slot's confirmed_flush_lsn, unless
   another process has read from the slot. Likewise, an end of the WAL that was read *after* the
   position is never before the position, unless the server was reset to an earlier state. A start
   that finds this records it, because that server's WAL passes the position later. Facts that were
   read in another order prove nothing.
3. Only a gateway that still owns the producer's transactional id may decide that changes were lost.
   A Kafka transaction that commits after the facts were read proves that no other gateway has taken
   over since.

The gateway waits for whatever is repaired at the server, in Kafka or in the registry. A start ends
with exit code 78 if a setting of the gateway must change, or if the operator must decide about
data.
"""
