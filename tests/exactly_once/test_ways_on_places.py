"""A place in the WAL that the server cannot send: it is counted, waited for, a stop in the end, and
each way on is walked.

pgoutput reads row filters, column lists and partitions as they were when the change was made, so
that the catalog of now looks right in each of these tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from gateway.local.binaries import NEWEST_VERSION, OLDEST_VERSION
from gateway.startup.repeated_failure import CERTAIN_TIMES
from tests.conftest import Database
from tests.exactly_once.test_ways_on import Place, _place
from tests.support.slots import until_confirmed
from tests.support.written import Written, command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
async def place(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async for made in _place(database, kafka, registry, topic_prefix, tmp_path):
        yield made


@pytest.fixture
async def old_place(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    async for made in _place(database_oldest, kafka, registry, topic_prefix, tmp_path):
        yield made


@pytest.fixture(
    params=[NEWEST_VERSION, *(pytest.param(version, marks=pytest.mark.long) for version in (17, OLDEST_VERSION))]
)
async def own_place(
    request: pytest.FixtureRequest,
    start_postgres: Callable[..., Awaitable[Postgres]],
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
) -> AsyncIterator[Place]:
    """On a server that may crash."""
    server = await start_postgres(request.param)
    async for made in _place(Database(server, "postgres"), kafka, registry, topic_prefix, tmp_path):
        yield made


async def _warnings(place: Place) -> str:
    return (await command(place.gateway.settings, "check")).stdout


def _seen_attempts(place: Place) -> list[tuple[int, str]]:
    """Count and LSN of each attempt that ended at the place."""
    return [(entry["times"], entry["resume_lsn"]) for entry in place.gateway.events("restarting") if "times" in entry]


@pytest.mark.parametrize("delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
async def test_a_row_filter_that_failed_for_a_row_stops_with_the_way_on(place: Place, delivery: str) -> None:
    place.set(kafka__delivery=delivery)
    await place.sql.execute(
        "CREATE TABLE lines (id int PRIMARY KEY, qty int, total int); ALTER TABLE lines REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION filtered FOR TABLE flows, lines WHERE (total / qty > 1)"
    )
    place.set(source__publications='["filtered"]')
    await place.streams()
    await place.stop()
    warned = await _warnings(place)
    assert "row filter" in warned and "public.lines" in warned and "int4div" in warned, warned
    await place.insert()  # is delivered first, and not given up with what follows
    await place.sql.execute("INSERT INTO lines VALUES (1, 2, 10), (2, 0, 10)")
    await place.sql.execute("ALTER PUBLICATION filtered SET TABLE flows, lines WHERE (qty <> 0)")
    assert "int4div" not in await _warnings(place)
    said = await place.ends()
    attempts = _seen_attempts(place)[-CERTAIN_TIMES:]
    assert [times for times, _ in attempts] == list(range(1, CERTAIN_TIMES + 1)), place.gateway.log_tail()
    assert len({lsn for _, lsn in attempts}) == 1 and attempts[0][1] in said
    assert "22012 (DivisionByZeroError in int4div)" in said and "4 times since" in said, said
    assert "row filters as they were when the change was made" in said and "standby" not in said
    assert "walgate accept-gap --until-now" in said
    before = len(_seen_attempts(place))
    again = await place.ends()  # as a supervisor starts it again: there is one more attempt
    assert said.partition("4 times since ")[2][:25] == again.partition("4 times since ")[2][:25], again
    assert [times for times, _ in _seen_attempts(place)[before:]] == [CERTAIN_TIMES]
    await place.accept_gap("--until-now")
    await place.streams()
    await place.stop()


async def _is_renamed(place: Place) -> None:
    """Rename the publication while a row that only its old name has waits for its Kafka
    transaction; then replace it by another."""
    place.set(kafka__commit_interval_ms=1000)
    await place.streams()
    for _ in range(2):
        await place.insert()
    before = set(place.inserted)
    await place.sql.execute("ALTER PUBLICATION walgate RENAME TO renamed")
    await place.insert()
    assert await place.gateway.wait(60) == 78, place.gateway.log_tail()
    said = place.gateway.last_words()
    assert "publications that still do not exist: walgate" in said and "accept-gap --until-now" in said, said
    await Written(place.topics, place.prefix).has("flows", before)
    assert "set source.publications to its new name" in said, said
    place.set(source__publications='["renamed"]')
    await place.streams()
    await place.sql.execute("CREATE PUBLICATION another FOR ALL TABLES")
    await place.insert()
    await Written(place.topics, place.prefix).has("flows", place.inserted)
    await place.stop()
    place.set(source__publications='["another"]')
    await place.streams()
    await place.sql.execute("DROP PUBLICATION renamed")
    await place.insert()
    await Written(place.topics, place.prefix).has("flows", place.inserted)
    await place.stop()
    await place.insert()
    await place.sql.execute("ALTER PUBLICATION another RENAME TO third")
    await place.insert()
    await place.sql.execute("CREATE PUBLICATION another FOR ALL TABLES")
    said = await place.ends()
    assert "it exists now, so it was recreated" in said and "set source.publications to its new name" in said, said
    place.set(source__publications='["third"]')
    await place.streams()
    await place.stop()


async def test_a_publication_that_was_renamed_is_read_on_under_its_new_name(place: Place) -> None:
    await _is_renamed(place)


@pytest.mark.long
async def test_a_publication_of_an_older_server_that_was_renamed_is_read_on(old_place: Place) -> None:
    await _is_renamed(old_place)


async def _is_replaced(place: Place) -> None:
    """By another publication, as docs/tables.md says; but the first time too early."""
    place.set(snapshot__mode="initial")
    await place.sql.execute("DROP PUBLICATION walgate; CREATE PUBLICATION walgate FOR TABLE flows")
    await place.streams()
    await place.gateway.logged('"snapshot_done"')
    await place.stop()
    await place.insert()
    await place.sql.execute("CREATE PUBLICATION another FOR TABLE flows")
    both = '["walgate", "another"]'
    place.set(source__publications=both)
    said = await place.ends()
    assert "if source.publications was just changed, set it back and start the gateway: nothing is lost" in said, said
    place.set(source__publications='["walgate"]')
    await place.streams()
    await until_confirmed(place.sql, place.slot)
    for names in (both, '["another"]'):
        await place.stop()
        place.set(source__publications=names)
        await place.streams()
    await place.sql.execute("DROP PUBLICATION walgate; CREATE PUBLICATION third FOR TABLE flows")
    await place.insert()
    await Written(place.topics, place.prefix).has("flows", place.inserted)
    await until_confirmed(place.sql, place.slot)
    await place.stop()
    assert not place.gateway.events("table_read_again"), place.gateway.log_tail()
    place.set(source__publications='["third"]')
    await place.streams()
    await place.gateway.logged('"table_read_again"')
    await place.stop()


async def test_a_publication_is_replaced_by_another_and_no_table_is_read_again(place: Place) -> None:
    await _is_replaced(place)


@pytest.mark.long
async def test_a_publication_of_an_older_server_is_replaced_by_another(old_place: Place) -> None:
    await _is_replaced(old_place)


_U = "DROP PUBLICATION walgate; CREATE TABLE u (id int PRIMARY KEY, a int, b int, twice int GENERATED ALWAYS AS (a * 2) STORED)"
_DISAGREEMENTS = {
    "column lists": (
        "CREATE PUBLICATION one FOR TABLE flows, u (id, a); CREATE PUBLICATION two FOR TABLE u (id, a)",
        "ALTER PUBLICATION two SET TABLE u (id, b)",
        "ALTER PUBLICATION two SET TABLE u (id, a)",
    ),
    "publish_generated_columns": (
        "CREATE PUBLICATION one FOR ALL TABLES; CREATE PUBLICATION two FOR TABLE u",
        "ALTER PUBLICATION two SET (publish_generated_columns = stored)",
        "ALTER PUBLICATION two SET (publish_generated_columns = none)",
    ),
}


@pytest.mark.parametrize("about", ["column lists", pytest.param("publish_generated_columns", marks=pytest.mark.long)])
async def test_publications_that_disagreed_for_a_row_stop_with_the_way_on(place: Place, about: str) -> None:
    created, differs, agrees = _DISAGREEMENTS[about]
    await place.sql.execute(f"{_U}; {created}")
    place.set(source__publications='["one", "two"]')
    await place.streams()
    await place.stop()
    await place.sql.execute(differs)
    warned = await _warnings(place)
    assert about in warned and ("column list" in warned) == (about == "column lists"), warned
    await place.sql.execute("INSERT INTO u (id, a, b) VALUES (1, 1, 1)")
    await place.sql.execute(agrees)
    await place.insert()
    said = await place.ends()
    assert "0A000" in said and "publications of source.publications disagreed" in said, said
    assert "standby" not in said and "DROP TABLE" not in said
    assert "set source.publications to that one, and nothing is lost" in said
    place.set(source__publications='["one"]')
    await place.streams()  # with the row of before
    await place.stop()


_ROOT = """
DROP PUBLICATION walgate;
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF root FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 PARTITION OF root FOR VALUES FROM (100) TO (200);
CREATE PUBLICATION walgate FOR ALL TABLES WITH (publish_via_partition_root = true);
"""


async def _detach_in_part(place: Place) -> None:
    """An open transaction keeps the second half of the statement waiting, until it is cancelled."""
    holder = await place.database.connect()
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM root")
    other = await place.database.connect()
    detaching = asyncio.create_task(other.execute("ALTER TABLE root DETACH PARTITION p2 CONCURRENTLY"))
    async with asyncio.timeout(60):
        while not await place.sql.fetchval("SELECT bool_or(inhdetachpending) FROM pg_inherits"):
            await asyncio.sleep(0.02)
    await place.sql.execute("SELECT pg_cancel_backend($1)", other.get_server_pid())
    with pytest.raises(asyncpg.QueryCanceledError):
        await detaching
    await holder.execute("COMMIT")


async def _crash_twice(place: Place) -> None:
    """The row before the place is of a table that the gateway knows: nothing can be looked up in a
    server that has crashed."""
    await place.sql.execute(_ROOT)
    await place.streams()
    await place.stop()
    assert "being detached" not in await _warnings(place)
    await _detach_in_part(place)
    warned = await _warnings(place)
    assert "public.p2" in warned and "DETACH PARTITION public.p2 FINALIZE" in warned, warned
    await place.streams()
    await place.insert()
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):  # the crash may come before the answer
        await place.sql.execute("INSERT INTO p2 VALUES (102, 'x')")
    await place.gateway.logged("has crashed 2 times since", timeout_s=90)
    attempt = next(entry for entry in place.gateway.events("restarting") if "has crashed 2" in entry["reason"])
    assert attempt["times"] == 2 and attempt["delay_s"] >= 60 and attempt["resume_lsn"] in attempt["reason"], attempt
    await Written(place.topics, place.prefix).has("flows", place.inserted)


async def test_a_server_that_crashes_at_one_place_is_left_alone_for_minutes(own_place: Place) -> None:
    await _crash_twice(own_place)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_server_that_crashes_at_one_place_stops_with_the_way_on(own_place: Place) -> None:
    place = own_place
    await _crash_twice(place)
    assert await place.gateway.wait(400) == 78, place.gateway.log_tail()
    said = place.gateway.last_words()
    assert f"crashed {CERTAIN_TIMES} times since" in said and "walgate accept-gap --until-now" in said, said
    place.sql = await place.database.connect()
    await place.sql.execute("ALTER TABLE root DETACH PARTITION p2 FINALIZE")
    await place.accept_gap("--until-now")
    await place.streams()
    await place.stop()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_an_internal_error_at_one_place_stops_with_the_way_on(place: Place) -> None:
    """The description of a type is gone from the catalog when a value of it is written. Some errors
    of class XX pass, so that there are more attempts, in three minutes."""
    await place.sql.execute(
        "CREATE TYPE span AS RANGE (subtype = int4); CREATE TABLE source (v span); INSERT INTO source VALUES ('[1,2)');"
        "CREATE TABLE spans (id int PRIMARY KEY, v span); DROP PUBLICATION walgate;"
        "CREATE PUBLICATION walgate FOR TABLE flows, spans"
    )
    await place.streams()
    await place.stop()
    await place.insert()
    await place.sql.execute("CREATE TABLE kept AS SELECT * FROM pg_range WHERE rngtypid = 'span'::regtype")
    await place.sql.execute("DELETE FROM pg_range WHERE rngtypid = 'span'::regtype")
    await place.sql.execute("INSERT INTO spans SELECT 1, v FROM source")
    await place.sql.execute("INSERT INTO pg_range SELECT * FROM kept")
    place.gateway.start()
    assert await place.gateway.wait(500) == 78, place.gateway.log_tail()
    said = place.gateway.last_words()
    assert "8 times since" in said and "XX000" in said and "walgate accept-gap --until-now" in said, said
    await place.accept_gap("--until-now")
    await place.streams()
    await place.stop()
