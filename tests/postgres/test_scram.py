from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.postgres.scram import MOST_ITERATIONS, PLAIN, PLUS, Scram, ScramError, certificate_hash, saslprep

# RFC 7677, 3. SCRAM-SHA-256
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange() -> Scram:
    return Scram("pencil", [PLAIN], None, user="user", nonce=NONCE)


def test_the_exchange_of_the_rfc() -> None:
    scram = exchange()
    assert scram.mechanism == PLAIN
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final(SERVER_FIRST) == CLIENT_FINAL
    scram.verify(SERVER_FINAL)


@pytest.mark.parametrize(
    ("binding", "offered", "mechanism", "header"),
    [
        (None, [PLAIN, PLUS], PLAIN, b"n,,"),
        (b"hash", [PLAIN], PLAIN, b"y,,"),
        (b"hash", [PLUS, PLAIN], PLUS, b"p=tls-server-end-point,,"),
    ],
)
def test_the_header_says_what_the_client_could_have_done(
    binding: bytes | None, offered: list[str], mechanism: str, header: bytes
) -> None:
    scram = Scram("pencil", offered, binding, nonce=NONCE)
    assert (scram.mechanism, scram.first()) == (mechanism, header + b"n=,r=" + NONCE.encode())
    assert scram.is_bound == (mechanism == PLUS)
    channel = scram.final(SERVER_FIRST).partition(b",")[0].removeprefix(b"c=")
    assert base64.b64decode(channel) == header + (b"hash" if mechanism == PLUS else b"")


@pytest.mark.parametrize(
    "server_first",
    [
        SERVER_FIRST.replace(b"rOpr", b"rOps"),
        b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"4096", b"0"),
        SERVER_FIRST.replace(b"4096", b"many"),
        SERVER_FIRST.replace(b"4096", str(MOST_ITERATIONS + 1).encode()),
        SERVER_FIRST.replace(b"W22", b"\xff"),
        SERVER_FIRST.replace(b"W22", b"!"),
        b"",
        b"e=other-error",
    ],
)
def test_a_first_answer_that_is_none_is_refused(server_first: bytes) -> None:
    with pytest.raises(ScramError):
        exchange().final(server_first)


@pytest.mark.parametrize("server_final", [b"v=AAAA", b"v=", b"", b"e=invalid-proof", SERVER_FINAL.lower(), b"v=!"])
def test_a_server_that_does_not_know_the_password_is_found_out(server_final: bytes) -> None:
    scram = exchange()
    scram.final(SERVER_FIRST)
    with pytest.raises(ScramError):
        scram.verify(server_final)


def test_a_last_answer_without_a_first_one_proves_nothing() -> None:
    with pytest.raises(ScramError):
        exchange().verify(b"v=")


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        ("pencil", "pencil"),
        ("I\u00adX", "IX"),  # RFC 4013, 3. Examples
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u00e9\u0007", "\u00e9\u0007"),  # prohibited: as it is
        ("\u0627\u0031", "\u0627\u0031"),  # right to left, and does not end so
        ("\u0627\u0628", "\u0627\u0628"),
        ("\u00ad", "\u00ad"),  # nothing would be left
    ],
)
def test_passwords_are_prepared_as_postgresql_does(password: str, prepared: str) -> None:
    assert saslprep(password) == prepared


@pytest.mark.parametrize(
    ("key", "digest", "hashed_by"),
    [
        ("rsa:2048", "sha256", "sha256"),
        ("rsa:2048", "sha384", "sha384"),
        ("rsa:2048", "sha512", "sha512"),
        ("rsa:2048", "sha1", "sha256"),
        ("ec", "sha256", "sha256"),
        ("ec", "sha384", "sha384"),
        ("ed25519", "sha512", None),
    ],
)
def test_a_certificate_is_hashed_by_the_algorithm_of_its_signature(
    tmp_path: Path, key: str, digest: str, hashed_by: str | None
) -> None:
    more = ["-pkeyopt", "ec_paramgen_curve:P-256"] if key == "ec" else []
    command = ["openssl", "req", "-x509", "-newkey", key, *more, f"-{digest}", "-nodes", "-days", "2", "-subj", "/CN=x"]
    paths = ["-outform", "DER", "-out", str(tmp_path / "c"), "-keyout", str(tmp_path / "k")]
    subprocess.run([*command, *paths], check=True, capture_output=True)
    certificate = (tmp_path / "c").read_bytes()
    expected = None if hashed_by is None else hashlib.new(hashed_by, certificate).digest()
    assert certificate_hash(certificate) == expected


@given(st.binary(max_size=300))
def test_rubbish_is_no_certificate(der: bytes) -> None:
    assert certificate_hash(der) is None
