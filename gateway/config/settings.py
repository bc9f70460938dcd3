"""All settings, and the sections without a module of their own, such as `snapshot`. Order of
precedence: environment (`WALGATE_KAFKA__PREFIX`), file, default.

Secrets come from the environment or from a file named by the `_FILE` variant of the variable, and
are printed as `***`. Mistakes that would be noticed only much later, or never, are refused here: a
variable that sets nothing, a login that is not used, a certificate that does not exist.
"""

from __future__ import annotations

import os
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.config.columns import ColumnSettings
from gateway.config.debezium import DebeziumSettings
from gateway.config.error_messages import explain, sections_of, variable
from gateway.config.kafka import KafkaSettings
from gateway.config.oauth_tokens import Tokens, TokenSettings
from gateway.config.section import (
    AS_JSON,
    PREFIX,
    File,
    Names,
    Pattern,
    Section,
    refuse_quotes,
    refuse_unused,
    tls_context,
)
from gateway.config.source import SourceSettings
from gateway.errors import StopForOperator

_NO_SETTINGS: Final = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "COMPILE", "FAILPOINTS", "JAVA_HOME", "POSTGRES", "PROJECT_URL"),
        "REPOSITORY",
        *("SPARK_JARS", "SPARK_SETUP"),
        *("CHAOS_S", "EXAMPLES", "FUZZ_INPUTS", "FUZZ_SEED", "TEST_SEED"),
    )
)
"""Variables of this project that are not settings. They belong to the local servers, the build,
the Spark side and the tests."""
_OF_KUBERNETES: Final = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*|\w+_PORT_\d+_[A-Z]+_(PROTO|PORT|ADDR)=.*"
)
"""Variables that Kubernetes sets in every container for a service whose name begins with
`walgate`."""


class RegistrySettings(TokenSettings):
    """Settings for a schema registry with Confluent's API."""

    url: str = Field(
        default="http://localhost:8081",
        description="URL without user and password. For Apicurio: http://host:8080/apis/ccompat/v7",
    )
    username: str | None = Field(default=None, description="For HTTP basic authentication.")
    password: SecretStr | None = Field(
        default=None, description=f"Password of that user. To read it from a file, set {PREFIX}REGISTRY__PASSWORD_FILE."
    )
    ca_file: File = Field(
        default=None,
        description="PEM file of the certificate authorities that may sign the registry's certificate. unset: the "
        "system's.",
    )
    cert_file: File = Field(
        default=None, description="PEM file of the gateway's client certificate, if the registry requires one."
    )
    key_file: File = Field(
        default=None, description="PEM file of the certificate's private key. unset: the key is in cert_file."
    )
    key_password: SecretStr | None = Field(
        default=None,
        description=f"Passphrase of the private key. To read it from a file, set {PREFIX}REGISTRY__KEY_PASSWORD_FILE.",
    )
    timeout_s: float = Field(default=30.0, gt=0, description="Timeout of a request to the registry.")

    @field_validator("url")
    @classmethod
    def _shows_no_secret(cls, value: str) -> str:
        """Refuse a user and password in the URL, because URLs are printed. The registry client
        refuses an invalid URL."""
        refuse_quotes(value)
        if "@" in value:
            raise ValueError("the URL must not contain user and password: set registry.username and registry.password")
        return value

    @model_validator(mode="after")
    def _all_is_used(self) -> Self:
        if self.username is None:
            refuse_unused(self, ("password",), "registry.username is not set")
        if not self.url.lower().startswith("https:"):
            refuse_unused(self, ("ca_file", "cert_file"), "registry.url is not an https URL")
        if self.cert_file is None:
            refuse_unused(self, ("key_file", "key_password"), "registry.cert_file is not set")
        if self.has_token:
            refuse_unused(self, ("username",), "a token is used")
        return self

    def client_options(self) -> dict[str, Any]:
        """Return the arguments of RegistryClient for authentication and TLS. Read the certificates
        each time, because they may have changed. Raises StopForOperator."""
        tls = None
        if self.url.lower().startswith("https:"):
            tls = tls_context("registry.", self.ca_file, self.cert_file, self.key_file, self.key_password)
        return {
            "username": self.username,
            "password": self.password.get_secret_value() if self.password else None,
            "tls": tls,
            "tokens": Tokens(self, "registry", self.ca_file) if self.has_token else None,
        }


class SchemaSettings(Section):
    """Changes to a table's columns (docs/schema-evolution.md)."""

    on_incompatible: Literal["stop", "register"] = Field(
        default="stop",
        description="register: register an incompatible schema (one with which older events cannot be read), and continue. "
        "stop: exit instead.",
    )


class SnapshotSettings(Section):
    """Snapshots of existing rows (docs/snapshot.md)."""

    mode: Literal["initial", "on_command", "never"] = Field(
        default="initial",
        description="initial: read every published table at the first start, and later each table that is added to the "
        "publications. on_command: read only tables named in `walgate snapshot start`. The role needs "
        "SELECT on the tables.",
    )
    commands: bool = Field(
        default=True,
        description="Accept commands from the replication stream (`walgate snapshot`). Any role that can connect to "
        "the database can send them.",
    )
    read_again: bool = Field(
        default=True,
        description="With mode = initial, read a table again when its rows changed without events: after an ALTER "
        "TABLE that rewrites it, or when a partition was attached or detached. false: only log it.",
    )
    may_lock: bool = Field(
        default=False,
        description="If a table that is read in one transaction changes during each of three attempts to read it, lock it (LOCK "
        "TABLE ... IN SHARE MODE) for further attempts: writers wait until it has been read. A table is read in this way if it "
        "has no key, a key with an array, foreign partitions or an access method other than heap and tde_heap, or if the role "
        "may not read its ctid. Needs UPDATE, DELETE, TRUNCATE or (in PostgreSQL 17 and later) MAINTAIN on the table.",
    )
    readers: int = Field(default=2, ge=1, le=16, description="Number of sessions that read tables in parallel.")
    rows_per_s: int | None = Field(default=None, gt=0, description="Limit on the rows read per second.")
    chunk_bytes: int = Field(
        default=4 << 20,
        ge=8192,
        description="Approximate number of bytes of a table that are read in one transaction. While other transactions "
        "arrive, at most 1 MB is read (except for VERIFY), because those transactions wait until the rows have been sent. In "
        "each reading session, the rows occupy four times this amount of memory until they are sent.",
    )


class TableErrors(Section):
    """A different rule for the tables whose whole name, `schema.table`, a regular expression
    matches."""

    pattern: Pattern
    on_error: Literal["stop", "quarantine"]


class ErrorSettings(Section):
    """The reaction to a row or a schema change that cannot be written (docs/quarantine.md)."""

    on_error: Literal["stop", "quarantine"] = Field(
        default="stop",
        description="quarantine: leave the table out from that transaction on, and record this in the "
        "marker of each transaction that changes it. stop: exit instead.",
    )
    tables: Annotated[tuple[TableErrors, ...], AS_JSON] = Field(
        default=(),
        description="Different rules for tables that match a pattern (see the sample). In an environment variable: "
        "the same as a JSON array.",
    )

    @property
    def may_quarantine(self) -> bool:
        return "quarantine" in (self.on_error, *(rule.on_error for rule in self.tables))

    def on_error_of(self, table: str) -> str:
        """Return `on_error` for `table`, given as schema.table. The last rule whose pattern matches
        the table applies, or else the section's own `on_error`."""
        rules = [rule.on_error for rule in self.tables if re.fullmatch(rule.pattern, table)]
        return rules[-1] if rules else self.on_error


class HttpSettings(Section):
    """The web UI (`/`), `/livez`, `/readyz`, `/status` (JSON) and `/metrics` (Prometheus). Disabled
    unless a port is set."""

    host: str = Field(default="127.0.0.1", description="Address to listen on. 0.0.0.0: all interfaces.")
    port: int | None = Field(
        default=None, ge=0, le=65535, description="Port to listen on. 0: any free port; the log shows which."
    )
    mirrors: Names = Field(
        default=(),
        description="Addresses of mirrors (`walgate mirror --http HOST:PORT`) whose state the web UI, `walgate status` and "
        "`/metrics` show: http://mirror.example:9465",
    )

    @field_validator("mirrors")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"https?://[^/@\s]+", one) for one in value):
            raise ValueError("expected addresses like http://mirror.example:9465, without a path")
        return value


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
    """All sections of the settings."""

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
    def writes_truncates(self) -> bool:
        """Whether a TRUNCATE is a record in the topic of its table."""
        return self.writes_debezium and "t" not in self.debezium.skipped_operations

    @property
    def streams_open_transactions(self) -> bool:
        """Whether transactions are streamed before they commit. This is never so in Debezium's
        dialect, whose consumers take every record as committed."""
        return self.source.large_transactions == "stream" and not self.writes_debezium

    @property
    def takes_snapshots(self) -> bool:
        """Whether existing rows are read, at the first start or on command."""
        return self.snapshot.mode != "never"

    @model_validator(mode="after")
    def _dialects_agree(self) -> Self:
        if self.writes_debezium:
            if self.source.large_transactions == "stream" and "large_transactions" in self.source.model_fields_set:
                raise ValueError(
                    "kafka.dialect = debezium writes only committed rows: set source.large_transactions = whole"
                )
            if self.source.two_phase:
                raise ValueError("kafka.dialect = debezium writes only committed rows: set source.two_phase = false")
            if self.errors.may_quarantine:
                raise ValueError(
                    "kafka.dialect = debezium cannot record that changes were excluded: set errors.on_error = stop"
                )
            if self.source.on_wal_budget == "advance":
                raise ValueError("kafka.dialect = debezium cannot record a gap: set source.on_wal_budget = warn")
            if self.debezium.reselect_unavailable_values and not self.takes_snapshots:
                raise ValueError(
                    "debezium.reselect_unavailable_values needs snapshot.mode = initial or on_command, not never"
                )
        elif "debezium" in self.model_fields_set:
            raise ValueError("the section debezium has no effect: kafka.dialect is walgate")
        return self


class _OnlyHttp(_Sources, extra="ignore"):
    http: HttpSettings = HttpSettings()


class _OnlyReading(_Sources, extra="ignore"):
    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()


def load_settings(file: Path | None = None) -> Settings:
    """Merge the environment and the file. Raises StopForOperator, which names each wrong
    setting."""
    values = _read_file(file)
    if isinstance(values.get("columns"), list):  # [[columns]]: the rules alone; the hash key comes from a variable
        values["columns"] = {"rules": values["columns"]}
    _read_secret_files()
    _refuse_unknown_variables()
    settings = _merge(Settings, values, file)
    settings.kafka.client_options()  # report problems of the certificates now
    settings.registry.client_options()
    return settings


def load_http_settings(file: Path | None = None) -> HttpSettings:
    """Load only the section `http`, for commands that query the running gateway. This reads no
    secret."""
    return _merge(_OnlyHttp, _read_file(file), file).http


def load_reading_settings(file: Path | None = None) -> tuple[KafkaSettings, RegistrySettings]:
    """Load only the sections `kafka` and `registry`, for a reader of topics that does not need
    PostgreSQL."""
    _read_secret_files()
    found = _merge(_OnlyReading, _read_file(file), file)
    return found.kafka, found.registry


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise StopForOperator(
            f"configuration file {file} cannot be read: {error.strerror}", hint="check the path given with --config"
        ) from error
    except UnicodeDecodeError as error:
        raise StopForOperator(f"configuration file {file} is not in UTF-8", hint="save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        if str(error).startswith("Cannot "):  # overwrite a value, declare a table twice, ...
            raise StopForOperator(
                f"configuration file {file} is not valid: {error}",
                hint="write each setting, and the heading of each section, only once",
            ) from error
        raise StopForOperator(
            f"configuration file {file} is not valid: {error}",
            hint='the file must be in TOML format: text needs quotes (mode = "initial"); numbers, true and false do not',
        ) from error


_S = TypeVar("_S", bound=_Sources)


def _merge(model: type[_S], values: dict[str, Any], file: Path | None) -> _S:
    try:
        return model(**values)
    except ValidationError as error:
        lines = [f"  {sentence}" for sentence in explain(error, model, values, str(file))]
        raise StopForOperator(
            "the configuration is not valid:\n" + "\n".join(lines),
            hint=f"correct these settings in the TOML file or in the {PREFIX}SECTION__NAME variables (docs/settings.md)",
        ) from None


def _variables() -> list[str]:
    """Return the name of the variable of every setting."""
    return [variable(section, name) for section, found in sections_of(Settings).items() for name in found.model_fields]


def _refuse_unknown_variables() -> None:
    """Refuse variables that belong to no section, because pydantic ignores them. pydantic itself
    checks the names within a section."""
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
            f"not a setting: {', '.join(unknown)} in the environment; variables for settings have the form "
            f"{PREFIX}SECTION__NAME",
            hint=f"did you mean {', '.join(near)}?" if near else "see docs/settings.md",
        )


def _read_secret_files() -> None:
    """Replace WALGATE_X_FILE=path by WALGATE_X=<content of path>, as is usual for Docker secrets. A
    variable that itself belongs to a setting, such as one named `token_file`, is left alone."""
    settings = _variables()
    for name, path in list(os.environ.items()):
        if name.startswith(PREFIX) and name.endswith("_FILE") and name not in settings:
            value = name.removesuffix("_FILE")
            if os.environ.get(value):
                raise StopForOperator(f"{value} and {name} are both set", hint="unset one of them")
            os.environ[value] = _content(name, path)
            del os.environ[name]


def _content(name: str, path: str) -> str:
    """Return the text of the file that the variable `name` names. Raises StopForOperator, which
    shows nothing of the content."""
    if not path:
        raise _unreadable(name, "its value is empty")
    try:
        text = Path(path).read_text("utf-8-sig").strip()
    except OSError as error:
        raise _unreadable(name, str(error)) from error
    except UnicodeDecodeError:
        raise _unreadable(name, f"{path} is not text in UTF-8") from None
    if "\0" in text:
        raise _unreadable(name, f"{path} contains a zero byte")
    return text


def _unreadable(name: str, reason: str) -> StopForOperator:
    return StopForOperator(
        f"the file that {name} names cannot be read: {reason}",
        hint=f"set {name} to the path of a text file that the gateway can read",
    )
