"""What is wrong with a DSN is said without the DSN: it holds the password. No server is there."""

from __future__ import annotations

import asyncio
import time
import traceback
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import Retry, StopForOperator
from gateway.postgres.connection import connect_sql

NOBODY = "127.0.0.1:1/d"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:pa/geheim@{NOBODY}",
        f"postgresql://u:pa?geheim@{NOBODY}",
        f"postgresql://u:pa?geheim=@{NOBODY}",
        f"postgresql://u:pa#geheim@{NOBODY}",
        f"postgresql://u:pa[geheim@{NOBODY}",
        "postgresql://u:p@[geheim:1/d",
        "postgresql://u:p@geheim:1@127.0.0.1:1/d",
        f"postgresql://u:p\u2100geheim@{NOBODY}",
        "geheim://u@h/d",
        f"postgresql://u:p@{NOBODY}?sslmode=geheim",
        f"postgresql://u:p@{NOBODY}?target_session_attrs=geheim",
    ],
)
async def test_a_dsn_that_can_not_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(StopForOperator, match=r"source\.dsn cannot be used") as caught:
        await connect_sql(dsn, timeout_s=2)
    assert "percent-encode" in caught.value.hint
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("password", "character"),
    [
        ("pa@geheim", "@"),
        ("12/geheim", "/"),
        ("12?geheim", "?"),
        ("12#geheim", "#"),
        ("a@geheim/b", "@"),
        ("a@geheim?b", "?"),
    ],
)
async def test_a_character_of_the_password_that_must_be_encoded_is_named(password: str, character: str) -> None:
    """With digits before it, the rest would even be taken for a port."""
    with pytest.raises(StopForOperator, match=rf"cannot be used: [{character}] is not percent-encoded") as caught:
        await connect_sql(f"postgresql://u:{password}@{NOBODY}", timeout_s=2)
    assert f"%{ord(character):02X}" in caught.value.hint
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:p%40%2F%3F%23@{NOBODY}",
        f"postgresql://{NOBODY}?user=u&application_name=me@here",
        f"postgresql://u@{NOBODY}?application_name=a/b@c",
        "postgresql://u:p@[::1]:1,127.0.0.1:1/d",
    ],
)
async def test_what_is_encoded_or_stands_elsewhere_is_no_mistake(dsn: str) -> None:
    with pytest.raises(Retry, match=r"127\.0\.0\.1:1: ConnectionRefusedError"):
        await connect_sql(dsn, timeout_s=2)


async def test_a_channel_binding_that_is_none_is_not_quoted() -> None:
    value = "".join(("ge", "heim"))  # tracebacks quote this file
    with pytest.raises(StopForOperator, match=r"source\.dsn cannot be used") as caught:
        await connect_sql(f"postgresql://u:p@{NOBODY}?channel_binding={value}")
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("parameter", ["sslrootcert", "sslcert", "sslcrl"])
async def test_a_certificate_that_is_not_there_is_named(parameter: str) -> None:
    with pytest.raises(StopForOperator, match=f"{parameter} .*: /not/there"):
        await connect_sql(f"postgresql://u@{NOBODY}?sslmode=require&{parameter}=/not/there", timeout_s=2)


async def test_a_socket_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Retry):
        await connect_sql(f"postgresql://u@/d?host={tmp_path}&sslrootcert={__file__}", timeout_s=2)


@pytest.mark.parametrize(
    ("dsn", "said", "remedy"),
    [
        (f"'postgresql://u:geheim@{NOBODY}'", "begins with a quotation mark", "remove the quotation marks"),
        (f"jdbc:postgresql://u:geheim@{NOBODY}", 'begins with "jdbc:"', "as a URL of libpq"),
        (f"postgresql+psycopg2://u:geheim@{NOBODY}", r'begins with "postgresql\+"', "as a URL of libpq"),
        ("host=127.0.0.1 port=1 password=geheim dbname=d", "is a list of keywords and values", "as a URL of libpq"),
        ("postgresql://u:geheim@127.0.0.1:99999/d", "port 99999 in source.dsn is not between", "correct the port"),
        ("postgresql://u:geheim@a:5432,b:0/d", "port 0 in source.dsn is not between", "correct the port"),
        (f"postgresql://u:geheim@{NOBODY}?target_session_attrs=standby", "asks for a standby", "=primary"),
        (f"postgresql://u:geheim@{NOBODY}?replication=database", "has the parameter replication", "remove replication"),
        (f"postgresql://u:geheim@{NOBODY}?target_session_attrs=prefer-standby", "asks for a standby", "=primary"),
    ],
)
async def test_what_is_often_taken_for_a_dsn_is_told_from_one(dsn: str, said: str, remedy: str) -> None:
    with pytest.raises(StopForOperator, match=said) as caught:
        await connect_sql(dsn, timeout_s=2)
    assert remedy in caught.value.hint and "geheim" not in str(caught.value)


async def test_localhost_in_a_container_is_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    for in_container in (True, False):
        monkeypatch.setattr("os.path.exists", lambda path, found=in_container: found and path == "/.dockerenv")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(Retry) as caught:
            await connect_sql(f"postgresql://u@{NOBODY}", timeout_s=2)
        assert ("127.0.0.1 is this container itself" in caught.value.hint) is in_container


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
async def test_a_verification_without_an_authority_says_how_to_name_one(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StopForOperator, match=f"sslmode={mode} needs the certificate of the authority") as caught:
        await connect_sql(f"postgresql://u:geheim@{NOBODY}?sslmode={mode}", timeout_s=2)
    assert "sslrootcert=FILE" in caught.value.hint and "sslrootcert=system" in caught.value.hint
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "disable"])
async def test_the_authorities_of_the_system_are_not_enough_for_a_weaker_mode(mode: str) -> None:
    """As libpq has it: whoever has any public certificate could pretend to be the server."""
    with pytest.raises(StopForOperator, match=f"sslmode={mode} cannot be used with sslrootcert=system") as caught:
        await connect_sql(f"postgresql://u:p@{NOBODY}?sslmode={mode}&sslrootcert=system", timeout_s=2)
    assert "set sslmode=verify-full" in caught.value.hint


@pytest.mark.parametrize(
    ("greeting", "answer", "named"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"", "an SSH server"),
        (b"\x4a\0\0\0\x0a8.0.33\0" + b"a" * 60, b"", "a MySQL or MariaDB server"),
        (b"220 mail.example ESMTP\r\n", b"", "a mail or FTP server"),
        (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server"),
        (b"", b"-ERR unknown command\r\n", "a Redis server"),
        (b"", b"\x15\x03\x03\0\x02\x02\x0a", "a TLS server of another service"),
    ],
)
@pytest.mark.parametrize("mode", ["prefer", "disable"])
async def test_another_service_at_the_port_is_named_at_once(
    greeting: bytes, answer: bytes, named: str, mode: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\n")  # of a request that this service knows; another one it lets wait
            writer.write(answer)
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as service:
        port = service.sockets[0].getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(StopForOperator, match=f"this is not a PostgreSQL server, but {named}") as caught:
            await connect_sql(f"postgresql://u:p@127.0.0.1:{port}/d?sslmode={mode}", timeout_s=10)
        assert time.monotonic() - begun < 6
    assert caught.value.hint == "check the host and the port in source.dsn"
