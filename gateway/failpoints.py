"""Named points at which a test can stop the gateway, each with a description of its step.

Failpoints are off unless this variable is set before the process starts:

    WALGATE_FAILPOINTS="before_commit:kill, batch_sent:delay=2:*, socket_read:raise:5"

One entry is `name:action[:nth]`. Actions: `kill` (SIGKILL to this process: nothing is flushed, no
handler runs), `stop` (SIGSTOP), `raise` (FailpointReached, a Retry) and `delay=SECONDS`, which
blocks the whole process. `nth` is the occurrence at which the failpoint acts, by default the first;
`*` means every occurrence.

If the variable is not set, a call costs one comparison (40 ns). There are failpoints at reads,
messages and transactions, never at rows.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from difflib import get_close_matches

from gateway.errors import Retry, StopForOperator

VARIABLE = "WALGATE_FAILPOINTS"

FAILPOINTS: dict[str, str] = {
    # starting
    "before_preflight": "Settings are read; the server has not been asked anything yet.",
    "after_preflight": "Server, slot and publications were checked.",
    "before_producer_start": "The Kafka producer is about to take the transactional id.",
    "after_producer_start": "An earlier gateway of this slot is fenced, its open transaction ended.",
    "before_position_read": "The position topic is about to be read.",
    "after_position_read": "The position is known.",
    "before_slot_intent": "The first start: the intent to make a slot is about to be written.",
    "after_slot_intent": "The intent is durable; the slot does not exist.",
    "before_slot_creation": "The slot is about to be made.",
    "after_slot_creation": "The slot exists; its position is not written yet.",
    "before_epoch_marker": "The new epoch's marker and position are about to be committed.",
    "after_epoch_marker": "The new epoch is durable.",
    "before_start_replication": "START_REPLICATION is about to be sent.",
    "after_start_replication": "The stream is open; nothing was read.",
    "gap_recorded": "The gap after an advance of the slot is durable in Kafka; nothing else knows of it.",
    # reading
    "socket_read": "Bytes came from the server; none of them is decoded.",
    "decoded": "Every frame of one read went through the state machine.",
    "reading_paused": "Too much is in flight: reading waits for Kafka.",
    "keepalive_received": "A keepalive came from the server.",
    # relations
    "before_catalog_query": "The types of a relation are about to be asked for.",
    "after_catalog_query": "The types of a relation are known.",
    "before_registry_call": "A schema is about to be registered.",
    "after_registry_call": "The schema is registered; nothing uses it yet.",
    "before_topic_creation": "A topic is missing and about to be made.",
    "after_topic_creation": "The topic exists; nothing is in it.",
    "relation_registered": "A relation's schema and topic are ready; the state machine has not heard of it.",
    # transactions
    "begin_received": "A transaction began in the state machine.",
    "commit_received": "A transaction ended in the state machine; its marker is owed.",
    "stream_start_received": "A segment of an in-progress transaction began.",
    "stream_stop_received": "A segment of an in-progress transaction ended.",
    "stream_commit_received": "An in-progress transaction was committed.",
    "stream_abort_received": "An in-progress transaction, or a subtransaction of it, was rolled back.",
    "prepare_received": "A transaction was prepared.",
    "stream_prepare_received": "An in-progress transaction was prepared.",
    "commit_prepared_received": "A prepared transaction was committed.",
    "rollback_prepared_received": "A prepared transaction was rolled back.",
    "truncate_received": "A TRUNCATE was turned into records.",
    "logical_message_received": "A logical decoding message was turned into a record.",
    # a snapshot
    "snapshot_mark_emitted": "The message that begins or ends tables is written; its transaction is not committed.",
    "chunk_locked": "A reader has locked its table; it has no snapshot.",
    "chunk_snapshot_taken": "A chunk's snapshot is taken and known to the judge; nothing was read.",
    "chunk_read": "A chunk's rows are in memory.",
    "chunk_emitted": "A chunk's message is written; its transaction is not committed.",
    "chunk_committed": "A chunk's transaction is committed; the stream has perhaps not brought it.",
    "chunk_handed_over": "Rows, or a bound, of a snapshot are in their place in the stream, before the end of their transaction.",
    # one Kafka transaction
    "transaction_closed": "A Kafka transaction is closed: its rows, markers and position are settled.",
    "transaction_begun": "The Kafka transaction is open; nothing was sent.",
    "batch_sent": "A batch of rows was handed to the producer.",
    "batch_acked": "The broker acknowledged a batch of rows.",
    "all_acked": "Every row of the Kafka transaction is acknowledged.",
    "markers_built": "The manifests are complete and the markers encoded.",
    "markers_sent": "Markers and position were handed to the producer.",
    "position_sent": "Markers and position are acknowledged; the Kafka transaction is not committed.",
    "before_commit": "The Kafka transaction is about to be committed.",
    "after_commit": "The Kafka transaction is committed; PostgreSQL was not told.",
    # confirming to PostgreSQL
    "flush_lsn_moved": "A committed position became the flush LSN; no standby status carried it yet.",
    "before_standby_status": "A standby status is about to be written to the socket.",
    "after_standby_status": "A standby status was written to the socket.",
    "before_idle_advance": "Nothing is pending: a keepalive's LSN is about to be made durable as the position.",
    "after_idle_advance": "A keepalive's LSN is durable as the position; PostgreSQL was not told.",
    "before_periodic_check": "Slot and publications are about to be checked while the stream runs.",
    "after_periodic_check": "Slot and publications were checked while the stream runs.",
    # ending
    "producer_abandoned": "A producer with a failed or unknown result was given up.",
    "reconnect": "Everything was given up; a new attempt is about to start.",
    "shutdown_requested": "SIGTERM or SIGINT came.",
    "shutdown_drained": "What was read is committed; the connection is still open.",
}


class FailpointReached(Retry):
    """A failpoint with the action `raise` was reached."""


@dataclass(slots=True)
class _Armed:
    action: str
    delay_s: float
    nth: int | None
    """The occurrence at which the failpoint acts, or None for every occurrence."""
    reached_count: int = 0


def failpoint(name: str) -> None:
    """Perform the action of the failpoint `name` if it is armed. Raises FailpointReached if the
    action is `raise`."""
    if _armed is not None:
        _reach(name)


def parse_failpoints(text: str) -> dict[str, _Armed] | None:
    """Return the entries of the variable by name, or None if there are none. Raises StopForOperator
    if the text is invalid."""
    armed: dict[str, _Armed] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = entry.partition(":")
        action, _, nth = rest.partition(":")
        if name not in FAILPOINTS:
            near = get_close_matches(name, FAILPOINTS, 1, 0.0)
            raise StopForOperator(f"{VARIABLE}: no failpoint {name!r}", hint=f"did you mean {near[0]!r}?")
        armed[name] = _parse_action(entry, action, nth)
    return armed or None


def _parse_action(entry: str, action: str, nth: str) -> _Armed:
    action, _, seconds = action.partition("=")
    try:
        if action not in ("kill", "stop", "raise", "delay") or (action == "delay") != bool(seconds):
            raise ValueError(action)
        count = None if nth == "*" else int(nth or "1")
        if count is not None and count < 1:
            raise ValueError(nth)
        return _Armed(action, float(seconds or "0"), count)
    except ValueError as error:
        raise StopForOperator(
            f"{VARIABLE}: {entry!r} is not valid",
            hint="use name:action[:nth], where action is kill, stop, raise or delay=SECONDS, and nth is * or a number of at "
            "least 1",
        ) from error


def _reach(name: str) -> None:
    assert _armed is not None
    if name not in FAILPOINTS:
        raise LookupError(f"failpoint {name!r} is not in the list")
    point = _armed.get(name)
    if point is None:
        return
    point.reached_count += 1
    if point.nth not in (None, point.reached_count):
        return
    if point.action == "raise":
        raise FailpointReached(f"failpoint {name} was reached (occurrence {point.reached_count})")
    if point.action == "delay":
        time.sleep(point.delay_s)
    else:
        os.kill(os.getpid(), signal.SIGKILL if point.action == "kill" else signal.SIGSTOP)


_armed = parse_failpoints(os.environ.get(VARIABLE, ""))
