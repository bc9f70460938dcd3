"""Generate docs/settings.md from the settings: `python -m tools.settings_page >
docs/settings.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.columns import ColumnRule
from gateway.config.kafka import TopicOverride
from gateway.config.section import PREFIX
from gateway.config.settings import Settings, TableErrors

_HEAD = f"""# Settings

Settings come from a TOML file (`walgate run --config walgate.toml`) with the sections below, and from environment variables
`{PREFIX}<SECTION>__<NAME>`, which take precedence over the file. A variable `..._FILE` names a file that contains the value: use
it for secrets, instead of the variable itself. If a setting does not exist or a value is invalid, the gateway names it and
exits with code 78. In an environment variable, write a list as `a,b` or as JSON (`["a", "b"]`), and a TOML table as JSON.

```toml
[source]
dsn = "postgresql://walgate@db.example/shop?sslmode=verify-full&sslrootcert=/etc/walgate/ca.pem"
slot = "walgate"
publications = ["walgate"]

[kafka]
bootstrap_servers = "kafka1.example:9093,kafka2.example:9093"
security_protocol = "SASL_SSL"
sasl_username = "walgate"
sasl_password = "..."           # better: {PREFIX}KAFKA__SASL_PASSWORD_FILE=/run/secrets/kafka

[[kafka.topics]]                # if several match a topic, the last one applies
pattern = 'cdc\\.public\\.order.*'
partitions = 12
config = {{ "retention.ms" = "604800000", "cleanup.policy" = "delete" }}

[kafka.topic_names]             # names of the topics of individual tables
"sales.order_items" = "cdc.sales.order-items.v2"

[registry]
url = "https://registry.example/apis/ccompat/v7"

[[columns]]                     # if several match a column, the last one applies
pattern = 'public\\.customers\\.(email|phone)'
action = "null"                 # or "hash", with {PREFIX}COLUMNS__HASH_KEY_FILE=/run/secrets/hash-key

[[columns]]
pattern = 'public\\.customers\\.notes?'
action = "truncate"
length = 20

[[errors.tables]]               # if several match a table, the last one applies
pattern = 'audit\\..*'
on_error = "quarantine"

[http]
host = "0.0.0.0"
port = 8088
```

In the DSN, the characters `/ ? # @ : %` of a password must be percent-encoded (`%2F %3F %23 %40 %3A %25`). A pattern of
`kafka.topics` is a regular expression that must match a topic's whole name. It applies to topics that the gateway creates:
existing topics are not changed. The `cleanup.policy` of `walgate.position` and `walgate.snapshot` is always `compact`; that of
`cdc.transaction` and `cdc.message` is always `delete`, except with `kafka.dialect = "debezium"`.
"""


def settings_page() -> str:
    """Return the page as Markdown: one table for each section, one row for each setting."""
    parts = [_HEAD]
    for section, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        description = " ".join((model.__doc__ or "").split())
        parts.append(f"## {section}\n\n{description}\n")
        parts.append("| setting | values | default | |\n|---|---|---|---|")
        inherited_last = sorted(model.model_fields.items(), key=lambda field: field[0] not in model.__annotations__)
        parts.extend(_row(name, info) for name, info in inherited_last)
        parts.append("")
    return "\n".join(parts)


def _row(name: str, info: FieldInfo) -> str:
    default = (
        "(required)" if info.default is PydanticUndefined and info.default_factory is None else f"`{_shown(info)}`"
    )
    return f"| `{name}` | {_values(info.annotation)} | {default} | {info.description or ''} |"


def _shown(info: FieldInfo) -> str:
    if info.default_factory is dict:
        return "none"
    if info.default is None:
        return "unset"
    if isinstance(info.default, bool):
        return str(info.default).lower()
    if isinstance(info.default, tuple):
        return ",".join(map(str, info.default)) or "none"
    return str(info.default)


_NAMES: dict[Any, str] = {
    bool: "`true`, `false`",
    float: "number",
    int: "integer",
    str: "string",
    Path: "file",
    SecretStr: "string, secret",
    TopicOverride: "TOML table",
    ColumnRule: "TOML table",
    TableErrors: "TOML table",
}


def _values(annotation: Any) -> str:
    if get_origin(annotation) is dict:
        return f"table of {_NAMES[get_args(annotation)[1]]}s"
    names = [
        f"`{value}`" if not isinstance(value, type) else _NAMES[value]
        for value in get_args(annotation)
        if value is not type(None) and value is not Ellipsis
    ]
    if not names:
        return _NAMES[annotation]
    return f"array of {names[0]}s" if get_origin(annotation) is tuple else ", ".join(names)


if __name__ == "__main__":
    print(settings_page())
