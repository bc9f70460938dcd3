"""The section `columns` of the settings: columns whose values are removed or masked before they
leave the process."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, model_validator

from gateway.config.section import AS_JSON, PREFIX, Pattern, Section, refuse_unused

_LEAST_KEY_BYTES: Final = 16


class ColumnRule(Section):
    """Rule for the columns whose whole name, `schema.table.column`, a regular expression
    matches."""

    pattern: Pattern
    action: Literal["drop", "null", "hash", "truncate"]
    length: int | None = Field(default=None, ge=1)
    in_key: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.action == "truncate" and self.length is None:
            raise ValueError("truncate needs length, the number of characters to keep")
        if self.action != "truncate":
            refuse_unused(self, ("length",), f"it applies to truncate, but the action is {self.action}")
        if self.in_key and self.action != "hash":
            raise ValueError(f"in_key applies to hash only: with {self.action}, different rows would have the same key")
        return self

    def matches(self, namespace: str, table: str, column: str) -> bool:
        return re.fullmatch(self.pattern, f"{namespace}.{table}.{column}") is not None


class ColumnSettings(Section):
    """Columns whose values are removed or masked (docs/topics.md). In a file, each `[[columns]]` is
    a rule."""

    rules: Annotated[tuple[ColumnRule, ...], AS_JSON] = Field(
        default=(),
        description="drop: the field is removed. null: the value is always null. hash: HMAC-SHA256 of PostgreSQL's "
        "text, in hexadecimal. truncate: the first `length` characters. In an environment variable: a "
        "JSON array.",
    )
    hash_key: SecretStr | None = Field(
        default=None,
        description=f"Key of the hashes: text of at least {_LEAST_KEY_BYTES} bytes, without zero bytes. "
        f"To read it from a file, set {PREFIX}COLUMNS__HASH_KEY_FILE. "
        "A different key gives different hashes.",
    )

    @model_validator(mode="after")
    def _key_fits(self) -> Self:
        if not any(rule.action == "hash" for rule in self.rules):
            refuse_unused(self, ("hash_key",), "no rule has the action hash")
        elif self.hash_key is None or len(self.hash_key.get_secret_value().encode()) < _LEAST_KEY_BYTES:
            raise ValueError(f"a rule with the action hash needs columns.hash_key, at least {_LEAST_KEY_BYTES} bytes")
        return self

    def rule_of(self, namespace: str, table: str, column: str) -> ColumnRule | None:
        """Return the last rule that matches the column."""
        matching = [rule for rule in self.rules if rule.matches(namespace, table, column)]
        return matching[-1] if matching else None

    def unused(self, columns: Iterable[tuple[str, str, str]]) -> list[str]:
        """Return the patterns that match none of these (schema, table, column)."""
        known = list(columns)
        return [rule.pattern for rule in self.rules if not any(rule.matches(*column) for column in known)]
