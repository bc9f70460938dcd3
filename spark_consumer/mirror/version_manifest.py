"""The mirror's manifest: the versions of all tables that belong together, recorded after each
slice of a merge.

Each table is committed separately. A reader that takes all tables at the versions in one row of the
manifest sees the source exactly as it was after one commit. A reader that takes the newest version
of each table may see a slice half applied.

Commits of the manifest note the commit LSN of each version, the format version of the mirror, and
the epochs of the merges, also those that were given back (writer_epoch.py). A property of the
manifest has the options of the mirror (OPTIONS).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from schemas.lsn import format_lsn, parse_lsn
from spark_consumer.arrow import to_frame
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.paths import manifest_path
from spark_consumer.mirror.storage import TABLE_FORMAT, number_if_any
from spark_consumer.mirror.table_format import APPLICATION, NO_NUMBERS
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.source.frames import INSTANT

OPTIONS = "walgate.options"
"""Property of the manifest that stores the options of the mirror."""
_SCHEMA = pa.schema(
    [
        ("batch", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_time", INSTANT),
        ("tables", pa.map_(pa.string(), pa.int64())),
        ("keys", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("scope", pa.list_(pa.string())),
        ("oids", pa.map_(pa.string(), pa.int64())),
        ("schema_ids", pa.map_(pa.string(), pa.int64())),
        ("standing", pa.string()),
        ("merged_at", INSTANT),
    ]
)


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """A version of the mirror. `tables`: name -> version of each table, as of the transaction at
    `commit_lsn`. Tables that are still filling are included: see `complete`.

    `batch`: the last micro-batch that the merging process had appended when the merge began; 0 if
    none. A later version may have its changes. `keys`: key columns of each table, none for an
    append-only one. `scope`: the only tables of the mirror, if it is limited to some. `oids`: oid
    of the relation that each table mirrors. `schema_ids`: newest value schema of each table.
    `table_states`: TableStates.text, in the column `standing` of the manifest.
    """

    batch: int
    commit_lsn: int
    commit_time: datetime | None
    tables: Mapping[str, int]
    keys: Mapping[str, Sequence[str]]
    scope: Sequence[str]
    oids: Mapping[str, int]
    schema_ids: Mapping[str, int]
    table_states: str

    @classmethod
    def before_all(cls) -> RecordedVersion:
        """Return the version of a mirror into which nothing was merged."""
        return cls(-1, -1, None, {}, {}, [], {}, {}, "")

    @property
    def complete(self) -> dict[str, int]:
        """Tables that are not filling (table_states.py), with their versions."""
        filling = TableStates.of(self.table_states).filling
        return {name: version for name, version in self.tables.items() if name not in filling}


def no_rows(spark: SparkSession) -> DataFrame:
    """Return a DataFrame of no versions."""
    return to_frame(spark, _SCHEMA.empty_table())


def record(spark: SparkSession, path: str, version: RecordedVersion, expected: Mapping[str, int] = NO_NUMBERS) -> None:
    """Append a version of the mirror, once for its commit LSN. `expected`: as for
    TableFormat.write_once."""
    maps = {name: list(getattr(version, name).items()) for name in ("tables", "keys", "oids", "schema_ids")}
    row = {**asdict(version), **maps, "standing": version.table_states, "merged_at": datetime.now(UTC)}
    frame = to_frame(spark, pa.Table.from_pylist([row], schema=_SCHEMA))
    write = partial(
        TABLE_FORMAT.write_once,
        frame,
        manifest_path(path),
        "append",
        version.commit_lsn,
        merge_schema=True,
        expected=expected,
    )
    TABLE_FORMAT.despite_conflicts(write)  # with `note_options` of the process that appends


def note_options(spark: SparkSession, path: str, options: Mapping[str, object]) -> None:
    """Store the options of the mirror, for `walgate merge`, if they have changed."""
    text = json.dumps(options, sort_keys=True)
    if TABLE_FORMAT.noted_property(spark, manifest_path(path), OPTIONS) != text:
        TABLE_FORMAT.despite_conflicts(lambda: TABLE_FORMAT.note_property(spark, manifest_path(path), OPTIONS, text))


def noted_options(spark: SparkSession, path: str) -> dict[str, Any]:
    """Return the stored options; empty if no release that stores them has written the mirror."""
    location = manifest_path(path)
    text = TABLE_FORMAT.noted_property(spark, location, OPTIONS) if TABLE_FORMAT.exists(spark, location) else None
    return {} if text is None else dict(json.loads(text))


def recorded_version(spark: SparkSession, path: str, at: str | int | datetime = "latest") -> RecordedVersion | None:
    """Return the newest version that is not after `at`: "latest", a commit LSN (text or number) or
    a commit time. Return None if there is no manifest or, for "latest", no version.

    Raises MirrorError if the mirror begins after `at`.
    """
    location = manifest_path(path)
    if not TABLE_FORMAT.exists(spark, location):
        return None
    found = find_version(spark, path, at)
    if found is None and at != "latest":
        first = TABLE_FORMAT.rows(spark, location).agg(f.min("commit_lsn")).head()
        raise MirrorError(
            f"the mirror begins at {format_lsn(first[0])}, which is after {at}"
            if first is not None and first[0] is not None
            else "the mirror is empty"
        )
    return found


@dataclass
class NewestVersion:
    """The newest version of the mirror at `path`. Reading it takes a Spark job, which runs again
    only if a version was recorded since: its number is the last that the manifest notes."""

    path: str
    _read: tuple[int | None, RecordedVersion | None] | None = field(default=None, init=False)

    def read(self, spark: SparkSession) -> RecordedVersion | None:
        noted = number_if_any(spark, manifest_path(self.path), APPLICATION)
        if self._read is None or self._read[0] != noted:
            self._read = noted, recorded_version(spark, self.path)
        return self._read[1]


def find_version(spark: SparkSession, path: str, at: str | int | datetime) -> RecordedVersion | None:
    """Return the newest version that is not after `at` (see `recorded_version`), or None if there
    is none. The mirror must have a manifest."""
    chosen = TABLE_FORMAT.rows(spark, manifest_path(path))
    if isinstance(at, datetime):
        chosen = chosen.where(f.col("commit_time") <= f.lit(at))
    elif at != "latest":
        chosen = chosen.where(f.col("commit_lsn") <= as_lsn(at))
    found = chosen.orderBy(f.col("commit_lsn").desc()).head()
    if found is None:
        return None
    facts = found.asDict()
    # A manifest of an older release may not have these columns.
    keys, scope, oids = facts.get("keys") or {}, facts.get("scope") or [], facts.get("oids") or {}
    schema_ids, table_states = facts.get("schema_ids") or {}, facts.get("standing") or ""
    commit_time = found.commit_time and found.commit_time.astimezone(UTC)  # a Row has local times
    return RecordedVersion(
        found.batch, found.commit_lsn, commit_time, found.tables, keys, scope, oids, schema_ids, table_states
    )


def merged_before(spark: SparkSession, path: str, time: datetime) -> int | None:
    """Return the commit LSN of the last version that was recorded before `time`, by the clock of
    the computer that recorded it."""
    chosen = TABLE_FORMAT.rows(spark, manifest_path(path)).where(f.col("merged_at") < f.lit(time))
    found = chosen.agg(f.max("commit_lsn")).head()
    return None if found is None else found[0]


def oldest_versions(spark: SparkSession, path: str) -> dict[str, int]:
    """Return the oldest version of each table that any version of the mirror has."""
    rows = TABLE_FORMAT.rows(spark, manifest_path(path)).select(f.explode("tables").alias("name", "version"))
    return {row["name"]: row["oldest"] for row in rows.groupBy("name").agg(f.min("version").alias("oldest")).collect()}


def prune(spark: SparkSession, path: str, commit_lsn: int) -> None:
    """Remove the versions of the mirror before the one at `commit_lsn`."""
    TABLE_FORMAT.despite_conflicts(
        lambda: TABLE_FORMAT.delete(spark, manifest_path(path), f.col("commit_lsn") < commit_lsn)
    )


def as_lsn(at: str | int) -> int:
    return parse_lsn(at) if isinstance(at, str) else at
