"""The durable position of a slot, and its record. The record is the last one of every Kafka
transaction; with kafka.delivery = at_least_once, it is in a Kafka transaction of its own. It is
read at each start.

The key is `<system identifier>/<database>/<slot>` as UTF-8 text. This module is pure;
gateway/kafka/position_topic.py reads the topic.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError

from gateway.errors import StopForOperator
from gateway.events.manifest import Manifest
from gateway.transactions.transaction import Prepared, Quarantined
from schemas.errors import SchemaError
from schemas.lsn import Lsn
from schemas.markers import ExcludedRelation
from schemas.records import POSITION
from schemas.topic_names import POSITION_TOPIC
from schemas.used_schemas import UsedSchema
from schemas.wire_format import FRAME_BYTES, read_schema_id

_SCHEMA = fastavro.parse_schema(POSITION)
_START = Lsn(0)
_NOT_A_POSITION = (
    SchemaError,
    SchemaResolutionError,
    ValueError,
    IndexError,
    EOFError,
    KeyError,
    TypeError,
    OverflowError,
)
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap: changes that committed between the two LSNs were lost. The record has the same
    fields."""

    first_lsn: Lsn
    end_lsn: Lsn
    reason: str


@dataclass(frozen=True, slots=True)
class FailedPlace:
    """A failure of the server that occurred `times` times in a row, while the server read the WAL
    after `resume_lsn`. `cause` is an SQLSTATE or "crash", and `since` the time of the first
    failure. The record has the same fields."""

    cause: str
    resume_lsn: Lsn
    times: int
    since: str


@dataclass(frozen=True, slots=True)
class Position:
    """A slot's position.

    `state` is INTENT before the slot is created, then ACTIVE. `resume_lsn` is where replication
    starts again. `skip_lsn` is the commit LSN of the transaction to be left out, or 0 if there is
    none. `gap` is the newest gap.
    """

    system_identifier: str
    timeline: int
    database: str
    slot: str
    prefix: str
    publications: tuple[str, ...]
    version: str
    state: str = "INTENT"
    epoch: int = 0
    resume_lsn: Lsn = _START
    last_commit_lsn: Lsn = _START
    prepared: tuple[Prepared, ...] = ()
    skip_lsn: Lsn = _START
    quarantined: tuple[Quarantined, ...] = ()
    gap: Gap | None = None
    written_xid: int = 0
    """The transaction in which a Debezium connector stopped; `written_lsn` is the LSN of the last
    event that it wrote. Both are kept for good: no other transaction with this xid has rows before
    that LSN.
    """
    written_lsn: Lsn = _START
    content_lsn: Lsn = _START
    """Everything that was delivered comes from the WAL before this LSN. WAL from here to `resume_lsn`
    had nothing to deliver. It is after `resume_lsn` until replication has passed what a Debezium
    connector delivered. 0 if it is not known (an earlier release did not store it)."""
    failed_place: FailedPlace | None = None
    """The failure that was counted last when the epoch began."""
    set_back_lsn: Lsn = _START
    """The end of the WAL of a server that a start found in an earlier state than this position, or
    0. That server's WAL passes `resume_lsn` later, so that nothing but this shows the loss."""
    marked_lsn: Lsn = _START
    """The commit LSN of the newest marker that ends a transaction whose rows count. 0 if there is
    none, or if it is not known (an earlier release did not store it)."""
    newest_schema: UsedSchema | None = None
    """The schema with the highest id of those that the gateway has used. The registry must still have
    it. None if it is not known (an earlier release did not store it)."""
    schema_id: int = field(default=0, compare=False)
    """The id of the schema that the record was read with."""

    @property
    def key(self) -> bytes:
        return position_key(self.system_identifier, self.database, self.slot)

    def is_of_slot(self, key: bytes) -> bool:
        """Return whether `key` belongs to the same slot, perhaps under a former name of its
        database (ALTER DATABASE RENAME)."""
        return key.startswith(f"{self.system_identifier}/".encode()) and key.endswith(f"/{self.slot}".encode())


def position_key(system_identifier: str, database: str, slot: str) -> bytes:
    """Return the key of a slot's record in the position topic. The slot's keys in the snapshot
    topic begin with this key."""
    return f"{system_identifier}/{database}/{slot}".encode()


def encode_position(frame: bytes, position: Position) -> bytes:
    out = io.BytesIO()
    out.write(frame)
    fastavro.schemaless_writer(out, _SCHEMA, _as_record(position))
    return out.getvalue()


def position_schema_id(key: bytes, value: bytes) -> int:
    """Return the id of the schema that the record names. Raises StopForOperator."""
    try:
        return read_schema_id(value)
    except SchemaError as error:
        raise _not_a_position(key, error) from error


def decode_position(key: bytes, value: bytes, writer: Schema) -> Position:
    """Decode a position. `writer` is the schema that the record names. Raises StopForOperator if
    the record cannot be read: guessing a position would lose or duplicate rows."""
    schema_id = position_schema_id(key, value)
    try:
        source = io.BytesIO(value[FRAME_BYTES:])
        record: Any = fastavro.schemaless_reader(source, fastavro.parse_schema(writer), _SCHEMA)
        if source.read(1):
            raise ValueError("bytes left over")
        return replace(_from_record(record), schema_id=schema_id)
    except _NOT_A_POSITION as error:
        raise _not_a_position(key, error) from error


def _not_a_position(key: bytes, error: Exception) -> StopForOperator:
    return StopForOperator(
        f"the record of {POSITION_TOPIC} with the key {key.decode('utf-8', 'replace')} does not contain a resume LSN that "
        f"can be read: {type(error).__name__}",
        hint=f"if a newer version of the gateway wrote it, use that version. Otherwise {not_a_position_hint(key)}",
    )


def not_a_position_hint(key: bytes) -> str:
    return (
        f"another program wrote this record: send a record with the key {key.decode('utf-8', 'replace')} and a null value to "
        f"{POSITION_TOPIC} (docs/gap.md, Delete an unreadable record), set another kafka.prefix and "
        "source.adopt_slot = true, start the gateway, and take a new snapshot of the tables"
    )


def advance(
    position: Position,
    resume_lsn: int,
    last_commit_lsn: int,
    prepared: tuple[Prepared, ...],
    *,
    has_content: bool = True,
    marked_lsn: int = 0,
) -> Position:
    """Return the position after a Kafka transaction. `has_content`: it contains records or markers.
    `marked_lsn` is 0 if no commit of this session has a marker yet.
    `skip_lsn` is kept until replication has passed the transaction at this LSN, whose end LSN is
    higher."""
    is_changed = has_content or prepared != position.prepared
    return replace(
        position,
        resume_lsn=Lsn(resume_lsn),
        content_lsn=Lsn(max(resume_lsn if is_changed else 0, position.content_lsn or position.resume_lsn)),
        last_commit_lsn=Lsn(last_commit_lsn),
        prepared=prepared,
        skip_lsn=position.skip_lsn if position.skip_lsn >= resume_lsn else _START,
        failed_place=position.failed_place if resume_lsn == position.resume_lsn else None,
        marked_lsn=Lsn(marked_lsn) if marked_lsn else position.marked_lsn,
    )


def _as_record(position: Position) -> dict[str, Any]:
    return {
        "system_identifier": position.system_identifier,
        "timeline": position.timeline,
        "database": position.database,
        "slot": position.slot,
        "state": position.state,
        "epoch": position.epoch,
        "resume_lsn": int(position.resume_lsn),
        "last_commit_lsn": int(position.last_commit_lsn),
        "prepared": [
            {
                "gid": prepared.gid,
                "xid": prepared.xid,
                "prepare_lsn": int(prepared.prepare_lsn),
                "origin": prepared.origin,
                "manifest": _manifest_record(prepared.manifest),
            }
            for prepared in position.prepared
        ],
        "publications": list(position.publications),
        "prefix": position.prefix,
        "version": position.version,
        "skip_lsn": int(position.skip_lsn),
        "quarantined": [
            {
                "relation_oid": each.relation_oid,
                "schema": each.namespace,
                "name": each.name,
                "topic": each.topic,
                "reason": each.reason,
                "since_lsn": int(each.since_lsn),
            }
            for each in position.quarantined
        ],
        "gap": None if position.gap is None else asdict(position.gap),
        "written_xid": position.written_xid,
        "written_lsn": int(position.written_lsn),
        "content_lsn": int(position.content_lsn),
        "standstill": None if position.failed_place is None else asdict(position.failed_place),
        "set_back_lsn": int(position.set_back_lsn),
        "marked_lsn": int(position.marked_lsn),
        "newest_schema": None if position.newest_schema is None else asdict(position.newest_schema),
    }


def _manifest_record(manifest: Manifest) -> dict[str, Any]:
    return {
        "epoch": manifest.epoch,
        "event_count": manifest.event_count,
        "aborted_subxids": manifest.aborted_subxids,
        "schema_ids": manifest.schema_ids,
        "ranges": [
            {
                "topic": topic,
                "partition": partition,
                "first_offset": first_offset,
                "last_offset": last_offset,
                "record_count": record_count,
            }
            for (topic, partition), pieces in manifest.ranges.items()
            for first_offset, last_offset, record_count in pieces
        ],
        "excluded": [
            {
                "relation_oid": each.relation_oid,
                "schema": each.namespace,
                "name": each.name,
                "topic": each.topic,
                "event_count": each.event_count,
                "reason": each.reason,
            }
            for each in manifest.excluded
        ],
    }


def _gap(record: dict[str, Any] | None) -> Gap | None:
    return None if record is None else Gap(Lsn(record["first_lsn"]), Lsn(record["end_lsn"]), record["reason"])


def _failed_place(record: dict[str, Any] | None) -> FailedPlace | None:
    if record is None:
        return None
    return FailedPlace(record["cause"], Lsn(record["resume_lsn"]), record["times"], record["since"])


def _used_schema(record: dict[str, Any] | None) -> UsedSchema | None:
    return None if record is None else UsedSchema(record["id"], record["subject"], record["name"])


def _from_record(record: dict[str, Any]) -> Position:
    return Position(
        system_identifier=record["system_identifier"],
        timeline=record["timeline"],
        database=record["database"],
        slot=record["slot"],
        prefix=record["prefix"],
        publications=tuple(record["publications"]),
        version=record["version"],
        state=record["state"],
        epoch=record["epoch"],
        resume_lsn=Lsn(record["resume_lsn"]),
        last_commit_lsn=Lsn(record["last_commit_lsn"]),
        prepared=tuple(
            Prepared(
                entry["gid"],
                entry["xid"],
                entry["prepare_lsn"],
                entry["origin"],
                _manifest_from_record(entry["manifest"]),
            )
            for entry in record["prepared"]
        ),
        skip_lsn=Lsn(record["skip_lsn"]),
        quarantined=tuple(
            Quarantined(
                entry["relation_oid"],
                entry["schema"],
                entry["name"],
                entry["topic"],
                entry["reason"],
                Lsn(entry["since_lsn"]),
            )
            for entry in record["quarantined"]
        ),
        gap=_gap(record["gap"]),
        written_xid=record["written_xid"],
        written_lsn=Lsn(record["written_lsn"]),
        content_lsn=Lsn(record["content_lsn"]),
        failed_place=_failed_place(record["standstill"]),
        set_back_lsn=Lsn(record["set_back_lsn"]),
        marked_lsn=Lsn(record["marked_lsn"]),
        newest_schema=_used_schema(record["newest_schema"]),
    )


def _manifest_from_record(record: dict[str, Any]) -> Manifest:
    manifest = Manifest(
        record["epoch"], record["event_count"], list(record["aborted_subxids"]), list(record["schema_ids"])
    )
    for entry in record["ranges"]:
        manifest.ranges.setdefault((entry["topic"], entry["partition"]), []).append(
            (entry["first_offset"], entry["last_offset"], entry["record_count"])
        )
    manifest.excluded = [ExcludedRelation.of_record(entry) for entry in record["excluded"]]
    return manifest
