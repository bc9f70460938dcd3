"""The section `kafka` of the settings: topics, the producer, and connections to brokers."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.msk_iam import MskTokens
from gateway.config.oauth_tokens import Tokens, TokenSettings
from gateway.config.section import (
    AS_JSON,
    PREFIX,
    File,
    JoinedNames,
    Pattern,
    Section,
    refuse_quotes,
    refuse_unused,
    tls_context,
)
from schemas.topic_names import collision_name, format_relation, parse_relation, topic_is_free, topic_names

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")


class TopicOverride(Section):
    """Different settings for the topics whose whole name a regular expression matches."""

    pattern: Pattern
    partitions: int | None = Field(default=None, ge=1)
    config: dict[str, str] = Field(default_factory=dict)


class KafkaSettings(TokenSettings):
    """Topics and the producer."""

    bootstrap_servers: JoinedNames = Field(
        default="localhost:9092", description="Brokers as host:port, separated by commas, or as a list."
    )
    dialect: Literal["walgate", "debezium"] = Field(
        default="walgate",
        description="Format of the records. debezium: for Debezium's consumers (docs/debezium.md).",
    )
    prefix: str = Field(default="cdc", description="Topics are `prefix.schema.table`.")
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="at_least_once: lower latency, but records and markers may be repeated after a crash. The Spark "
        "data source does not accept such topics.",
    )
    commit_interval_ms: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Shortest time from the beginning of one Kafka transaction to that of the next. If many small transactions "
        "are committed, a longer interval saves CPU time of gateway and brokers, and adds up to this much latency.",
    )
    partitions: int = Field(default=3, ge=1, description="Number of partitions of new topics for tables.")
    replication_factor: int = Field(
        default=-1, ge=-1, description="Replication factor of new topics. -1: the broker's default."
    )
    retention_ms: int | None = Field(
        default=None,
        ge=-1,
        description="retention.ms of new topics with the prefix. -1: keep forever. unset: the broker's default.",
    )
    topics: Annotated[tuple[TopicOverride, ...], AS_JSON] = Field(
        default=(),
        description="Different settings for new topics that match a pattern (see the sample). In an environment "
        "variable: the same as a JSON array.",
    )
    topic_names: Annotated[dict[str, str], AS_JSON] = Field(
        default_factory=dict,
        description='Topic names for individual tables: { "schema.table" = "prefix.name" }. In an environment '
        "variable: the same as a JSON object.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="Compression of batches by the producer."
    )
    max_record_bytes: int = Field(
        default=16 << 20, ge=1024, description="Largest record, for the producer and for new topics."
    )
    batch_bytes: int = Field(
        default=1 << 19, ge=1024, description="Largest batch of a partition. It never exceeds max_record_bytes."
    )
    memory_bytes: int = Field(
        default=16 << 20,
        ge=1 << 20,
        description="Reading from PostgreSQL pauses while more bytes than this are unacknowledged.",
    )
    transaction_timeout_s: int = Field(
        default=900,
        ge=1,
        description="Timeout of a Kafka transaction. It must not exceed the broker's transaction.max.timeout.ms.",
    )
    request_timeout_s: int = Field(default=30, ge=1, description="A request fails after this long without a response.")
    delivery_timeout_s: float = Field(
        default=60.0, gt=0, description="Replace the producer after this long without a response."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="SSL: TLS. SASL: authentication with a user name or token."
    )
    ssl_ca_file: File = Field(
        default=None,
        description="PEM file of the certificate authorities that may sign the broker's certificate. unset: the "
        "system's.",
    )
    ssl_cert_file: File = Field(
        default=None, description="PEM file of the gateway's client certificate, if brokers require one."
    )
    ssl_key_file: File = Field(
        default=None, description="PEM file of the certificate's private key. unset: the key is in ssl_cert_file."
    )
    ssl_key_password: SecretStr | None = Field(
        default=None,
        description=f"Passphrase of the private key. To read it from a file, set {PREFIX}KAFKA__SSL_KEY_PASSWORD_FILE.",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] = Field(
        default="SCRAM-SHA-512",
        description="SASL mechanism. PLAIN sends the password, and OAUTHBEARER the token, in cleartext: without SASL_SSL, "
        "others on the network can read it. AWS_MSK_IAM: IAM authentication with the AWS credentials of the process; needs "
        "`pip install 'walgate[msk]'`.",
    )
    aws_region: str | None = Field(default=None, description="AWS region of the cluster, for AWS_MSK_IAM.")
    sasl_username: str | None = Field(default=None, description="Required for PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(
        default=None,
        description=f"Password of that user. To read it from a file, set {PREFIX}KAFKA__SASL_PASSWORD_FILE.",
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, value: str) -> str:
        refuse_quotes(value)
        for part in map(str.strip, value.split(",")):
            scheme, is_url, _ = part.partition("://")
            if is_url:
                raise ValueError(f"write host:port without {scheme}://; the protocol is set by kafka.security_protocol")
            if not part:
                raise ValueError("an address is empty: remove the comma before or after it")
            if not _is_host_and_port(part):
                raise ValueError("expected host:port, comma-separated; an IPv6 address in brackets")
        return value

    @field_validator("replication_factor")
    @classmethod
    def _is_replica_count(cls, value: int) -> int:
        if value == 0:
            raise ValueError("a topic needs at least one replica; -1 is the broker's default")
        return value

    @field_validator("prefix")
    @classmethod
    def _is_prefix(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("a prefix must consist of 1 to 60 characters from A-Z, a-z, 0-9, _ and -")
        return value

    @field_validator("topic_names")
    @classmethod
    def _tables(cls, value: dict[str, str]) -> dict[str, str]:
        named = {text: parse_relation(text) for text in value}
        for text, relation in named.items():
            if relation is None:
                raise ValueError(f'{text} is not a table name; expected schema.table, or "odd.schema"."odd.table"')
        return {format_relation(*relation): value[text] for text, relation in named.items() if relation is not None}

    @model_validator(mode="after")
    def _topic_names_are_free(self) -> Self:
        """Refuse a name that the gateway could give to another table's topic: rows would be taken
        for rows of that table."""
        for table, topic in self.topic_names.items():
            own = topic_names(self.prefix, *(parse_relation(table) or ("", "")))
            if topic not in own and not topic_is_free(self.prefix, topic):
                raise ValueError(
                    f"topic_names: {topic} cannot be used: it must begin with {self.prefix}. and must not have the "
                    f"form of a name that the gateway generates, such as {self.prefix}.schema.table"
                )
        if len(set(map(collision_name, self.topic_names.values()))) < len(self.topic_names):
            raise ValueError(
                "topic_names: two tables have the same topic, or topics whose names differ only in '.' and '_'"
            )
        return self

    @model_validator(mode="after")
    def _as_secure_as_it_looks(self) -> Self:
        """Refuse certificates and logins that would not be used, because the gateway would connect
        without them."""
        protocol = self.security_protocol
        if not protocol.endswith("SSL"):
            refuse_unused(self, ("ssl_ca_file", "ssl_cert_file", "ssl_key_file"), f"security_protocol = {protocol}")
        if self.ssl_key_file is not None and self.ssl_cert_file is None:
            raise ValueError("ssl_key_file is set without ssl_cert_file")
        if self.ssl_key_password is not None and self.ssl_cert_file is None:
            raise ValueError("ssl_key_password is set without ssl_cert_file")
        self._check_login()
        return self

    def _check_login(self) -> None:
        """Check that all settings that the mechanism needs are set, and none that it does not
        use."""
        protocol, mechanism = self.security_protocol, self.sasl_mechanism
        logins: dict[str, tuple[str, ...]] = {
            "password": ("sasl_username", "sasl_password"),
            "token": ("token_file", "oauth_token_url"),
            "aws": ("aws_region",),
        }
        if not protocol.startswith("SASL"):
            refuse_unused(self, sum(logins.values(), ()), f"security_protocol = {protocol}")
            return
        kind = {"OAUTHBEARER": "token", "AWS_MSK_IAM": "aws"}.get(mechanism, "password")
        for other in logins.keys() - {kind}:
            refuse_unused(self, logins[other], f"sasl_mechanism = {mechanism}")
        if kind == "password" and (self.sasl_username is None or self.sasl_password is None):
            raise ValueError(f"security_protocol = {protocol} needs sasl_username and sasl_password")
        if kind == "token" and not self.has_token:
            raise ValueError("sasl_mechanism = OAUTHBEARER needs oauth_token_url or token_file")
        if kind == "aws" and (self.aws_region is None or protocol != "SASL_SSL"):
            raise ValueError("sasl_mechanism = AWS_MSK_IAM needs aws_region, and security_protocol = SASL_SSL")

    @property
    def sent_in_cleartext(self) -> str:
        """Return what others on the network can read at a login: "password", "token" or "". Brokers
        on this host are not reached over the network."""
        sent = {"PLAIN": "password", "OAUTHBEARER": "token"}.get(self.sasl_mechanism, "")
        hosts = (urlsplit(f"//{part.strip()}").hostname or "" for part in self.bootstrap_servers.split(","))
        return sent if self.security_protocol == "SASL_PLAINTEXT" and not all(map(_is_loopback, hosts)) else ""

    def client_options(self) -> dict[str, Any]:
        """Return the arguments that aiokafka's producer, consumer and admin client share. Read the
        certificates each time, because they may have changed. Raises StopForOperator."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = tls_context(
                "kafka.ssl_", self.ssl_ca_file, self.ssl_cert_file, self.ssl_key_file, self.ssl_key_password
            )
        if self.sasl_username is not None and self.sasl_password is not None:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        if self.has_token:
            options["sasl_oauth_token_provider"] = Tokens(self, "kafka", self.ssl_ca_file)
        if self.aws_region is not None:
            options["sasl_oauth_token_provider"] = MskTokens(self.aws_region)
        if "sasl_oauth_token_provider" in options:
            options["sasl_mechanism"] = "OAUTHBEARER"
        return options


def _is_host_and_port(text: str) -> bool:
    """Return whether aiokafka can parse the address. The port may be missing; aiokafka then uses
    9092."""
    try:
        address = urlsplit(f"//{text}")
        return bool(address.hostname) and address.port != 0 and address.netloc == text and text[-1] not in "@:"
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
