"""Write messages about an invalid configuration: which setting is wrong, what is expected, and what
was probably meant. Such a message contains no value, except a name that the setting's own check
quotes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from gateway.config.section import PREFIX

_MEANT: Final = {
    **dict.fromkeys(("host", "hostname", "port", "url", "uri"), ("dsn", "bootstrap_servers", "url")),
    **dict.fromkeys(("user", "username", "database", "dbname"), ("dsn",)),
    **dict.fromkeys(("sslmode", "ca_file", "cert_file", "key_file", "key_password"), ("dsn",)),
    "password_file": ("sasl_password",),
    "tables": ("publications",),
}
"""Names that a section may lack, and the settings that are meant if it has one of them."""
_OF_ITS_SECTION: Final = frozenset((*_MEANT, "password", "password_command", "timeout_s"))
"""Names that mean something else in another section: a password of Kafka or PostgreSQL must not be
given to the registry."""


def explain(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any], file: str) -> Iterator[str]:
    """Yield one sentence for each mistake. The sentence names the file if the wrong value comes
    from `values`, the file's content."""
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        where = f" (in {file})" if _is_of_file(location, values) else ""
        if item["type"] == "missing":
            yield from _missing(location, model)
        elif item["type"] == "extra_forbidden":
            yield _unknown(location, model) + where
        else:
            name = ".".join(location) or "settings"
            yield f"{name}: {_problem(item, name)}{where}"


def _is_of_file(location: list[str], values: Mapping[str, Any]) -> bool:
    """Return whether the setting's value comes from the file; a variable would take precedence."""
    section, *rest = location or [""]
    if section not in values or (rest and variable(section, rest[0]) in os.environ):
        return False
    found = values[section]
    return not rest or (isinstance(found, Mapping) and rest[0] in found)


def variable(section: str, name: str) -> str:
    return f"{PREFIX}{section.upper()}__{name.upper()}"


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    found: dict[str, Any] = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: annotation for name, annotation in found.items() if issubclass(annotation, BaseModel)}


def _missing(location: list[str], model: type[BaseModel]) -> Iterator[str]:
    """Yield a sentence for each missing setting. If a whole section is missing, these are its
    required settings."""
    section, *rest = location
    fields = sections_of(model)[section].model_fields
    names = rest[:1] or [name for name, field in fields.items() if field.is_required()]
    for name in names:
        about = fields[name].description if name in fields else ""
        if len(rest) > 1:  # in a table of a TOML array
            yield f"{'.'.join(location)} is not set"
        else:
            yield (
                f"{section}.{name} is not set: set {variable(section, name)}, or {name} = ... under [{section}] in the "
                f"file ({(about or '').rstrip('.')})"
            )


def _unknown(location: list[str], model: type[BaseModel]) -> str:
    said = f"{'.'.join(location)}: there is no such setting"
    near = _near(location, sections_of(model))
    return f"{said}; did you mean {near}?" if near else said


def _problem(item: Mapping[str, Any], name: str) -> str:
    if item["type"] == "tuple_type":  # pydantic's word for a list
        is_table = isinstance(item["input"], Mapping)
        return f"expected an array of tables: [[{name}]] instead of [{name}]" if is_table else "expected a list"
    meant = _meant(item["input"], item["ctx"]["expected"]) if item["type"] == "literal_error" else ""
    return f"{item['msg'].removeprefix('Value error, ')}{meant}"


def _meant(given: object, expected: str) -> str:
    """Return a suggestion, or "". `expected` is pydantic's list of the allowed values, such as
    "'a', 'b' or 'c'"."""
    near = get_close_matches(str(given).lower(), re.findall(r"'([^']+)'", expected), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _near(location: list[str], sections: dict[str, type[BaseModel]]) -> str:
    """Return the setting that was probably meant, or ""."""
    name = location[-1]
    same_name = [f"{section}.{name}" for section, found in sections.items() if name in found.model_fields]
    short = name.removeprefix("ssl_").removeprefix("sasl_")
    elsewhere = [] if name in _OF_ITS_SECTION or short != name else same_name
    if len(location) == 1:
        return (get_close_matches(name, sections, 1) or elsewhere or [""])[0]
    if len(location) > 2:
        return ""
    section, fields = location[0], sections[location[0]].model_fields
    longer = [field for field in fields if field.startswith((f"sasl_{name}", f"ssl_{name}", f"{name}_"))]
    certain = [setting for setting in (*_MEANT.get(short, ()), short) if setting in fields] or longer
    similar = get_close_matches(name, fields, 1)
    found = [f"{section}.{field}" for field in certain] + elsewhere + [f"{section}.{field}" for field in similar]
    return next(iter(found), "")
