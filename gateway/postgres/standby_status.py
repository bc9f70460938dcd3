"""The standby status: when it is sent, and what it reports.

    written  what has been received: only shown by the server (pg_stat_replication.write_lsn)
    flushed  what is durable in Kafka: the server may forget everything before it

The flush LSN is exactly the highest LSN given to `acknowledge`. It never decreases and is never
computed from anything else. gateway/runtime/kafka_transactions.py passes the resume LSN of a
position, once that position is durable in Kafka.

The gateway's session has a wal_sender_timeout of at most `LONGEST_TIMEOUT_S`. While the server
decodes a transaction of which it sends nothing, it reads requests only once in half of this time.
And with 0, a slot stays in use for as long as the operating system keeps the connection to a host
that has disappeared.

A status is sent at least every third of wal_sender_timeout, by a task that waits for nothing else.
The server ends a connection that is silent for wal_sender_timeout, even while one huge message is
being transferred. If the server requests a reply, one is sent at once, but at most ten times a
second. A server that shuts down asks again after each answer (`WalSndDone` in walsender.c; a reader
that answered each request got 690,000 keepalives in 32 s).

Two conditions end the connection from this side. Silence: nothing has arrived for half of
`silence_limit_s`, and the server does not answer a request for a reply within the other half. A
server can be silent for longer than that without a fault: before PostgreSQL 16, it neither reads
nor sends while it decodes the rewrite of a table. Therefore the limit is doubled for a session that
resumes where the last one has met silence (SessionMemory).
Shutdown: the server keeps requesting replies although it gets them, because it waits for a flush
LSN that cannot be reported yet. If the flush LSN does not advance for `LEAVE_AFTER_S`, the
connection is ended. Otherwise `pg_ctl stop -m fast` would hang for as long as Kafka is down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from gateway.errors import NextSession, Retry, WalgateError
from gateway.failpoints import failpoint
from schemas.lsn import Lsn

LEAST_INTERVAL_S: Final = 0.1
LEAVE_AFTER_S: Final = 3.0
LONGEST_TIMEOUT_S: Final = 20.0
LONGEST_SILENCE_S: Final = 30.0
# A short wal_sender_timeout shows how patient the server is; a busy server may still be slow to
# answer.
SHORTEST_SILENCE_S: Final = 5.0
# In units of wal_sender_timeout. The server is asked after half of this time, and may take half of
# wal_sender_timeout to read the request.
_SILENCE: Final = 1.5
# Two requests that are further apart do not belong to one shutdown: in normal operation the server
# asks once in half of wal_sender_timeout.
_STORM_GAP_S: Final = 0.5


def wal_sender_timeout_of(server_timeout_s: float) -> float:
    """Return the wal_sender_timeout of the gateway's session, in seconds. `server_timeout_s` is the
    server's setting, 0 if it is off."""
    return min(server_timeout_s or LONGEST_TIMEOUT_S, LONGEST_TIMEOUT_S)


class ServerSilent(Retry):
    """Nothing has arrived for a time, although a reply was requested."""

    def __init__(self, silence_s: float, silence_limit_s: float) -> None:
        super().__init__(
            f"PostgreSQL has sent nothing for {silence_s:.0f} s, although a reply was requested",
            hint="either the connection is dead, or the server decodes changes that it does not send. In the latter case "
            f"nothing needs to be done: at this place, the next session waits {2 * silence_limit_s:.0f} s for an answer",
        )
        self.silence_limit_s = silence_limit_s

    def change(self, next_session: NextSession) -> None:
        next_session.wait_for_answers(2 * self.silence_limit_s)


class Link(Protocol):
    """The part of a ReplicationStream that `StandbyStatus` needs."""

    on_reply_request: Callable[[], None]

    def send_standby_status(self, received_lsn: int, flush_lsn: int, *, reply_requested: bool = False) -> None: ...
    def silence_s(self) -> float:
        """Return the seconds since anything arrived, or 0 while reading is paused, as this side
        then causes the silence."""
        ...

    def fail(self, error: WalgateError) -> None: ...


class StandbyStatus:
    """The received and the flushed LSN of one connection, and the task (`run`) that reports them.

    `wal_sender_timeout_s` is the setting of the session. `silence_limit_s` is derived from it; one
    that is given holds until the flush LSN advances.
    """

    def __init__(
        self,
        link: Link,
        resume_lsn: Lsn,
        wal_sender_timeout_s: float,
        *,
        silence_limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = wal_sender_timeout_s / 3
        longest_s = min(_SILENCE * wal_sender_timeout_s, LONGEST_SILENCE_S)
        self._usual_limit_s = max(longest_s, SHORTEST_SILENCE_S)
        self.silence_limit_s = silence_limit_s or self._usual_limit_s
        self.received_lsn = resume_lsn
        self.flush_lsn = resume_lsn
        self._link = link
        self._clock = clock
        self._wake = asyncio.Event()
        self._due = True  # a status is due before the timer
        self._sent_at = -float("inf")
        self._asked_at: float | None = None  # since when a requested reply has been missing
        self._storm_since: float | None = None
        self._last_request_at = -float("inf")
        self._advanced_at = -float("inf")
        link.on_reply_request = self.reply_soon

    def receive(self, lsn: int) -> None:
        """Record that everything before `lsn` has been received. An LSN lower than an earlier one
        is ignored."""
        if lsn > self.received_lsn:
            self.received_lsn = Lsn(lsn)

    def acknowledge(self, lsn: int) -> None:
        """Record that everything before `lsn` is durable in Kafka and in the position topic. An LSN
        lower than an earlier one is ignored."""
        if lsn > self.flush_lsn:
            self.flush_lsn = Lsn(lsn)
            self.silence_limit_s = self._usual_limit_s
            self.receive(lsn)
            self._advanced_at = self._clock()
            self._send_soon()

    def send_now(self) -> None:
        """Send the last status before the connection is closed."""
        self._send(self._clock(), ask=False)

    def reply_soon(self) -> None:
        """Answer the server's request for a reply at once, even before `run` has begun. If the last
        status is too recent, `run` answers later."""
        now = self._clock()
        if now - self._last_request_at > _STORM_GAP_S:
            self._storm_since = now
        self._last_request_at = now
        if now - self._sent_at >= LEAST_INTERVAL_S:
            self._send(now, ask=False)
        else:
            self._send_soon()

    def _must_leave(self, now: float) -> bool:
        if self._storm_since is None or now - self._last_request_at > _STORM_GAP_S:
            return False
        return min(self._last_request_at - self._storm_since, now - self._advanced_at) >= LEAVE_AFTER_S

    def _send_soon(self) -> None:
        self._due = True
        self._wake.set()

    async def run(self) -> None:
        """Send statuses until cancelled, or until the connection is ended from this side."""
        while True:
            wait_s = self.step()
            if wait_s is None:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def step(self) -> float | None:
        """Do what is due now. Return the seconds until the next step, which may come sooner if the
        task is woken, or None if the connection was ended."""
        now = self._clock()
        silence_s = self._link.silence_s()
        half_s = self.silence_limit_s / 2
        if self._asked_at is not None and now - silence_s > self._asked_at:
            self._asked_at = None  # something has arrived since; this step may be late, so the silence may be a new one
        if silence_s < half_s:
            self._asked_at = None
        elif self._asked_at is not None and now - self._asked_at >= half_s:
            # The time counts from the gateway's request: if this process was stopped, or started
            # this task late, the silence is not the server's.
            self._link.fail(ServerSilent(silence_s, self.silence_limit_s))
            return None
        if self._must_leave(now):
            self._link.fail(Retry("PostgreSQL is shutting down, and changes that it sent are not yet durable in Kafka"))
            return None
        ask = silence_s >= half_s
        if self._due or now - self._sent_at >= self.interval_s or (ask and self._asked_at is None):
            early_s = self._sent_at + LEAST_INTERVAL_S - now
            if early_s > 0:
                return early_s
            if ask and self._asked_at is None:
                self._asked_at = now
            self._send(now, ask)
        to_silence_s = half_s - silence_s if self._asked_at is None else self._asked_at + half_s - now
        return max(min(self._sent_at + self.interval_s - now, to_silence_s), LEAST_INTERVAL_S / 10)

    def _send(self, now: float, ask: bool) -> None:
        self._due = False
        self._sent_at = now
        failpoint("before_standby_status")
        self._link.send_standby_status(self.received_lsn, self.flush_lsn, reply_requested=ask)
        failpoint("after_standby_status")
