"""Access to all tables of a mirror as one transaction of the source left them, at any commit LSN
for which the changes are kept.

A row of the manifest lists the versions of the tables that belong together; later changes are
applied to them when they are read: see unmerged_overlay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import changes, table_selection
from spark_consumer.mirror.paths import manifest_path, table_path
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.mirror.unmerged_overlay import overlay
from spark_consumer.mirror.version_manifest import (
    RecordedVersion,
    as_lsn,
    find_version,
    noted_options,
    recorded_version,
)
from spark_consumer.mirror.writer_epoch import check_format_version
from spark_consumer.tables import TableName


class MirrorVersion(Mapping[str, DataFrame]):
    """The complete tables as of one commit, by name: `read(...)["public.orders"]`.

    `filling`: tables that cannot be read yet, since they may lack rows (table_states.py). `stale`:
    tables that differ from the source, and why: a table in quarantine is not updated, and after a
    gap every table is stale until it has been loaded again.
    """

    def __init__(self, source: RecordedVersion, frames: Mapping[str, Callable[[], DataFrame]]) -> None:
        """`frames`: a function for each complete table, called once, when the table is first
        requested."""
        self._makers = frames
        self._frames: dict[str, DataFrame] = {}
        self.commit_lsn = source.commit_lsn
        self.commit_time = source.commit_time
        states = TableStates.of(source.table_states)
        self.filling = sorted(states.filling)
        self.stale = states.stale(frames)

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._makers and name in self.filling:
            raise MirrorError(f"the snapshot of {name} is not complete yet: the table can be read once it is")
        if name not in self._frames:
            self._frames[name] = self._makers[name]()
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


def read(spark: SparkSession, path: str, at: str | int | datetime = "latest") -> MirrorVersion:
    """Return all tables as of the last transaction at or before `at`, which is "latest", a commit
    LSN (text or number) or a commit time.

    The result ends before `at` if only a merge can apply the next change (see unmerged_overlay.py).
    It ends with the last merge before `at` while maintenance is removing what is older than the
    retention. The same holds for a mirror written by a release that did not yet have `changes`.
    Raises MirrorError, including when the mirror begins after `at`.
    """
    check_format_version(spark, path)
    appended = changes.appended_lsn(spark, path)
    kept = changes.pinned(spark, path)  # before the manifest, a version of which then has all that is pruned later
    found, last_lsn = None, appended
    if kept is not None and TABLE_FORMAT.exists(spark, manifest_path(path)):
        found = find_version(spark, path, at)
        if isinstance(at, datetime):
            last_lsn = changes.last_before(kept, at)
            if found is not None and last_lsn > found.commit_lsn:
                found = find_version(spark, path, last_lsn)
        elif at != "latest":
            last_lsn = min(as_lsn(at), appended)
        waiting = changes.between(kept, -1 if found is None else found.commit_lsn, last_lsn)
        if found is None:  # checked last: it turns false before older versions are removed
            is_laid_over = not waiting.isEmpty() and changes.begin_with_mirror(spark, path)
        else:
            is_laid_over = last_lsn > found.commit_lsn
        if is_laid_over:
            made, over = overlay(spark, path, found or RecordedVersion.before_all(), waiting)
            below = {name: partial(_at_version, spark, path, name, made.tables[name]) for name in made.complete}
            above = {name: make for name, make in over.items() if name not in TableStates.of(made.table_states).filling}
            return MirrorVersion(made, _of_scope(below | above, noted_options(spark, path)))
    found = found or recorded_version(spark, path, at)
    if found is None:
        raise MirrorError(f"there is no mirror at {path}, or it has no micro-batch yet")
    return MirrorVersion(
        found, {name: partial(_at_version, spark, path, name, version) for name, version in found.complete.items()}
    )


def register(spark: SparkSession, path: str, at: str | int | datetime = "latest", schema: str = "") -> MirrorVersion:
    """Create temporary views of all tables as of one commit, for SQL: `public_orders` is
    public.orders.

    With `schema`, only tables in that schema get views, under their own names. Views of an earlier
    call are replaced, and those of tables that no longer exist are dropped. Raises MirrorError.
    """
    version = read(spark, path, at)
    names: dict[str, str] = {}
    for name in version:
        table = TableName.parse(name)
        if schema and table.namespace != schema:
            continue
        view = table.name if schema else f"{table.namespace}_{table.name}"
        other = names.setdefault(view.lower(), name)
        if other != name:
            raise MirrorError(
                f"{other} and {name} would both be the view {view}",
                hint="Read these tables with versions.read(spark, path), or run the mirror with --exclude and one of their names."
                if TableName.parse(other).namespace == table.namespace
                else "Register one schema at a time: versions.register(spark, path, schema=...).",
            )
        version[name].createOrReplaceTempView(f"`{view.replace('`', '``')}`")
    for view in _registered.pop((spark, path, schema), set()) - names.keys():
        spark.catalog.dropTempView(view)
    _registered[spark, path, schema] = set(names)
    return version


_registered: dict[tuple[SparkSession, str, str], set[str]] = {}
"""Names of the views by session, path and schema."""


def _of_scope(
    frames: dict[str, Callable[[], DataFrame]], noted: Mapping[str, Any]
) -> dict[str, Callable[[], DataFrame]]:
    """Drop tables that are left out of the mirror now, since it no longer gets their changes.
    `noted`: version_manifest.noted_options."""
    tables, exclude = [TableName.parse(name) for name in noted.get("tables", [])], noted.get("exclude", [])
    return table_selection.selected(frames, tables, exclude)


def _at_version(spark: SparkSession, path: str, name: str, version: int) -> DataFrame:
    return TABLE_FORMAT.at_version(spark, table_path(path, TableName.parse(name)), version)
