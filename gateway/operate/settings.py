"""What an operator can set. Order: environment (`WALGATE_KAFKA__PREFIX`), file, default.

Secrets come from the environment or from a file named by the `_FILE` variant of the variable; they print as `***`. What would
only be found out much later, or never (a variable that sets nothing, a login that is not used, a certificate that is not
there), is refused here.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.names import IDENTIFIER_RULE, SLOT_RULE, is_identifier, is_slot
from gateway.operate.column_settings import ColumnSettings
from gateway.operate.debezium_settings import DebeziumSettings
from gateway.operate.errors import StopForOperator
from gateway.operate.kafka_settings import KafkaSettings
from gateway.operate.section import PREFIX, Names, Pattern, Section, load_key, read_json, refuse_unused, unusable
from gateway.operate.setting_errors import explain, sections_of, variable
from gateway.operate.tokens import TokenSettings

_NO_SETTINGS: Final = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "COMPILE", "FAILPOINTS", "JAVA_HOME", "PASSWORD", "REPOSITORY", "SPARK_JARS"),
        *("CHAOS_S", "EXAMPLES", "FUZZ_INPUTS", "FUZZ_SEED", "TEST_SEED"),
    )
)
"""Variables of this project that set something else: of the local servers, the build, docker-compose.yml, the Spark side; of
the tests."""
_OF_KUBERNETES: Final = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*|\w+_PORT_\d+_[A-Z]+_(PROTO|PORT|ADDR)=.*"
)
"""What it puts into the environment of every container for a service whose name begins with `walgate`."""


class SourceSettings(Section):
    """PostgreSQL, the slot and what it decodes."""

    dsn: SecretStr = Field(description="libpq URI of the database; user needs LOGIN and REPLICATION.")
    password_file: Path | None = Field(
        default=None,
        description="File with the password, read at each connect, so that it may change; instead of one in dsn.",
    )
    password_command: str = Field(
        default="",
        description="Program and arguments, without a shell, whose output is the password; run at each connect, for tokens "
        "that expire.",
    )
    slot: str = Field(default="walgate", description="Replication slot; made on the first start.")
    publications: Names = Field(default=("walgate",), description="Publications, which must exist.")
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
    message_prefixes: Names = Field(
        default=(), description="Only messages with one of these prefixes are published; none: all."
    )
    heartbeat_interval_s: float = Field(
        default=0.0,
        ge=0,
        description="Write a logical message `walgate.heartbeat` this often, so that the lag is measured where nothing else "
        "commits; 0: never. It is published only if message_prefixes names it.",
    )
    origin: Literal["any", "none"] = Field(
        default="any", description="none: leave out what came from another origin (16+)."
    )
    wal_budget_bytes: int | None = Field(
        default=None,
        ge=1,
        description="WAL that the slot may hold back: near it the log and the metrics say so, ever louder; unset: only "
        "max_slot_wal_keep_size of the server counts.",
    )
    on_wal_budget: Literal["warn", "release"] = Field(
        default="warn",
        description="At wal_budget_bytes. release: move the slot on although what it holds was not delivered. A marker GAP "
        "says what is lost, and where snapshot.mode allows every table is read again.",
    )
    check_interval_s: float = Field(default=10.0, gt=0, description="Slot and publications are checked this often.")

    @field_validator("password_command")
    @classmethod
    def _splits(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a command line: {error}") from None
        return value

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.on_wal_budget == "release" and self.wal_budget_bytes is None:
            raise ValueError("on_wal_budget = release needs wal_budget_bytes")
        return self

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_file is not None and self.password_command:
            raise ValueError("set password_file or password_command, not both")
        return self

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, value: str) -> str:
        if not is_slot(value):
            raise ValueError(f"a slot's name has {SLOT_RULE}")
        return value

    @field_validator("publications")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(map(is_identifier, value)):
            raise ValueError(f"name at least one publication; each name has {IDENTIFIER_RULE}")
        return value


class RegistrySettings(TokenSettings):
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
    cert_file: Path | None = Field(
        default=None, description="PEM file of our own certificate, where the registry asks for one."
    )
    key_file: Path | None = Field(default=None, description="PEM file of its key; unset: it is in cert_file.")
    key_password: SecretStr | None = Field(
        default=None, description=f"Passphrase of the key; or a file by {PREFIX}REGISTRY__KEY_PASSWORD_FILE."
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
            refuse_unused(self, ("password",), "registry.username is not set")
        if not self.url.lower().startswith("https:"):
            refuse_unused(self, ("ca_file", "cert_file"), "registry.url is no https address")
        if self.cert_file is None:
            refuse_unused(self, ("key_file", "key_password"), "registry.cert_file is not set")
        if self.has_token:
            refuse_unused(self, ("username",), "a token is used")
        return self

    def client_options(self) -> dict[str, Any]:
        """Arguments of RegistryClient that say who comes. Reads the certificates, which may be new.
        Raises StopForOperator."""
        tls = None
        if self.url.lower().startswith("https:"):
            try:
                tls = ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:
                raise unusable(error, "registry.ca_file", self.ca_file) from error
            if self.cert_file is not None:
                try:
                    load_key(tls, self.cert_file, self.key_file, self.key_password)
                except OSError as error:
                    names = "registry.cert_file, registry.key_file or registry.key_password"
                    raise unusable(error, names, self.cert_file, self.key_file) from error
        return {
            "username": self.username,
            "password": self.password.get_secret_value() if self.password else None,
            "tls": tls,
            "tokens": self.tokens("registry", self.ca_file) if self.has_token else None,
        }


class SchemaSettings(Section):
    """Changes of a table's columns (docs/schema-evolution.md)."""

    on_incompatible: Literal["stop", "register"] = Field(
        default="stop",
        description="register: send a schema that readers of the old one cannot read, rather than stop.",
    )


class SnapshotSettings(Section):
    """Rows that were there before (docs/snapshot.md)."""

    mode: Literal["initial", "on_command", "never"] = Field(
        default="initial",
        description="initial: at the first start every published table is read, and later each one that joins the publications. "
        "on_command: only what `walgate snapshot start` names. The user needs SELECT on the tables. The dialect debezium has "
        "no snapshots.",
    )
    commands: bool = Field(
        default=True,
        description="Obey commands in the stream (`walgate snapshot`). Everybody who may connect to the database may emit them.",
    )
    readers: int = Field(default=2, ge=1, le=16, description="Sessions that read tables at the same time.")
    rows_per_s: int | None = Field(default=None, gt=0, description="Read no more than this.")
    chunk_bytes: int = Field(
        default=4 << 20,
        ge=8192,
        description="About so much of a table is read in one transaction. Its rows take four times as much memory until "
        "they are handed over, once for each reader.",
    )


class TableErrors(Section):
    """Another rule for the tables that a pattern matches (regular expression, the whole `schema.table`)."""

    pattern: Pattern
    on_error: Literal["stop", "quarantine"]


class ErrorSettings(Section):
    """A row or a change of a table that cannot be written (docs/operations.md)."""

    on_error: Literal["stop", "quarantine"] = Field(
        default="stop",
        description="quarantine: leave the table out from that transaction on, marked in every manifest, rather than stop.",
    )
    tables: tuple[TableErrors, ...] = Field(
        default=(),
        description="Other rules for the tables that a pattern matches (see the sample). In a variable: the same as a JSON "
        "array.",
    )

    @field_validator("tables", mode="before")
    @classmethod
    def _json(cls, value: Any) -> Any:
        return read_json(value)

    @property
    def may_quarantine(self) -> bool:
        return "quarantine" in (self.on_error, *(rule.on_error for rule in self.tables))

    def on_error_of(self, table: str) -> str:
        """`table`: schema.table. Where two patterns match, the later one wins."""
        rules = [rule.on_error for rule in self.tables if re.fullmatch(rule.pattern, table)]
        return rules[-1] if rules else self.on_error


class HttpSettings(Section):
    """`/livez`, `/readyz`, `/status` (JSON) and `/metrics` (Prometheus); off while no port is set."""

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
    snapshot: SnapshotSettings = SnapshotSettings()
    columns: ColumnSettings = ColumnSettings()
    errors: ErrorSettings = ErrorSettings()
    debezium: DebeziumSettings = DebeziumSettings()
    http: HttpSettings = HttpSettings()

    @property
    def writes_debezium(self) -> bool:
        return self.kafka.dialect == "debezium"

    @property
    def streams_open_transactions(self) -> bool:
        """Debezium's consumers take every record for committed."""
        return self.source.large_transactions == "stream" and not self.writes_debezium

    @property
    def takes_snapshots(self) -> bool:
        """At the first start or on command. Debezium's dialect has none, whatever the mode is."""
        return self.snapshot.mode != "never" and not self.writes_debezium

    @model_validator(mode="after")
    def _dialects_agree(self) -> Self:
        if self.writes_debezium:
            if self.source.large_transactions == "stream" and "large_transactions" in self.source.model_fields_set:
                raise ValueError(
                    "kafka.dialect = debezium sends committed rows only: source.large_transactions must be whole"
                )
            if self.source.two_phase:
                raise ValueError("kafka.dialect = debezium sends committed rows only: source.two_phase must be false")
            if self.errors.may_quarantine:
                raise ValueError(
                    "kafka.dialect = debezium has no place to mark what is left out: errors.on_error must be stop"
                )
            if self.source.on_wal_budget == "release":
                raise ValueError(
                    "kafka.dialect = debezium has no place to mark a gap: source.on_wal_budget must be warn"
                )
            if self.columns.rules:
                raise ValueError(
                    "kafka.dialect = debezium does not apply columns.rules yet: values would leave as they are"
                )
        elif "debezium" in self.model_fields_set:
            raise ValueError("the section debezium would not be used: kafka.dialect is walgate")
        return self


class _OnlyHttp(_Sources, extra="ignore"):
    http: HttpSettings = HttpSettings()


class _OnlyReading(_Sources, extra="ignore"):
    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()


def load_settings(file: Path | None = None) -> Settings:
    """Merge environment and file. Raises StopForOperator that names each wrong setting, without its value."""
    values = _read_file(file)
    if isinstance(values.get("columns"), list):  # [[columns]]: beside the key, which comes from a variable
        values["columns"] = {"rules": values["columns"]}
    _read_secret_files()
    _refuse_unknown_variables()
    settings = _merge(Settings, values)
    settings.kafka.client_options()  # says now what is wrong with the certificates
    settings.registry.client_options()
    return settings


def load_http_settings(file: Path | None = None) -> HttpSettings:
    """Where the gateway of the same configuration answers: reads no secret."""
    return _merge(_OnlyHttp, _read_file(file)).http


def load_reading_settings(file: Path | None = None) -> tuple[KafkaSettings, RegistrySettings]:
    """Where topics and schemas are, for a reader without PostgreSQL."""
    _read_secret_files()
    found = _merge(_OnlyReading, _read_file(file))
    return found.kafka, found.registry


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
        lines = [f"  {sentence}" for sentence in explain(error, model)]
        raise StopForOperator(
            "configuration:\n" + "\n".join(lines),
            hint=f"a TOML file, or {PREFIX}SECTION__NAME variables: docs/settings.md",
        ) from None


def _variables() -> list[str]:
    """Of every setting."""
    return [variable(section, name) for section, found in sections_of(Settings).items() for name in found.model_fields]


def _refuse_unknown_variables() -> None:
    """Names inside a section are pydantic's to check; a variable of no section it would not even look at."""
    sections = {f"{PREFIX}{section.upper()}" for section in Settings.model_fields}
    names = _variables()
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
    """WALGATE_X_FILE=path stands for WALGATE_X=<content of path>, as Docker secrets want it; but for settings of that name."""
    settings = _variables()
    for name, path in list(os.environ.items()):
        if name.startswith(PREFIX) and name.endswith("_FILE") and name not in settings:
            try:
                os.environ[name.removesuffix("_FILE")] = Path(path).read_text().strip()
            except OSError as error:
                raise StopForOperator(f"{name}: {error}") from error
            del os.environ[name]
