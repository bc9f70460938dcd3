"""A PostgreSQL server with TLS, and a TLS proxy between it and its clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.local import Postgres

ROLE, PASSWORD = "gate", "secret"
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)


@dataclass(frozen=True, slots=True)
class TlsPostgres:
    """A server that accepts only TLS and SCRAM, except for `postgres`. `root`: the file of its
    certificate."""

    server: Postgres
    root: Path

    def dsn(self, options: str, *, password: str = PASSWORD, port: int = 0, database: str = "postgres") -> str:
        return f"postgresql://{ROLE}:{password}@127.0.0.1:{port or self.server.port}/{database}?{options}"

    @property
    def verified(self) -> str:
        return f"sslmode=verify-full&sslrootcert={self.root}"


def certificate(folder: Path) -> dict[str, bytes]:
    """Create a self-signed certificate of 127.0.0.1."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1 -keyout server.key -out server.crt"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return {name: (folder / name).read_bytes() for name in ("server.key", "server.crt")}


def client_certificate(folder: Path, days: float) -> None:
    """Create `client.crt` with `client.key`, signed by `certificate`'s, that expires in `days`; if
    negative, it has expired."""
    authority = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    authority_key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    assert isinstance(authority_key, rsa.RSAPrivateKey)
    key = rsa.generate_private_key(65537, 2048)
    end = datetime.now(UTC) + timedelta(days=days)
    made = _certificate("gateway", key, authority.subject, end).sign(authority_key, hashes.SHA256())
    _write(folder, "client", made, key)


def private_authority(folder: Path, host: str) -> Path:
    """Create `server.crt` with `server.key` for a host and 127.0.0.1, signed by an untrusted
    authority, and return the file of the authority's certificate. The two certificates satisfy the
    strictest verifiers: an authority's certificate must not be that of a server."""
    key, server_key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "company")])
    end = datetime.now(UTC) + timedelta(days=2)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    use = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = (
        _certificate("company", key, name, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(use, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    names = [x509.DNSName(host), x509.IPAddress(IPv4Address("127.0.0.1"))]
    made = (
        _certificate("server", server_key, name, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder, "server", made, server_key)
    path = folder / "authority.crt"
    path.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return path


def _certificate(name: str, key: rsa.RSAPrivateKey, issuer: x509.Name, end: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=30))
        .not_valid_after(end)
    )


def _write(folder: Path, name: str, made: x509.Certificate, key: rsa.RSAPrivateKey) -> None:
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


@asynccontextmanager
async def tls_postgres(folder: Path) -> AsyncIterator[TlsPostgres]:
    hba = [
        "hostssl all all 127.0.0.1/32 scram-sha-256",
        "hostnossl all postgres 127.0.0.1/32 scram-sha-256",
        "hostnossl all all 127.0.0.1/32 reject",
    ]
    async with Postgres(17, files=certificate(folder), hba=hba, settings={"ssl": "on"}) as server:
        sql = await server.connect()
        await sql.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER REPLICATION PASSWORD '{PASSWORD}'")
        await sql.close()
        yield TlsPostgres(server, folder / "server.crt")


@asynccontextmanager
async def between(port: int, folder: Path, change: Callable[[bytes], bytes] = bytes) -> AsyncIterator[int]:
    """Yield the port of a proxy that speaks TLS with both sides and forwards everything, passing
    the server's data through `change`."""
    certificate(folder)
    to_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    to_client.load_cert_chain(folder / "server.crt", folder / "server.key")
    to_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    to_server.check_hostname, to_server.verify_mode = False, ssl.CERT_NONE

    async def replication_loop(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, each: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(each(data))
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            assert await reader.readexactly(8) == _SSL_REQUEST
            writer.write(b"S")
            await writer.start_tls(to_client)
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            server_writer.write(_SSL_REQUEST)
            assert await server_reader.readexactly(1) == b"S"
            await server_writer.start_tls(to_server)
            await asyncio.gather(
                replication_loop(reader, server_writer, bytes), replication_loop(server_reader, writer, change)
            )
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
