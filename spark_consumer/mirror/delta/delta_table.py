"""Delta tables of a mirror: how they are created, how their columns change, and their versions and
properties.

Columns are mapped by name (delta.columnMapping.mode) only if a name requires it, or once a column
is dropped. Not every reader of Delta supports the mapping, and some show NULL instead of the values
of such a table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import takewhile
from math import inf
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from spark_consumer.errors import MirrorError
from spark_consumer.jvm import folder_names, java_class
from spark_consumer.mirror.delta.java_delta import delta_log_class, java_log, java_snapshot
from spark_consumer.mirror.delta.log_entries import commits
from spark_consumer.mirror.spark_settings import settings
from spark_consumer.mirror.sql_names import literal, quoted
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.tables.rewrite_columns import cast_or_null, kept_texts, special_texts

# Properties of a table with a column name that Parquet does not allow, or from which a column is
# dropped.
MAPPED = {"delta.columnMapping.mode": "name"}
# Properties of a table in which rows change: a merge stores which rows of a file are deleted,
# instead of rewriting the file.
_VECTORS = "delta.enableDeletionVectors"
DELETION_VECTORS = {_VECTORS: "true"}
# Names (in lower case) that Delta 4.4 takes for its own columns when it writes deletion vectors.
_WITHOUT_VECTORS = {"_metadata", "deletionvectorid"}
_WIDENING = {"delta.enableTypeWidening": "true"}
# cleanup.py removes log entries by version; Delta's own clean-up goes by their age, even if
# versions of the mirror need them.
_NO_CLEANUP = {"delta.enableExpiredLogCleanup": "false"}
# How long Delta remembers the numbers that applications note. It remembers them for ever if this is
# not set, and only then lists them in the checksum of a version (see delta_append.py).
_NUMBERS = "delta.setTransactionRetentionDuration"
_TOMBSTONES = "delta.deletedFileRetentionDuration"
# Without Delta's check, which refuses a version that was committed more than a week ago, even if it
# was replaced a moment ago.
READS_OLD_VERSIONS = {"spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false"}
# userMetadata of a commit in which the mirror rewrites a table.
_OWN = "walgate"
# Characters that Delta refuses in the names of unmapped columns.
_REFUSED = re.compile(r"[ ,;{}()\n\t=]")


def properties(columns: Collection[str], *, deletion_vectors: bool = False) -> dict[str, str]:
    """Return the properties of a new table with these columns."""
    mapped = MAPPED if needs_mapping(columns) else {}
    vectors = {_VECTORS: "false"} if _allow_no_vectors(columns) else DELETION_VECTORS if deletion_vectors else {}
    return {**_NO_CLEANUP, **mapped, **vectors}


def changelog_properties(columns: Iterable[str]) -> dict[str, str]:
    """Return the properties of a new table of a changelog, whose columns can get wider types.
    `columns`: those of the source's table."""
    return {**_WIDENING, **(MAPPED if needs_mapping(columns) else {})}


def needs_mapping(columns: Iterable[str]) -> bool:
    """Return whether Delta requires column mapping for these names."""
    return any(map(_REFUSED.search, columns))


def _allow_no_vectors(columns: Iterable[str]) -> bool:
    """Return whether a table with columns of these names can have no deletion vectors."""
    return any(name.lower() in _WITHOUT_VECTORS for name in columns)


def _has_vectors(spark: SparkSession, location: str) -> bool:
    return noted_property(spark, location, _VECTORS) == "true"


def allow_names(spark: SparkSession, location: str, names: Collection[str]) -> None:
    """Prepare a table that will be overwritten for columns with these names."""
    if needs_mapping(names):
        map_columns(spark, location)
    if _allow_no_vectors(names) and _has_vectors(spark, location):
        note_property(spark, location, _VECTORS, "false")


def map_columns(spark: SparkSession, location: str) -> None:
    """Turn column mapping on, if it is off: a commit without data, after which readers and writers
    need a newer version of the protocol."""
    if java_snapshot(spark, location).metadata().columnMappingMode().name() == "none":
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in MAPPED.items())
        versions = "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
        spark.sql(f"ALTER TABLE {sql_table(location)} SET TBLPROPERTIES ({listed}, {versions})")


def exists(spark: SparkSession, location: str) -> bool:
    return bool(DeltaTable.isDeltaTable(spark, location))


def has_log(spark: SparkSession, location: str) -> bool:
    """Return whether a table was created at a location. This needs none of Delta's classes."""
    return "_delta_log" in folder_names(spark, location)


def rows(spark: SparkSession, location: str) -> DataFrame:
    """Return the rows of the newest version."""
    return spark.read.format("delta").load(location)


def rewrite(rows: DataFrame, location: str) -> None:
    """Overwrite a table as a whole, with other columns, before a slice is written.
    `was_overwritten` does not count this commit."""
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.option("userMetadata", _OWN).save(location)


def align(spark: SparkSession, location: str, wanted: StructType, *, casts: bool = True) -> None:
    """Give a table exactly the wanted columns. Each step is a separate commit, and is skipped if it
    was done before.

    A new column is null in existing rows. A column whose type changed is cast; its values are null
    if they cannot be cast, or without `casts`. This rewrites the table. The special texts of a
    column are removed before the column is: otherwise, a later column of the same name would get
    them.
    """
    there = {field.name: field.dataType for field in rows(spark, location).schema}
    wants = {field.name: field.dataType for field in wanted}
    dropped = [name for name in there if name not in wants]
    special = special_texts(there, wants)
    if special is not None:
        _forget_texts(spark, location, special, there.keys() & wants.keys())
    if _allow_no_vectors(wants) and _has_vectors(spark, location):
        rewrite(rows(spark, location), location)  # without the vectors that it has
    allow_names(spark, location, wants)
    if dropped:
        map_columns(spark, location)
    if dropped:
        spark.sql(f"ALTER TABLE {sql_table(location)} DROP COLUMNS ({', '.join(map(quoted, dropped))})")
    added = [f"{quoted(name)} {_sql_type(spark, kind)}" for name, kind in wants.items() if name not in there]
    if added:
        spark.sql(f"ALTER TABLE {sql_table(location)} ADD COLUMNS ({', '.join(added)})")
    changed = {name: kind for name, kind in wants.items() if name in there and there[name] != kind}
    if changed:
        _cast(spark, location, changed, keeps_values=casts)


def _forget_texts(spark: SparkSession, location: str, special: str, names: Iterable[str]) -> None:
    """Remove all special texts except those of these columns. Only files with rows that have such
    texts are written: these rows are rare, and tables are large. This is also called when a column
    is added, since an older release left the texts of dropped columns."""
    texts = f.col(quoted(special))
    has_others = f.exists(f.map_keys(texts), lambda name: ~name.isin(sorted(names)))
    DeltaTable.forPath(spark, location).update(
        texts.isNotNull() & has_others, {quoted(special): kept_texts(special, names)}
    )


def _cast(spark: SparkSession, location: str, changed: dict[str, DataType], *, keeps_values: bool) -> None:
    """Rewrite the rows with other column types, as PostgreSQL does for ALTER COLUMN TYPE, which
    produces no event in the stream. Values that Spark cannot cast become null. If `keeps_values` is
    false, all values in the changed columns become null."""
    frame = rows(spark, location)
    columns = [
        (cast_or_null(frame, name, changed[name]) if keeps_values else f.lit(None).cast(changed[name])).alias(name)
        if name in changed
        else f.col(quoted(name))
        for name in frame.columns
    ]
    rewrite(frame.select(*columns), location)


def _sql_type(spark: SparkSession, kind: DataType) -> str:
    return str(java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(kind.json()).sql())


def sql_table(location: str) -> str:
    return f"delta.{quoted(location)}"


def noted_property(spark: SparkSession, location: str, name: str) -> str | None:
    found = java_snapshot(spark, location).metadata().configuration().get(name)
    return str(found.get()) if found.isDefined() else None


def note_property(spark: SparkSession, location: str, name: str, text: str) -> None:
    spark.sql(f"ALTER TABLE {sql_table(location)} SET TBLPROPERTIES ('{name}' = '{literal(text)}')")


def version(spark: SparkSession, location: str) -> int:
    return int(java_snapshot(spark, location).version())


def known_version(spark: SparkSession, location: str) -> int:
    return int(java_log(spark, location).unsafeVolatileSnapshot().version())


def at_version(spark: SparkSession, location: str, number: int) -> DataFrame:
    """Return the rows of a version, however old it is."""
    with settings(spark, READS_OLD_VERSIONS):
        reader: Any = spark.read.format("delta").option("versionAsOf", number)
        frame: DataFrame = reader.load(location)
    return frame


def was_overwritten(spark: SparkSession, location: str, since: int) -> bool:
    """Return whether someone other than the mirror rewrote the whole table after the version
    `since`."""
    return bool(_copies(spark, location, since)[0])


def copied_version(spark: SparkSession, location: str, since: int) -> int | None:
    """Return the version in which someone other than the mirror last rewrote the whole table, after
    the version `since` and before the mirror applied changes; None if there is none."""
    copies, applied = _copies(spark, location, since)
    return max((number for number in copies if number < min(applied, default=number + 1)), default=None)


def _copies(spark: SparkSession, location: str, since: int) -> tuple[list[int], list[int]]:
    """Return the versions after `since` in which others rewrote the whole table, and those in which
    the mirror applied changes."""
    copies, applied = [], []
    for number, commit in takewhile(lambda found: found[0] > since, commits(spark, location)):
        if APPLICATION in commit.numbers:
            applied.append(number)
        elif commit.overwrites and commit.note != _OWN:
            copies.append(number)
    return copies, applied


def undone_version(spark: SparkSession, location: str, since: int, application: str = APPLICATION) -> int | None:
    """Return the version that the application last wrote, or `since` if that is later, if the rows
    of an earlier version were restored after it; otherwise None.

    RESTORE creates a new version that keeps the numbers noted in the later ones, such as commit
    LSNs.
    """
    state: float = inf  # the version whose rows the newest one has
    for number, commit in commits(spark, location):
        if number <= since or application in commit.numbers:
            return number if state < number else None
        if number > state:  # undone as well
            continue
        if commit.overwrites and commit.note != _OWN:
            return None
        if commit.restored is not None:
            state = commit.restored
    return None


def files_below(spark: SparkSession, location: str, size: int, enough: int = 0) -> int:
    """Return the number of files smaller than `size` bytes. If the table has fewer than `enough`
    files, return their number instead, which costs no job."""
    snapshot = java_snapshot(spark, location)
    checksum = snapshot.checksumOpt()
    if checksum.isDefined() and checksum.get().numFiles() < enough:
        return int(checksum.get().numFiles())
    return int(snapshot.allFiles().where(f"size < {size}").count())


def byte_count(spark: SparkSession, location: str) -> int | None:
    """Return the total size of the table's files; None if that would take a job."""
    checksum = java_snapshot(spark, location).checksumOpt()
    return int(checksum.get().tableSizeBytes()) if checksum.isDefined() else None


def own_retention_s(spark: SparkSession, location: str) -> float:
    """Return the number of seconds for which a table's own Delta properties keep its files and log
    entries; 0 if none is set."""
    metadata = java_snapshot(spark, location).metadata()
    log = java_log(spark, location)
    found = {
        _TOMBSTONES: delta_log_class(spark).tombstoneRetentionMillis,
        "delta.logRetentionDuration": log.deltaRetentionMillis,
    }
    return max(
        (told(metadata) / 1000 for name, told in found.items() if metadata.configuration().contains(name)), default=0
    )


def tombstones_s(spark: SparkSession, location: str, version: int) -> float:
    """Return for how many seconds the log of a table lists replaced files, according to the
    properties at a version."""
    metadata = java_snapshot(spark, location, version).metadata()
    return float(delta_log_class(spark).tombstoneRetentionMillis(metadata)) / 1000


def keep_tombstones(spark: SparkSession, location: str, hours: int) -> None:
    """Make the log list replaced files for this number of hours from now on. Files that it has
    already forgotten stay forgotten."""
    spark.sql(f"ALTER TABLE {sql_table(location)} SET TBLPROPERTIES ('{_TOMBSTONES}' = 'interval {hours} hours')")


def noted_number(spark: SparkSession, location: str, application: str) -> int | None:
    """Return the number that an application last noted in a table (the version in its Delta
    transaction identifier), or None if it noted none."""
    return noted_numbers(spark, location, application)[0]


def noted_numbers(spark: SparkSession, location: str, *applications: str) -> list[int | None]:
    """Return the number that each of these applications last noted in a table, in order; None where
    an application has noted none."""
    snapshot = java_snapshot(spark, location)
    noted = noted_versions(snapshot)
    if noted is None:
        noted = versions_in_log(snapshot, applications)
    return [noted.get(application) for application in applications]


def noted_versions(snapshot: Any) -> dict[str, int] | None:
    """Return the version that each application last noted in a table, from the checksum; None if
    the checksum does not list them."""
    checksum = snapshot.checksumOpt()
    listed = checksum.get().setTransactions() if checksum.isDefined() else None
    if listed is None or not listed.isDefined():
        return None
    found = listed.get()
    return {noted.appId(): int(noted.version()) for noted in map(found.apply, range(found.size()))}


def versions_in_log(snapshot: Any, applications: Iterable[str]) -> dict[str, int]:
    """Return the version that each of these applications last noted, from the table's log. This
    takes a Spark job."""
    listed = snapshot.transactions()
    found = {name: listed.get(name) for name in applications}
    return {name: int(version.get()) for name, version in found.items() if version.isDefined()}


def applied_commit_lsn(spark: SparkSession, location: str, application: str = APPLICATION) -> int:
    """Return the commit LSN of the last slice or batch that was applied to a table. Raises
    MirrorError if another program created the table."""
    found = noted_number(spark, location, application)
    kept = noted_property(spark, location, _NUMBERS) if found is None else None
    if kept is not None:
        raise MirrorError(
            f"{location} does not contain the commit LSN up to which it was written: Delta has forgotten it, since the "
            f"table's property {_NUMBERS} is {kept!r}, or {application} has not created the table",
            hint="Unset this property. Then continue without the table: restart with --exclude and its name, which cannot be "
            "undone at this path. Or use another path and checkpoint location, and load the existing rows again.",
        )
    if found is None:
        raise MirrorError(
            f"{location} is a Delta table that was not created by {application}: nothing was written to it",
            hint="Move this table to another directory, or use another path: otherwise its rows could not be distinguished "
            "from those of the source. If it has replaced a table of Walgate, put that table back.",
        )
    return found
