"""pg_resetwal, for transaction ids that a new server does not reach."""

from __future__ import annotations

import os
import subprocess

from gateway.local import Postgres


def reset_wal(server: Postgres, *options: str) -> None:
    """Run pg_resetwal on a server that was shut down (PostgreSQL 17 or later)."""
    owner = server.data_folder.stat()
    account: dict[str, int] = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    command = [server.program("pg_resetwal"), *options, "-D", server.data_folder]
    subprocess.run(command, check=True, capture_output=True, **account)  # type: ignore[call-overload]
