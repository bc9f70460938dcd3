"""Delta tables of a mirror: how they are made, how they get and lose columns, which version they
have.

Columns are mapped by name (delta.columnMapping.mode) where a name needs it, and from the moment
when a column is dropped: not all that reads Delta knows of it, and some readers show NULL instead
of the values of such a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, MapType, StructType

from spark_consumer.errors import MirrorError
from spark_consumer.jvm import delta_log, hadoop_path, java_class, java_log, java_snapshot
from spark_consumer.mirror.spark_settings import settings

# Application ids of Delta's transactions: a table belongs to one mirror or changelog, and versions
# are commit LSNs, which rise.
APPLICATION = "walgate-mirror"
CHANGELOG = "walgate-changelog"
# Of a table whose columns Parquet cannot name, or that loses a column.
MAPPED = {"delta.columnMapping.mode": "name"}
# Of a table in which rows are changed: a merge writes which rows went beside the files, instead of
# the files anew.
DELETION_VECTORS = {"delta.enableDeletionVectors": "true"}
# upkeep.py removes log entries by version; Delta's own clean-up goes by their age, whatever
# versions of the mirror need.
_NO_CLEANUP = {"delta.enableExpiredLogCleanup": "false"}
_TOMBSTONES = "delta.deletedFileRetentionDuration"
_REFUSES_OLD = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
# userMetadata of a commit by which the mirror rewrites a table.
_OWN = "walgate"
# In a name, what Delta refuses without them being mapped.
_REFUSED = re.compile(r"[ ,;{}()\n\t=]")


def properties(columns: Iterable[str], *, deletion_vectors: bool = False) -> dict[str, str]:
    """Of a table that is made with these columns."""
    mapped = MAPPED if needs_mapping(columns) else {}
    return {**_NO_CLEANUP, **mapped, **(DELETION_VECTORS if deletion_vectors else {})}


def needs_mapping(columns: Iterable[str]) -> bool:
    """Whether Delta takes columns of these names only mapped."""
    return any(map(_REFUSED.search, columns))


def map_columns(spark: SparkSession, location: str) -> None:
    """Where they are not yet: a commit without data, that asks for readers and writers of a newer
    protocol."""
    if java_snapshot(spark, location).metadata().columnMappingMode().name() == "none":
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in MAPPED.items())
        versions = "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
        spark.sql(f"ALTER TABLE {sql_table(location)} SET TBLPROPERTIES ({listed}, {versions})")


def exists(spark: SparkSession, location: str) -> bool:
    return bool(DeltaTable.isDeltaTable(spark, location))


def rewrite(rows: DataFrame, location: str) -> None:
    """A table as a whole with other columns, before a batch is written. `was_overwritten` does not
    take it for a person's."""
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.option("userMetadata", _OWN).save(location)


def align(spark: SparkSession, location: str, wanted: StructType, *, casts: bool = True) -> None:
    """Gives a table exactly the wanted columns. Each step is a commit of its own and is not
    repeated when it is there already.

        A new column is null in the rows that are there; a column whose type changed is cast (if not
        `casts`: null as well), which rewrites the table. Texts of special values go before their column
        does, or another column of its name would have them later.
    """
    there = {field.name: field.dataType for field in spark.read.format("delta").load(location).schema}
    wants = {field.name: field.dataType for field in wanted}
    dropped = [name for name in there if name not in wants]
    special = special_texts(there, wants)
    if special is not None:
        _forget_texts(spark, location, special, there.keys() & wants.keys())
    if dropped or needs_mapping(wants):
        map_columns(spark, location)
    if dropped:
        spark.sql(f"ALTER TABLE {sql_table(location)} DROP COLUMNS ({', '.join(map(quoted, dropped))})")
    added = [f"{quoted(name)} {_sql_type(spark, kind)}" for name, kind in wants.items() if name not in there]
    if added:
        spark.sql(f"ALTER TABLE {sql_table(location)} ADD COLUMNS ({', '.join(added)})")
    changed = {name: kind for name, kind in wants.items() if name in there and there[name] != kind}
    if changed:
        _cast(spark, location, changed, keeps_values=casts)


def special_texts(there: Mapping[str, DataType], wants: Mapping[str, DataType]) -> str | None:
    """The column with texts of special values, where columns come or go. None: none, or it is
    another one."""
    maps = (name for name, kind in wants.items() if isinstance(kind, MapType) and isinstance(there.get(name), MapType))
    return next(maps, None) if there.keys() != wants.keys() else None


def kept_texts(special: str, names: Iterable[str]) -> Column:
    """The texts that belong to these columns; null: none."""
    kept = f.map_filter(quoted(special), lambda name, _: name.isin(sorted(names)))
    return f.when(f.size(kept) > 0, kept)


def _forget_texts(spark: SparkSession, location: str, special: str, names: Iterable[str]) -> None:
    """All but those of these columns. Only files with rows that have others are written: that is
    rare, and tables are large. Done where a column comes, too: an older release left the texts of
    dropped ones."""
    texts = f.col(quoted(special))
    has_others = f.exists(f.map_keys(texts), lambda name: ~name.isin(sorted(names)))
    DeltaTable.forPath(spark, location).update(
        texts.isNotNull() & has_others, {quoted(special): kept_texts(special, names)}
    )


def _cast(spark: SparkSession, location: str, changed: dict[str, DataType], *, keeps_values: bool) -> None:
    """ALTER COLUMN TYPE in PostgreSQL rewrites the rows without telling the stream: so do we."""
    frame: DataFrame = spark.read.format("delta").load(location)
    columns = [
        (f.col(quoted(name)) if keeps_values else f.lit(None)).cast(changed[name]).alias(name)
        if name in changed
        else f.col(quoted(name))
        for name in frame.columns
    ]
    rewrite(frame.select(*columns), location)


def _sql_type(spark: SparkSession, kind: DataType) -> str:
    return str(java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(kind.json()).sql())


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """What stands between single quotes in SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def sql_table(location: str) -> str:
    return f"delta.{quoted(location)}"


def noted_property(spark: SparkSession, location: str, name: str) -> str | None:
    found = java_snapshot(spark, location).metadata().configuration().get(name)
    return str(found.get()) if found.isDefined() else None


def note_property(spark: SparkSession, location: str, name: str, text: str) -> None:
    spark.sql(f"ALTER TABLE {sql_table(location)} SET TBLPROPERTIES ('{name}' = '{literal(text)}')")


def remove(spark: SparkSession, location: str) -> None:
    """A folder with all that is in it, if it is there."""
    path, files = hadoop_path(spark, location)
    files.delete(path, True)


def write_text(spark: SparkSession, location: str, text: str) -> None:
    """A file in place of the one that may be there."""
    path, files = hadoop_path(spark, location)
    out = files.create(path, True)
    try:
        out.write(bytearray(text.encode()))
    finally:
        out.close()


def version(spark: SparkSession, location: str) -> int:
    return int(java_snapshot(spark, location).version())


def at_version(spark: SparkSession, location: str, number: int) -> DataFrame:
    """Delta refuses a version that was committed more than a week ago, even where it was replaced a
    moment ago."""
    with settings(spark, {_REFUSES_OLD: "false"}):
        reader: Any = spark.read.format("delta").option("versionAsOf", number)
        frame: DataFrame = reader.load(location)
    return frame


def was_overwritten(spark: SparkSession, location: str, since: int) -> bool:
    """Whether somebody else than the mirror rewrote the whole table after the version `since`."""
    later = DeltaTable.forPath(spark, location).history().where(f.col("version") > since)
    whole = (f.col("operationParameters.mode") == "Overwrite") | f.col("operation").contains("REPLACE TABLE")
    return not later.where(whole & ~f.col("userMetadata").eqNullSafe(_OWN)).isEmpty()


def files_below(spark: SparkSession, location: str, size: int, enough: int = 0) -> int:
    """How many of its files are smaller. Where there are fewer than `enough` in all: those, which
    costs no job."""
    snapshot = java_snapshot(spark, location)
    checksum = snapshot.checksumOpt()
    if checksum.isDefined() and checksum.get().numFiles() < enough:
        return int(checksum.get().numFiles())
    return int(snapshot.allFiles().where(f"size < {size}").count())


def byte_count(spark: SparkSession, location: str) -> int | None:
    """Of its files; None: only a job would tell."""
    checksum = java_snapshot(spark, location).checksumOpt()
    return int(checksum.get().tableSizeBytes()) if checksum.isDefined() else None


def own_retention_s(spark: SparkSession, location: str) -> float:
    """For how long a table's own Delta properties say that its files and log entries stay; 0: they
    do not say."""
    metadata = java_snapshot(spark, location).metadata()
    log = java_log(spark, location)
    found = {
        _TOMBSTONES: delta_log(spark).tombstoneRetentionMillis,
        "delta.logRetentionDuration": log.deltaRetentionMillis,
    }
    return max(
        (told(metadata) / 1000 for name, told in found.items() if metadata.configuration().contains(name)), default=0
    )


def tombstones_s(spark: SparkSession, location: str, version: int) -> float:
    """For how long the log of a table says which files were replaced, by the properties that it had
    at a version."""
    metadata = java_snapshot(spark, location, version).metadata()
    return float(delta_log(spark).tombstoneRetentionMillis(metadata)) / 1000


def keep_tombstones(spark: SparkSession, location: str, hours: int) -> None:
    """From now on; what the log has forgotten does not come back."""
    spark.sql(f"ALTER TABLE {sql_table(location)} SET TBLPROPERTIES ('{_TOMBSTONES}' = 'interval {hours} hours')")


def transaction_version(spark: SparkSession, location: str, application: str) -> int | None:
    """What an application last noted of itself in a table; None: nothing."""
    return transaction_versions(spark, location, application)[0]


def transaction_versions(spark: SparkSession, location: str, *applications: str) -> list[int | None]:
    """The same of several, at once."""
    snapshot = java_snapshot(spark, location)
    noted = noted_versions(snapshot)
    if noted is None:
        noted = versions_in_log(snapshot, applications)
    return [noted.get(application) for application in applications]


def noted_versions(snapshot: Any) -> dict[str, int] | None:
    """Of each application, the version that it last noted in a table, by the checksum; None: it
    does not say."""
    checksum = snapshot.checksumOpt()
    listed = checksum.get().setTransactions() if checksum.isDefined() else None
    if listed is None or not listed.isDefined():
        return None
    found = listed.get()
    return {noted.appId(): int(noted.version()) for noted in map(found.apply, range(found.size()))}


def versions_in_log(snapshot: Any, applications: Iterable[str]) -> dict[str, int]:
    """The same of these applications, from the log of the table, which is a job."""
    listed = snapshot.transactions()
    found = {name: listed.get(name) for name in applications}
    return {name: int(version.get()) for name, version in found.items() if version.isDefined()}


def applied_commit_lsn(spark: SparkSession, location: str, application: str = APPLICATION) -> int:
    """The commit LSN of the last batch that a table took in. Raises MirrorError when another writer
    made the table."""
    found = transaction_version(spark, location, application)
    if found is None:
        raise MirrorError(
            f"{location} is a Delta table that was not created by {application}: nothing was written to it",
            hint="Move this table to another directory, or use another path: otherwise its rows could not be distinguished "
            "from those of the source.",
        )
    return found
