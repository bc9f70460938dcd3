"""What is not the value's own: settings of database and role, the database's encoding, what an old
server cannot print."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest

from gateway.errors import StopForOperator
from gateway.local import Kafka, Postgres, Registry
from gateway.postgres.classify_errors import classify_exception
from tests.conftest import Database
from tests.support.theatre import theatre
from tests.values.oracle import Stream

pytestmark = pytest.mark.integration

SETTINGS: Final = {
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "'sql_standard'",
    "TimeZone": "'Asia/Kathmandu'",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "search_path": "odd, public",
    "xmlbinary": "'hex'",
    "quote_all_identifiers": "on",
    "idle_session_timeout": "'300ms'",
    "statement_timeout": "'200ms'",
    "client_encoding": "'LATIN1'",
}
TABLE: Final = """
CREATE EXTENSION hstore; CREATE SCHEMA odd; CREATE TABLE odd.other (id int);
CREATE TABLE t (id int PRIMARY KEY, at timestamptz, day date, took interval, f float8, raw bytea, class regclass,
                pairs hstore, c "char", word text, prices numeric(5,2)[], span tsrange);
"""
ROW: Final = """
INSERT INTO t VALUES (1, '2026-01-02 03:04:05.678901+00', '2026-01-02', '-1 year 2 days 03:04:05.5', 0.1::float8 + 0.2, '\\x00ff',
    'odd.other', 'clé=>"ça, où"', '\\351', 'Motörhead', '{1.5,NULL}', '[2026-01-02 03:04:05,infinity)')
"""
AFTER: Final[dict[str, Any]] = {
    "id": 1,
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    "day": date(2026, 1, 2),
    "took": "P-1Y2DT3H4M5.5S",
    "f": 0.1 + 0.2,
    "raw": b"\x00\xff",
    "class": "odd.other",
    "pairs": '"clé"=>"ça, où"',
    "c": "\\351",
    "word": "Motörhead",
    "prices": [Decimal("1.50"), None],
    "span": '["2026-01-02 03:04:05",infinity)',
}


async def test_settings_of_the_database_and_its_encoding_change_no_value(
    postgres: Postgres, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    """Each setting would show in some value, or end a connection that waits. hstore has no true
    binary form here."""
    name = f"odd_{uuid4().hex[:8]}"
    log = tmp_path / "gateway.log"
    create = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    async with theatre(name, postgres, kafka, registry, log, create, source__binary="on") as stage:
        await stage.sql.execute(TABLE + "CREATE PUBLICATION walgate FOR ALL TABLES")
        for setting, value in SETTINGS.items():
            await stage.sql.execute(f"ALTER DATABASE {name} SET {setting} = {value}")
        await stage.gateway.streaming(source__check_interval_s="1")
        await stage.sql.execute(ROW)
        await stage.sql.execute("CREATE TABLE seen_by_the_check ()")
        await stage.gateway.logged("public.seen_by_the_check")
        found = await stage.delivered(lambda found: bool(found.rows("t")))
        found.close()
        assert await stage.gateway.stop() == 0
    assert "restarting" not in log.read_text()
    assert found.rows("t") == [AFTER]


async def test_what_postgresql_14_can_not_print_stops_with_the_way_on(database_oldest: Database) -> None:
    """More than 2^31 hours: only arithmetic makes such an interval there, and its binary form is as
    good as any."""
    sql = await database_oldest.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY, v interval); CREATE PUBLICATION everything FOR ALL TABLES")
    stream = Stream(sql, f"long_{sql.get_server_pid()}", "everything")
    await stream.start()
    await sql.execute("INSERT INTO t VALUES (1, interval '-2000000000 hours' * 1.2)")
    (record,) = await stream.peek(binary=True)
    assert record.event["after"] == {"id": 1, "v": "PT-2400000000H"}
    with pytest.raises(asyncpg.DatetimeFieldOverflowError) as caught:
        await stream.peek(binary=False)
    error = classify_exception(caught.value, "the stream")
    assert isinstance(error, StopForOperator) and "source.binary = on" in error.hint
