"""Classify the Kafka client's errors by what the gateway does next and what the operator can do.
One of them is fencing: another producer has taken the transactional id."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    InvalidTransactionTimeout,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownError,
    UnsupportedSaslMechanismError,
)

from gateway.errors import Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.kafka.aiokafka_internals.connection import (
    AdvertisedUnreachable,
    AuthenticationRequired,
    ConnectError,
    ControllerPort,
    TlsRefused,
)
from gateway.startup.listener_checks import BROKER_PORT

WRITING: Final = "Write and Describe"
READING: Final = "Read and Describe"
CREATING: Final = "Create"
DESCRIBING: Final = "DescribeConfigs"
_TLS_ALERT: Final = 0x15
"""The first byte of a TLS server's answer to something that is not TLS."""
ADVERTISED: Final = (
    "set the broker's advertised.listeners to an address that this host can resolve and reach (or make the name known to this "
    "host); kafka.bootstrap_servers is used only for the first request"
)
_UNREACHABLE: Final = (
    "check that kafka.bootstrap_servers is correct and the broker is running: walgate check shows what answers at each "
    "address"
)
_LOGIN: Final = "the listener may require SASL: check kafka.security_protocol and kafka.sasl_mechanism"
_NO_TLS: Final = (
    "perhaps the listener does not use TLS (check kafka.security_protocol), or it requires a client certificate "
    "(set kafka.ssl_cert_file and kafka.ssl_key_file)"
)
_CERTIFICATE: Final = (
    "this listener requires a client certificate that it trusts: set kafka.ssl_cert_file and kafka.ssl_key_file"
)
_UNKNOWN: Final = (
    "the broker's log has the reason. A topic with cleanup.policy=compact refuses records without a key: those of the marker "
    "topic (<prefix>.transaction), of <prefix>.message, and of tables without a replica identity. To correct the topic: "
    "kafka-configs.sh --bootstrap-server ... --alter --entity-type topics --entity-name <topic> --add-config "
    "cleanup.policy=delete"
)


class TopicDenied(RetrySlowly):
    """The broker denies access to a topic."""


def classify(error: BaseException, doing: str, right: str = WRITING) -> WalgateError:
    """Return the WalgateError that says what happens next after an error of the Kafka client.
    `right` is the permission that this operation needs on a topic. After an unknown error, a new
    producer tries again from the position."""
    if isinstance(error, WalgateError):
        return error
    if type(error) is KafkaError and error.__cause__ is not None:  # aiokafka's sender only reports "unexpected"
        return classify(error.__cause__, doing, right)
    name, said = type(error).__name__, str(error)  # the text of aiokafka's errors contains their name
    text = f"{doing}: {said if name in said else f'{name}: {said}'}".rstrip(": ")
    if isinstance(error, ConnectError):
        return _not_connected(error, doing)
    if isinstance(error, AdvertisedUnreachable):
        return _not_reached(error, doing)
    if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
        return StopForOperator(
            text,
            hint="raise the topic's max.message.bytes (or, if the topic does not set it, the broker's message.max.bytes) "
            "to kafka.max_record_bytes",
        )
    if isinstance(error, TopicAuthorizationFailedError):
        names = error.args[0] if error.args else ()
        topics = _named(sorted([names] if isinstance(names, str) else names))
        return TopicDenied(f"{doing}: the broker denies access to {topics}", hint=f"grant {right} on {topics}")
    if isinstance(error, TransactionalIdAuthorizationFailed):
        return RetrySlowly(text, hint="grant Write and Describe on the transactional id (prefix walgate.)")
    if isinstance(error, ClusterAuthorizationFailedError):
        return RetrySlowly(text, hint="docs/checklist.md lists the ACLs that the gateway needs")
    if isinstance(error, InvalidTransactionTimeout):
        return StopForOperator(
            text, hint="lower kafka.transaction_timeout_s, or raise the broker's transaction.max.timeout.ms"
        )
    if isinstance(error, ProducerFenced):
        return Retry(
            text,
            hint="walgate readmit or walgate skip was run, another gateway with the same slot has taken over, or the Kafka "
            "transaction timed out. If this recurs, make sure that only one gateway uses this slot, or raise "
            "kafka.transaction_timeout_s",
        )
    if hint := _hint_of(error):
        return RetrySlowly(text, hint=hint)
    if isinstance(error, UnknownError):
        return Retry(text, hint=_UNKNOWN)
    if isinstance(error, KafkaConnectionError):
        return Retry(text, hint=_UNREACHABLE)
    if isinstance(error, TimeoutError):
        return Retry(f"{doing}: timed out", hint="check that the broker is running and reachable")
    return Retry(text)


def _named(topics: list[str]) -> str:
    if not topics:
        return "the topics of the prefix"
    return f"topic{'s' * (len(topics) > 1)} {', '.join(topics)}"


def _not_connected(error: ConnectError, doing: str) -> WalgateError:
    """Classify a failed bootstrap. A setting that does not fit the listener will not fit at the
    next attempt either, so retry slowly: repeated failed logins can lock an account."""
    text = f"{doing}: {error}"
    if hint := _hint_of(*error.errors.values()):
        return RetrySlowly(text, hint=hint)
    return Retry(text, hint=_UNREACHABLE)


def _not_reached(error: AdvertisedUnreachable, doing: str) -> WalgateError:
    """Classify the failure to reach an advertised address. The first request was answered, so
    kafka.bootstrap_servers is right. If a name cannot be resolved, the reason is seldom that a
    broker is merely down."""
    text = f"{doing}: no connection at the address that the brokers advertise to clients: {error}"
    if hint := _hint_of(*error.errors.values()):
        return RetrySlowly(text, hint=hint)
    if any(isinstance(cause, socket.gaierror) for each in error.errors.values() for cause in _chain(each)):
        return RetrySlowly(text, hint=ADVERTISED)
    return Retry(
        text,
        hint="check that the broker is running. If it is, this host cannot reach the address: "
        "set the broker's advertised.listeners to one that it can reach",
    )


def _hint_of(*errors: BaseException) -> str:
    """Return the first diagnosis of an error or of one of its causes, or ""."""
    return next((hint for error in errors for cause in _chain(error) if (hint := _diagnosis(cause))), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return the chain of causes, from the innermost to the error itself: the innermost is the most
    specific."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__
    return reversed(chain)


def _diagnosis(error: BaseException) -> str:
    """Return which setting to change if settings and listener do not match; "" if the broker may
    just be down."""
    match error:
        case SaslAuthenticationFailed():
            return "check kafka.sasl_username and its password, or the source of the token"
        case UnsupportedSaslMechanismError():
            return "set kafka.sasl_mechanism to one that the listener supports"
        case IllegalSaslStateError():
            return (
                "this listener does not use SASL: set kafka.security_protocol to PLAINTEXT or SSL, or use another port"
            )
        case ssl.SSLCertVerificationError():
            return (
                "kafka.ssl_ca_file must contain the certificate of the authority that signed the broker's certificate, "
                "and the broker's certificate must contain the host name that the gateway connects to"
            )
        case ssl.SSLError(reason=str(reason)) if "ALERT" in reason and "PROTOCOL_VERSION" not in reason:
            return _CERTIFICATE
        case ssl.SSLError() | TlsRefused():
            return _NO_TLS
        case asyncio.IncompleteReadError(expected=int(expected)) if expected >> 24 == _TLS_ALERT:
            return "this listener uses TLS: set kafka.security_protocol to SSL or SASL_SSL, or use another port"
        case AuthenticationRequired():
            return _LOGIN
        case ControllerPort():
            return BROKER_PORT
    return ""
