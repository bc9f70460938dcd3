"""What PostgreSQL answered about the workload - its messages, and its catalog: `python -m
tests.debezium.answers` asks it again.

With them the state machine and the encoders are held against Debezium's recordings without a
server. A query whose text has changed has no answer: record again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import lzma
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import asyncpg

from gateway.local import Postgres
from tests.debezium.encoded import encoded
from tests.debezium.recorded import FOLDER, OPTIONS
from tests.debezium.scene import PUBLICATION, WITH_BINARY, run_workload

FILE: Final = FOLDER / "answers.json.xz"
SLOT: Final = "recorded"
_BYTES: Final = "base64 "


def _key(query: str, arguments: tuple[Any, ...]) -> str:
    return json.dumps([sha256(query.encode()).hexdigest()[:16], arguments])


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return _BYTES + base64.b64encode(value).decode()
    return int(value) if isinstance(value, Decimal) else value


def _as_value(text: Any) -> Any:
    is_bytes = isinstance(text, str) and text.startswith(_BYTES)
    return base64.b64decode(text.removeprefix(_BYTES)) if is_bytes else text


class Recorder:
    """A connection whose answers are kept."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self.answers: dict[str, list[list[Any]]] = {}

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        rows = await self._sql.fetch(query, *arguments)
        self.answers[_key(query, arguments)] = [[_as_text(value) for value in row] for row in rows]
        return list(rows)

    async def execute(self, query: str, *arguments: Any) -> Any:
        return await self._sql.execute(query, *arguments)


class Answers:
    """Recorded ones in place of a connection."""

    def __init__(self) -> None:
        self._answers: dict[str, list[list[Any]]] = json.loads(lzma.decompress(FILE.read_bytes()))

    async def fetch(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        found = self._answers.get(_key(query, arguments))
        assert found is not None, f"record again (python -m tests.debezium.answers): nothing is known of {query}"
        return [tuple(map(_as_value, row)) for row in found]

    async def execute(self, query: str, *arguments: Any) -> None:
        """Settings of the session, which were set when it was recorded."""


async def _record() -> None:
    settings: dict[str, str | int] = {"wal_level": "logical", "max_prepared_transactions": 20}
    async with Postgres(settings=settings) as server:
        sql = await server.connect()
        await run_workload(sql, SLOT)
        recorder: Any = Recorder(sql)
        for options in OPTIONS.values():
            await encoded(recorder, SLOT, PUBLICATION, options, binary=False)
            if not options.include_unknown_datatypes:
                await encoded(recorder, SLOT, WITH_BINARY, options, binary=True)
        content = json.dumps(recorder.answers, separators=(",", ":")).encode()
        FILE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
        print(len(recorder.answers), "answers", FILE.stat().st_size, "bytes")


if __name__ == "__main__":
    asyncio.run(_record())
