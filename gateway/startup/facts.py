"""What the gateway knows when it judges, each fact with the moment at which it was taken.

A moment is a number that rises with each observation of this process: what matters is which fact is
older, not the time. Loaded by gateway/postgres (PostgreSQL) and gateway/kafka (the position topic).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.transactions.position import Position
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`flush_lsn` is the end of the WAL on disk, on a standby the end of what it has replayed.

    `timeline` of a standby may be an earlier one than that which it follows. `in_recovery`: it is a
    standby, or is being restored. `wal_sender_timeout_s` 0, `max_slot_wal_keep_mb` -1 and
    `idle_slot_timeout_s` 0 mean: no limit. The last is of 18 and newer,
    `synchronized_standby_slots` of 17 and newer, `effective_wal_level` of 19 and newer.
    """

    system_identifier: str
    timeline: int
    database: str
    database_oid: int
    version_num: int
    wal_level: str
    flush_lsn: Lsn
    encoding: str
    wal_sender_timeout_s: float
    in_recovery: bool = False
    max_replication_slots: int = 10
    used_slots: int = 0
    max_wal_senders: int = 10
    used_senders: int = 0
    max_prepared_transactions: int = 0
    max_slot_wal_keep_mb: int = -1
    idle_slot_timeout_s: float = 0.0
    synchronized_standby_slots: str = ""
    synchronous_standby_names: str = ""
    effective_wal_level: str = ""

    @property
    def decodes(self) -> bool:
        """Logical decoding is on, or the first logical slot turns it on: in 19, wal_level = replica
        is enough on a primary."""
        if self.effective_wal_level:
            return self.effective_wal_level == "logical" or (self.wal_level == "replica" and not self.in_recovery)
        return self.wal_level == "logical"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """One line of pg_replication_slots (PostgreSQL manual, 53.20). None: unknown to this version,
    or null. `sync_state` is that of whoever reads the slot (pg_stat_replication), null also for a
    role that may not see it."""

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    safe_wal_bytes: int | None
    two_phase: bool
    invalidation_reason: str | None = None
    conflicting: bool | None = None
    failover: bool | None = None
    inactive_since: str | None = None
    sync_state: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """`type_name` is for people: numeric(12,2)."""

    name: str
    type_oid: int
    typmod: int
    type_name: str


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """One table in one publication. `columns` are those that are sent, in the table's order."""

    relation_oid: int
    namespace: str
    name: str
    replica_identity: str  # DEFAULT, NOTHING, FULL, INDEX
    identity_columns: tuple[str, ...]  # of DEFAULT and INDEX; empty when the index that should give them is not there
    columns: tuple[PublishedColumn, ...]
    row_filter: str | None  # to be compared, not to be read
    generated_identity: tuple[str, ...] = ()  # those of identity_columns that are generated
    has_primary_key: bool = True  # one that is not deferrable
    has_column_list: bool = True

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def has_identity(self) -> bool:
        return self.replica_identity == "FULL" or bool(self.identity_columns)

    @property
    def has_key(self) -> bool:
        """Of its records: under FULL, it is the primary key."""
        return self.has_primary_key if self.replica_identity == "FULL" else bool(self.identity_columns)


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """A publication of another oid is another publication, whatever its name. `excluded`: published
    relations that source.excluded_tables leaves out; `relations` are without them."""

    oid: int
    name: str
    all_tables: bool
    via_root: bool
    actions: frozenset[str]  # of insert, update, delete, truncate
    relations: tuple[PublishedRelation, ...]
    excluded: tuple[PublishedRelation, ...] = ()
    detaching: tuple[tuple[str, str], ...] = ()
    """Quoted names of a partitioned table and of its partition whose DETACH ... CONCURRENTLY has
    not ended. They are only looked up where a row that is written to such a partition crashes the
    server: FOR ALL TABLES, with publish_via_partition_root."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """IDENTIFY_SYSTEM: which server answers on the replication connection."""

    system_identifier: str
    timeline: int
    flush_lsn: Lsn
    database: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """PostgreSQL's side: one look at the server, the slot and the publications, in an order such
    that the server's end of the WAL is not older than the slot's LSNs."""

    server: ServerFacts
    slot: SlotFacts | None
    publications: Mapping[str, PublicationFacts]
    moment: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Kafka's side: what the position topic and the marker topic hold.

    `marker_topic_used`: the marker topic holds a record, or has held one; control records of Kafka
    transactions do not count.
    """

    positions: Mapping[bytes, Position]
    marker_topic_used: bool
    moment: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What settings and position say; None where there is no position. `backend_pid`: our own WAL
    sender, once it runs."""

    slot: str
    publications: tuple[str, ...]
    timeline: int | None = None
    two_phase: bool = False
    failover: bool = False
    backend_pid: int | None = None
    keys_needed: bool = False  # new topics are compacted
    advance_bytes: int | None = None  # the slot is to be moved on when it retains so much


def published_types(publications: Mapping[str, PublicationFacts]) -> frozenset[int]:
    """Type oids of every column that is sent: binary is asked for when each of them has a binary
    decoder."""
    return frozenset(
        column.type_oid
        for publication in publications.values()
        for relation in publication.relations
        for column in relation.columns
    )
