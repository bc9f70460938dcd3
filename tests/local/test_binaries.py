"""WALGATE_POSTGRES: another PostgreSQL takes the place of the newest one, for all tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from gateway.local.binaries import FOLDER_VARIABLE, postgres_binaries

_PROGRAM = """
import asyncio
from gateway.local.binaries import NEWEST_VERSION, VERSIONS, postgres_binaries
from gateway.local.postgres import Postgres
print(NEWEST_VERSION, Postgres().version, asyncio.run(postgres_binaries(NEWEST_VERSION)).folder, VERSIONS[0])
"""


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, FOLDER_VARIABLE: str(folder)}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False
    )


def test_a_folder_takes_the_place_of_the_newest_version() -> None:
    folder = asyncio.run(postgres_binaries(17)).folder
    done = _run(folder)
    assert done.stdout.split() == ["17", "17", str(folder), "17"], done.stderr


def test_a_folder_without_a_server_is_named(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode and f"{FOLDER_VARIABLE} does not name a folder with bin/postgres: {tmp_path}" in done.stderr
