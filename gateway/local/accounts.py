"""The account that PostgreSQL runs as. PostgreSQL refuses to run as root, so root uses an existing
unprivileged account."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import StopForOperator

UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """Return an existing unprivileged account; None if this process is not root, and so runs
    everything as its own user. No account is ever created."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise StopForOperator(
        "PostgreSQL does not run as root, and there is no account to run it as",
        hint=f"run as an ordinary user, or create one of the accounts {', '.join(UNPRIVILEGED)}",
    )


def reachable(path: Path, account: Account | None) -> bool:
    """Return whether the account (None: this user) may search every folder above `path` and read
    `path`."""
    real = path.resolve()
    if account is None:
        return os.access(real, os.R_OK)
    return all(_allows(folder, account, 0o1) for folder in real.parents) and _allows(real, account, 0o4)


def _allows(path: Path, account: Account, bit: int) -> bool:
    status = path.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & bit << 6)
    if status.st_gid == account.gid:
        return bool(status.st_mode & bit << 3)
    return bool(status.st_mode & bit)


def reachable_folder(candidates: Iterable[Path], account: Account | None) -> Path:
    """Return the first of the folders that the account can read. Raises StopForOperator."""
    for folder in candidates:
        if folder.is_dir() and reachable(folder, account):
            return folder
    raise StopForOperator(
        f"no temporary directory is accessible to the account {account.name if account else 'of this process'}",
        hint="set TMPDIR to a directory that this account can read and write, for example /tmp",
    )
