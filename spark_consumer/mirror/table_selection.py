"""Selection of a mirror's tables, which cannot be widened later. A table that is created in the
source and selected is added; tables that are no longer selected are left out of new versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.mirror.version_manifest import RecordedVersion
from spark_consumer.tables import TableName, is_one_of

T = TypeVar("T")


def check(
    last: RecordedVersion | None,
    noted: Mapping[str, Any],
    path: str,
    tables: Sequence[TableName],
    exclude: Sequence[str],
) -> None:
    """Raise MirrorError if changes of these tables are missing in the mirror, since it was run for
    other tables before.

    `noted`: version_manifest.noted_options, which an earlier run has stored before its first batch.
    The last version alone does not suffice: that batch may not be merged yet, or may have had no
    changes of the selected tables.
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
    left_out = [*noted.get("exclude", []), *TableStates.of(None if last is None else last.table_states).excludes]
    no_more = [pattern for pattern in left_out if pattern not in exclude]
    if no_more:
        raise MirrorError(
            f"tables matching {no_more[0]} are not in the mirror at {path}: changes of them are missing, since it was run with "
            f"--exclude {no_more[0]}",
            hint=f"Use another path and checkpoint location for these tables, or keep --exclude {no_more[0]}.",
        )


def is_selected(table: str, tables: Sequence[TableName], exclude: Sequence[str]) -> bool:
    """Return whether a mirror with this selection has the table."""
    name = TableName.parse(table)
    return (not tables or name in tables) and not is_one_of(name, exclude)


def selected(found: Mapping[str, T], tables: Sequence[TableName], exclude: Sequence[str]) -> dict[str, T]:
    """Return the entries of the tables that a mirror with this selection has."""
    return {name: each for name, each in found.items() if is_selected(name, tables, exclude)}


def without_left_out(last: RecordedVersion, tables: Sequence[TableName], exclude: Sequence[str]) -> RecordedVersion:
    """Return the version without tables that are no longer selected."""
    return replace(last, tables=selected(last.tables, tables, exclude))


def states_without_left_out(states: TableStates, tables: Sequence[TableName], exclude: Sequence[str]) -> TableStates:
    """Return the states without those of tables that are no longer selected: no snapshot of them
    will end here."""
    return replace(
        states,
        windows=selected(states.windows, tables, exclude),
        frozen=selected(states.frozen, tables, exclude),
        filling={name for name in states.filling if is_selected(name, tables, exclude)},
        incomplete={name for name in states.incomplete if is_selected(name, tables, exclude)},
    )


def too_late_error(table: str, path: str, commit_lsn: int) -> MirrorError:
    """Return the error for a table that is new to the mirror although the mirror has already passed
    its changes up to `commit_lsn`."""
    return MirrorError(
        f"{table} is new to the mirror at {path}, which has already reached {format_lsn(commit_lsn)}",
        hint="Use another path for it, or start after the mirror's last complete micro-batch, with a new checkpoint "
        f"(--starting-position lsn:{format_lsn(commit_lsn)} --checkpoint DIRECTORY), to read only later changes.",
    )
