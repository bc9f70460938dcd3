"""Is what Kafka holds exactly what PostgreSQL committed? Pure functions over what was read and what
is true.

    check(delivered, truth)         for a read_committed reader: nothing lost, doubled, torn, ghost, out of order
    check_attempts(delivered, truth) for read_uncommitted: every attempt at an event is the same event

A transaction is judged up to its first defect, so that one defect is one finding and not a cascade.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

from tests.exactly_once.defects import Defect, Finding
from tests.exactly_once.history import Logged, Statement, Truth
from tests.support.delivered import Delivered, Record
from tests.support.markers import Story, read_story

Identity = tuple[str, str, int | None, int | None]
"""(operation, topic, key, number of the transaction or None where the event does not carry it)"""


def check(delivered: Delivered, truth: Truth, *, prefix: str) -> list[Finding]:
    """Every finding; empty is what must be."""
    story = read_story(delivered.markers)
    findings = [*story.findings, *_check_places(delivered), *_check_positions(delivered, story)]
    rows = _rows_by_transaction(delivered.events)
    logged_by_xid = {logged.xid: logged for logged in truth.transactions}
    claimed: set[tuple[int, int]] = set()
    committed_xids: set[int] = set()
    for marker in story.committed:
        xid, manifest = marker.value["xid"], marker.value["manifest"]
        committed_xids.add(xid)
        claimed.add((xid, manifest["epoch"] if manifest else marker.value["epoch"]))
        finding = _check_transaction(marker, rows, logged_by_xid.get(xid), delivered.partition_counts, prefix)
        if finding is not None:
            findings.append(finding)
    findings += [
        Finding(Defect.LOST, f"transaction {logged.number} (xid {logged.xid}, {logged.shape}) has no marker")
        for logged in truth.transactions
        if logged.statements and logged.xid not in committed_xids
    ]
    findings += _check_unclaimed(rows, claimed)
    findings += _check_commit_order(delivered.events)
    findings += _check_messages(delivered.events, truth)
    return findings


def check_attempts(delivered: Delivered, truth: Truth) -> list[Finding]:
    """`delivered` was read with read_uncommitted: aborted Kafka transactions and abandoned attempts
    are in it."""
    commit_lsns = {logged.xid: logged.committed.commit_lsn for logged in truth.transactions if logged.committed}
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    findings = []
    for record in delivered.events:
        value = record.value
        if value["commit_lsn"] is None:
            continue
        if commit_lsns.get(value["xid"]) != value["commit_lsn"]:
            findings.append(Finding(Defect.GHOST, f"{_place(record)}: xid {value['xid']} never committed there"))
        identity = (record.topic, record.partition, record.key, value["commit_lsn"], value["ordinal"])
        content = {name: field for name, field in value.items() if name != "epoch"}
        if first.setdefault(identity, content) != content:
            findings.append(Finding(Defect.UNSTABLE, f"{_place(record)}: differs from an earlier attempt"))
    return findings


def _place(record: Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"


Rows = dict[tuple[int, int], list[Record]]


def _rows_by_transaction(events: Sequence[Record]) -> Rows:
    """By (xid, epoch); messages outside transactions (xid 0) are left out."""
    rows: Rows = defaultdict(list)
    for record in events:
        if record.value["xid"]:
            rows[record.value["xid"], record.value["epoch"]].append(record)
    return rows


# -- one transaction
# --------------------------------------------------------------------------------------------------


def _check_transaction(
    marker: Record, rows: Rows, logged: Logged | None, partition_counts: dict[str, int], prefix: str
) -> Finding | None:
    """The first defect of one committed transaction."""
    value = marker.value
    name = f"transaction {logged.number if logged else '?'} (xid {value['xid']}, {value['kind']})"
    manifest = value["manifest"]
    if manifest is None or manifest["event_count"] == 0:
        return Finding(Defect.MANIFEST, f"{name} has none")
    if manifest["epoch"] != value["epoch"] and value["kind"] != "COMMIT_PREPARED":
        return Finding(Defect.VOID, f"{name} of epoch {value['epoch']} counts rows of epoch {manifest['epoch']}")
    if logged is None:
        return Finding(Defect.GHOST, f"{name} was never committed")
    records = rows.get((value["xid"], manifest["epoch"]), [])
    for defect, what in _judge(marker, manifest, records, logged, partition_counts, prefix):
        return Finding(defect, f"{name}: {what}")
    return None


def _judge(
    marker: Record,
    manifest: dict[str, Any],
    records: list[Record],
    logged: Logged,
    partition_counts: dict[str, int],
    prefix: str,
) -> Iterator[tuple[Defect, str]]:
    yield from _judge_copies(records, partition_counts)
    yield from _judge_ranges(manifest, records)
    yield from _judge_counts(manifest, records)
    yield from _judge_lsns(marker, records, logged)
    yield from _judge_partition_order(records)
    yield from _judge_content(manifest, records, logged, prefix)


def _judge_copies(records: list[Record], partition_counts: dict[str, int]) -> Iterator[tuple[Defect, str]]:
    """An ordinal is one record, but: TRUNCATE has one in each partition, a changed key a DELETE
    under the old one."""
    by_ordinal: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_ordinal[record.value["ordinal"]].append(record)
    for ordinal, copies in by_ordinal.items():
        operations = Counter(copy.value["op"] for copy in copies)
        moved = any(_is_moved(copy.value) for copy in copies)
        if operations.keys() == {"TRUNCATE"}:
            partitions = Counter(copy.partition for copy in copies)
            if max(partitions.values()) > 1:
                yield Defect.DOUBLED, f"ordinal {ordinal}: TRUNCATE twice in one partition"
            if len(partitions) != partition_counts[copies[0].topic]:
                yield Defect.TORN, f"ordinal {ordinal}: TRUNCATE is not in every partition"
        elif moved:
            if max(operations.values()) > 1:
                yield Defect.DOUBLED, f"ordinal {ordinal}: {dict(operations)}"
            if operations.keys() != {"UPDATE", "DELETE"}:
                yield Defect.TORN, f"ordinal {ordinal}: a changed key has {dict(operations)}"
        elif len(copies) > 1:
            yield Defect.DOUBLED, f"ordinal {ordinal}: {dict(operations)}"


def _is_moved(value: dict[str, Any]) -> bool:
    """Either half of a changed key."""
    old = value.get("old_key") or value.get("before")
    return bool(value.get("key_change") or (value["op"] == "UPDATE" and old and old["id"] != value["after"]["id"]))


def _judge_ranges(manifest: dict[str, Any], records: list[Record]) -> Iterator[tuple[Defect, str]]:
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for record in records:
        offsets[record.topic, record.partition].append(record.offset)
    covered = 0
    newest: dict[tuple[str, int], int] = {}
    for one in sorted(manifest["ranges"], key=lambda one: (one["topic"], one["partition"], one["first_offset"])):
        place = (one["topic"], one["partition"])
        if one["last_offset"] < one["first_offset"] or one["first_offset"] <= newest.get(place, -1):
            yield Defect.MANIFEST, f"ranges of {place} overlap"
        newest[place] = one["last_offset"]
        found = sum(one["first_offset"] <= offset <= one["last_offset"] for offset in offsets[place])
        if found < one["record_count"]:
            yield Defect.TORN, f"{place} has {found} of {one['record_count']} records"
        if found > one["record_count"]:
            yield Defect.MANIFEST, f"{place} has {found} records, the manifest says {one['record_count']}"
        covered += found
    if covered != len(records):
        yield Defect.MANIFEST, f"{len(records) - covered} records lie outside the ranges"


def _judge_counts(manifest: dict[str, Any], records: list[Record]) -> Iterator[tuple[Defect, str]]:
    ordinals = sorted({record.value["ordinal"] for record in records})
    if len(ordinals) != manifest["event_count"] or ordinals != list(range(len(ordinals))):
        yield Defect.MANIFEST, f"event_count {manifest['event_count']}, but {len(ordinals)} ordinals"
    first_use: dict[int, int] = {}
    for record in records:
        ordinal = record.value["ordinal"]
        first_use[record.schema_id] = min(first_use.get(record.schema_id, ordinal), ordinal)
    if manifest["schema_ids"] != sorted(first_use, key=lambda schema_id: first_use[schema_id]):
        yield Defect.MANIFEST, f"schema_ids {manifest['schema_ids']}, used {first_use}"


def _judge_lsns(marker: Record, records: list[Record], logged: Logged) -> Iterator[tuple[Defect, str]]:
    value, committed = marker.value, logged.committed
    told = (value["marker_lsn"], value["time"]) if value["kind"] == "COMMIT" else (None, None)
    for record in records:
        if (record.value["commit_lsn"], record.value["commit_time"]) != told:
            yield Defect.LSN, f"{_place(record)} has another commit LSN or time than its marker"
        if value["kind"] == "COMMIT" and record.value["subxid"] != -1:
            yield Defect.LSN, f"{_place(record)} has a subxid outside a stream"
    if committed and (value["marker_lsn"], value["end_lsn"], value["time"]) != (
        committed.commit_lsn, committed.end_lsn, committed.commit_time,
    ):  # fmt: skip
        yield Defect.LSN, f"PostgreSQL says {committed}"
    newest = 0
    for record in sorted(records, key=lambda record: int(record.value["ordinal"])):
        if record.value["change_lsn"] < newest:
            yield Defect.LSN, f"{_place(record)} has a change LSN below that of the change before it"
        newest = record.value["change_lsn"]


def _judge_partition_order(records: list[Record]) -> Iterator[tuple[Defect, str]]:
    newest: dict[tuple[str, int], int] = {}
    for record in records:  # sorted by place and offset
        place = (record.topic, record.partition)
        if record.value["ordinal"] < newest.get(place, -1):
            yield Defect.ORDER, f"{_place(record)}: ordinal {record.value['ordinal']} after {newest[place]}"
        newest[place] = record.value["ordinal"]


def _judge_content(
    manifest: dict[str, Any], records: list[Record], logged: Logged, prefix: str
) -> Iterator[tuple[Defect, str]]:
    """Event by event against the log: a statement's changes come together, in any order among
    themselves."""
    aborted = set(manifest["aborted_subxids"])
    kept = sorted(
        {
            record.value["ordinal"]: record
            for record in sorted(
                records, key=lambda record: record.value["op"] == "UPDATE"
            )  # a moved row's UPDATE wins
            if record.value["subxid"] not in aborted
        }.items()
    )
    happened = [_identity(record) for _, record in kept]
    wanted = [_statement_identities(statement, logged.number, prefix) for statement in logged.statements]
    missing = Counter(one for group in wanted for one in group)
    missing.subtract(happened)
    if any(count > 0 for count in missing.values()):
        yield Defect.LOST, f"not delivered: {[one for one, count in missing.items() if count > 0][:3]}"
    if any(count < 0 for count in missing.values()):
        yield Defect.GHOST, f"not committed: {[one for one, count in missing.items() if count < 0][:3]}"
    start = 0
    for group in wanted:
        if Counter(happened[start : start + len(group)]) != Counter(group):
            yield Defect.ORDER, f"statement of {group[0]} is not where it happened"
        start += len(group)
    for _, record in kept:
        if not _value_holds(record):
            yield Defect.VALUE, _place(record)


def _identity(record: Record) -> Identity:
    value = record.value
    if value["op"] == "MESSAGE":
        return "MESSAGE", record.topic, None, int(value["content"])
    if value["op"] == "TRUNCATE":
        return "TRUNCATE", record.topic, None, None
    if value["op"] == "DELETE":
        gone = value["before"] or value["old_key"]
        return "DELETE", record.topic, gone["id"], None
    return value["op"], record.topic, value["after"]["id"], value["after"]["number"]


def _statement_identities(statement: Statement, number: int, prefix: str) -> list[Identity]:
    topic = f"{prefix}.{statement.relation}"
    if statement.operation == "MESSAGE":
        return [("MESSAGE", f"{prefix}.message", None, number)]
    if statement.operation == "TRUNCATE":
        return [("TRUNCATE", topic, None, None)]
    carried = None if statement.operation == "DELETE" else number
    return [(statement.operation, topic, key, carried) for key in statement.keys]


def _value_holds(record: Record) -> bool:
    """The workload writes `<number>/<key>/` and then filling into every row that it inserts."""
    value = record.value
    if value["op"] != "INSERT":
        return True
    return str(value["after"]["payload"]).startswith(f"{value['after']['number']}/{value['after']['id']}/")


# -- over all transactions
# ----------------------------------------------------------------------------------------------


def _check_places(delivered: Delivered) -> Iterator[Finding]:
    """Keys lie where librdkafka's `consistent` puts them; epochs never go back within a
    partition."""
    newest: dict[tuple[str, int], int] = {}
    for record in delivered.events:
        place = (record.topic, record.partition)
        if record.value["epoch"] < newest.get(place, 0):
            yield Finding(Defect.EPOCH, f"{_place(record)}: epoch {record.value['epoch']} after {newest[place]}")
        newest[place] = max(record.value["epoch"], newest.get(place, 0))
        if record.key is not None and crc32(record.key) % delivered.partition_counts[record.topic] != record.partition:
            yield Finding(Defect.KEY, _place(record))


def _check_positions(delivered: Delivered, story: Story) -> Iterator[Finding]:
    newest = (0, 0, 0)
    for record in delivered.positions:
        value = record.value
        place = (value["epoch"], value["resume_lsn"], value["last_commit_lsn"])
        if any(now < before for now, before in zip(place, newest, strict=True)):
            yield Finding(Defect.POSITION, f"{_place(record)}: {place} after {newest}")
        newest = place
    if not delivered.positions:
        return
    last = delivered.positions[-1].value
    if story.committed and last["last_commit_lsn"] < story.committed[-1].value["marker_lsn"]:
        yield Finding(Defect.POSITION, "the newest position is behind the newest commit marker")
    if story.committed and last["resume_lsn"] < story.committed[-1].value["end_lsn"]:
        yield Finding(Defect.POSITION, "the newest position starts again before the newest commit")
    told = {(one["gid"], one["xid"]) for one in last["prepared"] if one["manifest"]["event_count"]}
    if told != story.prepared.keys():
        yield Finding(Defect.POSITION, f"prepared {sorted(told)}, by the markers {sorted(story.prepared)}")


def _check_unclaimed(rows: Rows, claimed: set[tuple[int, int]]) -> Iterator[Finding]:
    """A record that says its transaction is committed must belong to one whose marker is there."""
    for (xid, epoch), records in rows.items():
        if (xid, epoch) not in claimed and any(record.value["commit_lsn"] is not None for record in records):
            yield Finding(Defect.TORN, f"{len(records)} committed records of xid {xid} epoch {epoch} without a marker")


def _check_messages(events: Iterable[Record], truth: Truth) -> Iterator[Finding]:
    """Logical messages outside transactions, which a rollback does not undo."""
    found = Counter(record.value["message_lsn"] for record in events if not record.value["xid"])
    wanted = Counter(truth.message_lsns)
    if lost := wanted - found:
        yield Finding(Defect.LOST, f"{lost.total()} messages outside transactions, the first at {min(lost):X}")
    for message_lsn in found - wanted:
        known = message_lsn in wanted
        yield Finding(Defect.DOUBLED if known else Defect.GHOST, f"message outside transactions at {message_lsn:X}")


def _check_commit_order(events: Iterable[Record]) -> Iterator[Finding]:
    newest: dict[tuple[str, int], int] = {}
    for record in events:
        commit_lsn = record.value["commit_lsn"]
        if commit_lsn is None:
            continue
        place = (record.topic, record.partition)
        if commit_lsn < newest.get(place, 0):
            yield Finding(Defect.ORDER, f"{_place(record)}: an earlier transaction after a later one")
        newest[place] = max(commit_lsn, newest.get(place, 0))
