"""Topics made by hand, without any fault, for the tests of the checker to break in one place
each."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from tests.exactly_once.history import Committed, Logged, Statement, Truth
from tests.support.delivered import Delivered, Record

PREFIX = "cdc"
TABLE = "work.plain"
TOPIC = f"{PREFIX}.{TABLE}"
PARTITIONS = 2
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass(slots=True)
class Handmade:
    """`delivered` and `truth` grow together; each method adds one transaction of two or three
    rows."""

    delivered: Delivered = field(
        default_factory=lambda: Delivered(partition_counts={TOPIC: PARTITIONS, f"{PREFIX}.message": 3})
    )
    truth: Truth = field(default_factory=Truth)
    epoch: int = 0
    lsn: int = 1000
    next_offset: dict[tuple[str, int], int] = field(default_factory=dict)

    def begin_epoch(self) -> None:
        self.epoch += 1
        self.marker("EPOCH", 0, self.lsn)
        self.position()

    def tick(self) -> int:
        self.lsn += 10
        return self.lsn

    def place(self, topic: str, partition: int) -> int:
        offset = self.next_offset.get((topic, partition), 0)
        self.next_offset[topic, partition] = offset + 1
        return offset

    def marker(self, kind: str, xid: int, marker_lsn: int, **fields: Any) -> Record:
        value = {
            "kind": kind, "xid": xid, "subxid": -1, "epoch": self.epoch, "marker_lsn": marker_lsn, "end_lsn": None,
            "time": None, "gid": None, "origin": None, "manifest": None,
        } | fields  # fmt: skip
        topic = f"{PREFIX}.transaction"
        record = Record(topic, 0, self.place(topic, 0), None, 1, value)
        self.delivered.markers.append(record)
        return record

    def position(self, **fields: Any) -> None:
        value = {
            "epoch": self.epoch, "resume_lsn": self.lsn + 1, "last_commit_lsn": self.lsn, "prepared": [],
        } | fields  # fmt: skip
        topic = "walgate.position"
        self.delivered.positions.append(Record(topic, 0, self.place(topic, 0), b"slot", 2, value))

    def event(self, operation: str, xid: int, ordinal: int, key: int, number: int, **fields: Any) -> Record:
        after = None if operation in ("DELETE", "TRUNCATE") else {
            "id": key, "number": number, "payload": f"{number}/{key}/x",
        }  # fmt: skip
        value = {
            "op": operation, "xid": xid, "subxid": -1, "epoch": self.epoch, "change_lsn": self.tick(), "ordinal": ordinal,
            "commit_lsn": None, "commit_time": None, "origin": None, "key_change": False,
            "old_key": {"id": key} if operation == "DELETE" else None, "before": None, "after": after,
            "unchanged": [], "special": {},
        } | fields  # fmt: skip
        raw_key = None if operation == "TRUNCATE" else f"key {key}".encode()
        partition = fields.pop("partition", 0) if raw_key is None else crc32(raw_key) % PARTITIONS
        value.pop("partition", None)
        record = Record(TOPIC, partition, self.place(TOPIC, partition), raw_key, 7, value)
        self.delivered.events.append(record)
        self.delivered.events.sort(key=lambda one: (one.topic, one.partition, one.offset))
        return record

    def manifest(self, records: list[Record], **fields: Any) -> dict[str, Any]:
        ranges = []
        for partition in sorted({record.partition for record in records}):
            offsets = [record.offset for record in records if record.partition == partition]
            ranges.append(
                {
                    "topic": TOPIC,
                    "partition": partition,
                    "first_offset": min(offsets),
                    "last_offset": max(offsets),
                    "record_count": len(offsets),
                }
            )
        return {
            "epoch": self.epoch,
            "event_count": len({record.value["ordinal"] for record in records}),
            "aborted_subxids": [],
            "schema_ids": [7],
            "ranges": ranges,
        } | fields

    def log(self, xid: int, number: int, *statements: Statement) -> Committed:
        commit_lsn = self.tick()
        committed = Committed(xid, commit_lsn, commit_lsn + 1, NOON + timedelta(seconds=number))
        self.truth.transactions.append(Logged(number, xid, statements, "handmade", committed))
        return committed

    def plain(self, xid: int, number: int) -> list[Record]:
        """BEGIN, INSERT of two keys and DELETE of the first, COMMIT."""
        first, second = number * 10, number * 10 + 1
        committed = self.log(
            xid, number, Statement(0, "INSERT", TABLE, (first, second)), Statement(1, "DELETE", TABLE, (first,))
        )
        told = {"commit_lsn": committed.commit_lsn, "commit_time": committed.commit_time}
        self.marker("BEGIN", xid, committed.commit_lsn, time=committed.commit_time)
        records = [
            self.event("INSERT", xid, 0, first, number, **told),
            self.event("INSERT", xid, 1, second, number, **told),
            self.event("DELETE", xid, 2, first, number, **told),
        ]
        self._commit("COMMIT", xid, committed, self.manifest(records))
        return records

    def truncating(self, xid: int, number: int) -> list[Record]:
        committed = self.log(xid, number, Statement(0, "TRUNCATE", TABLE))
        told = {"commit_lsn": committed.commit_lsn, "commit_time": committed.commit_time}
        self.marker("BEGIN", xid, committed.commit_lsn, time=committed.commit_time)
        change_lsn = self.tick()
        records = [
            self.event("TRUNCATE", xid, 0, 0, number, **told, change_lsn=change_lsn, partition=partition)
            for partition in range(PARTITIONS)
        ]
        self._commit("COMMIT", xid, committed, self.manifest(records))
        return records

    def moving(self, xid: int, number: int) -> list[Record]:
        """A changed key: an UPDATE under the new one and a DELETE under the old one, with one
        ordinal."""
        key = number * 10
        committed = self.log(xid, number, Statement(0, "UPDATE", TABLE, (key + 1,)))
        told = {"commit_lsn": committed.commit_lsn, "commit_time": committed.commit_time}
        self.marker("BEGIN", xid, committed.commit_lsn, time=committed.commit_time)
        records = [
            self.event("DELETE", xid, 0, key, number, **told, key_change=True),
            self.event("UPDATE", xid, 0, key + 1, number, **told, old_key={"id": key}),
        ]
        self._commit("COMMIT", xid, committed, self.manifest(records))
        return records

    def streamed(self, xid: int, number: int) -> list[Record]:
        """Two segments; the second one's row was rolled back with its savepoint."""
        key = number * 10
        records = []
        for ordinal, subxid in enumerate((-1, xid + 1)):
            self.marker("STREAM_START", xid, self.lsn)
            records.append(self.event("INSERT", xid, ordinal, key + ordinal, number, subxid=subxid))
            self.marker("STREAM_STOP", xid, self.lsn)
        self.marker("STREAM_ABORT", xid, self.lsn, subxid=xid + 1)
        committed = self.log(xid, number, Statement(0, "INSERT", TABLE, (key,)))
        self._commit("STREAM_COMMIT", xid, committed, self.manifest(records, aborted_subxids=[xid + 1]))
        return records

    def prepared(self, xid: int, number: int) -> list[Record]:
        """PREPARE, a new epoch, then COMMIT PREPARED with the same manifest."""
        key, gid = number * 10, f"gid {number}"
        self.marker("BEGIN_PREPARE", xid, self.lsn, gid=gid)
        records = [self.event("INSERT", xid, 0, key, number)]
        manifest = self.manifest(records)
        self.marker("PREPARE", xid, self.lsn, end_lsn=self.lsn + 1, gid=gid, manifest=manifest)
        self.position(prepared=[{"gid": gid, "xid": xid, "manifest": manifest}])
        self.begin_epoch()
        self.delivered.positions[-1].value["prepared"] = [{"gid": gid, "xid": xid, "manifest": manifest}]
        committed = self.log(xid, number, Statement(0, "INSERT", TABLE, (key,)))
        self._commit("COMMIT_PREPARED", xid, committed, manifest, gid=gid)
        return records

    def message(self) -> Record:
        """A logical message outside transactions."""
        message_lsn = self.tick()
        topic = f"{PREFIX}.message"
        value = {
            "op": "MESSAGE", "xid": 0, "subxid": -1, "epoch": self.epoch, "change_lsn": message_lsn, "ordinal": 0,
            "commit_lsn": None, "commit_time": None, "transactional": False, "message_lsn": message_lsn, "content": b"0",
        }  # fmt: skip
        record = Record(topic, 0, self.place(topic, 0), None, 3, value)
        self.delivered.events.insert(0, record)
        self.truth.message_lsns.append(message_lsn)
        self.position()
        return record

    def _commit(self, kind: str, xid: int, committed: Committed, manifest: dict[str, Any], **fields: Any) -> None:
        self.marker(
            kind, xid, committed.commit_lsn, end_lsn=committed.end_lsn, time=committed.commit_time, manifest=manifest,
            **fields,
        )  # fmt: skip
        self.position(resume_lsn=committed.end_lsn, last_commit_lsn=committed.commit_lsn)


def everything() -> Handmade:
    """One transaction of each shape, all correct."""
    made = Handmade()
    made.begin_epoch()
    made.plain(501, 1)
    made.streamed(502, 2)
    made.plain(504, 3)
    made.message()
    made.prepared(505, 4)
    made.truncating(506, 5)
    made.moving(507, 6)
    made.plain(508, 7)
    return made
