"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677; PostgreSQL manual,
54.3 SASL Authentication).

asyncpg only knows SCRAM-SHA-256. PLUS binds the proof to the server's certificate (RFC 5929,
tls-server-end-point). A man in the middle has another certificate, and so cannot pass the proof on,
even if the client does not verify certificates. This module uses no socket.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from binascii import Error as Base64Error
from typing import Final

PLAIN: Final = "SCRAM-SHA-256"
PLUS: Final = "SCRAM-SHA-256-PLUS"

_NONCE_BYTES: Final = 18
MOST_ITERATIONS: Final = 2_000_000
"""A limit that takes about a second of computing. PostgreSQL's default is 4,096 (scram_iterations);
without a limit, a server could demand hours of computing."""

_HASHES: Final = {
    "2a864886f70d010104": "sha256",  # md5WithRSA; RFC 5929: MD5 and SHA-1 count as SHA-256
    "2a864886f70d010105": "sha256",  # sha1WithRSA
    "2a864886f70d01010b": "sha256",
    "2a864886f70d01010c": "sha384",
    "2a864886f70d01010d": "sha512",
    "2a864886f70d01010e": "sha224",
    "2a8648ce3d0401": "sha256",  # ecdsa-with-SHA1
    "2a8648ce3d040301": "sha224",
    "2a8648ce3d040302": "sha256",
    "2a8648ce3d040303": "sha384",
    "2a8648ce3d040304": "sha512",
}
"""The hash of each signature algorithm, by the algorithm's object identifier (RFC 8017, RFC 5758).
The identifiers of RSASSA-PSS and EdDSA do not determine a hash."""


class ScramError(Exception):
    """The server's message is not valid SCRAM, or does not prove that the server knows the
    password."""


class Scram:
    """A SCRAM exchange. `binding` is the `certificate_hash` of the server's certificate, or None
    without TLS or without such a hash. `user` may stay empty: PostgreSQL takes it from the startup
    message."""

    def __init__(
        self, password: str, offered: list[str], binding: bytes | None, *, user: str = "", nonce: str = ""
    ) -> None:
        self._password = saslprep(password).encode()
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        self._bare = f"n={user},r={self._nonce}"
        self._server_signature = b""
        self.is_bound = binding is not None and PLUS in offered
        self.mechanism = PLUS if self.is_bound else PLAIN
        if self.is_bound:
            assert binding is not None
            self._header, self._channel = "p=tls-server-end-point,,", binding
        else:
            # "y": the client supports binding, so a server that offered it detects that its offer
            # was removed on the way.
            self._header, self._channel = "n,," if binding is None else "y,,", b""

    def first(self) -> bytes:
        return (self._header + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof. Raises ScramError."""
        fields = _fields(server_first)
        nonce, salt, iterations = fields.get("r", ""), fields.get("s", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the server's nonce does not begin with the client's nonce")
        if not iterations.isdecimal() or not 1 <= int(iterations) <= MOST_ITERATIONS:
            raise ScramError(
                f"the server asks for {iterations[:20]!r} iterations; at most {MOST_ITERATIONS} are allowed"
            )
        salted = hashlib.pbkdf2_hmac("sha256", self._password, _decoded(salt), int(iterations))
        channel = base64.b64encode(self._header.encode() + self._channel).decode()
        without_proof = f"c={channel},r={nonce}"
        signed = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        client_key = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise ScramError unless the server has proved that it, too, knows the password."""
        fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(f"the server reported the error {fields['e'][:80]}")
        if not self._server_signature or not hmac.compare_digest(_decoded(fields.get("v", "")), self._server_signature):
            raise ScramError("the server did not prove that it knows the password")


def certificate_hash(certificate: bytes) -> bytes | None:
    """Return the hash of a DER certificate to which PLUS binds the proof. The signature algorithm
    determines the hash function; return None if it does not."""
    try:
        start, _ = _content(certificate, 0)
        _, end_of_signed = _content(certificate, start)
        start, _ = _content(certificate, end_of_signed)  # signatureAlgorithm: SEQUENCE { OBJECT IDENTIFIER, ... }
        start, end = _content(certificate, start)
    except IndexError:
        return None
    name = _HASHES.get(certificate[start:end].hex())
    return None if name is None else hashlib.new(name, certificate).digest()


def saslprep(password: str) -> str:
    """Prepare a password as in RFC 4013. A password that the RFC does not allow is returned
    unchanged, as by `pg_saslprep` in saslprep.c."""
    if password.isascii():
        return password
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each for each in password if not stringprep.in_table_b1(each)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared or any(_is_prohibited(each) for each in prepared):
        return password
    if any(map(stringprep.in_table_d1, prepared)):
        is_mixed = any(map(stringprep.in_table_d2, prepared))
        if is_mixed or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
            return password
    return prepared


def _is_prohibited(character: str) -> bool:
    return (
        stringprep.in_table_a1(character)
        or stringprep.in_table_c12(character)
        or stringprep.in_table_c21_c22(character)
        or stringprep.in_table_c3(character)
        or stringprep.in_table_c4(character)
        or stringprep.in_table_c5(character)
        or stringprep.in_table_c6(character)
        or stringprep.in_table_c7(character)
        or stringprep.in_table_c8(character)
        or stringprep.in_table_c9(character)
    )


def _fields(message: bytes) -> dict[str, str]:
    try:
        pairs = [part.partition("=") for part in message.decode("ascii").split(",")]
    except UnicodeDecodeError:
        raise ScramError("the server's message is not ASCII") from None
    return {name: value for name, _, value in pairs}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ScramError("the server's message is not Base64") from None


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def _content(der: bytes, position: int) -> tuple[int, int]:
    """Return where the content of the DER element at `position` begins and ends. Raises
    IndexError."""
    length = der[position + 1]
    start = position + 2
    if length & 0x80:
        size = length & 0x7F
        start += size
        length = int.from_bytes(der[position + 2 : start], "big")
    if start + length > len(der):
        raise IndexError(position)
    return start, start + length
