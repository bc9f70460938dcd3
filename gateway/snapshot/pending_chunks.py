"""What readers and the conductor emit in transactions of their own, until the stream has brought it
back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.snapshot.chunk_reader import ReadChunk
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.table_task import TableTask


@dataclass(slots=True, eq=False)
class ChunkMark:
    """A transaction that begins or ends relations, or the snapshot as a whole (no reading)."""

    kind: str
    readings: Sequence[TableTask]
    xid: int = 0
    is_last: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        for reading in self.readings:
            reading.is_marked = True

    def undo(self) -> None:
        """It counts for nothing: its tables are marked once more."""
        for reading in self.readings:
            reading.is_marked = False
            if reading.table is not None and reading.table.status is Status.ENDING:
                reading.table.status = Status.READING


class PendingChunks:
    """By their ids, which nobody can guess. `wake`: the conductor has something to look at, `more`:
    readers have."""

    def __init__(self) -> None:
        self._by_number: dict[bytes, ReadChunk | ChunkMark] = {}
        self.wake = asyncio.Event()
        self.more = asyncio.Event()
        self.is_ending = False
        """A mark of the end of the whole snapshot is under way."""

    def expect(self, number: str, emitted: ReadChunk | ChunkMark) -> None:
        self._by_number[number.encode()] = emitted

    def forget(self, number: str) -> None:
        self._by_number.pop(number.encode(), None)

    def take(self, content: bytes, xid: int, in_stream: bool) -> ReadChunk | ChunkMark | None:
        """What a message is whose content is an id; None: nothing that counts. Everybody may emit
        messages: what is ours is known by its id and its xid."""
        found = self._by_number.get(content)
        # A stream may bring it before the server's answer with its xid. It only leads to one more
        # attempt, whoever emitted it.
        if found is None or (found.xid != xid and not (in_stream and not found.xid)):
            return None
        del self._by_number[content]
        if in_stream:  # seen as part of a stream, where the server had little memory left: once more
            self.give_back(found)
            return None
        return found

    @property
    def has_chunks(self) -> bool:
        return any(isinstance(each, ReadChunk) for each in self._by_number.values())

    def give_back(self, arrived: ReadChunk | ChunkMark) -> None:
        """It is to be read, or marked, once more."""
        if isinstance(arrived, ReadChunk):
            arrived.chunk.table.give_back(arrived.chunk)
        else:
            arrived.undo()
        self.done(arrived)

    def done(self, arrived: ReadChunk | ChunkMark) -> None:
        if isinstance(arrived, ReadChunk):
            arrived.rows = []  # its reader keeps the last one for as long as there is nothing more to read
        elif arrived.is_last:
            self.is_ending = False
        arrived.done.set()
        self.call()

    def call(self) -> None:
        self.wake.set()
        self.more.set()
