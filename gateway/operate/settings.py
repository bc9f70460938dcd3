"""What an operator can set. Order: environment (`WALGATE_KAFKA__PREFIX`), file, default.

Secrets come from the environment or from a file named by the `_FILE` variant of the variable; they print as `***`. What would
only be found out much later, or never (a variable that sets nothing, a login that is not used, a certificate that is not
there), is refused here.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.names import IDENTIFIER_RULE, SLOT_RULE, is_identifier, is_slot
from gateway.operate.errors import StopForOperator

PREFIX: Final = "WALGATE_"
_NO_SETTINGS: Final = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "COMPILE", "FAILPOINTS", "JAVA_HOME", "PASSWORD", "SPARK_JARS"),
        *("EXAMPLES", "FUZZ_INPUTS", "FUZZ_SEED", "TEST_SEED"),
    )
)
"""Variables of this project that set something else: of the local servers, the build, docker-compose.yml, the Spark side; of
the tests."""
_OF_KUBERNETES: Final = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*|\w+_PORT_\d+_[A-Z]+_(PROTO|PORT|ADDR)=.*"
)
"""What it puts into the environment of every container for a service whose name begins with `walgate`."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSettings(_Section):
    """PostgreSQL, the slot and what it decodes."""

    dsn: SecretStr = Field(description="libpq URI of the database; user needs LOGIN and REPLICATION.")
    slot: str = Field(default="walgate", description="Replication slot; made on the first start.")
    publications: tuple[str, ...] = Field(default=("walgate",), description="Publications, which must exist.")
    adopt_slot: bool = Field(
        default=False, description="Take over a slot that exists although no position is known for it."
    )
    two_phase: bool = Field(
        default=False, description="Make the slot with two_phase: PREPARE TRANSACTION is sent at once (15+)."
    )
    failover: bool = Field(default=False, description="Make the slot with failover: it is kept on standbys (17+).")
    binary: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Binary tuples: where every type has a decoder. A database that is not UTF8 is read in text.",
    )
    large_transactions: Literal["stream", "whole"] = Field(
        default="stream",
        description="stream: rows are sent while a large transaction is open. whole: only after its commit; "
        "it must then reach Kafka within kafka.transaction_timeout_s.",
    )
    messages: bool = Field(default=True, description="Logical decoding messages.")
    origin: Literal["any", "none"] = Field(
        default="any", description="none: leave out what came from another origin (16+)."
    )
    check_interval_s: float = Field(default=10.0, gt=0, description="Slot and publications are checked this often.")

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, value: str) -> str:
        if not is_slot(value):
            raise ValueError(f"a slot's name has {SLOT_RULE}")
        return value

    @field_validator("publications", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("publications")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(map(is_identifier, value)):
            raise ValueError(f"name at least one publication; each name has {IDENTIFIER_RULE}")
        return value


class TopicOverride(_Section):
    """Other settings for the topics that a pattern matches (regular expression, the whole name)."""

    pattern: str
    partitions: int | None = Field(default=None, ge=1)
    config: dict[str, str] = Field(default_factory=dict)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value


class KafkaSettings(_Section):
    """Topics and the producer."""

    bootstrap_servers: str = Field(default="localhost:9092", description="host:port, comma-separated.")
    prefix: str = Field(
        default="cdc", pattern=r"^[A-Za-z0-9_-]{1,60}$", description="Topics are `prefix.schema.table`."
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="at_least_once: lower latency; after a crash records and markers may come twice; the Spark reader "
        "refuses that.",
    )
    partitions: int = Field(default=3, ge=1, description="Of new change topics.")
    replication_factor: int = Field(default=-1, ge=-1, description="Of new topics; -1: the broker's default.")
    retention_ms: int | None = Field(
        default=None, ge=-1, description="Of new change and marker topics; -1: for ever; unset: the broker's default."
    )
    topics: tuple[TopicOverride, ...] = Field(
        default=(),
        description="Other settings of the new topics that a pattern matches (see the sample). In a variable: the same as "
        "a JSON array.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="Of the batches, by the producer."
    )
    max_record_bytes: int = Field(
        default=16 << 20, ge=1024, description="Largest record, of producer and new topics together."
    )
    batch_bytes: int = Field(
        default=1 << 19, ge=1024, description="Largest batch of a partition; never more than max_record_bytes."
    )
    memory_bytes: int = Field(
        default=16 << 20, ge=1 << 20, description="Reading waits while more than this is unacknowledged."
    )
    transaction_timeout_s: int = Field(
        default=900, ge=1, description="At most the broker's transaction.max.timeout.ms."
    )
    request_timeout_s: int = Field(default=30, ge=1, description="No answer to one request for so long: it failed.")
    delivery_timeout_s: float = Field(default=60.0, gt=0, description="No answer for so long: a new producer.")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="SSL: TLS. SASL: with a login."
    )
    ssl_ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authorities that may sign the broker's certificate; unset: the system's.",
    )
    ssl_cert_file: Path | None = Field(
        default=None, description="PEM file of our own certificate, where brokers ask for one."
    )
    ssl_key_file: Path | None = Field(
        default=None, description="PEM file of its key, without a passphrase; unset: it is in ssl_cert_file."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="How to log in. PLAIN sends the password as it is: with SASL_SSL only."
    )
    sasl_username: str | None = Field(default=None, description="Required with SASL_PLAINTEXT and SASL_SSL.")
    sasl_password: SecretStr | None = Field(
        default=None, description=f"Its password; or a file by {PREFIX}KAFKA__SASL_PASSWORD_FILE."
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, value: str) -> str:
        if not all(_is_host_and_port(part.strip()) for part in value.split(",")):
            raise ValueError("expected host:port, comma-separated; an IPv6 address in brackets")
        return value

    @field_validator("topics", mode="before")
    @classmethod
    def _json(cls, value: Any) -> Any:
        """In the environment: a JSON array of objects."""
        return json.loads(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _as_secure_as_it_looks(self) -> Self:
        """Certificates and logins that are set must be used: else the gateway would connect without them."""
        protocol = self.security_protocol
        if not protocol.endswith("SSL"):
            _refuse_unused(self, ("ssl_ca_file", "ssl_cert_file", "ssl_key_file"), f"security_protocol = {protocol}")
        if self.ssl_key_file is not None and self.ssl_cert_file is None:
            raise ValueError("ssl_key_file is set without ssl_cert_file")
        if not protocol.startswith("SASL"):
            _refuse_unused(self, ("sasl_username", "sasl_password"), f"security_protocol = {protocol}")
        elif self.sasl_username is None or self.sasl_password is None:
            raise ValueError(f"security_protocol = {protocol} needs sasl_username and sasl_password")
        return self

    def client_options(self) -> dict[str, Any]:
        """Arguments that aiokafka's producer, consumer and admin client share. Reads the certificates, which may be new
        ones. Raises StopForOperator."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.endswith("SSL"):
            try:
                context = ssl.create_default_context(cafile=self.ssl_ca_file)
            except OSError as error:
                raise _unusable(error, "kafka.ssl_ca_file", self.ssl_ca_file) from error
            if self.ssl_cert_file is not None:
                try:
                    # A key with a passphrase must not be asked for on the terminal.
                    context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file, password="")
                except OSError as error:
                    raise _unusable(
                        error, "kafka.ssl_cert_file or kafka.ssl_key_file", self.ssl_cert_file, self.ssl_key_file
                    ) from error
            options["ssl_context"] = context
        if self.sasl_username is not None and self.sasl_password is not None:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        return options


def _is_host_and_port(text: str) -> bool:
    """As aiokafka reads it; without a port it takes 9092."""
    try:
        address = urlsplit(f"//{text}")
        return bool(address.hostname) and address.port != 0 and address.netloc == text and text[-1] not in "@:"
    except ValueError:
        return False


def _refuse_unused(section: BaseModel, names: Iterable[str], reason: str) -> None:
    unused = [name for name in names if getattr(section, name) is not None]
    if unused:
        raise ValueError(f"{', '.join(unused)} would not be used: {reason}")


def _unusable(error: OSError, setting: str, *paths: Path | None) -> StopForOperator:
    named = " ".join(str(path) for path in paths if path is not None)
    reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return StopForOperator(f"{setting} can not be used: {named}: {reason}", hint="PEM files that the gateway may read")


class RegistrySettings(_Section):
    """Schema registry with the Confluent API."""

    url: str = Field(
        default="http://localhost:8081",
        description="Without user and password. Apicurio: http://host:8080/apis/ccompat/v7",
    )
    username: str | None = Field(default=None, description="For HTTP basic authentication.")
    password: SecretStr | None = Field(
        default=None, description=f"Its password; or a file by {PREFIX}REGISTRY__PASSWORD_FILE."
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authorities that may sign the registry's certificate; unset: the system's.",
    )
    timeout_s: float = Field(default=30.0, gt=0, description="No answer for so long: the registry is not there.")

    @field_validator("url")
    @classmethod
    def _shows_no_secret(cls, value: str) -> str:
        """Addresses are printed. What is no address at all the client itself refuses."""
        if "@" in value:
            raise ValueError("user and password do not belong here: set registry.username and registry.password")
        return value

    @model_validator(mode="after")
    def _all_is_used(self) -> Self:
        if self.username is None:
            _refuse_unused(self, ("password",), "registry.username is not set")
        if not self.url.lower().startswith("https:"):
            _refuse_unused(self, ("ca_file",), "registry.url is no https address")
        return self


class SchemaSettings(_Section):
    """Changes of a table's columns (docs/schema-evolution.md)."""

    on_incompatible: Literal["stop", "register"] = Field(
        default="stop",
        description="register: send a schema that readers of the old one can not read, rather than stop.",
    )


class HttpSettings(_Section):
    """`/livez`, `/readyz` and `/metrics` (Prometheus); off while no port is set."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0: every one.")
    port: int | None = Field(default=None, ge=0, le=65535, description="0: a free one, which the log tells.")


class _Sources(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        nested_model_default_partial_update=True,
        enable_decoding=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings  # a file's values come as init arguments


class Settings(_Sources, extra="forbid"):
    """All of it."""

    source: SourceSettings
    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    schemas: SchemaSettings = SchemaSettings()
    http: HttpSettings = HttpSettings()


class _OnlyHttp(_Sources, extra="ignore"):
    http: HttpSettings = HttpSettings()


def load_settings(file: Path | None = None) -> Settings:
    """Merge environment and file. Raises StopForOperator that names each wrong setting, without its value."""
    values = _read_file(file)
    _read_secret_files()
    _refuse_unknown_variables()
    settings = _merge(Settings, values)
    settings.kafka.client_options()  # says now what is wrong with the certificates
    return settings


def load_http_settings(file: Path | None = None) -> HttpSettings:
    """Where the gateway of the same configuration answers: reads no secret."""
    return _merge(_OnlyHttp, _read_file(file)).http


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StopForOperator(f"configuration file {file}: {error}") from error


_S = TypeVar("_S", bound=_Sources)


def _merge(model: type[_S], values: dict[str, Any]) -> _S:
    try:
        return model(**values)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, item['loc'])) or '(top)'}: {item['msg']}" for item in error.errors()]
        raise StopForOperator(
            "configuration:\n" + "\n".join(lines), hint=f"settings: a TOML file, or {PREFIX}SECTION__NAME variables"
        ) from None


def _refuse_unknown_variables() -> None:
    """Names inside a section are pydantic's to check; a variable of no section it would not even look at."""
    sections = {f"{PREFIX}{section.upper()}": field for section, field in Settings.model_fields.items()}
    names = [
        f"{section}__{name.upper()}"
        for section, field in sections.items()
        for name in getattr(field.annotation, "model_fields", ())
    ]
    unknown = [
        name
        for name, value in sorted(os.environ.items())
        if name.upper().startswith(PREFIX)
        and name.upper().partition("__")[0] not in sections
        and name not in _NO_SETTINGS
        and not _OF_KUBERNETES.fullmatch(f"{name}={value}")
    ]
    if unknown:
        near = [match for name in unknown for match in get_close_matches(name.upper(), names, 1)]
        raise StopForOperator(
            f"the environment has {', '.join(unknown)}, which sets nothing: the form is {PREFIX}SECTION__NAME",
            hint=f"did you mean {', '.join(near)}?" if near else "see docs/settings.md",
        )


def _read_secret_files() -> None:
    """WALGATE_X_FILE=path stands for WALGATE_X=<content of path>, as Docker secrets want it."""
    for name, path in list(os.environ.items()):
        if (
            name.startswith(PREFIX)
            and name.endswith("_FILE")
            and not name.endswith(("CA_FILE", "CERT_FILE", "KEY_FILE"))
        ):
            try:
                os.environ[name.removesuffix("_FILE")] = Path(path).read_text().strip()
            except OSError as error:
                raise StopForOperator(f"{name}: {error}") from error
            del os.environ[name]
