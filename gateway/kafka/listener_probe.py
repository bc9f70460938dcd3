"""A probe of what really answers at an address. It speaks the protocols itself, because a client
with wrong settings only sees a connection that ends.

The probe finds out whether the server accepts a TLS handshake, and whether its certificate is
acceptable. It then sends ApiVersions, to see whether a broker answers, and SaslHandshake, to see
whether the listener requires a login. The probe changes nothing and does not log in. (Kafka
protocol guide: ApiVersions is answered before a login; on a listener without SASL, SaslHandshake is
answered with ILLEGAL_SASL_STATE, or the connection ends.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from typing import Final

from gateway.config.kafka import KafkaSettings
from gateway.names import where_local_is
from gateway.startup.listener_checks import ListenerFacts

TIMEOUT_S: Final = 5.0
_API_VERSIONS, _SASL_HANDSHAKE, _METADATA = 18, 17, 3
_ILLEGAL_SASL_STATE: Final = 34
_MOST_BYTES: Final = 1 << 20
_NOTHING: Final = (OSError, EOFError, asyncio.IncompleteReadError, ValueError, struct.error, TimeoutError)


async def probe_listener(address: str, settings: KafkaSettings, *, advertised: bool = False) -> ListenerFacts:
    """Return the facts about one listener. Nothing that the other side does raises an error."""
    if address.endswith("]") or ":" not in address:
        address += ":9092"  # the clients' default
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    failure, detail = await _connects(host, int(port))
    if failure:
        return ListenerFacts(address, advertised, failure, detail)
    tls, _ = await _handshake(host, int(port), _any_certificate())
    verified = wants = ""
    context: ssl.SSLContext | None = None
    if tls and settings.security_protocol.endswith("SSL"):
        context = settings.client_options()["ssl_context"]
        accepted, verified = await _handshake(host, int(port), context)
        wants = "" if accepted or verified else "no"
    elif tls:
        context = _any_certificate()
    if verified:
        return ListenerFacts(address, advertised, tls=tls, tls_failure=verified)
    requests = await _requests_served(host, int(port), context)
    is_kafka = bool(requests)
    mechanisms = await _mechanisms(host, int(port), context) if is_kafka else None
    # A TLS 1.3 server that requires a client certificate ends the connection only after the
    # handshake.
    wants_certificate = bool(wants) or (tls and context is not None and not is_kafka)
    return ListenerFacts(
        address,
        advertised,
        tls=tls,
        is_kafka=is_kafka,
        is_controller=is_kafka and _METADATA not in requests,
        wants_certificate=wants_certificate,
        mechanisms=mechanisms,
    )


async def _connects(host: str, port: int) -> tuple[str, str]:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        return "", ""
    except socket.gaierror as error:
        return "dns", str(error)
    except ConnectionRefusedError:
        return "refused", where_local_is(host)
    except TimeoutError:
        return "timeout", ""
    except OSError as error:
        return "other", error.strerror or type(error).__name__


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _handshake(host: str, port: int, context: ssl.SSLContext) -> tuple[bool, str]:
    """Return whether the server completed the handshake, and the reason if its certificate was not
    accepted."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=host, ssl_handshake_timeout=TIMEOUT_S
            )
        writer.close()
        return True, ""
    except ssl.SSLCertVerificationError as error:
        return False, error.verify_message or str(error)
    except _NOTHING:
        return False, ""


async def _ask(host: str, port: int, context: ssl.SSLContext | None, *requests: bytes) -> list[bytes]:
    """Send the requests on one connection. Return the answers that arrived, without their
    correlation ids."""
    answers: list[bytes] = []
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            name = host if context is not None else None
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
            for request in requests:
                writer.write(struct.pack("!i", len(request)) + request)
                (size,) = struct.unpack("!i", await reader.readexactly(4))
                if not 4 <= size <= _MOST_BYTES:
                    break
                answers.append((await reader.readexactly(size))[4:])
    except _NOTHING:
        return answers
    finally:
        if writer is not None:
            writer.close()
    return answers


def _request(api: int, version: int, body: bytes = b"") -> bytes:
    client = b"walgate-check"
    return struct.pack("!hhih", api, version, 1, len(client)) + client + body


async def _requests_served(host: str, port: int, context: ssl.SSLContext | None) -> set[int]:
    """Return the keys of the requests that the server knows, or an empty set if it does not speak
    Kafka's protocol."""
    answers = await _ask(host, port, context, _request(_API_VERSIONS, 0))
    if not answers or len(answers[0]) < 6:
        return set()
    error, count = struct.unpack("!hi", answers[0][:6])
    if error != 0 or not 0 < count < 1000 or len(answers[0]) != 6 + 6 * count:
        return set()
    return {key for key, _, _ in struct.iter_unpack("!hhh", answers[0][6:])}


async def _mechanisms(host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, ...] | None:
    """Return the SASL mechanisms of the listener; None if it does not use SASL."""
    wish = b"?"  # no mechanism has this name: the answer lists the existing ones
    answers = await _ask(host, port, context, _request(_SASL_HANDSHAKE, 1, struct.pack("!h", len(wish)) + wish))
    if not answers:
        return None
    try:
        error, count = struct.unpack("!hi", answers[0][:6])
        if error == _ILLEGAL_SASL_STATE or count <= 0:
            return None
        names, position = [], 6
        for _ in range(count):
            (size,) = struct.unpack("!h", answers[0][position : position + 2])
            names.append(answers[0][position + 2 : position + 2 + size].decode())
            position += 2 + size
        return tuple(names)
    except _NOTHING:
        return None
