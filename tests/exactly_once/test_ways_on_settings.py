"""Ways on from stops of the configuration and of the way to PostgreSQL: one gateway that is refused again and again, and
streams each time that its message was followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from gateway.local.ports import HOST, free_port
from tests.conftest import _new_database
from tests.exactly_once.test_ways_on import Place, Walk, _left_out, _place, _set_as_told, _with
from tests.exactly_once.written import checked
from tests.gateway_process import COMMAND

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

_KEY_DATA = b"K\0\0\0\x0c"
"""BackendKeyData: process id and secret follow (PostgreSQL manual, 54.7)."""


@pytest_asyncio.fixture(scope="module")
async def _one_place(
    postgres: Postgres, kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    """It has streamed, so that a row may be missing."""
    prefix = f"t{uuid4().hex[:10]}"
    folder = tmp_path_factory.mktemp("ways")
    async with (
        asynccontextmanager(_new_database)(postgres) as database,
        asynccontextmanager(_place)(database, kafka, registry, prefix, folder) as place,
    ):
        await place.sql.execute(f"CREATE ROLE {prefix} SUPERUSER LOGIN PASSWORD 'p@ss'")
        await place.streams()
        await place.stop()
        yield place
        await place.sql.execute(f"DROP ROLE {prefix}")


@pytest_asyncio.fixture
async def place(_one_place: Place) -> AsyncIterator[Place]:
    """As it was, after each test."""
    settings = dict(_one_place.gateway.settings)
    yield _one_place
    await _one_place.gateway.end()
    _one_place.wrong.clear()
    _one_place.gateway.settings, _one_place.gateway.command = settings, COMMAND


# -- configuration ------------------------------------------------------------------------------------------------------


async def _no_file(place: Place) -> None:
    (place.folder / "walgate.toml").unlink(missing_ok=True)
    place.gateway.command = (*COMMAND, "--config", str(place.folder / "walgate.toml"))


async def _no_toml(place: Place) -> None:
    await _no_file(place)
    (place.folder / "walgate.toml").write_text("[kafka\n")


async def _file_made(place: Place, said: str) -> None:
    assert "given with --config" in said or "it must be a TOML file" in said, said
    (place.folder / "walgate.toml").write_text("[kafka]\ncompression = 'none'\n")


async def _said_how_it_is_called(_: Place, said: str) -> None:
    assert "did you mean WALGATE_KAFKA__PREFIX?" in said, said


async def _secret_made(place: Place, said: str) -> None:
    """The file says what the variable would."""
    assert "it must name a text file that the gateway may read" in said, said
    (place.folder / "dsn").write_text(f"{place.database.dsn}\n")
    place.set(source__dsn_file=str(place.folder / "dsn"))


async def _failpoint_as_told(_: Place, said: str) -> None:
    assert "did you mean 'commit_received'?" in said, said


async def _port_taken(place: Place) -> None:
    place.wrong["http__port"] = place.registry_port


async def _another_port(place: Place, said: str) -> None:
    assert "set another http.port" in said, said
    place.set(http__port=free_port())


# -- DSN and server -----------------------------------------------------------------------------------------------------


async def _password_not_encoded(place: Place) -> None:
    place.wrong["source__dsn"] = _as_role(place, "p@ss")


def _as_role(place: Place, password: str) -> str:
    return re.sub("//.*@", f"//{place.prefix}:{password}@", place.database.dsn)


async def _encoded_as_told(place: Place, said: str) -> None:
    found = re.search(r"percent-encode it there: (\S+) for (\S),", said)
    assert found, said
    place.set(source__dsn=_as_role(place, "p@ss".replace(found[2], found[1])))


async def _sets_date_style(place: Place) -> None:
    await place.sql.execute("""
        CREATE FUNCTION at_login() RETURNS event_trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM set_config('DateStyle', 'SQL, DMY', false); END $$;
        CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION at_login()
    """)


async def _trigger_dropped(place: Place, said: str) -> None:
    assert "no login event trigger sets DateStyle" in said, said
    await place.sql.execute("DROP EVENT TRIGGER at_login; DROP FUNCTION at_login")


WALKS: Mapping[str, Walk] = {
    "file missing": Walk("configuration file", _no_file, _file_made),
    "no TOML": Walk("configuration file", _no_toml, _file_made),
    "no number": Walk("configuration:\n", _with(kafka__partitions="many"), _left_out),
    "no section": Walk("is not a setting", _with(kafka_prefix="x"), _said_how_it_is_called),
    "no secret": Walk("_FILE: ", _with(source__dsn_file="{folder}/dsn"), _secret_made),
    "no failpoint": Walk("no failpoint", _with(failpoints="commit_recieved:kill"), _failpoint_as_told),
    "no action": Walk("is not understood", _with(failpoints="commit_received:boom"), _left_out),
    "port taken": Walk("http: ", _port_taken, _another_port),
    "password not encoded": Walk("is not percent-encoded", _password_not_encoded, _encoded_as_told),
    "no such parameter": Walk(
        "has a parameter that the server does not know", _with(source__dsn="{dsn}?no_such=1"), _left_out
    ),
    "no DSN": Walk("source.dsn cannot be used", _with(source__dsn="{dsn}?sslmode=perhaps"), _left_out),
    "DateStyle": Walk("but the gateway requires", _sets_date_style, _trigger_dropped),
    "prefix": Walk("writes to the prefix", _with(kafka__prefix="{prefix}_other"), _set_as_told),
    "dialect": Walk("are written in the dialect", _with(kafka__dialect="debezium"), _set_as_told),
    "transaction": Walk("lower kafka.transaction_timeout_s", _with(kafka__transaction_timeout_s=1000), _left_out),
}


@pytest.mark.parametrize("name", list(WALKS))
async def test_a_configuration_that_stops_the_gateway_is_mended_as_the_message_says(name: str, place: Place) -> None:
    await place.insert()
    await WALKS[name].cause_and_leave(place)


async def test_another_service_is_left_for_postgresql(place: Place) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    await place.insert()
    async with await asyncio.start_server(refuse, HOST, 0) as service:
        place.wrong["source__dsn"] = f"{_at(place, service.sockets[0].getsockname()[1])}?sslmode=disable"
        said = await place.ends()
    assert "this is not a PostgreSQL server" in said and "check host and port in source.dsn" in said
    place.wrong.clear()
    await place.streams()
    await place.stop()


def _at(place: Place, port: int) -> str:
    return place.database.dsn.replace(f":{place.database.server.port}/", f":{port}/")


async def test_a_pooler_is_left_for_the_server_itself(place: Place) -> None:
    await place.insert()
    async with _pooler(place.database.server.port) as port:
        said = await checked(place.gateway, 78, source__dsn=_at(place, port))
    assert "this is a connection pooler, not PostgreSQL" in said and "point source.dsn to the server itself" in said
    await checked(place.gateway, 0)
    await place.streams()
    await place.stop()


@asynccontextmanager
async def _pooler(server_port: int) -> AsyncIterator[int]:
    """Yields its port. Like a pooler, it tells a process id that is not that of the backend."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            place = data.find(_KEY_DATA) + len(_KEY_DATA)
            if place >= len(_KEY_DATA):
                data = data[:place] + b"\0\0\0\x01" + data[place + 4 :]
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, server_port)
        await asyncio.gather(pump(reader, server_writer), pump(server_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]
