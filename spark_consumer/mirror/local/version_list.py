"""The versions of a local mirror, and SQL that shows one of them in DuckDB or Trino. It needs
neither Spark nor Java.

These programs show each table as of its own last merge. A version of the mirror lists the versions
of tables that belong together: all tables as of one commit of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from schemas.lsn import format_lsn, parse_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.local.local_tables import DIALECTS, open_table
from spark_consumer.mirror.paths import FORMAT_APPLICATION, manifest_path, refuse_newer_format
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.tables import TableName, alike


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version of the mirror. `tables`: version of each complete table; `merged_at`: None in
    manifests of release 0.1."""

    commit_lsn: int
    commit_time: datetime | None
    merged_at: datetime | None
    tables: dict[str, int]

    def __str__(self) -> str:
        times = [time.isoformat(timespec="seconds") if time else "-" for time in (self.commit_time, self.merged_at)]
        return "\t".join([format_lsn(self.commit_lsn), *times, str(len(self.tables))])


def manifest_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a local mirror's manifest, in any order. Raises MirrorError if there is
    none, or if its format is newer than this release."""
    folder = Path(manifest_path(str(path)))
    if not folder.is_dir():
        raise MirrorError(
            f"there is no mirror at {path}",
            hint="Specify the path that was given to walgate mirror with --path; the first micro-batch creates the mirror.",
        )
    files = open_table(folder)
    refuse_newer_format(str(path), files.transactions.get(FORMAT_APPLICATION))
    return [row for table in files.batches() for row in table.to_pylist()]


def listed_versions(path: Path) -> list[ListedVersion]:
    """Return the versions that can be read, oldest first. Raises MirrorError."""
    versions = []
    rows = manifest_rows(path)
    for row in sorted(rows, key=lambda row: int(row["commit_lsn"])):
        filling = TableStates.of(row.get("standing")).filling
        tables = {name: version for name, version in sorted(dict(row["tables"]).items()) if name not in filling}
        versions.append(ListedVersion(row["commit_lsn"], row["commit_time"], row.get("merged_at"), tables))
    return versions


def version_at(path: Path, at: str) -> ListedVersion:
    """Return the newest version that is not after a commit LSN, or for `latest` the newest. Raises
    MirrorError, or ValueError for an invalid LSN."""
    versions = listed_versions(path)
    limit = None if at == "latest" else parse_lsn(at)
    found = [version for version in versions if limit is None or version.commit_lsn <= limit]
    if not found:
        begin = f"the mirror begins at {format_lsn(versions[0].commit_lsn)}" if versions else "it has no merge yet"
        raise MirrorError(
            f"the mirror at {path} has no version up to {at}: {begin}",
            hint="Run walgate versions without --sql and --at, which lists the versions that can be read.",
        )
    return found[-1]


def view_statements(path: Path, at: str, dialect: str) -> list[str]:
    """Return the SQL statements for a version. Raises MirrorError, or ValueError for an invalid LSN
    or unknown dialect."""
    if dialect not in DIALECTS:
        raise ValueError(f"--sql must be {' or '.join(DIALECTS)}, not {dialect!r}")
    version = version_at(path, at)
    comment = f"-- {path}: all tables as of commit LSN {format_lsn(version.commit_lsn)}"
    numbers = {TableName.parse(name): number for name, number in version.tables.items()}
    found = alike(version.tables)
    if found is not None:
        raise MirrorError(
            f"{found[0]} and {found[1]} would be one view: {dialect} does not distinguish upper and lower case",
            hint="Read these tables with Spark, or from the files of walgate dump.",
        )
    return [comment, *dict.fromkeys(DIALECTS[dialect](str(path.absolute()), numbers))]
