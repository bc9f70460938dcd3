"""Which tables a mirror is for: it cannot be given more of them later, and those that are no longer
wanted leave its versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.manifest import RecordedVersion
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.tables import TableName, is_one_of

T = TypeVar("T")


def check(
    last: RecordedVersion | None,
    noted: Mapping[str, Any],
    path: str,
    tables: Sequence[TableName],
    exclude: Sequence[str],
) -> None:
    """Raises MirrorError where changes of these tables are not in the mirror, since it was run for
    others before.

        `noted`: manifest.noted_options, which an earlier run has left before its first batch. No
        version need tell of that batch: it may wait for a merge, or have had nothing of the tables that
        were wanted.
    """
    names = {str(table) for table in tables}
    for only in (noted.get("tables", []), [] if last is None else last.scope):
        new = sorted(names.difference(only)) if names else ["every other table"]
        if only and new:
            raise MirrorError(
                f"{new[0]} is new to the mirror at {path}, which was created for, or later restricted to, {', '.join(only)}: "
                "other changes are missing",
                hint="Use another path and checkpoint location for these tables, or specify the same tables as before.",
            )
    left_out = [*noted.get("exclude", []), *TableStates.of(None if last is None else last.standing).excludes]
    no_more = [pattern for pattern in left_out if pattern not in exclude]
    if no_more:
        raise MirrorError(
            f"tables matching {no_more[0]} are not in the mirror at {path}: changes of them are missing, since it was run with "
            f"--exclude {no_more[0]}",
            hint=f"Use another path and checkpoint location for these tables, or keep --exclude {no_more[0]}.",
        )


def has(table: str, tables: Sequence[TableName], exclude: Sequence[str]) -> bool:
    """Whether a mirror that is run for these tables has this one."""
    name = TableName.parse(table)
    return (not tables or name in tables) and not is_one_of(name, exclude)


def wanted(found: Mapping[str, T], tables: Sequence[TableName], exclude: Sequence[str]) -> dict[str, T]:
    """What was found of tables, without those that such a mirror does not have."""
    return {name: each for name, each in found.items() if has(name, tables, exclude)}


def without_left_out(last: RecordedVersion, tables: Sequence[TableName], exclude: Sequence[str]) -> RecordedVersion:
    """Tables that are no longer wanted are in no new version of the mirror."""
    return replace(last, tables=wanted(last.tables, tables, exclude))


def too_late(table: str, path: str, commit_lsn: int) -> MirrorError:
    """A table is met whose changes up to `commit_lsn`, where the mirror stands, are not in it."""
    return MirrorError(
        f"{table} is new to the mirror at {path}, which has already reached {format_lsn(commit_lsn)}",
        hint="Use another path for it, or start after the mirror's last complete micro-batch "
        f"(--starting-position lsn:{format_lsn(commit_lsn)}) to read only later changes.",
    )
