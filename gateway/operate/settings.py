"""What an operator can set. Order: command line, environment (`WALGATE_KAFKA__PREFIX`), file, default.

Secrets come from the environment or from a file named by the `_FILE` variant of the variable; they print as `***`.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.operate.errors import StopForOperator

PREFIX = "WALGATE_"


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
        if not re.fullmatch(r"[a-z0-9_]{1,63}", value):
            raise ValueError("a slot's name has 1 to 63 of a-z, 0-9 and _")
        return value

    @field_validator("publications", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("publications")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or any(not name or len(name.encode()) > 63 or "\0" in name for name in value):
            raise ValueError("name at least one publication; each name has 1 to 63 bytes")
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
        default="cdc", pattern=r"^[A-Za-z0-9_-]{1,60}$", description="Topics are <prefix>.<schema>.<table>."
    )
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    partitions: int = Field(default=3, ge=1, description="Of new change topics.")
    replication_factor: int = Field(default=-1, ge=-1, description="Of new topics; -1: the broker's default.")
    retention_ms: int | None = Field(
        default=None, description="Of new change and marker topics; unset: the broker's default."
    )
    topics: tuple[TopicOverride, ...] = ()
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    max_record_bytes: int = Field(
        default=16 << 20, ge=1024, description="Largest record, of producer and new topics together."
    )
    batch_bytes: int = Field(default=1 << 19, ge=1024, description="Largest batch of a partition.")
    memory_bytes: int = Field(
        default=16 << 20, ge=1 << 20, description="Reading waits while more than this is unacknowledged."
    )
    transaction_timeout_s: int = Field(
        default=900, ge=1, description="At most the broker's transaction.max.timeout.ms."
    )
    request_timeout_s: int = Field(default=30, ge=1)
    delivery_timeout_s: float = Field(default=60.0, gt=0, description="No answer for so long: a new producer.")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None

    @field_validator("topics", mode="before")
    @classmethod
    def _json(cls, value: Any) -> Any:
        """In the environment: a JSON array of objects."""
        return json.loads(value) if isinstance(value, str) else value

    def client_options(self) -> dict[str, Any]:
        """Arguments that aiokafka's producer, consumer and admin client share."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=self.ssl_ca_file)
            if self.ssl_cert_file is not None:
                context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
            options["ssl_context"] = context
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value() if self.sasl_password else None
        return options


class RegistrySettings(_Section):
    """Schema registry with the Confluent API."""

    url: str = Field(default="http://localhost:8081", description="Apicurio: http://host:8080/apis/ccompat/v7")
    username: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None
    timeout_s: float = Field(default=30.0, gt=0)


class SchemaSettings(_Section):
    on_incompatible: Literal["stop", "register"] = Field(
        default="stop",
        description="register: send a schema that readers of the old one can not read, rather than stop.",
    )


class HttpSettings(_Section):
    """Health, metrics and status page; off while no port is set."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)


class Settings(BaseSettings):
    """All of it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        enable_decoding=False,
    )

    source: SourceSettings
    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    schemas: SchemaSettings = SchemaSettings()
    http: HttpSettings = HttpSettings()

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


def load_settings(file: Path | None = None) -> Settings:
    """Merge environment and file. Raises StopForOperator that names each wrong setting, without its value."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StopForOperator(f"configuration file {file}: {error}") from error
    _read_secret_files()
    try:
        return Settings(**values)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, item['loc'])) or '(top)'}: {item['msg']}" for item in error.errors()]
        raise StopForOperator(
            "configuration:\n" + "\n".join(lines), hint=f"settings: a TOML file, or {PREFIX}SECTION__NAME variables"
        ) from None


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
