"""Facts that the checks judge, each with the moment at which it was read.

A moment is a number that increases with each observation of this process: what matters is which of
two facts is older, not the time. gateway/postgres loads the facts of PostgreSQL, gateway/kafka
those of the position topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.transactions.position import Position
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Version, settings and use of the server. `flush_lsn` is the end of the WAL on disk; on a
    standby, the end of the WAL that it has replayed.

    The `timeline` of a standby may be earlier than the one that it follows. `in_recovery` means
    that the server is a standby or is being restored. `wal_sender_timeout_s` 0,
    `max_slot_wal_keep_mb` -1 and `idle_slot_timeout_s` 0 mean no limit. `idle_slot_timeout_s`
    exists since PostgreSQL 18, `synchronized_standby_slots` since 17, `effective_wal_level` since
    19.
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
    physical_slots: tuple[str, ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether logical decoding is on, or the first logical slot would turn it on: in PostgreSQL
        19, wal_level = replica is enough on a primary."""
        if self.effective_wal_level:
            return self.effective_wal_level == "logical" or (self.wal_level == "replica" and not self.in_recovery)
        return self.wal_level == "logical"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A row of pg_replication_slots (PostgreSQL manual, 53.20). None means that the column is null
    or does not exist in this version. `sync_state` describes the process that reads the slot
    (pg_stat_replication); it is also null for a role that may not see it."""

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
    """A column that is sent. `type_name` is the readable name, such as numeric(12,2)."""

    name: str
    type_oid: int
    typmod: int
    type_name: str


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """A table in a publication. `columns` are the columns that are sent, in the table's order."""

    relation_oid: int
    namespace: str
    name: str
    replica_identity: str  # DEFAULT, NOTHING, FULL, INDEX
    identity_columns: tuple[str, ...]  # of DEFAULT and INDEX; empty if the index does not exist
    columns: tuple[PublishedColumn, ...]
    row_filter: str | None  # pg_node_tree: to be compared, and searched by filters.py
    generated_identity: tuple[str, ...] = ()  # those of identity_columns that are generated; of FULL, all such columns
    primary_key: tuple[str, ...] = ()  # of FULL, if it is not deferrable
    has_column_list: bool = False
    filter_leaves_identity: bool = False  # the row filter uses columns outside of the replica identity
    other_identity: tuple[str, ...] = ()  # partitions with another replica identity, if rows are sent as their root's

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def has_identity(self) -> bool:
        return self.replica_identity == "FULL" or bool(self.identity_columns)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the records' key, if all of them are sent; with REPLICA IDENTITY FULL,
        those of the primary key."""
        return self.primary_key if self.replica_identity == "FULL" else self.identity_columns


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """A publication. A different oid means a different publication, even under the same name.
    `excluded` are published relations that source.excluded_tables leaves out; `relations` does not
    contain them, nor `sent_as_root`."""

    oid: int
    name: str
    all_tables: bool
    via_root: bool
    actions: frozenset[str]  # of insert, update, delete, truncate
    relations: tuple[PublishedRelation, ...]
    excluded: tuple[PublishedRelation, ...] = ()
    sent_as_root: tuple[PublishedRelation, ...] = ()
    """Partitions whose rows are sent as rows of an ancestor, since another publication contains the
    ancestor with publish_via_partition_root. It decides, whatever the other publications say."""
    detaching: tuple[tuple[str, str], ...] = ()
    """Quoted names of a partitioned table and of its partition, for each DETACH ... CONCURRENTLY
    that has not finished. They are looked up only where a row that is written to such a partition
    crashes the server: FOR ALL TABLES, with publish_via_partition_root."""
    foreign: tuple[tuple[str, str], ...] = ()
    """Names of a published partitioned table and of its partition, for each partition that is a
    foreign table, as `format_relation` writes them."""
    inherited: tuple[tuple[str, str], ...] = ()
    """Quoted names of a published table and of a table that inherits from it (INHERITS), for each
    such table that none of the publications contains. Tables in source.excluded_tables are left
    out."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Result of IDENTIFY_SYSTEM: the server that answers on the replication connection."""

    system_identifier: str
    timeline: int
    flush_lsn: Lsn
    database: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """PostgreSQL's side: the server, the slot and the publications, read in an order such that the
    server's end of the WAL is not older than the slot's LSNs."""

    server: ServerFacts
    slot: SlotFacts | None
    publications: Mapping[str, PublicationFacts]
    moment: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Kafka's side: the contents of the position topic and the use of the marker topic.

    `marker_topic_used` tells whether the marker topic holds or has ever held a record; control
    records of Kafka transactions do not count. `newest_commit_lsn` is the commit LSN of the newest
    committing marker, which was read after the positions; None if it is not known. `at_least_once`:
    markers are written before the position, not together with it.
    """

    positions: Mapping[bytes, Position]
    marker_topic_used: bool
    moment: int = 0
    newest_commit_lsn: Lsn | None = None
    at_least_once: bool = False

    def lacks_positions_after(self, position: Position) -> bool:
        """Return whether the position topic has lost its newest records. With at_least_once, this
        is not known: the gateway may have ended between the markers and the position."""
        newest = self.newest_commit_lsn
        return not self.at_least_once and newest is not None and newest > position.last_commit_lsn

    def sends_twice_from(self, confirmed: Lsn, position: Position) -> bool:
        """Return whether a slot that is confirmed up to `confirmed`, further than a position after
        which the position topic has lost its records, would send a transaction again that is in
        Kafka."""
        newest = self.newest_commit_lsn
        return self.lacks_positions_after(position) and newest is not None and newest >= confirmed

    def lacks_markers_of(self, position: Position) -> bool:
        """Return whether the marker topic has lost its newest markers. Those that retention removes
        are its oldest."""
        return self.newest_commit_lsn is not None and self.newest_commit_lsn < position.marked_lsn


@dataclass(frozen=True, slots=True)
class Expected:
    """Values that the settings and the position require; None where there is no position.
    `backend_pid` is the process ID of the gateway's own WAL sender, once it runs. `is_only_host`
    means that the DSN names one host only."""

    slot: str
    publications: tuple[str, ...]
    timeline: int | None = None
    two_phase: bool = False
    failover: bool = False
    backend_pid: int | None = None
    keys_needed: bool = False  # new topics are compacted
    advance_bytes: int | None = None  # the slot is advanced when it retains this much WAL
    is_only_host: bool = False


def published_types(publications: Mapping[str, PublicationFacts]) -> frozenset[int]:
    """Return the type oids of all columns that are sent: the binary format is requested only if
    each of them has a binary decoder."""
    return frozenset(
        column.type_oid
        for publication in publications.values()
        for relation in publication.relations
        for column in relation.columns
    )
