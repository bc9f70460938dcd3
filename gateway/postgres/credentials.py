"""Check the DSN before asyncpg parses it, and handle parameters of libpq that asyncpg does not
know. For passwords that change, as tokens of cloud logins do, read a file or a command's output at
each connection."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gateway.config.source import SourceSettings
from gateway.errors import RetrySlowly, StopForOperator, WalgateError
from gateway.postgres.asyncpg_internals import Address
from gateway.postgres.authentication import ChannelBinding

COMMAND_TIMEOUT_S: Final = 30.0
SYSTEM: Final = "system"
"""The value of `sslrootcert` that stands for the authorities that the operating system trusts
(PostgreSQL manual, 32.1.2; since version 16)."""
_VERIFYING: Final = ("verify-ca", "verify-full")
_ENCODED: Final = {"@": "%40", "/": "%2F", "?": "%3F", "#": "%23"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The DSN to log in with. `password_command` or `password_file` replaces a password in the
    DSN. If `server` is set, it is the only host of the DSN that is asked."""

    dsn: str = field(repr=False)
    password_command: str = field(default="", repr=False)
    password_file: Path | None = None
    server: Address | None = None

    async def password(self) -> str | None:
        """Return the current password. None means that the DSN, PGPASSWORD or a passfile determines
        it. Raises RetrySlowly, because the source of the password may recover, or be repaired."""
        if self.password_file is not None:
            return _one_line(
                await asyncio.to_thread(_read, self.password_file),
                f"source.password_file {self.password_file} contains",
                "it must consist of the password and nothing else",
            )
        if self.password_command:
            return _one_line(
                await _output(self.password_command),
                "source.password_command returned",
                "the command must print the password and nothing else",
            )
        return None


def login_of(source: SourceSettings, server: Address | None = None) -> Credentials:
    """Return the login of the settings, to one host of the DSN if `server` is set."""
    return Credentials(source.dsn.get_secret_value(), source.password_command, source.password_file, server)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RetrySlowly(
            f"source.password_file {path}: {error.strerror}",
            hint="check the path, and that the gateway's operating system user may read the file",
        ) from error


async def _output(command: str) -> bytes:
    """Run a program with arguments, without a shell, and return its output. The standard error is
    discarded because it may contain secrets."""
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise RetrySlowly(
            f"source.password_command cannot be run: {error.strerror}",
            hint="check the program's path, and that the gateway's operating system user may run it",
        ) from error
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise RetrySlowly(
            f"source.password_command returned no password within {COMMAND_TIMEOUT_S:.0f} s",
            hint="run it by hand, as the gateway's operating system user, to see why",
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RetrySlowly(
            f"source.password_command ended with exit code {process.returncode}",
            hint="run it by hand, as the gateway's operating system user, to see why",
        )
    return output


def _one_line(content: bytes, said: str, hint: str) -> str:
    """Return the password. `said` is the beginning of an error message: the source of the content,
    and the verb."""
    try:
        password = content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise RetrySlowly(f"{said} text that is not UTF-8") from None
    wrong = (
        "nothing"
        if not password
        else "more than one line"
        if "\n" in password
        else "a NUL byte"
        if "\0" in password
        else ""
    )
    if wrong:
        raise RetrySlowly(f"{said} {wrong}", hint=hint)
    return password


_STANDBYS: Final = ("standby", "prefer-standby", "read-only")
_KEYWORDS: Final = re.compile(r"\s*[a-z_]+\s*=")
"""libpq's other form of a connection string (PostgreSQL manual, 32.1.1.1)."""
_AS_LIBPQ: Final = "write it as a URL of libpq: postgresql://user:password@host:port/database"


def check_form(dsn: str, doing: str) -> None:
    """Raise StopForOperator for frequent mistakes in a DSN. Errors quote no part of the DSN that
    may belong to the password."""
    if dsn[:1] in ("'", '"'):
        raise StopForOperator(
            f"{doing}: source.dsn begins with a quotation mark",
            hint="remove the quotation marks around the URL: env files and YAML lists keep them",
        )
    scheme = dsn.partition("://")[0]
    other = next((each for each in ("jdbc:", "postgresql+", "postgres+") if scheme.startswith(each)), "")
    if other:
        raise StopForOperator(
            f'{doing}: source.dsn begins with "{other}", like the URLs of another library', hint=_AS_LIBPQ
        )
    if _KEYWORDS.match(dsn):
        raise StopForOperator(
            f"{doing}: source.dsn is a list of keywords and values (host=... dbname=...), but must be a URL",
            hint=_AS_LIBPQ,
        )
    try:
        parts = urlsplit(dsn)
        ports = [host.rpartition(":")[2] for host in parts.netloc.rpartition("@")[2].split(",")]
    except ValueError:
        return  # login.py then reports the form of a DSN
    for port in ports:
        if port.isdecimal() and not 0 < int(port) < 1 << 16:
            raise StopForOperator(
                f"{doing}: port {port} in source.dsn is not between 1 and 65535", hint="correct the port"
            )
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "replication" in parameters:
        raise StopForOperator(
            f"{doing}: source.dsn has the parameter replication, but the gateway needs regular connections too",
            hint="remove replication from source.dsn: the gateway sets it for its replication connection",
        )
    wanted = parameters.get("target_session_attrs", "")
    if wanted in _STANDBYS:
        raise StopForOperator(
            f"{doing}: target_session_attrs={wanted} in source.dsn asks for a standby, but the gateway reads from the "
            "primary only",
            hint="set target_session_attrs=primary",
        )


def names_one_host(dsn: str) -> bool:
    """Return whether the DSN names one host only, or leaves it to the defaults."""
    try:
        return "," not in (urlsplit(dsn).netloc.rpartition("@")[2] or _parameter(dsn, "host"))
    except ValueError:
        return False  # login.py reports the form of a DSN


def unnamed_database(dsn: str) -> str:
    """Return the beginning of a hint for an error about the database, or "" if the DSN names a
    database."""
    parts = urlsplit(dsn)
    is_named = parts.path.strip("/") or "dbname" in dict(parse_qsl(parts.query)) or os.environ.get("PGDATABASE")
    return (
        ""
        if is_named
        else "source.dsn names no database, so the name of the user is taken: add /database to it; otherwise, "
    )


def unusable_dsn(doing: str) -> WalgateError:
    """Return the error for a DSN that cannot be parsed. The texts of asyncpg and urllib are not
    used: they may quote the password."""
    return StopForOperator(
        f"{doing}: source.dsn cannot be used",
        hint="expected postgresql://user:password@host:port/database?sslmode=...: percent-encode / ? # @ : % "
        "in the password; ports are numbers; sslmode is disable, allow, prefer, require, verify-ca or "
        "verify-full, the last two with sslrootcert=FILE or sslrootcert=system",
    )


def unreadable_file(dsn: str, doing: str) -> WalgateError | None:
    """Return an error that names the TLS file that cannot be read, if any. asyncpg's error does not
    name the file, and looks like the error for a socket whose server is starting."""
    named = dict(parse_qsl(urlsplit(dsn).query))
    for parameter in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        variable = f"PG{parameter.upper()}"
        path = named.get(parameter) or os.environ.get(variable)
        if path and path != SYSTEM and not os.access(path, os.R_OK):
            return StopForOperator(
                f"{doing}: {parameter} (source.dsn, {variable}) cannot be read: {path}",
                hint=f"set {parameter} in source.dsn to a PEM file that the gateway can read",
            )
    return None


def check_dsn(dsn: str, doing: str) -> None:
    """Raise StopForOperator if a character of the user name or password must be percent-encoded and
    is not. That character would end the user's part of the URL, and the rest would be taken for the
    host."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return  # `unusable_dsn` then reports the form of a DSN
    found = ""
    if parts.netloc.count("@") > 1 or ("@" in parts.netloc and "@" in parts.path):
        found = "@"
    elif "@" in parts.path:
        found = "/"
    elif any("@" in part and "=" not in part.partition("@")[0] for part in parts.query.split("&")):
        found = "?"
    elif "@" in parts.fragment:
        found = "#"
    if found:
        raise StopForOperator(
            f"{doing}: source.dsn cannot be used: {found} is not percent-encoded in the user name or password",
            hint=f"percent-encode it: write {_ENCODED[found]} instead of {found} in the user name and password. Or leave the "
            "password out of source.dsn, and use source.password_file, source.password_command or passfile=",
        )


def take_channel_binding(dsn: str) -> tuple[str, ChannelBinding]:
    """Return the DSN without libpq's parameter `channel_binding`, which asyncpg does not know, and
    the value of this parameter. Raises ValueError if the value is not valid."""
    parts = urlsplit(dsn)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    found = [value for name, value in pairs if name == "channel_binding"]
    value = found[-1] if found else os.environ.get("PGCHANNELBINDING", ChannelBinding.PREFER.value)
    if found:
        rest = urlencode([pair for pair in pairs if pair[0] != "channel_binding"])
        dsn = urlunsplit(parts._replace(query=rest))
    return dsn, ChannelBinding(value)


def take_system_roots(dsn: str, doing: str) -> tuple[str, bool]:
    """Return the DSN without `sslrootcert=system`, which asyncpg takes for a file, and whether
    `sslrootcert=system` was set.

    As in libpq, sslmode is then verify-full. Raises StopForOperator for a weaker one.
    """
    if _parameter(dsn, "sslrootcert") != SYSTEM:
        return dsn, False
    mode = _parameter(dsn, "sslmode") or "verify-full"
    if mode != "verify-full":
        raise StopForOperator(
            f"{doing}: sslmode={mode} cannot be used with sslrootcert=system",
            hint="set sslmode=verify-full in source.dsn: with any other, whoever has a certificate of a public authority could "
            "pretend to be the server",
        )
    parts = urlsplit(dsn)
    pairs = [
        pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in ("sslrootcert", "sslmode")
    ]
    return urlunsplit(parts._replace(query=urlencode([*pairs, ("sslmode", "require")]))), True


def without_authority(dsn: str, doing: str) -> StopForOperator | None:
    """Return the error to raise if the server's certificate is to be verified but no authority is
    given, otherwise None."""
    try:
        urlsplit(dsn)
    except ValueError:
        return None
    mode = _parameter(dsn, "sslmode")
    if mode not in _VERIFYING or _parameter(dsn, "sslrootcert") or (Path.home() / ".postgresql/root.crt").exists():
        return None
    return StopForOperator(
        f"{doing}: sslmode={mode} needs the certificate of the authority that signed the server's certificate, but sslrootcert "
        "is not set, and ~/.postgresql/root.crt does not exist",
        hint="add sslrootcert=FILE to source.dsn, or sslrootcert=system if the operating system trusts the authority",
    )


def _parameter(dsn: str, name: str) -> str:
    """Return a parameter's last value in the DSN, or else the value of libpq's environment
    variable."""
    values = [value for key, value in parse_qsl(urlsplit(dsn).query) if key == name]
    return values[-1] if values else os.environ.get(f"PG{name.upper()}", "")
