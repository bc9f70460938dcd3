"""The text that `walgate status` prints. All functions here are pure; `now` is what
`gateway.cli.status.load_status` returns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway.observe.status_types import TITLES
from gateway.startup.synchronous_standby import WAITED_FOR
from schemas.lsn import Lsn

UNKNOWN: Final = "state unknown"
_LISTED: Final = 12
_LOG: Final = (
    "if it ended by itself, the last lines of its log say why (after exit code 78, an operator must make a decision)"
)
_TOLD_S: Final = 3600.0
"""Seconds for which an error that is over is shown."""


def render(now: Mapping[str, Any]) -> str:
    return "\n".join(f"{name:<13} {text}".rstrip() for name, text in _lines(now))


def _lines(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "gateway", _state(now)
    yield from _obstacles(now)
    error = now["last_error"]
    if error:
        yield from _last_error(error, now["time"])
    for part in now["parts"]:
        yield TITLES[part["name"]].removeprefix("the schema "), _part(part, now["time"])
        if part["hint"] and not part["up"]:
            yield "", part["hint"]
    yield "lag", _lag(now)
    yield "delivered", _delivered(now)
    age = now["server_lsn_age_s"]
    yield "server", f"{Lsn(now['server_lsn'])}, read {_span(age)} ago" if now["server_lsn"] else "never reached"
    yield from _wal(now)
    yield from _gap(now)
    for cause in now["blockers"]:
        yield "waits for" if cause["blocks"] else "blocked by", _cause(cause, now["server_time"] or now["time"])
        yield "", cause["remedy"]
    for stream in now["streamed_transactions"]:
        yield (
            "in progress",
            (f"xid {stream['xid']}: {stream['event_count']:,} events in {_span(now['time'] - stream['since'])}"),
        )
    if now["prepared_transactions"]:
        yield "prepared", f"waiting for COMMIT PREPARED or ROLLBACK PREPARED: {now['prepared_transactions']}"
    yield from _mirrors(now)
    yield from _quarantine(now)
    yield from _snapshot(now)
    yield from _topics(now)
    yield from _schemas(now)


def _state(now: Mapping[str, Any]) -> str:
    of = f"slot {now['slot_name']} -> {now['prefix']}.*, epoch {now['epoch']}"
    waiting_for = now["waiting_for"]
    if not waiting_for:
        return f"{now['state']} for {_span(now['time'] - now['since'])}; {of}"
    since = now["waiting_since"]
    if waiting_for.startswith(UNKNOWN):
        return f"{waiting_for}; {of}"
    if now["state"] == "down":
        return f"NOT RUNNING: {waiting_for.removeprefix('a gateway: ')}; {of}"
    for_s = f" (for {_span(now['time'] - since)})" if since is not None and now["asked"] == "gateway" else ""
    return f"WAITING for {waiting_for}{for_s}; {of}"


def _obstacles(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the problems that would prevent a start, if they were looked for."""
    obstacles = now.get("obstacles")
    if obstacles is None:
        return
    for obstacle in obstacles:
        yield "would stop" if obstacle["outcome"] == "stops" else "would wait", obstacle["message"]
        yield from (("", line) for line in obstacle["remedy"].splitlines())
    if not obstacles:
        yield "", f"walgate check finds nothing that keeps it from starting: {_LOG}"


def _last_error(error: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    """Yield the last error. An error that has been over for long is only in the log and on the web
    page."""
    over_since = error["over_since"]
    if over_since is None:
        yield "last error", f"{error['kind']} at {_clock(error['time'])}: {error['message']}"
        if error["times"] > 1:
            yield "", f"{error['times']} times since {error['since']} at the resume LSN {Lsn(error['resume_lsn'])}"
        if error["hint"]:
            yield "", error["hint"]
    elif now - over_since < _TOLD_S:
        yield "last error", f"over since {_clock(over_since)}: {error['message']}"


def _part(part: Mapping[str, Any], now: float) -> str:
    at = f" at {part['address']}" if part["address"] else ""
    if part["up"] is None:
        return f"not queried yet{at}"
    if part["up"]:
        return f"answers{at}"
    return f"DOWN for {_span(now - part['since'])}{at}: {part['error']}"


def _lag(now: Mapping[str, Any]) -> str:
    seconds = now["lag_seconds"]
    if seconds is None:
        return "unknown: the server has not been reached"
    bound = "at least " if now["lag_is_at_least"] else "at most " if seconds and now["asked"] == "services" else ""
    size = f", {_size(now['lag_bytes'])} of WAL" if now["lag_bytes"] is not None else ""
    return f"{bound}{seconds:.1f} s{size}, {now['undelivered_transactions']:,} transactions received and not delivered"


def _delivered(now: Mapping[str, Any]) -> str:
    if not now["delivered_lsn"]:
        return "unknown"
    moment = now["last_commit_time"]
    at = f" at {_clock(moment)}" if moment else ""
    return f"{Lsn(now['delivered_lsn'])}; last commit {Lsn(now['last_commit_lsn'])}{at}"


def _wal(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    slot, wal = now["slot"], now["wal"]
    if slot is None:
        if now["server_lsn"]:
            yield "slot", f"{now['slot_name']} does not exist"
        return
    used = f"read by process {slot['active_pid']}" if slot["active_pid"] else "NOT IN USE"
    yield "slot", f"{slot['name']}: {used}, {slot['wal_status'] or '?'}, confirmed {Lsn(slot['confirmed_flush_lsn'])}"
    state = slot.get("sync_state", "")
    if state not in ("", "async"):
        waits = "waits" if state in WAITED_FOR else "may have to wait"
        yield "", f"SYNCHRONOUS STANDBY ({state}): each COMMIT of every database {waits} until Kafka has its changes"
        yield "", "change synchronous_standby_names: walgate check prints the statement"
    if wal is None:
        return
    rate = wal["bytes_per_s"]
    change = f"{'growing' if rate > 0 else 'shrinking'} by {_size(abs(rate))}/s" if rate else "not growing"
    text = f"{_size(wal['retained_bytes'])}, {change}"
    if wal["limit_bytes"] is not None:
        share = 100 * wal["retained_bytes"] / max(wal["limit_bytes"], 1)
        text += f": {share:.0f} % of {_size(wal['limit_bytes'])} ({wal['limit_by']})"
        if wal["seconds_to_full"] is not None:
            text += f", FULL in {_span(wal['seconds_to_full'])}"
    yield "WAL retained", text


def _cause(cause: Mapping[str, Any], now: float) -> str:
    if cause["kind"] == "slot":
        return f"slot {cause['name']} ({cause['state']}), which retains {_size(cause['retained_bytes'])} of WAL"
    prepared = cause["kind"] == "prepared"
    parts = [f"prepared transaction {cause['name']!r}" if prepared else f"process {cause['pid']}"]
    for title, name in (("user", "user"), ("application", "application"), ("database" if prepared else "", "state")):
        if cause[name]:
            parts.append(f"{title} {cause[name]}".strip())
    if cause["since"] is not None:
        since = ("at least " if cause.get("age_is_at_least") else "") + _span(now - cause["since"])
        parts.append(f"prepared {since} ago" if prepared else f"open for {since}")
    if cause["query_since"] is not None:
        parts.append(f"last statement began {_span(now - cause['query_since'])} ago")
    return ", ".join(parts)


def _gap(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gap = now["gap"]
    if gap:
        lost = f"changes between {Lsn(gap['first_lsn'])} and {Lsn(gap['end_lsn'])} were lost: {gap['reason']}"
        yield "last gap", f"{lost} (a new snapshot of the tables, taken after the gap, has their rows)"


def _mirrors(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in now["mirrors"]:
        yield "mirror", f"{each['url']}: {_mirror_state(each, now)}"
        if each["commit_lsn"]:
            at = f" ({_clock(each['commit_time'])})" if each["commit_time"] else ""
            merged = f", merged up to {Lsn(each['merged_lsn'])}" if each["merged_lsn"] else ""
            yield "", f"written up to {Lsn(each['commit_lsn'])}{at}{merged}, {_mirror_lag(each, now)}"
        if each["stale_tables"] or each["filling_tables"]:
            yield (
                "",
                f"tables: {each['stale_tables']} not up to date, {each['filling_tables']} with an unfinished snapshot",
            )
        if each["last_error"]:
            is_over = " (over)" if each["up"] and each["state"] == "running" else ""
            yield "", f"last error at {_clock(each['last_error_time'])}{is_over}: {each['last_error']}"


def _mirror_state(mirror: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if mirror["up"] is None:
        return "not queried yet"
    if not mirror["up"]:
        return f"HAS NOT ANSWERED for {_span(now['time'] - mirror['since'])}: {mirror['error']}"
    if mirror["prefix"] and mirror["prefix"] != now["prefix"]:
        return f"reads the prefix {mirror['prefix']}, not {now['prefix']}"
    return "running" if mirror["state"] == "running" else f"WAITING for {mirror['waits_for']}"


def _mirror_lag(mirror: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    seconds = mirror["lag_seconds"]
    if seconds is None:
        return "lag unknown"
    return f"{'at most ' if seconds and now['asked'] == 'services' else ''}{seconds:.1f} s behind Kafka"


def _quarantine(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in now["quarantined"][:_LISTED]:
        yield "quarantine", f"{each['table']}, since {Lsn(each['since_lsn'])}: {each['reason']}"
        table = shlex.quote(each["table"])
        load = f"walgate snapshot start {table}" if now["snapshot"] else "load the table again"
        yield "", f"once the cause is removed, run walgate readmit {table}, then {load}"
    yield from _more(now["quarantined"])


def _snapshot(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    snapshot = now["snapshot"]
    if not snapshot or not snapshot["left"]:
        return
    yield "snapshot", f"unfinished tables: {snapshot['left']}{', paused' if snapshot['paused'] else ''}"
    for each in snapshot["tables"][:_LISTED]:
        text = f"{each['table']}: {each['status'].lower()}, {each['purpose']}, {each['rows']:,} rows in {each['chunks']:,} chunks"
        yield "", text
    yield from _more(snapshot["tables"])


def _topics(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for number, topic in enumerate(now["topics"][:_LISTED]):
        text = (
            f"{topic['topic']}: {topic['records']:,} records, {_size(topic['bytes'])}, {topic['records_per_s']:,.0f}/s"
        )
        yield "topics" if number == 0 else "", text
    yield from _more(now["topics"])


def _schemas(now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    newest = {seen["relation"]: seen for seen in now["schemas"]}
    for number, (relation, seen) in enumerate(list(newest.items())[:_LISTED]):
        since = f", since {_clock(seen['time'])}" if seen["time"] else ""
        yield (
            "schemas" if number == 0 else "",
            f"{relation}: schema {seen['schema_id']}, {seen['columns']} columns{since}",
        )
    yield from _more(list(newest))


def _more(listed: list[Any]) -> Iterator[tuple[str, str]]:
    if len(listed) > _LISTED:
        yield "", f"and {len(listed) - _LISTED} more (--json has them)"


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
