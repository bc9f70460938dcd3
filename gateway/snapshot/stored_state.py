"""The durable state of snapshots: records of the topic walgate.snapshot. They are written in the
Kafka transaction of the rows that they describe. With kafka.delivery = at_least_once, they are
written after the rows and together with the position.

There is one record for the stream. Each table has one record for its snapshot, and one for the
catalog entries and files that its rows depend on. It also has one for each segment of keys that
must be read again. A Kafka transaction therefore need not write the state of all tables, of which
there may be 10,000. The records of dropped relations are removed. The schema of the records is
schemas/records/SnapshotState.avsc.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError

from gateway.errors import StopForOperator
from gateway.snapshot.rules.published_content import Account, LeafContent, Membership, PublishedContent, TypeVersion
from gateway.snapshot.rules.ranges_to_read import TidRange
from schemas.errors import SchemaError
from schemas.records import SNAPSHOT_STATE
from schemas.topic_names import SNAPSHOT_TOPIC
from schemas.wire_format import FRAME_BYTES, read_schema_id

_SCHEMA: Final = fastavro.parse_schema(SNAPSHOT_STATE)

_MALFORMED: Final = (ValueError, IndexError, EOFError, KeyError, TypeError, OverflowError)
Schema = dict[str, Any]

# The purposes of a table's snapshot:
#
#     FILL      consumers add the rows to those that they have
#     REPLACE   consumers also delete the rows that the source no longer has
#     VERIFY    consumers only compare the rows with their own
#     RESELECT  only rows whose UPDATEs left values out are read, without SNAPSHOT_BEGIN and END
RESELECT: Final = "RESELECT"
"""Purpose of reading only the rows whose UPDATEs left values out, by their keys."""
NOT_TO_BE_READ: Final = "KNOWN"
"""Status of a table whose rows are not to be read although its snapshot is not DONE. The table was
published before the gateway took snapshots or while snapshot.mode was not initial, its snapshot was
cancelled, or it is in quarantine. A command still reads the table; so does Discovery, if its rows
may have changed without an event. The stored value keeps its old name, KNOWN."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """The stored state of the stream. `floor` and `unseen` (see StalenessJudge) are valid while
    `is_active`. `has_unwatched`: since the last check of the catalog, a session that takes no
    snapshots has delivered changes. Consumers may have rows of tables that no check has found.
    `first_dropped` and `last_dropped`: see `WholeSnapshot.may_reuse`."""

    floor: int = 0
    unseen: tuple[int, ...] = ()
    is_active: bool = False
    snapshot_id: str = ""
    paused: bool = False
    has_unwatched: bool = False
    first_dropped: int = 0
    last_dropped: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """The stored state of the snapshot of one table. `untouched` and `begun`: see CtidPlan.
    `fingerprint`: the fingerprint of the relation when it was begun; for a RESELECT, its
    `identity_of`. `suspects`: see KeyTrack; only prepared transactions are stored."""

    relation_oid: int
    schema: str
    name: str
    snapshot_id: str
    purpose: str = "FILL"
    status: str = "WAITING"
    fingerprint: str = ""
    untouched: int = 0
    begun: tuple[TidRange, ...] = ()
    suspects: tuple[int, ...] = ()
    chunk_count: int = 0
    row_count: int = 0
    stale_count: int = 0

    @classmethod
    def not_found(cls, relation_oid: int) -> TableState:
        """Return the state of a relation that the last check of the catalog has not found in the
        publications, although consumers may have rows of it."""
        return cls(relation_oid, "", "", "", purpose="REPLACE")

    @property
    def is_not_found(self) -> bool:
        return not self.schema

    def begun_again(self) -> TableState:
        """Return the state with which an unfinished table begins again: rows that were read may be
        gone without an event."""
        purpose = "REPLACE" if self.purpose == "FILL" else self.purpose
        return TableState(self.relation_oid, self.schema, self.name, self.snapshot_id, purpose)


@dataclass(slots=True)
class StoredStates:
    """The state of one slot. `keys` has, by relation oid, segments by their numbers. `stream` is
    None if no state of the stream was ever stored."""

    stream: StreamState | None = None
    tables: dict[int, TableState] = field(default_factory=dict)
    keys: dict[int, dict[int, list[bytes]]] = field(default_factory=dict)
    contents: dict[int, PublishedContent] = field(default_factory=dict)


def encode_stream(frame: bytes, state: StreamState) -> bytes:
    return _encode(frame, stream={**_fields(state), "unseen": list(state.unseen)})


def encode_table(frame: bytes, state: TableState) -> bytes:
    begun = [{"leaf": each.leaf, "first": each.first, "end": each.end} for each in state.begun]
    return _encode(frame, table={**_fields(state), "begun": begun, "suspects": list(state.suspects)})


def encode_keys(frame: bytes, relation_oid: int, segment: int, keys: list[bytes]) -> bytes:
    return _encode(frame, keys={"relation_oid": relation_oid, "segment": segment, "keys": keys})


def encode_content(frame: bytes, relation_oid: int, content: PublishedContent) -> bytes:
    account = content.account
    fields = {
        **_fields(content),
        "relation_oid": relation_oid,
        "leaves": [*map(_fields, content.leaves)],
        "account": None if account is None else _account_fields(account),
    }
    return _encode(frame, content=fields)


def _account_fields(account: Account) -> dict[str, Any]:
    memberships, types = [*map(_fields, account.memberships)], [*map(_fields, account.types)]
    return {**_fields(account), "memberships": memberships, "types": types}


def _fields(
    of: StreamState | TableState | PublishedContent | LeafContent | Account | Membership | TypeVersion,
) -> dict[str, Any]:
    """Return the fields as a dict. Unlike `asdict`, this does not copy each value, since each table
    of a snapshot is written several times."""
    return {name: getattr(of, name) for name in of.__slots__}


def table_key(position_key: bytes, relation_oid: int) -> bytes:
    return position_key + b"#%d" % relation_oid


def segment_key(position_key: bytes, relation_oid: int, segment: int) -> bytes:
    return position_key + b"#%d.%d" % (relation_oid, segment)


def content_key(position_key: bytes, relation_oid: int) -> bytes:
    return position_key + b"#%d.content" % relation_oid


def of_slot(position_key: bytes, values: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Select the records of one slot from the newest records by key."""
    return {key: v for key, v in values.items() if key == position_key or key.startswith(position_key + b"#")}


def writer_ids(values: Iterable[bytes]) -> set[int]:
    """Return the ids of the schemas that the records were written with. A record without an id is
    refused by `decode_states`."""
    found = set()
    for value in values:
        with suppress(SchemaError):
            found.add(read_schema_id(value))
    return found


def decode_states(values: Mapping[bytes, bytes], writers: Mapping[int, Schema]) -> StoredStates:
    """Decode the records of one slot, by key. `writers` has the writer schemas by the ids that the
    records contain. Raises StopForOperator."""
    states = StoredStates()
    parsed: dict[int, Any] = {}
    for key, value in values.items():
        record = _decode(key, value, writers, parsed)
        if record["stream"] is not None:
            states.stream = StreamState(**{**record["stream"], "unseen": tuple(record["stream"]["unseen"])})
        elif record["table"] is not None:
            table = _table(record["table"])
            states.tables[table.relation_oid] = table
        elif record["keys"] is not None and record["keys"]["keys"]:
            found = record["keys"]
            states.keys.setdefault(found["relation_oid"], {})[found["segment"]] = found["keys"]
        elif record["content"] is not None:
            found = record["content"]
            relation_oid = found.pop("relation_oid")
            states.contents[relation_oid] = _content(found)
    return states


def _table(record: dict[str, Any]) -> TableState:
    begun = tuple(TidRange(each["leaf"], each["first"], each["end"]) for each in record["begun"])
    return TableState(**{**record, "begun": begun, "suspects": tuple(record["suspects"])})


def _content(record: dict[str, Any]) -> PublishedContent:
    account = record["account"]
    if account is not None:
        memberships = tuple(Membership(**fields) for fields in account["memberships"])
        types = tuple(TypeVersion(**fields) for fields in account["types"])
        account = Account(**{**account, "memberships": memberships, "types": types})
    leaves = tuple(LeafContent(**leaf) for leaf in record["leaves"])
    return PublishedContent(**{**record, "leaves": leaves, "account": account})


def _encode(frame: bytes, **body: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    out.write(frame)
    fastavro.schemaless_writer(out, _SCHEMA, {"stream": None, "table": None, "keys": None, "content": None, **body})
    return out.getvalue()


def _decode(key: bytes, value: bytes, writers: Mapping[int, Schema], parsed: dict[int, Any]) -> dict[str, Any]:
    try:
        number = read_schema_id(value)
        if number not in parsed:
            parsed[number] = fastavro.parse_schema(writers[number])
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), parsed[number], _SCHEMA)
        return dict(record)
    except (SchemaError, SchemaResolutionError, *_MALFORMED) as error:
        name = key.decode("utf-8", "replace")
        raise StopForOperator(
            f"the record of {SNAPSHOT_TOPIC} with the key {name} does not contain the state of a snapshot: "
            f"{type(error).__name__}",
            hint="if a newer version of the gateway wrote it, use that version. Otherwise another program did: send a record "
            f"with the key {name} and a null value to {SNAPSHOT_TOPIC} (docs/gap.md, Delete an unreadable record), "
            "start the gateway, and take a new snapshot of the tables: walgate snapshot start",
        ) from error
