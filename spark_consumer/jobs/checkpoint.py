"""A query's checkpoint: where the query is, and whether its output has what lies before that."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from schemas.lsn import format_lsn
from spark_consumer.changelog.position import read_position
from spark_consumer.errors import MirrorError
from spark_consumer.jobs.run import Run
from spark_consumer.jvm import file_text, folder_names
from spark_consumer.mirror import table_selection, version_manifest
from spark_consumer.reader.positions import CHANGELOG, MIRROR, Output, Position, check_continues, resolve
from spark_consumer.reader.table_marks import KINDS


def is_new(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether no query has ever planned a batch in this checkpoint location."""
    return not _numbers(spark, f"{checkpoint}/offsets")


def last_offset(spark: SparkSession, checkpoint: str) -> dict[str, int] | None:
    """Return the end offset (of the data source) of the last completed batch in this checkpoint
    location; None if there is none."""
    numbers = _numbers(spark, f"{checkpoint}/commits")
    return _offset(spark, checkpoint, max(numbers)) if numbers else None


def check_mirror_has(
    spark: SparkSession, run: Run, given: Mapping[str, str], checkpoint: str, path: str, taken_lsn: int
) -> None:
    """Raise MirrorError if a mirror that has everything up to `taken_lsn` (-1: it has nothing) does
    not have all changes before the last completed batch of its checkpoint: it was restored from a
    backup, or removed, and its checkpoint was not.

    A transaction without changes of the mirror's tables moves only the checkpoint. `given`: options
    of the data source. Raises what MarkerLog raises.
    """
    before = last_offset(spark, checkpoint)
    low, high = run.log.bounds()
    if before is None or before["commit_lsn"] <= taken_lsn or before["position"] > high:
        return  # in the last case the topic was recreated, which the data source reports
    has_some = taken_lsn >= 0
    begin = resolve(Position("lsn", taken_lsn), run.log) if has_some else max(low, _first_position(spark, checkpoint))
    first = run.log.first_between(begin, before["position"], is_wanted=run.weight)
    if first is None:
        return
    options = run.options
    table_selection.check(
        version_manifest.recorded_version(spark, path),
        version_manifest.noted_options(spark, path),
        path,
        options.tables,
        options.exclude,
    )
    # A manifest also counts records of subtransactions that were rolled back.
    positions = {
        "startingPosition": f"marker:{first.marker_offset}",
        "endingPosition": f"marker:{before['position']}",
    }
    given = {name: value for name, value in given.items() if name != "maxChangesPerTrigger"}
    rows = spark.read.format("walgate").options(**{**given, **positions}).load()
    is_wanted = f.col("table").isNotNull() | f.col("op").isin(list(KINDS))
    missed = rows.where(is_wanted & (f.col("commit_lsn") > taken_lsn)).agg(f.min("commit_lsn")).head()
    if missed is None or missed[0] is None:
        return
    stands = f"all changes up to {format_lsn(taken_lsn)}" if has_some else "no changes"
    raise _ahead(
        MIRROR,
        f"the mirror at {path} has {stands}, but its checkpoint at {checkpoint} is after the transaction at "
        f"{format_lsn(missed[0])}, which the mirror would miss",
    )


def check_changelog_continues(spark: SparkSession, run: Run, checkpoint: str, path: str) -> None:
    """Raise an error if the changelog at `path` would miss changes: its checkpoint is ahead of it,
    or new, and the query would start too late. Also if there is a mirror at `path`. Raises what
    MarkerLog raises."""
    names = folder_names(spark, path)
    if "manifest" in names or "changes" in names:
        raise MirrorError(
            f"there is a mirror at {path}", hint="A changelog needs another path and checkpoint location (--path)."
        )
    position = read_position(spark, path)
    numbers = _numbers(spark, f"{checkpoint}/commits")
    if numbers:
        is_own = position is not None and position.query == query_id(spark, checkpoint)
        was_removed = position is None and "tables" not in names
        if was_removed or (is_own and position is not None and position.batch < max(numbers)):
            raise _ahead(
                CHANGELOG,
                f"the checkpoint at {checkpoint} has completed micro-batch {max(numbers)}, which the changelog at {path} does "
                "not have",
            )
    elif position is not None and position.commit_lsn >= 0 and is_new(spark, checkpoint):
        check_continues(run.options.starting, position.commit_lsn, run.log, CHANGELOG)


def _ahead(output: Output, message: str) -> MirrorError:
    return MirrorError(
        message,
        hint=f"The {output.name} was probably restored from a backup, or removed, without its checkpoint. Use a new checkpoint "
        f"location (--checkpoint), or remove this one: {output.restart}.",
    )


def query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query that a checkpoint belongs to; None if there is none yet."""
    if "metadata" not in folder_names(spark, checkpoint):
        return None
    return str(json.loads(file_text(spark, f"{checkpoint}/metadata"))["id"])


def _first_position(spark: SparkSession, checkpoint: str) -> int:
    """Return the first position in the marker topic that is known of a checkpoint: Spark keeps the
    offsets of the last 100 batches."""
    offset = _offset(spark, checkpoint, min(_numbers(spark, f"{checkpoint}/offsets")))
    return 0 if offset is None else offset.get("began", offset["position"])


def _numbers(spark: SparkSession, location: str) -> list[int]:
    return [int(name) for name in folder_names(spark, location) if name.isdigit()]


def _offset(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, int] | None:
    lines = file_text(spark, f"{checkpoint}/offsets/{batch}").splitlines()
    found = json.loads(lines[-1])  # the offset of the only source, after the version and Spark's metadata of the batch
    return found if isinstance(found, dict) and "position" in found else None
