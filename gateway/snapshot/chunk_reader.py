"""Read one chunk: a transaction that locks the table, takes its PostgreSQL snapshot, reads rows,
emits the message by which it is recognized in the stream, and commits. The extent and the
PostgreSQL snapshot of the chunk are reported to the table's progress."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from gateway.errors import RetrySlowly, StopForOperator, WalgateError
from gateway.failpoints import failpoint
from gateway.postgres.asyncpg_internals import limit_messages, refused_bytes
from gateway.postgres.classify_errors import DRIVER_ERRORS, beside_stream, classify_exception
from gateway.postgres.connection import connect_sql, end_session, transaction
from gateway.postgres.credentials import Credentials
from gateway.postgres.receive_buffer import LARGEST_MESSAGE, LARGEST_ROW
from gateway.snapshot.copy_decoder import CopyDecoder
from gateway.snapshot.read_plan import ReadPlan, fingerprint
from gateway.snapshot.rules.ranges_to_read import Leaf, TidRange, cut, halves
from gateway.snapshot.rules.table_progress import Chunk
from gateway.snapshot.rules.visibility import parse_visibility
from gateway.snapshot.sql import (
    EMIT,
    SESSION_SETTINGS,
    facts_query,
    lock,
    lock_by_explain,
    select_keys,
    select_parts,
    select_range,
)
from gateway.snapshot.table_errors import TableTooLarge

_MOST_BYTES_FACTOR: Final = 6
"""A chunk that exceeds snapshot.chunk_bytes by this factor is given up if it can be divided, even
while chunks should be smaller (SHARED_BYTES). A range is then read in halves, even if it is a
single block; if the chunk had keys, the next chunks have fewer keys. A single line of a block, a
single key and a table that is read in one chunk cannot be divided."""
_HELD_ROW_BYTES: Final = 120
"""The memory that a row takes beside its bytes: two objects and a place in the list."""
_COPY_TIMEOUT_S: Final = 7 * 86_400.0
_STEP_BYTES: Final = 1 << 15
"""Bytes encoded in one step, which takes 1 ms. The driver passes up to 256 kB at once."""
_SHARED_STEP_BYTES: Final = 1 << 13
"""Bytes encoded in one step while other transactions arrive in the stream. Each of these takes
dozens of rounds of the event loop until it is durable, and a round takes as long as the steps
within it (docs/performance.md, SL)."""


class RelationChanged(WalgateError):
    """The relation has changed since its snapshot began: its snapshot must begin again."""


class SnapshotTooOld(WalgateError):
    """The chunk's PostgreSQL snapshot cannot be used, because it does not see a transaction whose
    keys were not recorded (rules/stale_rows.py), or because the table has begun again meanwhile."""


class ChunkTooLarge(WalgateError):
    """The chunk has many more bytes than it should, and can be divided."""


@dataclass(slots=True, eq=False)
class ReadChunk:
    """A chunk whose rows wait until its commit arrives in the stream. `xid` is the 32-bit id of its
    transaction, as in the protocol."""

    chunk: Chunk
    plan: ReadPlan
    rows: list[tuple[bytes | None, bytes]]
    """(framed key, rest of the READ event) of each row, or (framed key, tuple) if the read plan has
    `keeps_tuples`. Empty once the chunk is published or given up."""
    byte_count: int = 0
    xid: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    row_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.row_count = len(self.rows)

    def emitted(self, xid: int) -> None:
        """Record the 32-bit id of its transaction, which the server has returned."""
        self.xid = xid

    def release_rows(self) -> None:
        """Forget the rows, which were published or are read again."""
        self.rows = []


async def connect_reader(login: Credentials, *, largest_row: int = LARGEST_ROW) -> asyncpg.Connection:
    """Open a session for reading chunks. A row larger than `largest_row` and LARGEST_MESSAGE is not
    held, like one in the stream (receive_buffer.py): the session is closed when it begins.

    Raises Retry and RetrySlowly, never StopForOperator: the stream has logged in with the same
    settings, so the error may be temporary.
    """
    try:
        sql = await connect_sql(login)
    except StopForOperator as error:
        raise RetrySlowly(error.message, hint=error.hint) from error
    limit_messages(sql, max(largest_row, LARGEST_MESSAGE))  # answers of the catalog may be larger than rows
    try:
        for statement in SESSION_SETTINGS:
            await sql.execute(statement)
    except BaseException as error:
        sql.terminate()
        if isinstance(error, DRIVER_ERRORS):
            with beside_stream():
                raise classify_exception(error, "setting up a session") from error
        raise
    return sql


def new_id() -> str:
    """Return an id. It must not be guessable, because any role may emit messages."""
    return secrets.token_hex(16)


async def read_chunk(
    sql: asyncpg.Connection,
    chunk: Chunk,
    plan: ReadPlan,
    publications: list[str],
    expect: Callable[[str, ReadChunk], None],
    turn: asyncio.Lock | None = None,
    *,
    most_held_bytes: int = 0,
) -> ReadChunk:
    """Read `chunk` in a transaction on `sql` and return its encoded rows.

    `expect(id, chunk)` registers the chunk under the id of its message. It is called before the
    message is emitted, since the stream may deliver it at any time from then on. `turn` is a lock
    that all readers share, or None. The lock is given while other transactions arrive in the
    stream: only one reader at a time then encodes a step, and steps are shorter. `most_held_bytes`:
    the memory for the rows of a table that is read at once.

    Raises RelationChanged, SnapshotTooOld, ChunkTooLarge, TableTooLarge, and what the encoders and
    the driver raise. `sql` is closed if it was left within a COPY or a statement.
    """
    progress = chunk.progress
    # If the role may read only some columns, each statement has a snapshot of its own. EXPLAIN takes
    # the lock, or LOCK TABLE if writers are to wait. The COPY then sees the same transactions as the
    # snapshot that rows are compared with, and perhaps more. Some rows therefore count as stale
    # although they are not, and are read again.
    isolation = "repeatable_read" if plan.surveyed.is_granted else "read_committed"
    async with transaction(sql, isolation=isolation):
        try:
            await sql.execute(_lock(chunk, plan))
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
            raise RelationChanged("the relation has another name, or is gone") from error
        failpoint("chunk_locked")
        progress.judge.snapshot_requested(chunk)
        leaf = _leaf(chunk, plan)
        row = await sql.fetchrow(
            facts_query(sql.get_server_version().major),
            [plan.surveyed.relation.relation_oid],
            publications,
            None if leaf is None else leaf.oid,
            list(plan.surveyed.key_enums),
        )
        if row is None or fingerprint(row["fingerprint"], row["labels"]) != plan.surveyed.fingerprint:
            raise RelationChanged("the relation has changed")
        table_blocks = row["blocks"] or 0
        if chunk.range is not None:
            progress.shorten(chunk, *cut(chunk.range, progress.sizer.blocks, table_blocks))
        if not progress.snapshot_taken(chunk, parse_visibility(row["snapshot"])):
            raise SnapshotTooOld("a transaction that the snapshot must see has not ended")
        failpoint("chunk_snapshot_taken")
        copied = await _copy(sql, chunk, plan, table_blocks, turn, most_held_bytes)
        failpoint("chunk_read")
        result = ReadChunk(chunk, plan, copied.rows, copied.byte_count)
        message_id = new_id()
        expect(message_id, result)
        result.emitted(int(await sql.fetchval(EMIT, message_id)) & 0xFFFFFFFF)
        failpoint("chunk_emitted")
    failpoint("chunk_committed")
    return result


async def _copy(
    sql: asyncpg.Connection,
    chunk: Chunk,
    plan: ReadPlan,
    table_blocks: int,
    turn: asyncio.Lock | None,
    most_held_bytes: int,
) -> CopyDecoder:
    sizer = chunk.progress.sizer
    copied = CopyDecoder(plan.version.encoder, plan.is_binary, keeps_tuples=plan.keeps_tuples)
    rest = None if chunk.range is None else halves(chunk.range, table_blocks)[1]
    wanted = frozenset(chunk.keys if not plan.finds_keys else ())
    step_bytes = _STEP_BYTES if turn is None else _SHARED_STEP_BYTES

    async def feed(piece: bytes) -> None:
        data = memoryview(piece)
        for start in range(0, len(data), step_bytes):
            async with turn or nullcontext():
                copied.feed(bytes(data[start : start + step_bytes]))
                await asyncio.sleep(0)
        if wanted:
            copied.keep(wanted)
        elif chunk.all_ranges:
            if copied.byte_count + len(copied.rows) * _HELD_ROW_BYTES > most_held_bytes:
                raise _too_large(plan, most_held_bytes)
        elif copied.byte_count > _MOST_BYTES_FACTOR * sizer.most_bytes and (rest is not None or len(chunk.keys) > 1):
            raise ChunkTooLarge("a chunk has too many bytes")

    try:
        await sql.copy_from_query(
            chunk_query(chunk, plan, plan.columns), output=feed, format="binary", timeout=_COPY_TIMEOUT_S
        )
        copied.finish()
        if wanted:
            copied.keep(wanted)
    except BaseException as error:
        if not isinstance(error, asyncpg.PostgresError):
            await end_session(sql)
        if isinstance(error, ChunkTooLarge):
            sizer.chunk_was_too_large()
            if chunk.range is not None:
                chunk.progress.shorten(chunk, *halves(chunk.range, table_blocks))
        if isinstance(error, DRIVER_ERRORS) and (row_bytes := refused_bytes(sql)):
            raise plan.version.too_large(f"comes in a message of {row_bytes} bytes", row_bytes) from error
        raise
    if chunk.range is not None:
        end = table_blocks if chunk.range.end is None else chunk.range.end >> 16
        sizer.read_blocks(max(end - chunk.range.first_block, 1), len(copied.rows), copied.byte_count)
    else:
        byte_count = sum(len(row) for _, row in copied.rows) if wanted else copied.byte_count
        sizer.read_keys(len(chunk.keys), len(copied.rows), byte_count)
    return copied


def _too_large(plan: ReadPlan, most_held_bytes: int) -> TableTooLarge:
    chunks = "table_read_in_one_transaction in the log says why it is not read in chunks"
    if not plan.key_columns and plan.surveyed.has_ranges:
        chunks = (
            "with a primary key (not deferrable, with REPLICA IDENTITY DEFAULT or FULL) or a unique index as its replica "
            "identity, the table is read in chunks, without a command"
        )
    return TableTooLarge(
        f"a snapshot can only read the table as a whole, and its rows need more than {most_held_bytes >> 20} MB of memory, "
        "which is half of the gateway's memory divided by snapshot.readers + 1",
        hint=f"{chunks}. Otherwise, raise the memory limit of the gateway or lower snapshot.readers, and restart it, or leave "
        "the table out: source.excluded_tables",
    )


def _leaf(chunk: Chunk, plan: ReadPlan) -> Leaf | None:
    return None if chunk.range is None else plan.surveyed.leaves[chunk.range.leaf]


def _lock(chunk: Chunk, plan: ReadPlan) -> str:
    surveyed = plan.surveyed
    names, only = [surveyed.relation_name], not surveyed.is_partitioned
    if chunk.range is not None:
        names, only = list(dict.fromkeys([*names, surveyed.leaf_names[chunk.range.leaf]])), True
    if surveyed.is_granted or chunk.locks_writers:
        return lock(names, only=only, share=chunk.locks_writers)
    return lock_by_explain(names, only=only)


def chunk_query(chunk: Chunk, plan: ReadPlan, columns: str) -> str:
    """Return the query for the rows of the chunk; `columns` is its select list."""
    surveyed = plan.surveyed
    assert surveyed.row_filter is not None
    tid_range: TidRange | None = chunk.range
    if tid_range is not None:
        return select_range(columns, surveyed.leaf_names[tid_range.leaf], tid_range, surveyed.row_filter)
    if chunk.keys and plan.finds_keys:
        condition = plan.key_condition(chunk.keys)
        return select_keys(columns, surveyed.source, condition, surveyed.row_filter)
    return select_parts(columns, plan.sources, surveyed.row_filter)
