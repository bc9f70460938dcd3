"""The tables that a reader makes of the topics, as docs/topics.md says, and what the source has:
for comparing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import asyncpg

from tests.support.delivered import Delivered, Record

COMMITTING = ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED")
Row = tuple[tuple[str, Any], ...]
FRAME_BYTES = 5
offset_of = attrgetter("offset")


class Missing:
    """A TOASTed value that no record had yet."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(slots=True)
class Target:
    """`tables`: topic -> key -> row; of a topic without keys: topic -> rows. `complete`: topics
    with a SNAPSHOT_END; `purposes`: those of the last one."""

    tables: dict[str, dict[bytes, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    keyless: dict[str, Counter[Row]] = field(default_factory=lambda: defaultdict(Counter))
    complete: set[str] = field(default_factory=set)
    purposes: dict[str, str] = field(default_factory=dict)
    read_count: Counter[str] = field(default_factory=Counter)
    chunk_count: Counter[str] = field(default_factory=Counter)
    stale_count: Counter[str] = field(default_factory=Counter)
    begin_count: Counter[str] = field(default_factory=Counter)
    is_whole_done: bool = False
    whole_begun: set[str] = field(default_factory=set)
    """Ids of the snapshots as a whole that have a SNAPSHOT_BEGIN."""
    _met: dict[str, set[bytes]] = field(default_factory=dict)

    def apply(self, delivered: Delivered) -> None:
        by_place: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for event in delivered.events:
            by_place[event.topic, event.partition].append(event)
        last_lsn = -1
        for marker in delivered.markers:
            value = marker.value
            if value["kind"] in ("SNAPSHOT_BEGIN", "SNAPSHOT_END"):
                self._bound(value["kind"], value["manifest"]["snapshot"])
            elif value["kind"] in COMMITTING:
                assert value["marker_lsn"] > last_lsn
                last_lsn = value["marker_lsn"]
                self._transaction(value, by_place)

    def _bound(self, kind: str, chunk: dict[str, Any]) -> None:
        topic = chunk["topic"]
        if not chunk["relation_oid"]:
            self.is_whole_done = kind == "SNAPSHOT_END"
            if kind == "SNAPSHOT_BEGIN":
                self.whole_begun.add(chunk["snapshot_id"])
            assert chunk["snapshot_id"] in self.whole_begun, "a snapshot as a whole ended that had not begun"
        elif kind == "SNAPSHOT_BEGIN":
            self.begin_count[topic] += 1
            self._met[topic] = set()
        else:
            self.complete.add(topic)
            self.purposes[topic] = chunk["purpose"]
            met = self._met.pop(topic)
            if chunk["purpose"] == "REPLACE":
                self.tables[topic] = {key: row for key, row in self.tables[topic].items() if key in met}

    def _transaction(self, marker: dict[str, Any], by_place: dict[tuple[str, int], list[Record]]) -> None:
        manifest = marker["manifest"]
        events: dict[int, Record] = {}
        old_keys: dict[int, bytes] = {}
        for found in manifest["ranges"]:
            place = by_place[found["topic"], found["partition"]]
            first = bisect_left(place, found["first_offset"], key=offset_of)
            end = bisect_right(place, found["last_offset"], key=offset_of)
            records = [
                record
                for record in place[first:end]
                if (record.value["xid"], record.value["epoch"]) == (marker["xid"], manifest["epoch"])
            ]
            assert len(records) == found["record_count"], (marker, len(records))
            for record in records:
                if record.value["subxid"] in manifest["aborted_subxids"]:
                    continue
                if record.value.get("key_change"):
                    assert record.key is not None
                    old_keys[record.value["ordinal"]] = record.key[FRAME_BYTES:]
                else:
                    events[record.value["ordinal"]] = record
        chunk = manifest["snapshot"]
        if chunk is not None:
            assert chunk["row_count"] == len(events), chunk
            self.read_count[chunk["topic"]] += chunk["row_count"]
            self.chunk_count[chunk["topic"]] += 1
            self.stale_count[chunk["topic"]] += chunk["stale_count"]
            self.keyless.pop(chunk["topic"], None)
        for ordinal, record in sorted(events.items()):
            if "after" in record.value:
                self._event(record, old_keys.get(ordinal))

    def _event(self, record: Record, old_key: bytes | None) -> None:
        """`old_key`: where the key was changed."""
        value, topic, key = record.value, record.topic, record.key
        if value["op"] == "TRUNCATE":
            self.tables.pop(topic, None)
            self.keyless.pop(topic, None)
        elif key is None:
            self._keyless(topic, value)
        else:
            key = key[FRAME_BYTES:]
            old_key = old_key or key
            table = self.tables[topic]
            met = self._met.get(topic)
            if met is not None:
                met |= {key, old_key}
            before = table.pop(old_key, {})
            if value["op"] != "DELETE":
                row = dict(value["after"])
                for name in value["unchanged"]:
                    if not name.startswith("before."):
                        row[name] = (value["before"] or before).get(name, MISSING)
                table[key] = row

    def _keyless(self, topic: str, value: dict[str, Any]) -> None:
        rows = self.keyless[topic]
        if value["op"] in ("UPDATE", "DELETE"):
            before = as_row(value["before"])
            rows[before] -= 1
            if not rows[before]:
                del rows[before]
        if value["op"] != "DELETE":
            after = dict(value["after"])
            for name in value["unchanged"]:
                if not name.startswith("before."):
                    after[name] = value["before"][name]
            rows[as_row(after)] += 1


def as_row(values: dict[str, Any]) -> Row:
    return tuple(values.items())


async def differences(
    sql: asyncpg.Connection, target: Target, topic: str, query: str, *, keyed: bool = True
) -> list[str]:
    """What is wrong in the target, by rows of `query`: its columns are the table's, in order."""
    truth = Counter(as_row(dict(row)) for row in await sql.fetch(query))
    rows = Counter(map(as_row, target.tables[topic].values())) if keyed else Counter(+target.keyless[topic])
    missing, surplus = list((truth - rows).elements()), list((rows - truth).elements())
    if not missing and not surplus:
        return []
    return [f"{topic}: {len(missing)} missing {missing[:3]}, {len(surplus)} surplus {surplus[:3]}"]
