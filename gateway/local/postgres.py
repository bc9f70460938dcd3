"""A private PostgreSQL server, set up for logical decoding. It has a newly created data directory
and a random password, and listens on 127.0.0.1 only.

The password is needed because every user of the machine can connect to a port of 127.0.0.1, and a
superuser of PostgreSQL can run programs as the server's account.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Literal

import asyncpg

from gateway.local.accounts import Account, reachable_folder, unprivileged_account
from gateway.local.binaries import NEWEST_VERSION, PostgresBinaries, postgres_binaries
from gateway.local.guard import Guard
from gateway.local.ports import HOST, free_port
from gateway.local.server import Server

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
# PostgreSQL manual, 18.5 Shutting Down the Server.
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_SETTINGS: dict[str, str | int] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_replication_slots": 64,
    "max_wal_senders": 64,
    "max_prepared_transactions": 50,
    "max_connections": 200,
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    # Files of dynamic shared memory are in the data folder and removed with it, even after kill -9.
    "dynamic_shared_memory_type": "mmap",
    # The data need not survive a crash of the operating system; tests crash only the server.
    "fsync": "off",
    "full_page_writes": "off",
    "log_line_prefix": "%m [%p] %b %a ",
    "timezone": "UTC",
}


class Postgres(Server):
    """A server. `settings` are server parameters that override the defaults above; `databases` are
    created at the first start.

    `hba` replaces the lines of pg_hba.conf (PostgreSQL manual, 20.1); `files` (name -> content),
    such as certificates, are put into the data folder before the first start. If `standby_of` is a
    running server, the new server becomes its standby: the data is copied, and the WAL is streamed
    through `physical_slot`, which is created. Only versions from 17 on have the programs for this.
    `password` is the superuser's password. The default is the primary's password for a standby, and
    a random one otherwise.
    """

    def __init__(
        self,
        version: int = NEWEST_VERSION,
        *,
        settings: Mapping[str, str | int] | None = None,
        databases: Sequence[str] = (),
        hba: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
        standby_of: Postgres | None = None,
        physical_slot: str = "standby",
        password: str = "",
    ) -> None:
        super().__init__()
        self.version = version
        self.port = free_port()
        self.password: str = password or (standby_of.password if standby_of else secrets.token_urlsafe(16))
        self.server_version = ""  # reported by the running server: "18.6"
        self._settings: dict[str, str | int] = {**_SETTINGS, **(settings or {})}
        self._databases = tuple(databases)
        self._hba = tuple(hba)
        self._files = dict(files or {})
        self._primary = standby_of
        self._physical_slot = physical_slot
        self._account = unprivileged_account()
        self._binaries: PostgresBinaries | None = None

    @property
    def dsn(self) -> str:
        """Connection URI of the database `postgres`."""
        return self.database_dsn("postgres")

    def database_dsn(self, database: str, user: str = "postgres") -> str:
        """Return the connection URI of a database. `user` is postgres, or one that was created with
        the same password."""
        return f"postgresql://{user}:{self.password}@{HOST}:{self.port}/{database}"

    @property
    def account(self) -> Account | None:
        """Owner of the data and of the process; None for the current user."""
        return self._account

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def program(self, name: str) -> Path:
        """Return the path of one of this version's programs. Versions 14 to 16 have only initdb,
        pg_ctl and postgres."""
        assert self._binaries is not None, "not started"
        return self._binaries.program(name)

    async def start(self) -> None:
        """Start the server and wait until it answers a query. The first start creates the data;
        later ones keep it. Raises `PartFailed` with the log's tail."""
        if self.pid is not None:
            return
        first = self._guard is None
        if self._guard is None:
            self._guard = await self._initialize()
        arguments = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        self._process = await self._guard.start(
            "server",
            [self.program("postgres"), "-D", self.data_folder, "-p", str(self.port), *arguments],
            account=self._account,
            end_signal=signal.SIGQUIT,
        )
        await self._process.ready(self._answers, START_TIMEOUT_S)
        _log.info("%s %s answers on port %d", "PostgreSQL", self.server_version, self.port)
        if first and self._databases:
            async with self._session() as connection:
                for name in self._databases:
                    await connection.execute(f'CREATE DATABASE "{name}"')

    async def _initialize(self) -> Guard:
        """Create the data in a new folder, by initdb or, for a standby, by pg_basebackup. Both get
        --no-sync, because they would otherwise wait for the disk."""
        found = await postgres_binaries(self.version)
        temporary = reachable_folder((Path(gettempdir()), Path("/tmp"), Path("/var/tmp")), self._account)
        guard = await Guard.open("postgres", account=self._account, temporary=temporary)
        try:
            self._binaries = await asyncio.to_thread(found.reachable_copy, self._account, guard.folder)
            if self._primary is None:
                await self._create_data(guard)
            else:
                await self._copy_data(guard, self._primary)
            if self._hba:
                (guard.folder / "data" / "pg_hba.conf").write_text("\n".join([*self._hba, ""]))
            for name, content in self._files.items():
                self._put(guard.folder / "data" / name, content)
        except BaseException:
            await guard.close()
            raise
        return guard

    async def _create_data(self, guard: Guard) -> None:
        self._put(guard.folder / "password", self.password.encode())
        command: list[str | Path] = [
            self.program("initdb"),
            "-D",
            guard.folder / "data",
            "-U",
            "postgres",
            "--auth=scram-sha-256",
            f"--pwfile={guard.folder / 'password'}",
            "--no-sync",
            "--no-instructions",
            "--encoding=UTF8",
            "--locale=C",
        ]
        await guard.run("initdb", command, account=self._account)

    async def _copy_data(self, guard: Guard, primary: Postgres) -> None:
        """Copy the primary's data. -R writes standby.signal and primary_conninfo, which must name a
        database for the synchronization of slots."""
        command: list[str | Path] = [
            self.program("pg_basebackup"),
            "-D",
            guard.folder / "data",
            "-d",
            primary.dsn,
            "-R",
            "-C",
            "-S",
            self._physical_slot,
            "--checkpoint=fast",
            "--no-sync",
        ]
        await guard.run("pg_basebackup", command, account=self._account)

    def _put(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o600)
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    async def _answers(self) -> bool:
        try:
            async with self._session() as connection:
                self.server_version = (await connection.fetchval("SHOW server_version")).split()[0]
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a connection, and close it at the end, also if the start is cancelled."""
        connection = await self.connect()
        try:
            yield connection
            await connection.close()
        finally:
            connection.terminate()

    async def connect(self, database: str = "postgres") -> asyncpg.Connection:
        """Return a new connection as superuser, regardless of PGSSLMODE in the environment."""
        return await asyncpg.connect(self.database_dsn(database), ssl="prefer", timeout=10)

    async def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server and keep its data. `immediate` is like a crash: the next start performs
        crash recovery."""
        await self._stop(_STOP_SIGNALS[mode], STOP_TIMEOUT_S)
