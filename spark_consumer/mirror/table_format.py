"""The interface of a format in which the tables of a mirror are stored.

A table is identified by its location. Each commit creates a version of the table. A commit may note
a number for an application, such as a commit LSN; a write is skipped if the table has reached its
number. A commit may also have a text, `note` (the `notes` of report.py are messages for the
operator). `mirror/delta` has the only implementation, which `storage.py` chooses. Reading without
Spark is not part of the interface: `local/local_tables.py` chooses its implementation. Nothing else
in the mirror knows Delta's log, files, properties, settings or dialect of SQL
(tests/test_walls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

# Applications that note commit LSNs, which only increase: a table belongs to one mirror or
# changelog.
APPLICATION = "walgate-mirror"
CHANGELOG = "walgate-changelog"
NO_NUMBERS: Mapping[str, int] = MappingProxyType({})
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Superseded(Exception):
    """A table is not as this writer expects it: an application has noted another number, or a table
    to be created exists."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table. `numbers`: application -> number that this commit notes; `note`: its
    text, if it has one; `added`, `removed`: locations of files.

    `overwrites`: whether it replaces all rows. `restored`: the version whose rows it puts back, -1
    if only the time of that version is known, or None if it does not restore a version.
    """

    numbers: Mapping[str, int]
    note: str | None
    added: Sequence[str]
    removed: Sequence[str]
    overwrites: bool = False
    restored: int | None = None


class TableFormat(Protocol):
    """The functions of a format. Those that use Java objects of the session raise MirrorError in a
    session of Spark Connect, which has none."""

    @property
    def TAKEN_OVER(self) -> tuple[type[Exception], ...]:
        """Errors of a write after another writer has noted a number of the same application."""

    @property
    def CONCURRENT(self) -> tuple[type[Exception], ...]:
        """Errors of a write that lost against a concurrent write of any kind."""

    # Reading

    def exists(self, spark: SparkSession, location: str) -> bool: ...

    def has_log(self, spark: SparkSession, location: str) -> bool:
        """Return whether a table was created at a location. Unlike `exists`, this does not need the
        classes of the format."""

    def rows(self, spark: SparkSession, location: str) -> DataFrame:
        """Return the rows of the newest version."""

    def at_version(self, spark: SparkSession, location: str, number: int) -> DataFrame:
        """Return the rows of a version, however old it is."""

    def version(self, spark: SparkSession, location: str) -> int: ...

    def known_version(self, spark: SparkSession, location: str) -> int:
        """Return the newest version that this process has committed or seen. Unlike `version`, this
        does not look at the storage."""

    def noted_number(self, spark: SparkSession, location: str, application: str) -> int | None:
        """Return the number that an application last noted in a table, or None if it noted none."""

    def noted_numbers(self, spark: SparkSession, location: str, *applications: str) -> list[int | None]: ...

    def applied_commit_lsn(self, spark: SparkSession, location: str, application: str = APPLICATION) -> int:
        """Return the commit LSN of the last slice or batch that was applied to a table. Raises
        MirrorError if another program created the table."""

    def noted_property(self, spark: SparkSession, location: str, name: str) -> str | None: ...

    def was_overwritten(self, spark: SparkSession, location: str, since: int) -> bool:
        """Return whether someone other than the mirror rewrote the whole table after the version
        `since`."""

    def copied_version(self, spark: SparkSession, location: str, since: int) -> int | None:
        """Return the version in which someone other than the mirror last rewrote the whole table,
        after the version `since` and before the mirror applied changes; None if there is none."""

    def undone_version(
        self, spark: SparkSession, location: str, since: int, application: str = APPLICATION
    ) -> int | None:
        """Return the version that the application last wrote, or `since` if that is later, if the
        rows of an earlier version were restored after it; otherwise None. The numbers that were
        noted stay in a restored table."""

    def byte_count(self, spark: SparkSession, location: str) -> int | None:
        """Return the total size of the table's files; None if that would take a job."""

    def commits(self, spark: SparkSession, location: str) -> Iterator[tuple[int, Commit]]:
        """Yield the version and the content of each commit, newest first, as far back as commits
        are kept."""

    # Writing

    def properties(self, columns: Collection[str], *, deletion_vectors: bool = False) -> dict[str, str]:
        """Return the properties of a new table with these columns. `deletion_vectors`: a changed
        row is marked as deleted, and its file is not rewritten."""

    def changelog_properties(self, columns: Iterable[str]) -> dict[str, str]:
        """Return the properties of a new table of a changelog, whose columns can get wider types.
        `columns`: those of the source's table."""

    def create_appended(self, no_rows: DataFrame, location: str, bounded: Sequence[str]) -> None:
        """Create a table to which every batch is appended, unless it exists. `no_rows`: no rows in
        its columns; `bounded`: columns by whose values files are skipped."""

    def append(self, frame: DataFrame, location: str) -> None:
        """Append without noting a number; a table that does not exist is created."""

    def write_once(
        self,
        frame: DataFrame,
        location: str,
        mode: str,
        number: int,
        *,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        application: str = APPLICATION,
        properties: Mapping[str, str] = NO_PROPERTIES,
        expected: Mapping[str, int] = NO_NUMBERS,
        note: str | None = None,
        left: int | None = None,
    ) -> None:
        """Append to, overwrite or create (`mode` errorifexists) a table, once for this `number`
        of the application: a commit LSN, the epoch of a writer, or a format version.

        `properties`: those of the table, if this write creates it; `expected`: application -> the
        number that it must have noted last. Only an append without `properties` checks this, as
        a part of its commit if the table has the columns of `frame`. `note`: text of the commit;
        `left`: the version that this writer has left, if it appends with `expected`.

        Raises Superseded if another number was noted, an earlier version than `left` was restored,
        or a table to be created exists.
        """

    def rewrite(self, rows: DataFrame, location: str) -> None:
        """Overwrite a table as a whole, with other columns, before a slice is written.
        `was_overwritten` does not count this commit."""

    def align(self, spark: SparkSession, location: str, wanted: StructType, *, casts: bool = True) -> None:
        """Give a table exactly the wanted columns; a column whose type changed is cast (without
        `casts`: null)."""

    def allow_names(self, spark: SparkSession, location: str, names: Collection[str]) -> None:
        """Prepare a table that will be overwritten for columns with these names."""

    def merge(
        self,
        spark: SparkSession,
        location: str,
        source: DataFrame,
        same: Column,
        updates: Mapping[str, Column],
        inserts: Mapping[str, Column],
        deleted: Column | None,
    ) -> None:
        """Merge the rows `s` of a source into the rows `t` of a table. `updates`, `inserts`: quoted
        column name -> value; `deleted`: whether a row of the source deletes its match (None: no row
        does)."""

    def delete(self, spark: SparkSession, location: str, condition: Column | None = None) -> None:
        """Delete rows; without `condition`, all."""

    def delete_unmatched(self, spark: SparkSession, location: str, keys: DataFrame, same: Column) -> None:
        """Delete the rows `t` of a table that match no row `s` of `keys`; one commit, or none if
        there are no such rows."""

    def note_property(self, spark: SparkSession, location: str, name: str, text: str) -> None: ...

    def once(self, spark: SparkSession, commit_lsn: int, rows_here: int | None = None) -> AbstractContextManager[None]:
        """Make every write of this session within the context take effect once for this commit LSN.
        `rows_here`: total number of rows of the merge sources, if these are in this process."""

    def despite_conflicts(self, write: Callable[[], object]) -> None:
        """Make a write that takes effect once, and repeat it if others change files of the same
        table meanwhile. Raises TAKEN_OVER immediately."""

    # Settings of a session

    def session_defaults(self, *, compacts: bool | None = None) -> dict[str, str]:
        """Return the settings of a mirror's session where the user has set none. `compacts`:
        whether a write compacts the small files of its table; None: no setting for that."""

    def without_compaction(self) -> dict[str, str]:
        """Return settings with which no write compacts its table."""

    def compacts(self, spark: SparkSession) -> bool:
        """Return whether writes of this session compact their tables."""

    def maintenance_settings(self) -> Mapping[str, str]:
        """Return the settings of the session for the functions below."""

    # Maintenance

    def compact_files(self, spark: SparkSession, location: str) -> None:
        """Compact small files, if there are many."""

    def tidy_log(self, spark: SparkSession, location: str) -> None:
        """Keep the log of a table short although the table gets a commit every second."""

    def has_old_entries(self, spark: SparkSession, location: str) -> bool:
        """Return whether the log has entries that are not needed to read the newest version."""

    def keep_replaced_files(self, spark: SparkSession, location: str, retention_s: float) -> None:
        """Make a table remember from now on which files were replaced within the retention, as
        `remove_before` requires."""

    def remove_before(self, spark: SparkSession, location: str, needed: int, retention_s: float) -> None:
        """Remove log entries and files that are needed neither by the version `needed`, nor by the
        version at the beginning of the retention, nor by any later one. Files stay unless the table
        has remembered replaced ones (`keep_replaced_files`) ever since the oldest of these
        versions."""

    def keep_newest(self, spark: SparkSession, location: str) -> None:
        """Remove log entries and files that the newest version does not need."""

    # A catalog

    def register(self, spark: SparkSession, name: str, location: str) -> str | None:
        """Register a table under a quoted name, unless the name is in use. If the name refers to
        another table, return the location of that table; otherwise return None."""
