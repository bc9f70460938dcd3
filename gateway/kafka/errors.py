"""What an error of the Kafka client means: what happens next, and what a person can do."""

from __future__ import annotations

import asyncio
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
    UnsupportedSaslMechanismError,
)

from gateway.kafka.driver import ConnectError, LoginWanted, NoTls
from gateway.operate.errors import Retry, RetrySlowly, StopForOperator, WalgateError

WRITING: Final = "Write and Describe"
READING: Final = "Read and Describe"
DESCRIBING: Final = "DescribeConfigs"
_TLS_ALERT: Final = 0x15
"""The first byte of a TLS server's answer to what is no TLS."""
_LOGIN: Final = "does this listener want a login? See kafka.security_protocol and kafka.sasl_mechanism"
_NO_TLS: Final = (
    "does this listener speak TLS, and ask for no client certificate? See kafka.security_protocol, kafka.ssl_cert_file"
)
_CERTIFICATE: Final = (
    "this listener asks for a client certificate that it trusts: kafka.ssl_cert_file and kafka.ssl_key_file"
)


def classify(error: BaseException, doing: str, right: str = WRITING) -> WalgateError:
    """What happens next after an error of the Kafka client. `right`: what is needed on a topic for this. Unknown: a new producer
    tries again from the position."""
    if isinstance(error, WalgateError):
        return error
    if type(error) is KafkaError and error.__cause__ is not None:  # aiokafka's sender says no more than "unexpected"
        return classify(error.__cause__, doing, right)
    text = f"{doing}: {type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, ConnectError):
        return _not_connected(error, doing)
    if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
        return StopForOperator(
            text,
            hint="raise max.message.bytes of the topic (message.max.bytes of the broker) to kafka.max_record_bytes",
        )
    if isinstance(error, TopicAuthorizationFailedError):
        names = error.args[0] if error.args else ()
        topics = ", ".join(sorted([names] if isinstance(names, str) else names)) or "the topics of the prefix"
        return RetrySlowly(
            f"{doing}: the broker denies access to topic {topics}", hint=f"grant {right} on topic {topics}"
        )
    if isinstance(error, TransactionalIdAuthorizationFailed):
        return RetrySlowly(text, hint="grant Write and Describe on the transactional id (prefix walgate.)")
    if isinstance(error, ClusterAuthorizationFailedError):
        return RetrySlowly(text, hint="docs/operations.md lists the rights that the gateway needs")
    if isinstance(error, InvalidTransactionTimeout):
        return StopForOperator(
            text, hint="lower kafka.transaction_timeout_s, or raise transaction.max.timeout.ms of the broker to it"
        )
    if isinstance(error, ProducerFenced):
        return Retry(text, hint="another gateway with the same slot took over, or the transaction timed out")
    hint = next((found for each in _chain(error) if (found := _diagnosis(each))), "")
    if hint:
        return RetrySlowly(text, hint=hint)
    if isinstance(error, KafkaConnectionError):
        return Retry(text, hint="check kafka.bootstrap_servers and that the broker is up")
    if isinstance(error, TimeoutError):
        return Retry(f"{doing}: no answer in time", hint="is the broker up and reachable?")
    return Retry(text)


def _not_connected(error: ConnectError, doing: str) -> WalgateError:
    """A setting that does not fit one listener will not fit the next try either: slowly, for logins get locked."""
    text = f"{doing}: {error}"
    hints = {hint: None for each in error.errors.values() for cause in _chain(each) if (hint := _diagnosis(cause))}
    if hints:
        return RetrySlowly(text, hint=next(iter(hints)))
    return Retry(text, hint="check kafka.bootstrap_servers and that the broker is up")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """From the cause to the error itself: the cause knows most."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__
    return reversed(chain)


def _diagnosis(error: BaseException) -> str:
    """What to set where settings and listener do not fit; nothing where the broker may only be away."""
    match error:
        case SaslAuthenticationFailed():
            return "check the login: kafka.sasl_username and its password, or what gives the token"
        case UnsupportedSaslMechanismError():
            return "set kafka.sasl_mechanism to one that the listener has"
        case IllegalSaslStateError():
            return "this listener takes no login: set kafka.security_protocol to PLAINTEXT or SSL, or use another port"
        case ssl.SSLCertVerificationError():
            return "kafka.ssl_ca_file must name the authorities that signed the broker's certificate, which must name this host"
        case ssl.SSLError(reason=str(reason)) if "ALERT" in reason and "PROTOCOL_VERSION" not in reason:
            return _CERTIFICATE
        case ssl.SSLError() | NoTls():
            return _NO_TLS
        case asyncio.IncompleteReadError(expected=int(expected)) if expected >> 24 == _TLS_ALERT:
            return "this listener speaks TLS: set kafka.security_protocol to SSL or SASL_SSL, or use another port"
        case LoginWanted():
            return _LOGIN
    return ""
