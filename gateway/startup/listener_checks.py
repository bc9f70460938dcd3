"""Checks of Kafka's listeners: which of them answer, with which protocol, and whether certificates
and login are accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.errors import RetrySlowly, StopForOperator
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.kafka_checks import KafkaExpected

_OWN: Final = ("localhost", "127.0.0.1", "[::1]")
BROKER_PORT: Final = (
    "in kafka.bootstrap_servers, use the port of a broker's listener for clients (often 9092) instead of a controller's"
)


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """The result of probing one address.

    `failure` is "", "dns", "refused", "timeout" or "other"; `detail` has the error message. `tls`
    tells whether the listener speaks TLS, `tls_failure` why its certificate cannot be verified.
    `is_kafka` is false if the listener does not answer with Kafka's protocol; `is_controller` means
    that it is the port of a KRaft controller. `wants_certificate` means that the listener closes
    the connection because the gateway has sent no client certificate that it accepts. `mechanisms`
    are the listener's SASL mechanisms; None if it does not use SASL.
    """

    address: str
    advertised: bool = False
    failure: str = ""
    detail: str = ""
    tls: bool = False
    tls_failure: str = ""
    is_kafka: bool = True
    is_controller: bool = False
    wants_certificate: bool = False
    mechanisms: tuple[str, ...] | None = None


def check_listener(listener: ListenerFacts, expected: KafkaExpected) -> Iterator[Finding]:
    """Yield the first problem of this address. Nothing else can be checked after it."""
    at = listener.address
    if listener.failure:
        yield _unreachable(listener)
        return
    if listener.tls != expected.tls:
        yield StopForOperator(
            f"{at} {'requires TLS' if listener.tls else 'does not use TLS'}, but kafka.security_protocol is "
            f"{protocol_name(expected)}",
            hint=f"set kafka.security_protocol = {protocol_name(expected, tls=listener.tls)}"
            + ("" if listener.tls else ", or use the listener with TLS (often port 9093)"),
        )
        return
    if listener.tls_failure:
        yield StopForOperator(
            f"the certificate of {at} cannot be verified: {listener.tls_failure}",
            hint=_certificate_hint(listener.tls_failure),
        )
        return
    if listener.wants_certificate:
        yield StopForOperator(
            f"{at} requires {('a different' if expected.own_certificate else 'a')} client certificate "
            "(ssl.client.auth=required)",
            hint="set kafka.ssl_cert_file to a client certificate that the broker trusts (usually: signed by a CA in its "
            "truststore), and kafka.ssl_key_file to its private key",
        )
        return
    if not listener.is_kafka:
        yield StopForOperator(
            f"{at} answers, but not with Kafka's protocol",
            hint="check that this is Kafka's port, not another service's",
        )
        return
    if listener.is_controller:
        yield StopForOperator(f"{at} is the port of a KRaft controller, which serves no clients", hint=BROKER_PORT)
        return
    yield from _login(listener, expected)


def check_bootstrap(listeners: Sequence[ListenerFacts], expected: KafkaExpected) -> Iterator[Finding]:
    """Check the addresses in kafka.bootstrap_servers. If one of them works, problems of the others
    are warnings only."""
    found = [list(check_listener(listener, expected)) for listener in listeners]
    one_is_well = not all(found)
    for finding in (finding for of_one in found for finding in of_one):
        if one_is_well:
            yield OperatorWarning(
                f"{finding.message}; the gateway uses the other addresses in kafka.bootstrap_servers", finding.hint
            )
        else:
            yield finding


def check_cleartext_login(sent: str, mechanism: str) -> tuple[OperatorWarning, ...]:
    """Warn if others on the network can read the login. `sent` is what is sent in cleartext:
    "password", "token", or "" for nothing."""
    if not sent:
        return ()
    return (
        OperatorWarning(
            f"kafka.sasl_mechanism = {mechanism} sends the {sent} in cleartext, because kafka.security_protocol = "
            "SASL_PLAINTEXT does not encrypt the connection",
            "set kafka.security_protocol = SASL_SSL, and use the brokers' listener with TLS (often port 9093)"
            + ("; or use SCRAM, which does not send the password" if sent == "password" else ""),
        ),
    )


def _login(listener: ListenerFacts, expected: KafkaExpected) -> Iterator[Finding]:
    at, offered = listener.address, listener.mechanisms
    if offered is None and expected.sasl:
        yield StopForOperator(
            f"{at} does not use SASL, but kafka.security_protocol is {protocol_name(expected)}",
            hint=f"set kafka.security_protocol = {protocol_name(expected, sasl=False)}, or use a listener with SASL",
        )
    elif offered is not None and not expected.sasl:
        yield StopForOperator(
            f"{at} requires SASL ({', '.join(offered)}), but kafka.security_protocol is {protocol_name(expected)}",
            hint=f"set kafka.security_protocol = {protocol_name(expected, sasl=True)}, kafka.sasl_mechanism to one of these, and "
            "its credentials (PLAIN and SCRAM: kafka.sasl_username and kafka.sasl_password)"
            + (
                ""
                if expected.tls
                else ". Without TLS, PLAIN and OAUTHBEARER send the password or the token in cleartext"
            ),
        )
    elif offered and expected.mechanism not in offered:
        yield StopForOperator(
            f"{at} does not support kafka.sasl_mechanism = {expected.mechanism}",
            hint=f"set kafka.sasl_mechanism to a mechanism that the listener supports: {', '.join(offered)}",
        )


def protocol_name(expected: KafkaExpected, *, tls: bool | None = None, sasl: bool | None = None) -> str:
    tls = expected.tls if tls is None else tls
    sasl = expected.sasl if sasl is None else sasl
    if sasl:
        return "SASL_SSL" if tls else "SASL_PLAINTEXT"
    return "SSL" if tls else "PLAINTEXT"


def _unreachable(listener: ListenerFacts) -> Finding:
    at = listener.address
    what = {
        "dns": f"the host name of {at} cannot be resolved",
        "refused": f"connection to {at} refused: nothing is listening there",
        "timeout": f"{at} does not answer",
    }.get(listener.failure, f"{at} is unreachable: {listener.detail}")
    if listener.advertised and at.rpartition(":")[0] in _OWN:
        return RetrySlowly(
            f"{what}; the brokers advertise this address to clients, but for each client it is the client's own computer",
            hint="set the broker's advertised.listeners to the name of its host; kafka.bootstrap_servers is used only for the "
            "first request",
        )
    if listener.advertised:
        return RetrySlowly(
            f"{what}; the brokers advertise this address to clients",
            hint="set the broker's advertised.listeners to an address that this host can reach; "
            "kafka.bootstrap_servers is used only for the first request",
        )
    return RetrySlowly(
        what,
        hint=(listener.detail if listener.failure == "refused" else "")
        + "check that kafka.bootstrap_servers is correct, the broker is running, and no firewall blocks the port",
    )


def _certificate_hint(failure: str) -> str:
    if "hostname" in failure.lower() or "ip address mismatch" in failure.lower():
        return (
            "in kafka.bootstrap_servers (or, if the brokers advertise this address, in the broker's advertised.listeners), use a "
            "host name from the certificate (openssl s_client -connect ...)"
        )
    if "expired" in failure.lower():
        return "renew the broker's certificate"
    return "set kafka.ssl_ca_file to a file with the certificate of the authority that signed the broker's certificate"
