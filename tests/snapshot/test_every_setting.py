"""Whatever a role or a database can carry in pg_settings: a snapshot and a stream are the source
all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import Load, set_up
from tests.snapshot.scene import Scene, open_scene
from tests.snapshot.test_holes import command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW_COUNT: Final = 800
_SETTABLE: Final = """
SELECT name, vartype, reset_val, min_val, max_val, enumvals
FROM pg_settings
WHERE context IN ('user', 'superuser', 'backend', 'superuser-backend') AND source <> 'client' ORDER BY name
"""
_TEXTS: Final = {
    "DateStyle": "SQL, DMY",
    "TimeZone": "Asia/Kathmandu",
    "application_name": "another",
    "backtrace_functions": "int4div",
    "client_encoding": "LATIN1",
    "createrole_self_grant": "set",
    "default_tablespace": "pg_default",
    "default_text_search_config": "pg_catalog.simple",
    "log_connections": "all",
    "restrict_nonsystem_relation_kind": "view",
    "search_path": "odd",
    "temp_tablespaces": "pg_default",
    "timezone_abbreviations": "India",
    "wal_consistency_checking": "heap",
    **dict.fromkeys(("lc_messages", "lc_monetary", "lc_numeric", "lc_time"), "POSIX"),
}
_NOT_CHANGED: Final = {
    # Libraries: their names must exist.
    *("dynamic_library_path", "jit_provider", "local_preload_libraries", "session_preload_libraries"),
    *("default_table_access_method", "extension_control_path"),
    # Each connection would sleep for an hour.
    *("post_auth_delay", "pre_auth_delay"),
    # Any statement would fail: no session can help it, the error is named, and the gateway waits.
    *("max_stack_depth", "temp_file_limit"),
    # A developer's option: each transaction would be streamed, with its relations, which takes a query
    # of the catalog for each. What a snapshot does then: test_streamed_chunks.py.
    "debug_logical_replication_streaming",
    *("oauth_validator_libraries", "output_plugin_libraries"),
}
_TIMEOUT: Final = "150ms"


def odd_value(setting: asyncpg.Record, *, largest: bool) -> str | None:
    """A value as far from the present one as the setting allows; None: it is left alone."""
    name, kind = setting["name"], setting["vartype"]
    if name in _NOT_CHANGED:
        return None
    if name.endswith("_timeout") and name not in ("tcp_user_timeout", "wal_sender_timeout") and not largest:
        return _TIMEOUT
    if name == "wal_sender_timeout":
        return "0" if largest else "10s"
    if kind == "bool":
        return "off" if setting["reset_val"] == "on" else "on"
    if kind == "enum":
        values = [value for value in setting["enumvals"] if value != setting["reset_val"]] or setting["enumvals"]
        return str(values[-1 if largest else 0])
    if kind in ("integer", "real"):
        return str(setting["max_val" if largest else "min_val"])
    return _TEXTS[name]


async def _give_odd_settings(sql: asyncpg.Connection, role: str, *, largest: bool) -> list[str]:
    """Of what the server takes for a role, all."""
    given = []
    for setting in await sql.fetch(_SETTABLE):
        value = odd_value(setting, largest=largest)
        if value is None:
            continue
        refused = None
        try:
            quoted = (
                ", ".join(f"'{part}'" for part in value.split(", ")) if setting["name"] == "DateStyle" else f"'{value}'"
            )
            await sql.execute(f'ALTER ROLE {role} SET "{setting["name"]}" = {quoted}')
            given.append(setting["name"])
        except asyncpg.PostgresError as error:
            refused = error.sqlstate
        assert refused in (None, "55P02", "22023", "42501", "25001"), (setting["name"], value, refused)
    return given


async def test_no_setting_of_the_role_changes_what_arrives(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    await _all_arrives(database, kafka, registry, topic_prefix, tmp_path)


@pytest.mark.long  # the settings of 18 include almost all of these
async def test_nor_does_one_of_the_oldest_version(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    await _all_arrives(database_oldest, kafka, registry, topic_prefix, tmp_path)


async def _all_arrives(database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path) -> None:
    role, other = f"odd_{prefix}", f"app_{prefix}"
    dsn = database.dsn_of(role)
    async with open_scene(database, kafka, registry, prefix, folder, source__dsn=dsn) as scene:
        sql = scene.sql
        await sql.execute(
            f"CREATE ROLE {other}; CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{database.server.password}';"
            f"GRANT {other}, pg_read_all_data TO {role}; CREATE SCHEMA odd"
        )
        if sql.get_server_version().major < 16:
            await sql.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
        await set_up(sql, ROW_COUNT)
        for number, largest in enumerate((False, True), 1):
            await sql.execute(f"ALTER ROLE {role} RESET ALL")
            given = await _give_odd_settings(sql, role, largest=largest)
            assert len(given) > 150, given
            await sql.execute(f"ALTER ROLE {role} SET role = {other}")
            await _a_snapshot_and_a_stream(scene, Load(database, seed=number, row_count=ROW_COUNT), number)
        await sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}; DROP ROLE {other}")


async def _a_snapshot_and_a_stream(scene: Scene, load: Load, number: int) -> None:
    await scene.gateway.streaming()
    load.start()
    if number > 1:
        await command(scene, "start")
    await scene.snapshot_done(times=number)
    await load.finish()
    # A transaction that takes longer to send than any timeout of the role.
    await scene.sql.execute("UPDATE shop.item SET big = repeat('x', 20000); UPDATE shop.full_key SET n = n + 1")
    target = await scene.judge()
    assert target.is_whole_done
    assert not scene.gateway.events("restarting"), scene.gateway.log_tail()
    assert not scene.gateway.events("table_unreadable"), scene.gateway.log_tail()
    assert await scene.gateway.stop() == 0
