"""A query's checkpoint: where the query is, and whether its output has all changes before that
position.

The file `<path>/_topic` has the name of the marker topic from which a mirror or changelog is made.
An older release wrote none; the next batch then does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError, RangeExpired, SourceUnavailable, told_as
from spark_consumer.jobs.run import Run
from spark_consumer.jvm import file_text, folder_names, write_text
from spark_consumer.mirror import table_selection, version_manifest
from spark_consumer.mirror.paths import changes_path, manifest_path
from spark_consumer.mirror.slice_contents import is_mark
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.output_position import is_not_whole, read_position
from spark_consumer.reader.markers import CommittedTransaction
from spark_consumer.reader.positions import OF_CHANGELOG, OF_MIRROR, Output, Position, check_continues, resolve

_TOPIC = "_topic"
_MOST = 1_000_000  # markers: 20 seconds


def is_new(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether no query has ever planned a batch in this checkpoint location."""
    return not _numbers(spark, f"{checkpoint}/offsets")


def last_offset(spark: SparkSession, checkpoint: str) -> dict[str, int] | None:
    """Return the end offset (of the data source) of the last completed batch in this checkpoint
    location; None if there is none. Raises MirrorError if it, its commit, or the newest planned
    batch, cannot be read."""
    if planned := _numbers(spark, f"{checkpoint}/offsets"):
        _offset(spark, checkpoint, max(planned))
    numbers = _numbers(spark, f"{checkpoint}/commits")
    if not numbers:
        return None
    _last_line(spark, checkpoint, f"commits/{max(numbers)}")
    return _offset(spark, checkpoint, max(numbers))


def check_mirror_has(
    spark: SparkSession, run: Run, given: Mapping[str, str], checkpoint: str, path: str, taken_lsn: int
) -> None:
    """Raise MirrorError if a mirror lacks changes before the end of the last completed batch of its
    checkpoint. This happens if the mirror was restored from a backup, or removed, and its
    checkpoint was not. The mirror has all changes up to `taken_lsn` (-1: it has none).

    Transactions without changes of the mirror's tables are not missing: they move only the
    checkpoint. `given`: options of the data source. Raises what MarkerLog raises.
    """
    if taken_lsn >= 0:
        _check_topic(spark, run, path, OF_MIRROR)
    before = last_offset(spark, checkpoint)
    if before is None or before["commit_lsn"] <= taken_lsn:
        return
    begin = _begin(spark, checkpoint) if taken_lsn < 0 else resolve(Position("lsn", taken_lsn), run.log)
    first = _first_wanted(run, max(begin, _passed(spark, checkpoint, path)), before["position"])
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
    missed_lsn = _first_row(spark, given, first.marker_offset, before["position"], taken_lsn)
    if missed_lsn is not None:
        stands = f"all changes up to {format_lsn(taken_lsn)}" if taken_lsn >= 0 else "no changes"
        raise _ahead(
            OF_MIRROR,
            f"the mirror at {path} has {stands}, but its checkpoint at {checkpoint} is after the transaction at "
            f"{format_lsn(missed_lsn)}, which the mirror would miss",
            has_some=taken_lsn >= 0,
        )


def check_changelog_continues(spark: SparkSession, run: Run, checkpoint: str, path: str) -> None:
    """Raise an error if the changelog at `path` would miss changes, because its checkpoint is ahead
    of it, or is new and the query would start too late. Also raise an error if there is a mirror at
    `path`. Raises what MarkerLog raises."""
    if any(TABLE_FORMAT.has_log(spark, location) for location in (manifest_path(path), changes_path(path))):
        raise MirrorError(
            f"there is a mirror at {path}", hint="A changelog needs another path and checkpoint location (--path)."
        )
    position = read_position(spark, path)
    if position is not None and position.commit_lsn >= 0:
        _check_topic(spark, run, path, OF_CHANGELOG)
    numbers = _numbers(spark, f"{checkpoint}/commits")
    if not numbers:
        if position is not None and position.commit_lsn >= 0 and is_new(spark, checkpoint):
            check_new_checkpoint(run, position.commit_lsn, OF_CHANGELOG)
        return
    if position is None:  # an older release has written it, or no batch of an older release had rows, or it was removed
        before = last_offset(spark, checkpoint)
        if before is None or "tables" in folder_names(spark, path):
            return
        is_ahead = _first_wanted(run, _begin(spark, checkpoint), before["position"]) is not None
    else:
        is_ahead = position.query == _query_id(spark, checkpoint) and position.batch < max(numbers)
    if is_ahead:
        raise _ahead(
            OF_CHANGELOG,
            f"the checkpoint at {checkpoint} has completed micro-batch {max(numbers)}, which the changelog at {path} does not "
            "have",
            has_some=position is not None,
        )


def check_new_checkpoint(run: Run, taken_lsn: int, output: Output = OF_MIRROR) -> None:
    """Raise an error if a query with a new checkpoint may miss changes: see check_continues. Raises
    SourceUnavailable while the marker topic is empty: it may be that of another server, and the
    output would take none of its transactions up to `taken_lsn`."""
    check_continues(run.options.starting, taken_lsn, run.log, output, run.lost)
    if run.log.first_between(*run.log.bounds()) is None:
        raise SourceUnavailable(
            f"it is empty. Its first transaction will show whether it is the one from which the {output.name} was made"
        )


class TopicNote:
    """The note that the output at `path` comes from the marker topic `topic`. The first batch
    writes it at its end: before, it is not certain that the checkpoint belongs to the topic."""

    def __init__(self, path: str, topic: str) -> None:
        self._path, self._topic = path, topic
        self._has_batch = False
        self._is_made = False

    def after_first(self, apply: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return a function that calls `apply`, and writes the note after its first batch."""

        def batch(frame: DataFrame, number: int) -> None:
            self._has_batch = True
            apply(frame, number)
            self._make(frame.sparkSession)

        return batch

    def make_up(self, spark: SparkSession) -> None:
        """Write the note if the query was stopped between its first batch and the note, because the
        batch has reached `--until-lsn`."""
        if self._has_batch:
            self._make(spark)

    def _make(self, spark: SparkSession) -> None:
        if not self._is_made:
            write_text(spark, f"{self._path}/{_TOPIC}", self._topic)
            self._is_made = True


def _check_topic(spark: SparkSession, run: Run, path: str, output: Output) -> None:
    topic = run.options.marker_topic
    noted = file_text(spark, f"{path}/{_TOPIC}") if _TOPIC in folder_names(spark, path) else ""
    if noted not in ("", topic):
        raise MirrorError(
            f"the {output.name} at {path} was made from the marker topic {noted}, and cannot go on with {topic}",
            hint="Correct --prefix or --path. For a new prefix, use another path and checkpoint location"
            f"{output.new_one}.",
        )


def _first_wanted(run: Run, begin: int, end: int) -> CommittedTransaction | None:
    """Return the first transaction in [begin, end) of the marker topic whose changes the query
    wants. Only the first _MOST markers are read, so that the first start after an older release
    does not take minutes."""
    low, high = run.log.bounds()
    begin, end = max(low, begin), min(high, end, begin + _MOST)
    found = run.log.first_between(begin, end, is_wanted=lambda each: run.stopping.is_set() or run.weight(each))
    return None if run.stopping.is_set() else found


def _first_row(spark: SparkSession, given: Mapping[str, str], begin: int, end: int, after_lsn: int) -> int | None:
    """Return the commit LSN of the first row that a mirror takes between two positions of the
    marker topic. The rows are read, since a manifest also counts records of subtransactions that
    were rolled back. Return None if there is no such row, or if the records are no longer in
    Kafka."""
    options = {name.lower(): value for name, value in given.items()}
    options |= {"startingposition": f"marker:{begin}", "endingposition": f"marker:{end}"}
    options.pop("maxchangespertrigger", None)
    is_wanted = f.col("table").isNotNull() | is_mark()
    try:
        rows = spark.read.format("walgate").options(**options).load()
        found = rows.where(is_wanted & (f.col("commit_lsn") > after_lsn)).agg(f.min("commit_lsn")).head()
    except (PySparkException, Py4JJavaError) as problem:
        if told_as(RangeExpired, problem) is not None:
            return None
        if (told := told_as(SourceUnavailable, problem)) is not None:
            raise SourceUnavailable(told) from None
        raise
    return None if found is None else found[0]


def _ahead(output: Output, message: str, *, has_some: bool) -> MirrorError:
    then = output.restart if has_some else f"the {output.name} then begins at --starting-position"
    return MirrorError(
        message,
        hint=f"The {output.name} was probably restored from a backup, or removed, without its checkpoint. Use a new checkpoint "
        f"location (--checkpoint), or remove this one: {then}.",
    )


def _begin(spark: SparkSession, checkpoint: str) -> int:
    """Return the first position in the marker topic that a checkpoint still has. Spark keeps the
    offsets of the last 100 batches."""
    offset = _offset(spark, checkpoint, min(_numbers(spark, f"{checkpoint}/offsets")))
    return 0 if offset is None else offset.get("began", offset["position"])


def _passed(spark: SparkSession, checkpoint: str, path: str) -> int:
    """Return the position in the marker topic up to which a mirror has noted that it has all
    changes; 0 if it is not known."""
    noted = read_position(spark, path)
    if noted is None or noted.query != _query_id(spark, checkpoint):
        return 0
    if noted.batch not in _numbers(spark, f"{checkpoint}/offsets"):
        return 0
    offset = _offset(spark, checkpoint, noted.batch)
    return 0 if offset is None else offset["position"]


def _query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query that a checkpoint belongs to; None if it belongs to none yet."""
    if "metadata" not in folder_names(spark, checkpoint):
        return None
    return str(_last_line(spark, checkpoint, "metadata")["id"])


def _numbers(spark: SparkSession, location: str) -> list[int]:
    return [int(name) for name in folder_names(spark, location) if name.isdigit()]


def _offset(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, int] | None:
    # The offset of the only source, after the version and Spark's metadata of the batch.
    found = _last_line(spark, checkpoint, f"offsets/{batch}")
    return found if isinstance(found, dict) and "position" in found else None


def _last_line(spark: SparkSession, checkpoint: str, name: str) -> Any:
    """Return the JSON value in the last line of a file of a checkpoint. Raises MirrorError if there
    is none: after a power failure, a file may be empty."""
    try:
        return json.loads(file_text(spark, f"{checkpoint}/{name}").splitlines()[-1])
    except (IndexError, ValueError, Py4JJavaError) as problem:
        if isinstance(problem, Py4JJavaError) and not is_not_whole(problem):
            raise
        raise MirrorError(
            f"the checkpoint at {checkpoint} cannot be read: its file {name} is incomplete",
            hint="Use a new checkpoint location (--checkpoint), or remove this one: the output then continues where it "
            "stands.",
        ) from problem
