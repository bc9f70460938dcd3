"""Chunks and boundaries that were emitted and have not arrived in the stream yet. Each message that
arrives is compared with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import NextSession, Retry
from gateway.snapshot.chunk_reader import ReadChunk
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks

STREAMED_IN_A_ROW: Final = 20
"""The number of chunks and boundaries in a row, streamed before they committed, after which
streaming of in-progress transactions is off in the next session."""


class ChunksAreStreamed(Retry):
    """The server has streamed STREAMED_IN_A_ROW transactions of the snapshot in a row."""

    def change(self, next_session: NextSession) -> None:
        next_session.read_whole()


@dataclass(slots=True, eq=False)
class SnapshotBoundary:
    """A transaction that only emits a message. Where it commits, its tables begin or end, and
    SNAPSHOT_BEGIN or SNAPSHOT_END markers are published (Debezium's format has none). The boundary
    that ends the last table, or one without tasks, ends the snapshot as a whole. `cancel` ends it
    without a boundary.

    `kind` is "begin" or "end". `is_last`: no other table was being read, or waited to be, when it
    was emitted.
    """

    kind: str
    tasks: Sequence[TableTask]
    xid: int = 0
    is_last: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def emitted(self, xid: int) -> None:
        """Record that the message was emitted, in the transaction with this 32-bit id."""
        self.xid = xid


class PendingChunks:
    """Emitted chunks and boundaries by the ids of their messages, which cannot be guessed. `wake`
    is set when the coordinator has something to do, `more` when readers may have."""

    def __init__(self, tasks: TableTasks) -> None:
        self._tasks = tasks
        self._by_message_id: dict[bytes, ReadChunk | SnapshotBoundary] = {}
        self.wake = asyncio.Event()
        self.more = asyncio.Event()
        self._streamed_in_a_row = 0
        self._is_ending = False

    @property
    def has_chunks(self) -> bool:
        return any(isinstance(emitted, ReadChunk) for emitted in self._by_message_id.values())

    @property
    def is_ending(self) -> bool:
        """Whether a boundary without tasks, which ends the snapshot as a whole, was emitted and is
        not applied yet."""
        return self._is_ending

    def expect(self, message_id: str, emitted: ReadChunk | SnapshotBoundary) -> None:
        """Register a chunk or boundary whose message is about to be emitted."""
        if isinstance(emitted, SnapshotBoundary):
            self._tasks.boundary_emitted(emitted.tasks)
            self._is_ending |= emitted.is_last and not emitted.tasks
        self._by_message_id[message_id.encode()] = emitted

    def forget(self, message_id: str) -> None:
        """Report that the transaction of the message has failed."""
        self._by_message_id.pop(message_id.encode(), None)

    def message_received(self, content: bytes, xid: int, in_stream: bool) -> ReadChunk | SnapshotBoundary | None:
        """Return the chunk or boundary that the message with this content belongs to, or None if
        the message does not count. Every role may emit messages: the gateway recognizes its own by
        their ids and xids. Raises ChunksAreStreamed."""
        emitted = self._by_message_id.get(content)
        # A streamed transaction may arrive before the server's response with its xid. The message
        # then only causes another attempt, whoever emitted it.
        if emitted is None or (emitted.xid != xid and not (in_stream and not emitted.xid)):
            return None
        del self._by_message_id[content]
        if in_stream:  # streamed (the server had little memory left) or prepared: try again
            self.discard(emitted)
            self._streamed_in_a_row += 1
            if self._streamed_in_a_row >= STREAMED_IN_A_ROW:
                raise ChunksAreStreamed(
                    f"the server has streamed {STREAMED_IN_A_ROW} transactions of the snapshot in a row before they committed: "
                    "replication continues with the streaming of in-progress transactions off",
                    hint="check logical_decoding_work_mem and debug_logical_replication_streaming on the server",
                )
            return None
        self._streamed_in_a_row = 0
        return emitted

    def discard(self, emitted: ReadChunk | SnapshotBoundary) -> None:
        """Have another transaction read the chunk, or begin or end the tables."""
        if isinstance(emitted, ReadChunk):
            self._tasks.give_back(emitted.chunk)
        else:
            self._tasks.boundary_discarded(emitted.tasks)
        self.done(emitted)

    def done(self, emitted: ReadChunk | SnapshotBoundary) -> None:
        """Report that the chunk was published or given back, or the boundary applied or
        discarded."""
        if isinstance(emitted, ReadChunk):
            emitted.release_rows()  # the reader keeps its last chunk while there is nothing more to read
        elif emitted.is_last:
            self._is_ending = False
        emitted.done.set()
        self.call()

    def call(self) -> None:
        """Wake the coordinator and the readers."""
        self.wake.set()
        self.more.set()
