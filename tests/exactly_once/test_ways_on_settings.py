"""Ways on from stops of the configuration and of the way to PostgreSQL: one gateway that is refused
again and again, and streams each time that its message was followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from gateway.local.ports import HOST, free_port
from schemas.lsn import Lsn
from tests.conftest import _new_database
from tests.exactly_once.test_ways_on import Place, Walk, _left_out, _place, _set_as_told, _with
from tests.postgres.writer import error
from tests.support.gateway_process import COMMAND
from tests.support.written import checked, command

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

_OLD_VERSION = b"130023"
_OF_PGBOUNCER = error("08P01", "unsupported startup parameter: replication", severity="FATAL")
_TOO_LARGE = "invalid memory alloc request size 1080000003"
_COPY_BOTH = b"W\0\0\0\x07\0\0\0"
_STARTED_AT = re.compile(rb'START_REPLICATION SLOT "\w+" LOGICAL (\S+)')
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


# -- configuration
# ------------------------------------------------------------------------------------------------------


async def _no_file(place: Place) -> None:
    (place.folder / "walgate.toml").unlink(missing_ok=True)
    place.gateway.command = (*COMMAND, "--config", str(place.folder / "walgate.toml"))


async def _no_toml(place: Place) -> None:
    await _no_file(place)
    (place.folder / "walgate.toml").write_text("[kafka\n")


async def _file_made(place: Place, said: str) -> None:
    assert "given with --config" in said or "the file must be in TOML format" in said, said
    (place.folder / "walgate.toml").write_text("[kafka]\ncompression = 'none'\n")


async def _said_how_it_is_called(_: Place, said: str) -> None:
    assert "did you mean WALGATE_KAFKA__PREFIX?" in said, said


async def _secret_made(place: Place, said: str) -> None:
    """The file says what the variable would."""
    assert "to the path of a text file that the gateway can read" in said, said
    (place.folder / "dsn").write_text(f"{place.database.dsn}\n")
    place.set(source__dsn="", source__dsn_file=str(place.folder / "dsn"))


async def _failpoint_as_told(_: Place, said: str) -> None:
    assert "did you mean 'commit_received'?" in said, said


async def _port_taken(place: Place) -> None:
    place.wrong["http__port"] = place.registry_port


async def _another_port(place: Place, said: str) -> None:
    assert "set another http.port" in said, said
    place.set(http__port=free_port())


async def _another_library(place: Place) -> None:
    """As if pip had installed a version that nobody has tried."""
    (place.folder / "sitecustomize.py").write_text("import aiokafka\naiokafka.__version__ = '0.15.0'\n")
    place.gateway.command = ("env", f"PYTHONPATH={place.folder}", *COMMAND)


async def _library_as_told(place: Place, said: str) -> None:
    assert "pip install 'aiokafka==0.14.*'" in said, said
    refused = await command(place.gateway.settings, "check", environment={"PYTHONPATH": str(place.folder)})
    assert refused.returncode == 78 and "aiokafka 0.15.0 is installed" in refused.stderr, refused.stderr
    place.gateway.command = COMMAND


# -- DSN and server
# -----------------------------------------------------------------------------------------------------


async def _password_not_encoded(place: Place) -> None:
    place.wrong["source__dsn"] = _as_role(place, "p@ss")


def _as_role(place: Place, password: str) -> str:
    return re.sub("//.*@", f"//{place.prefix}:{password}@", place.database.dsn)


async def _encoded_as_told(place: Place, said: str) -> None:
    found = re.search(r"write (\S+) instead of (\S) in the user name and password", said)
    assert found, said
    place.set(source__dsn=_as_role(place, "p@ss".replace(found[2], found[1])))


async def _in_a_file(place: Place, said: str) -> None:
    assert "password out of source.dsn, and use source.password_file" in said, said
    (place.folder / "password").write_text("p@ss\n")
    place.set(source__dsn=_without_password(place), source__password_file=str(place.folder / "password"))


async def _from_a_command(place: Place, said: str) -> None:
    assert "source.password_command" in said, said
    place.set(source__dsn=_without_password(place), source__password_command="printf p@ss")


async def _in_a_passfile(place: Place, said: str) -> None:
    assert "or passfile=" in said, said
    passfile = place.folder / "pgpass"
    passfile.write_text("*:*:*:*:p@ss\n")
    passfile.chmod(0o600)
    place.set(source__dsn=f"{_without_password(place)}?passfile={passfile}")


def _without_password(place: Place) -> str:
    return _as_role(place, "").replace(":@", "@")


async def _sets_date_style(place: Place) -> None:
    await place.sql.execute("""
        CREATE FUNCTION at_login() RETURNS event_trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM set_config('DateStyle', 'SQL, DMY', false); END $$;
        CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION at_login()
    """)


async def _trigger_dropped(place: Place, said: str) -> None:
    assert "nor a login event trigger sets DateStyle" in said, said
    await place.sql.execute("DROP EVENT TRIGGER at_login; DROP FUNCTION at_login")


WALKS: Mapping[str, Walk] = {
    "file missing": Walk("configuration file", _no_file, _file_made),
    "no TOML": Walk("configuration file", _no_toml, _file_made),
    "no number": Walk("the configuration is not valid:\n", _with(kafka__partitions="many"), _left_out),
    "no section": Walk("not a setting: ", _with(kafka_prefix="x"), _said_how_it_is_called),
    "no secret": Walk(
        "_FILE names cannot be read", _with(source__dsn="", source__dsn_file="{folder}/dsn"), _secret_made
    ),
    "secret twice": Walk("are both set", _with(source__dsn_file="{folder}/dsn"), _left_out),
    "no failpoint": Walk("no failpoint", _with(failpoints="commit_recieved:kill"), _failpoint_as_told),
    "no action": Walk("is not valid", _with(failpoints="commit_received:boom"), _left_out),
    "library": Walk("relies on internals of 0.14.x", _another_library, _library_as_told),
    "port taken": Walk("the HTTP server cannot listen", _port_taken, _another_port),
    "password not encoded": Walk("is not percent-encoded", _password_not_encoded, _encoded_as_told),
    "password to a file": Walk("is not percent-encoded", _password_not_encoded, _in_a_file),
    "password to a command": Walk("is not percent-encoded", _password_not_encoded, _from_a_command),
    "password to a passfile": Walk("is not percent-encoded", _password_not_encoded, _in_a_passfile),
    "no such parameter": Walk(
        "has a parameter that the server does not know", _with(source__dsn="{dsn}?no_such=1"), _left_out
    ),
    "no DSN": Walk("source.dsn cannot be used", _with(source__dsn="{dsn}?sslmode=perhaps"), _left_out),
    "DateStyle": Walk("but the gateway requires", _sets_date_style, _trigger_dropped),
    "authority": Walk(
        "sslmode=verify-full needs the certificate of the authority",
        _with(source__dsn="{dsn}?sslmode=verify-full"),
        _left_out,
    ),
    "quoted": Walk("begins with a quotation mark", _with(source__dsn="'{dsn}'"), _left_out),
    "port": Walk("is not between 1 and 65535", _with(source__dsn="postgresql://u@127.0.0.1:99999/d"), _left_out),
    "jdbc": Walk("like the URLs of another library", _with(source__dsn="jdbc:postgresql://127.0.0.1/d"), _left_out),
    "keywords": Walk("is a list of keywords and values", _with(source__dsn="host=127.0.0.1 dbname=d"), _left_out),
    "standby": Walk("asks for a standby", _with(source__dsn="{dsn}?target_session_attrs=standby"), _left_out),
    "replication": Walk("has the parameter replication", _with(source__dsn="{dsn}?replication=database"), _left_out),
    "weak": Walk(
        "sslmode=require cannot be used with sslrootcert=system",
        _with(source__dsn="{dsn}?sslmode=require&sslrootcert=system"),
        _left_out,
    ),
    "value": Walk("the server rejects the value", _with(source__dsn="{dsn}?work_mem=perhaps"), _left_out),
    "prefix": Walk("are written with the topic prefix", _with(kafka__prefix="{prefix}_other"), _set_as_told),
    "dialect": Walk("were written with kafka.dialect", _with(kafka__dialect="debezium"), _set_as_told),
    "transaction": Walk("lower kafka.transaction_timeout_s", _with(kafka__transaction_timeout_s=1000), _left_out),
}


@pytest.mark.parametrize("name", list(WALKS))
async def test_a_configuration_that_stops_the_gateway_is_mended_as_the_message_says(name: str, place: Place) -> None:
    await place.insert()
    await WALKS[name].cause_and_leave(place)


@pytest.mark.parametrize(
    ("answer", "said", "hint"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "this is not a PostgreSQL server",
            "check the host and the port in source.dsn",
        ),
        (_OF_PGBOUNCER, "unsupported startup parameter", "check that there is no connection pooler in between"),
    ],
    ids=["http", "pooler"],
)
async def test_what_is_no_server_is_left_for_postgresql(answer: bytes, said: str, hint: str, place: Place) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        await writer.drain()
        writer.close()

    await place.insert()
    async with await asyncio.start_server(refuse, HOST, 0) as service:
        place.wrong["source__dsn"] = f"{_at(place, service.sockets[0].getsockname()[1])}?sslmode=disable"
        found = await place.ends()
    assert said in found and hint in found, found
    place.wrong.clear()
    await place.streams()
    await place.stop()


async def test_a_pooler_that_drops_the_parameter_is_left(place: Place) -> None:
    """It lets us in to an ordinary session: a parameter with a dot is nobody's."""

    def drop(data: bytes) -> bytes:
        return data.replace(b"replication\0", b"replicat.on\0")

    await place.insert()
    async with _between(place.database.server.port, of_client=drop) as port:
        place.wrong["source__dsn"] = _at(place, port)
        said = await place.ends()
    assert "syntax error" in said and "check that there is no connection pooler in between" in said, said
    place.wrong.clear()
    await place.streams()
    await place.stop()


@dataclass(frozen=True)
class Unsendable:
    """`settings`: under which START_REPLICATION has `option`, and the server then fails with
    `message`. What is given up is no longer sent."""

    message: str
    option: bytes
    hint: str
    settings: Mapping[str, object]
    is_given_up: bool = True


UNSENDABLE: Mapping[str, Unsendable] = {
    "text": Unsendable(
        _TOO_LARGE, b"binary 'off'", "set source.binary = on and start the gateway", {"source__binary": "off"}, False
    ),
    "binary": Unsendable(
        _TOO_LARGE,
        b"binary 'on'",
        "Only if source.binary is already on, leave the large columns out",
        {"source__binary": "on"},
    ),
    "two-phase": Unsendable(
        'could not map filenumber "base/5/16400" to relation OID',
        b"two_phase 'on'",
        "Set source.two_phase = false. Then either run walgate accept-gap",
        {"source__two_phase": True},
    ),
}


@pytest.mark.parametrize("name", list(UNSENDABLE))
async def test_what_the_server_cannot_send_is_got_past(name: str, place: Place) -> None:
    """A proxy says in place of the server what it would for a row of 500 MB, or for a slot that it
    cannot decode any more."""
    unsendable = UNSENDABLE[name]
    await place.insert()
    unsent = max(place.inserted)
    end_lsn = await place.sql.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    place.set(**unsendable.settings)
    failing = _Failing(error("XX000", unsendable.message), unsendable.option, end_lsn)
    async with _between(place.database.server.port, failing.of_server, failing.of_client) as port:
        right = place.database.dsn
        place.set(source__dsn=_at(place, port))
        said = await place.ends()
        assert unsendable.message in said and unsendable.hint in said, said
        if "set source." in unsendable.hint:
            await _set_as_told(place, unsendable.hint.replace("on.", "on"))
        if unsendable.is_given_up:
            assert "run walgate accept-gap --until-now" in said
            await place.accept_gap("--until-now")
            place.inserted.discard(unsent)
        await place.streams()
        await place.stop()
        place.set(source__dsn=right)


class _Failing:
    """A replication stream that begins before `end_lsn`, with `option`, ends with `answer`."""

    def __init__(self, answer: bytes, option: bytes, end_lsn: str) -> None:
        self._answer, self._option, self._end_lsn = answer, option, Lsn.parse(end_lsn)
        self._fails = False

    def of_client(self, data: bytes) -> bytes:
        asked = _STARTED_AT.search(data)
        if asked:
            self._fails = self._option in data and Lsn.parse(asked[1].decode()) < self._end_lsn
        return data

    def of_server(self, data: bytes) -> bytes:
        head, begins, _ = data.partition(_COPY_BOTH)
        return head + begins + self._answer if begins and self._fails else data


def _at(place: Place, port: int) -> str:
    return place.database.dsn.replace(f":{place.database.server.port}/", f":{port}/")


async def test_a_pooler_is_left_for_the_server_itself(place: Place) -> None:
    await place.insert()
    async with _between(place.database.server.port, _another_pid) as port:
        said = await checked(place.gateway, 78, source__dsn=_at(place, port))
    assert "this is a connection pooler, not PostgreSQL" in said and "point source.dsn to the server itself" in said
    await checked(place.gateway, 0)
    await place.streams()
    await place.stop()


async def test_a_server_that_is_too_old_is_left_for_a_newer_one(place: Place) -> None:
    """One that says of itself that it is 13.23: no test has such a server."""
    version = str(await place.sql.fetchval("SHOW server_version_num")).encode()
    await place.insert()
    async with _between(place.database.server.port, lambda data: data.replace(version, _OLD_VERSION)) as port:
        place.wrong["source__dsn"] = _at(place, port)
        said = await place.ends()
    assert "PostgreSQL 13.23 is too old" in said and "use PostgreSQL 14.3 or newer" in said
    place.wrong.clear()
    await place.streams()
    await place.stop()


def _another_pid(data: bytes) -> bytes:
    """A pooler tells a process id that is not that of the backend."""
    place = data.find(_KEY_DATA) + len(_KEY_DATA)
    return data if place < len(_KEY_DATA) else data[:place] + b"\0\0\0\x01" + data[place + 4 :]


@asynccontextmanager
async def _between(
    server_port: int, of_server: Callable[[bytes], bytes] = bytes, of_client: Callable[[bytes], bytes] = bytes
) -> AsyncIterator[int]:
    """Yields the port of a proxy that changes what the server, or the client, says."""

    async def replication_loop(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(change(data))
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, server_port)
        to_server, to_client = (
            replication_loop(reader, server_writer, of_client),
            replication_loop(server_reader, writer, of_server),
        )
        await asyncio.gather(to_server, to_client, return_exceptions=True)

    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]
