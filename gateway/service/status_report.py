"""`walgate status`: the gateway's own snapshot where it answers, else the same asked of PostgreSQL and Kafka directly.

Without a gateway there is no stream to tell which of the WAL is ours: the lag then counts from the commit that was delivered
last, and is an upper bound.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway.kafka.last_commit import last_commit
from gateway.kafka.position_topic import read_positions
from gateway.lsn import Lsn
from gateway.operate.errors import WalgateError
from gateway.operate.health import ask_status
from gateway.operate.lag import Progress
from gateway.operate.settings import Settings
from gateway.operate.status import TITLES, Board, Counts
from gateway.replication.connection import connect_sql
from gateway.replication.holders import holders, read_clock, slot_status
from gateway.replication.password import login_of
from gateway.service.monitor import wal_held
from gateway.service.schema_errors import classified_schema_errors
from gateway.service.stream_status import gap_seen
from gateway.transactions.position import Position, decode_position
from schemas.framing import read_schema_id
from schemas.names import POSITION_TOPIC, transaction_topic, value_subject
from schemas.registry import RegistryClient

_TIMEOUT_S: Final = 8.0
_LISTED_TOPICS: Final = 12
WATCH_S: Final = 2.0


async def load_status(settings: Settings) -> dict[str, Any]:
    """The fields of `Snapshot`, and `asked`: "gateway", or "servers" where no gateway answers."""
    port = settings.http.port
    if port:
        host = "127.0.0.1" if settings.http.host in ("0.0.0.0", "") else settings.http.host
        found = await asyncio.to_thread(ask_status, host, port)
        if found is not None:
            return {**found, "asked": "gateway"}
    return {**(await _ask_servers(settings)), "asked": "servers"}


def show_status(settings: Settings, *, watch: bool, as_json: bool) -> int:
    """Print it, with `watch` again and again; the exit code."""
    before: dict[str, Any] | None = None
    while True:
        now = asyncio.run(load_status(settings))
        if as_json:
            print(json.dumps(now), flush=True)
        else:
            clear = "\x1b[H\x1b[J" if watch and sys.stdout.isatty() else ""
            print(f"{clear}{render(now, before)}", flush=True)
        if not watch:
            return 1 if now["waiting_for"] else 0
        before = now
        time.sleep(WATCH_S)


async def _ask_servers(settings: Settings) -> dict[str, Any]:
    board = Board(slot_name=settings.source.slot, prefix=settings.kafka.prefix)
    board.is_down()
    async with asyncio.TaskGroup() as group:
        group.create_task(_ask_postgresql(settings, board))
        reading = group.create_task(_ask_kafka(settings, board))
    positions = await reading
    position = await _ask_registry(settings, board, positions)
    commit = None
    if position is not None:
        try:
            commit = await last_commit(settings.kafka, transaction_topic(position.prefix), _TIMEOUT_S)
        except WalgateError as error:
            board.part_is_down("kafka", error)
        _show_position(board, position, commit)
    pid = board.slot.active_pid if board.slot else None
    board.wait_for(
        f"nothing that is known here: a gateway reads the slot as process {pid}, but http.port is not set or it does not answer"
        if pid
        else "a gateway: none reads the slot"
    )
    return board.snapshot().as_json()


async def _ask_postgresql(settings: Settings, board: Board) -> None:
    try:
        sql = await connect_sql(login_of(settings.source), timeout_s=_TIMEOUT_S)
        try:
            server_time, lsn = await read_clock(sql, _TIMEOUT_S)
            board.wal.note(lsn, server_time, time.monotonic())
            slot = board.slot = await slot_status(sql, settings.source.slot)
            if slot is not None and slot.restart_lsn:
                board.held = wal_held(slot, max(lsn - slot.restart_lsn, 0), 0.0, settings.source.wal_budget_bytes)
            board.holders = await holders(sql, settings.source.slot)
        finally:
            sql.terminate()
        board.part_is_up("postgresql")
    except WalgateError as error:
        board.part_is_down("postgresql", error)


async def _ask_kafka(settings: Settings, board: Board) -> dict[bytes, bytes]:
    try:
        values, _ = await read_positions(settings.kafka, POSITION_TOPIC, _TIMEOUT_S)
        board.part_is_up("kafka", settings.kafka.bootstrap_servers)
        return values
    except WalgateError as error:
        board.part_is_down("kafka", error, settings.kafka.bootstrap_servers)
        return {}


async def _ask_registry(settings: Settings, board: Board, values: Mapping[bytes, bytes]) -> Position | None:
    """The position of our slot: the key ends with its name, the server's identity is not known while PostgreSQL is down."""
    registry = settings.registry
    suffix = f"/{settings.source.slot}".encode()
    try:
        with classified_schema_errors():
            client = RegistryClient(
                registry.url,
                username=registry.username,
                password=registry.password.get_secret_value() if registry.password else None,
                ca_file=registry.ca_file,
                timeout_s=_TIMEOUT_S,
            )
            try:
                await client.latest(value_subject(POSITION_TOPIC))
                board.part_is_up("registry", registry.url)
                for key, value in values.items():
                    if key.endswith(suffix):
                        position = decode_position(value, await client.schema(read_schema_id(value)))
                        if position.prefix == settings.kafka.prefix:
                            return position
            finally:
                await client.close()
    except WalgateError as error:
        board.part_is_down("registry", error, registry.url)
    return None


def _show_position(board: Board, position: Position, commit: tuple[int, float] | None) -> None:
    lsn, moment = commit if commit is not None else (int(position.last_commit_lsn), None)
    board.epoch, board.gap = position.epoch, gap_seen(position)
    progress = Progress(
        received_lsn=position.resume_lsn,
        delivered_lsn=position.resume_lsn,
        last_commit_lsn=lsn,
        last_commit_time=moment,
    )
    board.watch(lambda: progress, lambda: Counts(prepared=len(position.prepared)))


# -- for people ----------------------------------------------------------------------------------------------------------


def render(now: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """`before`: an earlier one, for rates."""
    return "\n".join(f"{name:<13} {text}".rstrip() for name, text in _lines(now, before))


def _lines(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    yield "gateway", _state(now)
    error = now["last_error"]
    if error:
        yield "last error", f"{error['kind']} at {_clock(error['time'])}: {error['message']}"
        if error["hint"]:
            yield "", error["hint"]
    for part in now["parts"]:
        yield TITLES[part["name"]].removeprefix("the schema "), _part(part, now["time"])
        if part["hint"] and not part["up"]:
            yield "", part["hint"]
    yield "lag", _lag(now)
    yield "delivered", _delivered(now)
    age = now["server_lsn_age_s"]
    yield "server", f"{Lsn(now['server_lsn'])}, read {_span(age)} ago" if now["server_lsn"] else "never reached"
    yield from _wal(now)
    gap = now["gap"]
    if gap:
        yield "last gap", f"{Lsn(gap['first_lsn'])} to {Lsn(gap['end_lsn'])} is lost: {gap['reason']}"
    for holder in now["holders"]:
        yield "waits for" if holder["blocks"] else "held back by", _holder(holder, now["server_time"] or now["time"])
        yield "", holder["remedy"]
    for stream in now["open_streams"]:
        yield (
            "open stream",
            (f"xid {stream['xid']}: {stream['event_count']:,} events in {_span(now['time'] - stream['since'])}"),
        )
    if now["prepared_transactions"]:
        yield "prepared", f"{now['prepared_transactions']} transactions wait for COMMIT PREPARED or ROLLBACK PREPARED"
    yield from _topics(now, before)


def _state(now: Mapping[str, Any]) -> str:
    of = f"slot {now['slot_name']} -> {now['prefix']}.*, epoch {now['epoch']}"
    if not now["waiting_for"]:
        return f"{now['state']} for {_span(now['time'] - now['since'])}; {of}"
    since = now["waiting_since"]
    for_s = f" for {_span(now['time'] - since)}" if since is not None and now["asked"] == "gateway" else ""
    return f"WAITS{for_s} for {now['waiting_for']}; {of}"


def _part(part: Mapping[str, Any], now: float) -> str:
    at = f" at {part['address']}" if part["address"] else ""
    if part["up"] is None:
        return f"not asked yet{at}"
    if part["up"]:
        return f"answers{at}"
    return f"DOWN for {_span(now - part['since'])}{at}: {part['error']}"


def _lag(now: Mapping[str, Any]) -> str:
    seconds = now["lag_seconds"]
    if seconds is None:
        return "not known: the server was never reached"
    bound = "at least " if now["lag_is_at_least"] else "at most " if seconds and now["asked"] == "servers" else ""
    size = f", {_size(now['lag_bytes'])} of WAL" if now["lag_bytes"] is not None else ""
    return f"{bound}{seconds:.1f} s{size}, {now['undelivered_transactions']:,} transactions received and not delivered"


def _delivered(now: Mapping[str, Any]) -> str:
    if not now["delivered_lsn"]:
        return "nothing is known"
    moment = now["last_commit_time"]
    at = f" of {_clock(moment)}" if moment else ""
    return f"{Lsn(now['delivered_lsn'])}; last commit {Lsn(now['last_commit_lsn'])}{at}"


def _wal(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    slot, wal = now["slot"], now["wal"]
    if slot is None:
        if now["server_lsn"]:
            yield "slot", f"{now['slot_name']} does not exist"
        return
    used = f"read by process {slot['active_pid']}" if slot["active_pid"] else "NOT IN USE"
    yield "slot", f"{slot['name']}: {used}, {slot['wal_status'] or '?'}, confirmed {Lsn(slot['confirmed_flush_lsn'])}"
    if wal is None:
        return
    text = f"{_size(wal['held_bytes'])}, {_size(wal['bytes_per_s'])}/s"
    if wal["limit_bytes"] is not None:
        share = 100 * wal["held_bytes"] / max(wal["limit_bytes"], 1)
        text += f": {share:.0f} % of {_size(wal['limit_bytes'])} ({wal['limit_by']})"
        if wal["seconds_to_full"] is not None:
            text += f", FULL in {_span(wal['seconds_to_full'])}"
    yield "WAL held", text


def _holder(holder: Mapping[str, Any], now: float) -> str:
    if holder["kind"] == "slot":
        return f"slot {holder['name']} ({holder['state']}), which holds {_size(holder['held_bytes'])} of WAL"
    prepared = holder["kind"] == "prepared"
    parts = [f"prepared transaction {holder['name']!r}" if prepared else f"process {holder['pid']}"]
    for title, name in (("user", "user"), ("application", "application"), ("database" if prepared else "", "state")):
        if holder[name]:
            parts.append(f"{title} {holder[name]}".strip())
    if holder["since"] is not None:
        parts.append(f"open for {_span(now - holder['since'])}")
    if holder["query_since"] is not None:
        parts.append(f"last statement began {_span(now - holder['query_since'])} ago")
    return ", ".join(parts)


def _topics(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    earlier = {topic["topic"]: topic for topic in before["topics"]} if before else {}
    seconds = now["time"] - before["time"] if before else 0.0
    for number, topic in enumerate(now["topics"][:_LISTED_TOPICS]):
        text = f"{topic['topic']}: {topic['records']:,} records, {_size(topic['bytes'])}"
        if seconds > 0:
            text += f", {(topic['records'] - earlier.get(topic['topic'], {'records': 0})['records']) / seconds:,.0f}/s"
        yield "topics" if number == 0 else "", text
    if len(now["topics"]) > _LISTED_TOPICS:
        yield "", f"and {len(now['topics']) - _LISTED_TOPICS} more (--json has them)"


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(seconds, 0.0):.1f} s"


def _size(count: float) -> str:
    for size, name in ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if abs(count) >= size:
            return f"{count / size:.1f} {name}"
    return f"{count:.0f} B"
