from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from gateway.errors import RetrySlowly
from gateway.postgres import credentials
from gateway.postgres.credentials import Credentials, names_one_host

DSN = "postgresql://u@h/d"


def command(code: str) -> Credentials:
    return Credentials(DSN, password_command=f'"{sys.executable}" -c "{code}"')


async def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    login = Credentials(DSN, password_file=path)
    for content, expected in (
        ("one", "one"),
        ("two\n", "two"),
        ("\ufeffthree\r\n", "three"),
        (" \u00e9 \r\n", " \u00e9 "),
    ):
        path.write_bytes(content.encode())
        assert await login.password() == expected


async def test_a_command_is_run_each_time(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    login = command(f"p = open('{counter}', 'a+'); p.write('x'); p.seek(0); print('token', len(p.read()))")
    assert [await login.password() for _ in range(2)] == ["token 1", "token 2"]


async def test_without_either_the_dsn_decides() -> None:
    assert await Credentials(DSN).password() is None


@pytest.mark.parametrize("content", [b"", b"\n", b"one\ntwo\n", b"a\0b", b"\xff"])
async def test_what_is_no_password_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(RetrySlowly, match="token contains") as caught:
        await Credentials(DSN, password_file=tmp_path / "token").password()
    assert "two" not in str(caught.value)


async def test_a_file_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(RetrySlowly, match="No such file") as caught:
        await Credentials(DSN, password_file=tmp_path / "token").password()
    assert "check the path" in caught.value.hint


async def test_a_command_that_fails_is_told_without_what_it_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RetrySlowly, match="exit code 3") as caught:
        await command("import sys; print('geheim'); print('geheim', file=sys.stderr); sys.exit(3)").password()
    assert "geheim" not in str(caught.value)
    assert "geheim" not in "".join(capfd.readouterr())


async def test_a_command_that_is_not_there_is_waited_for() -> None:
    with pytest.raises(RetrySlowly, match="cannot be run: No such file") as caught:
        await Credentials(DSN, password_command="/not/there").password()
    assert "check the program's path" in caught.value.hint


@pytest.mark.parametrize("how", ["time", "cancelled"])
async def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    pid_file = tmp_path / "pid"
    login = command(f"import os, time; open('{pid_file}', 'w').write(str(os.getpid())); time.sleep(60)")
    monkeypatch.setattr(credentials, "COMMAND_TIMEOUT_S", 2.0 if how == "time" else 60.0)
    asking = asyncio.create_task(login.password())
    if how == "cancelled":
        while not (pid_file.exists() and pid_file.read_text()):
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    else:
        begun = time.monotonic()
        with pytest.raises(RetrySlowly, match="no password within"):
            await asking
        assert time.monotonic() - begun < 20
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_a_login_does_not_show_what_it_holds() -> None:
    assert "geheim" not in repr(Credentials("postgresql://u:geheim@h/d", password_command="echo geheim"))


@pytest.mark.parametrize(
    ("dsn", "is_one"),
    [
        ("postgresql://u:a,b@h:5432/d", True),
        ("postgresql://u@h:5432,h:5433/d", False),
        ("postgresql://u@/d?host=h", True),
        ("postgresql://u@/d?host=h,i", False),
        ("postgresql:///d", True),
        ("postgresql://[h/d", False),
    ],
)
def test_the_hosts_of_a_dsn_are_known_before_it_is_used(
    dsn: str, is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    assert names_one_host(dsn) == is_one
    monkeypatch.setenv("PGHOST", "h,i")
    assert not names_one_host("postgresql:///d")
