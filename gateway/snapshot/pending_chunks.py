"""Chunks and marks that were emitted in transactions of their own and have not come back in the
stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import NextSession, Retry
from gateway.snapshot.chunk_reader import ReadChunk
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.table_task import TableTask

STREAMED_IN_A_ROW: Final = 20
"""After this many chunks and marks in a row that were streamed before they committed, the next
session has the streaming of in-progress transactions off."""


class ChunksAreStreamed(Retry):
    """The server streams each transaction of the snapshot before it commits."""

    def change(self, next_session: NextSession) -> None:
        next_session.read_whole()


@dataclass(slots=True, eq=False)
class ChunkMark:
    """A transaction that marks the beginning or the end of tables, or the end of the snapshot as a
    whole (no tasks)."""

    kind: str
    tasks: Sequence[TableTask]
    xid: int = 0
    is_last: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        for task in self.tasks:
            task.is_marked = True

    def undo(self) -> None:
        """Discard the mark: its tables will be marked again."""
        for task in self.tasks:
            task.is_marked = False
            if task.table is not None and task.table.status is Status.ENDING:
                task.table.status = Status.READING


class PendingChunks:
    """Emitted chunks and marks by their ids, which cannot be guessed. `wake` is set when the
    coordinator has something to do, `more` when readers may have."""

    def __init__(self) -> None:
        self._by_message_id: dict[bytes, ReadChunk | ChunkMark] = {}
        self.wake = asyncio.Event()
        self.more = asyncio.Event()
        self._streamed_in_a_row = 0
        self.is_ending = False
        """A mark of the end of the whole snapshot has been emitted."""

    def expect(self, message_id: str, emitted: ReadChunk | ChunkMark) -> None:
        self._by_message_id[message_id.encode()] = emitted

    def forget(self, message_id: str) -> None:
        self._by_message_id.pop(message_id.encode(), None)

    def take(self, content: bytes, xid: int, in_stream: bool) -> ReadChunk | ChunkMark | None:
        """Return the chunk or mark that the message with this content belongs to, or None if it
        does not count. Every role may emit messages: Walgate's own are recognized by id and xid.
        Raises ChunksAreStreamed."""
        found = self._by_message_id.get(content)
        # A streamed transaction may arrive before the server's response with its xid. It only
        # causes another attempt, whoever emitted the message.
        if found is None or (found.xid != xid and not (in_stream and not found.xid)):
            return None
        del self._by_message_id[content]
        if in_stream:  # part of a streamed transaction, because the server had little memory left: try again
            self.give_back(found)
            self._streamed_in_a_row += 1
            if self._streamed_in_a_row >= STREAMED_IN_A_ROW:
                raise ChunksAreStreamed(
                    f"the server has streamed {STREAMED_IN_A_ROW} transactions of the snapshot in a row before they committed: "
                    "replication continues with the streaming of in-progress transactions off",
                    hint="check logical_decoding_work_mem and debug_logical_replication_streaming on the server",
                )
            return None
        self._streamed_in_a_row = 0
        return found

    @property
    def has_chunks(self) -> bool:
        return any(isinstance(each, ReadChunk) for each in self._by_message_id.values())

    def give_back(self, arrived: ReadChunk | ChunkMark) -> None:
        """Have the chunk read, or the tables marked, again."""
        if isinstance(arrived, ReadChunk):
            arrived.chunk.table.give_back(arrived.chunk)
        else:
            arrived.undo()
        self.done(arrived)

    def done(self, arrived: ReadChunk | ChunkMark) -> None:
        if isinstance(arrived, ReadChunk):
            arrived.rows = []  # the reader keeps its last chunk while there is nothing more to read
        elif arrived.is_last:
            self.is_ending = False
        arrived.done.set()
        self.call()

    def call(self) -> None:
        self.wake.set()
        self.more.set()
