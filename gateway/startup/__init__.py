"""Wait, try again, go on or stop: one pure judgement of facts.

    facts.py        what is known, with the moment at which each fact was taken
    findings.py     what a check may find, and which finding counts
    server.py slot.py publication.py position.py timeline.py notice.py      the checks
    start.py        the steps of a start, in their order: what to look at, what to do
    running.py      the periodic check while the stream runs

Theory
======

Two gateways may run at the same time, a server may be promoted, a broker may answer late: a fact is
true at the moment when it was taken and may be old when it is judged. Three rules follow, and
tests/startup simulates them:

1. Nothing is judged while another process holds the slot. Whoever loses the race waits.
2. A gateway makes its position durable in Kafka before it confirms it to PostgreSQL. So a position
   that was read *after* the slot is never behind the slot's confirmed_flush_lsn, unless somebody
   else has read the slot; and an end of the WAL that was read *after* the position is never behind
   it, unless the server was set back. Facts in another order prove nothing.
3. A verdict that changes were lost is given only by a gateway that still owns the producer's
   transactional id: a Kafka transaction that commits after the facts were taken proves that no
   other gateway has taken over since.

What is repaired at the server, in Kafka or in the registry is waited for. A start ends with exit
code 78 where a setting of the gateway must change, or where somebody must decide about data.
"""
