"""Which tables a mirror is for: it cannot be given more of them later, and those that are no longer wanted leave its versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_consumer.errors import MirrorError
from spark_consumer.lsn import format_lsn
from spark_consumer.mirror.manifest import Picture
from spark_consumer.mirror.standing import Standing
from spark_consumer.tables import TableName, is_one_of


def check(last: Picture, path: str, tables: Sequence[TableName], exclude: Sequence[str]) -> None:
    """Raises MirrorError where the mirror was made for other tables, whose earlier changes it does not have."""
    wanted = {str(table) for table in tables}
    new = sorted(wanted.difference(last.scope)) if wanted else ["every other table"]
    if last.scope and new:
        raise MirrorError(
            f"{new[0]} is new to the mirror at {path}, which was created for {', '.join(last.scope)} only: earlier changes "
            "are missing",
            hint="Use another path and checkpoint location for these tables, or specify the same tables as before.",
        )
    no_more = [pattern for pattern in Standing.of(last.standing).excludes if pattern not in exclude]
    if no_more:
        raise MirrorError(
            f"tables matching {no_more[0]} are not in the mirror at {path}: their earlier changes are missing",
            hint=f"Use another path and checkpoint location for these tables, or keep --exclude {no_more[0]}.",
        )


def without_left_out(last: Picture, tables: Sequence[TableName], exclude: Sequence[str]) -> Picture:
    """Tables that are no longer wanted are in no new version of the mirror."""
    names = [name for name in last.tables if not is_one_of(TableName.parse(name), exclude)]
    stay = [name for name in names if not tables or TableName.parse(name) in tables]
    return replace(last, tables={name: last.tables[name] for name in stay})


def too_late(table: str, path: str, commit_lsn: int) -> MirrorError:
    """A table is met whose changes up to `commit_lsn`, where the mirror stands, are not in it."""
    return MirrorError(
        f"{table} is new to the mirror at {path}, which has already reached {format_lsn(commit_lsn)}",
        hint="Use another path for it, or start after the mirror's last complete micro-batch "
        f"(--starting-position lsn:{format_lsn(commit_lsn)}) to read only later changes.",
    )
