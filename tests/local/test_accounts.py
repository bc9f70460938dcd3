"""PostgreSQL refuses the superuser: as root it runs as somebody who is there, else as this user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gateway.errors import StopForOperator
from gateway.local.accounts import Account, reachable, reachable_folder, unprivileged_account

ROOT = Path(__file__).parents[2]
NOBODY = Account("nobody", pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
AS_ROOT = os.geteuid() == 0
ORDINARY_USER = """
import asyncio, json, os, pathlib
from gateway.local import Postgres
async def main():
    async with Postgres() as server:
        connection = await server.connect()
        owner = server.data_folder.stat().st_uid
        print(json.dumps([os.getuid(), owner, await connection.fetchval("SELECT 6 * 7"), str(server.data_folder)]))
        await connection.close()
asyncio.run(main())
"""


def test_root_borrows_an_account_and_a_user_needs_none() -> None:
    account = unprivileged_account()
    if AS_ROOT:
        assert account is not None and account.uid != 0
    else:
        assert account is None


def test_root_without_an_account_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("gateway.local.accounts.UNPRIVILEGED", ("walgate-has-no-such-account",))
    with pytest.raises(StopForOperator, match="run as an ordinary user"):
        unprivileged_account()


@pytest.mark.parametrize(("mode", "expected"), [(0o755, True), (0o711, True), (0o750, False), (0o700, False)])
def test_a_path_is_reachable_when_every_folder_above_it_lets_pass(tmp_path: Path, mode: int, expected: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "program").touch(0o755)
    stranger = Account("stranger", 54_321, 54_321)
    above = [one for one in (tmp_path, *tmp_path.parents) if one.stat().st_uid == os.getuid()]
    modes = {one: one.stat().st_mode & 0o7777 for one in above if one != Path("/")}
    try:
        for one, was in modes.items():
            one.chmod(was | 0o011)
        folder.chmod(mode)
        assert reachable(folder / "program", stranger) is expected
    finally:
        folder.chmod(0o700)
        for one, was in modes.items():
            one.chmod(was)


def test_the_first_reachable_temporary_folder_is_taken(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(0o700)
    stranger = Account("stranger", 54_321, 54_321)
    assert reachable_folder([hidden, Path("/")], stranger) == Path("/")
    with pytest.raises(StopForOperator, match="set TMPDIR"):
        reachable_folder([hidden], stranger)


def _pythons(account: Account | None) -> list[str]:
    """Interpreters of this version that the account can start: this one may lie in root's home."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    others = (shutil.which(version, path=path) for path in ("/usr/local/bin", "/usr/bin"))
    return [one for one in (sys.executable, *filter(None, others)) if reachable(Path(one), account)]


ORDINARY = NOBODY if AS_ROOT else None


@pytest.mark.skipif(
    not _pythons(ORDINARY) or not reachable(ROOT, ORDINARY),
    reason="as root, an ordinary user needs an interpreter of this version and a clone that others can read",
)
def test_an_ordinary_user_runs_it_as_itself() -> None:
    said = subprocess.run(
        [_pythons(ORDINARY)[0], "-c", ORDINARY_USER],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}",
            "HOME": "/nonexistent",
        },
        cwd="/",
        user=ORDINARY.uid if ORDINARY else None,
        group=ORDINARY.gid if ORDINARY else None,
        extra_groups=[] if ORDINARY else None,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ORDINARY.uid if ORDINARY else os.getuid()
    user, owner, answer, folder = json.loads(said.stdout)
    assert (user, owner, answer) == (expected, expected, 42)
    assert not Path(folder).exists()
