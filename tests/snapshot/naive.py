"""The usual ways to copy a table that changes, in their simplest form: tests/snapshot/test_holes.py
shows where they go wrong.

by_watermarks         DBLog, and the incremental snapshots of Debezium, Sequin and others: rows are read between two marks of
                      the stream. At the second one those go in whose key no change between the two has touched
by_visibility         the same, but a row is left out if the change is one of a transaction that its snapshot does not see
by_exported_snapshot  one snapshot, made with the slot and kept while everything is read; then comes the stream
by_first_mark         rows go in where the first message with the prefix stands in the stream
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import asyncpg

from gateway.pgoutput.decode import PgOutputMessage, decode
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Relation
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.transaction import Begin
from gateway.pgoutput.tuple_data import UNCHANGED, Text, TupleData
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare
from gateway.snapshot.rules.visibility import Visibility, parse_visibility
from tests.snapshot.load import PUBLICATION
from tests.snapshot.target import MISSING

COLUMNS = ("id", "n", "big")
ROWS = "SELECT id::text, n::text, big FROM ONLY {} WHERE {}"
Row = tuple[object, ...]
Step = Callable[[], Awaitable[None]]
IsStale = Callable[[object], bool]


@dataclass(slots=True)
class Copy:
    """Of a table with COLUMNS, of which the first is the key. `sql`: of a session that waits for no
    standby."""

    sql: asyncpg.Connection
    table: str
    prefix: str = "naive"
    mark: str = "SELECT pg_logical_emit_message(true, $1, $2)"
    """How the stream is marked, with prefix and content."""
    is_keyed: bool = True
    rows: dict[object, Row] = field(default_factory=dict)
    _visibility: Visibility = field(default_factory=lambda: Visibility(0, 0))
    _relations: dict[int, str] = field(default_factory=dict)
    _changed: dict[object, int] = field(default_factory=dict)
    """Keys with a change since the first mark, and its xid."""
    _prepared: dict[str, list[PgOutputMessage]] = field(default_factory=dict)

    async def is_right(self) -> bool:
        return Counter(self.rows.values()) == Counter(await self._read(self.sql))

    async def make_slot(self) -> None:
        two_phase = ", true" if self._protocol_version >= 3 else ""
        await self.sql.fetchval(f"SELECT pg_create_logical_replication_slot('naive', 'pgoutput', true{two_phase})")

    async def by_watermarks(self, during: Step, ranges: Sequence[str] = ("true",)) -> None:
        await self._by_marks(during, ranges, lambda key: key in self._changed)

    async def by_visibility(self, during: Step, *, widens: bool) -> None:
        def is_stale(key: object) -> bool:
            seen, xid = self._visibility, self._changed.get(key)
            return xid is not None and not seen.sees(seen.widen(xid) if widens else xid)

        await self._by_marks(during, ("true",), is_stale)

    async def _by_marks(self, during: Step, ranges: Sequence[str], is_stale: IsStale) -> None:
        """`during` comes after the first range was read."""
        for number, condition in enumerate(ranges):
            await self._emit("begin")
            self._visibility = parse_visibility(await self.sql.fetchval("SELECT pg_current_snapshot()::text"))
            rows = await self._read(self.sql, condition)
            if number == 0:
                await during()
            await self._emit("end")
            await self._follow(rows, "end", is_stale)
        await self._follow()

    async def by_exported_snapshot(self, reader: asyncpg.Connection, during: Step) -> None:
        """`reader` takes its snapshot when the slot was just made, and nothing else happens."""
        async with reader.transaction(isolation="repeatable_read"):
            await reader.execute("SELECT 1")
            await during()
            self._put(await self._read(reader))
        await self._follow()

    async def by_first_mark(self) -> None:
        rows = await self._read(self.sql)
        await self._emit("end")
        await self._follow(rows)

    async def _emit(self, content: str) -> None:
        await self.sql.execute(self.mark.replace("$1", f"'{self.prefix}'").replace("$2", f"'{content}'"))

    async def _read(self, sql: asyncpg.Connection, condition: str = "true") -> list[Row]:
        return [tuple(row) for row in await sql.fetch(ROWS.format(self.table, condition))]

    def _put(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows[row[0] if self.is_keyed else object()] = row

    # -- the stream
    # -----------------------------------------------------------------------------------------------------------

    @property
    def _protocol_version(self) -> int:
        return 3 if self.sql.get_server_version().major >= 15 else 2

    async def _follow(self, rows: list[Row] | None = None, mark: str = "", is_stale: IsStale = lambda _: False) -> None:
        """Apply what has come. `rows` go in at that mark, or at any."""
        query = (
            "SELECT data FROM pg_logical_slot_get_binary_changes('naive', NULL, NULL, 'proto_version', $1, "
            "'publication_names', $2, 'messages', 'true')"
        )
        found = await self.sql.fetch(query, str(self._protocol_version), PUBLICATION)
        xid, gid = 0, ""
        for message in [decode(row[0], in_stream=False, protocol_version=self._protocol_version) for row in found]:
            if isinstance(message, Relation):
                self._relations[message.relation_oid] = message.name
                continue
            content = self._content(message)
            if isinstance(message, Begin | BeginPrepare):
                xid, gid = message.xid, message.gid if isinstance(message, BeginPrepare) else ""
            elif content == "begin":
                self._changed.clear()
            elif content is not None and rows is not None and mark in ("", content):
                self._put([row for row in rows if not is_stale(row[0])])
                rows = None
            elif isinstance(message, CommitPrepared):
                for each in self._prepared.pop(message.gid):
                    self._apply(each)
            elif isinstance(message, Prepare):
                gid = ""
            elif gid:
                self._prepared.setdefault(gid, []).append(message)
                self._note(message, xid)
            else:
                self._apply(message)
                self._note(message, xid)

    def _content(self, message: PgOutputMessage) -> str | None:
        """Of a mark."""
        if isinstance(message, Message) and message.prefix == self.prefix:
            return message.content.decode()
        if isinstance(message, Update) and self._relations[message.relation_oid] == "mark":
            return str(_values(message.new)[0])
        return None

    def _note(self, message: PgOutputMessage, xid: int) -> None:
        if isinstance(message, Insert | Update):
            self._changed[_values(message.new)[0]] = xid

    def _apply(self, message: PgOutputMessage) -> None:
        if isinstance(message, Truncate):
            self.rows.clear()
        elif isinstance(message, Delete):
            assert message.key is not None
            self.rows.pop(_values(message.key)[0], None)
        elif isinstance(message, Insert | Update):
            values = _values(message.new)
            before = self.rows.get(values[0], (MISSING,) * len(COLUMNS))
            self._put([tuple(old if new is UNCHANGED else new for old, new in zip(before, values, strict=True))])


def _values(data: TupleData) -> Row:
    return tuple(value.value.decode() if isinstance(value, Text) else value for value in data[: len(COLUMNS)])
