"""docs/settings.md, from the settings themselves: `python -m gateway.operate.reference > docs/settings.md`."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.operate.settings import PREFIX, Settings

_HEAD = f"""# Settings

A TOML file (`walgate run --config walgate.toml`) with the sections below, or environment variables
`{PREFIX}<SECTION>__<NAME>`, which win over the file. A variable `..._FILE` names a file that holds the value: for secrets.
A setting that does not exist, or a value that does not fit, ends the start with its name.
"""


def settings_page() -> str:
    """The page as Markdown: one table for each section, one row for each setting."""
    parts = [_HEAD]
    for section, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        parts.append(f"## {section}\n\n{(model.__doc__ or '').strip()}\n")
        parts.append("| setting | values | default | |\n|---|---|---|---|")
        parts.extend(_row(name, info) for name, info in model.model_fields.items())
        parts.append("")
    return "\n".join(parts)


def _row(name: str, info: FieldInfo) -> str:
    default = (
        "(required)" if info.default is PydanticUndefined and info.default_factory is None else f"`{_shown(info)}`"
    )
    return f"| `{name}` | {_values(info.annotation)} | {default} | {info.description or ''} |"


def _shown(info: FieldInfo) -> str:
    if info.default is None:
        return "unset"
    if isinstance(info.default, tuple):
        return ",".join(map(str, info.default)) or "none"
    return str(info.default)


def _values(annotation: Any) -> str:
    names = [
        f"`{value}`" if not isinstance(value, type) else value.__name__
        for value in get_args(annotation)
        if value is not type(None) and value is not Ellipsis
    ]
    if not names:
        return str(annotation.__name__)
    return ("list of " if get_origin(annotation) is tuple else "") + ", ".join(names)


if __name__ == "__main__":
    print(settings_page())
