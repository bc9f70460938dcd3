"""The two exclusive rights to write to a mirror: to append to `changes`, and to merge. Each belongs
to the writer that took it last.

A writer that takes a right notes an epoch, in `changes` for the appends and in the manifest for the
merges. An epoch is a number above that of the former writer, taken from the clock so that no two
are equal. A job that merges has both rights, unless `walgate merge` has taken the merges. A job
that finds another epoch of the appends stops. If only the merges have another one, it continues to
append.

At its end, also after an error, `walgate merge` notes that its epoch is given back, and the job
takes the merges again when its next merge is due. If `walgate merge` was killed, nobody knows
whether it still writes: the job merges no more until it is restarted, or another `walgate merge`
ends.

The format of the tables refuses the second of two concurrent commits of one application. It also
refuses an append that expects an epoch (`expected_epoch`), if the writer has changed or changes
during the commit. Only two commits expect an epoch: the append of a batch to `changes`, and the
record of a version in the manifest. So only the owner records a version.

A writer that was superseded may still write a table. The number that each write notes, its commit
LSN, protects the table: Delta skips a write whose number the table has reached. If another writer
has noted a lower number since the table was prepared, an append or a rewrite is refused. A merge is
not: its rows result from the version that was prepared, so they are right for its number. Nor is a
rewrite if that number is noted in the milliseconds between its check and its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.paths import FORMAT_APPLICATION, changes_path, manifest_path, refuse_newer_format
from spark_consumer.mirror.storage import TABLE_FORMAT, number_if_any
from spark_consumer.mirror.table_format import APPLICATION

WRITER = "walgate-writer"
_GIVEN_BACK = "walgate-writer-ended"
"""Application whose number is the epoch of a writer that has ended and leaves the merges to the
former writer."""
_ATTEMPTS = 5


def claim(spark: SparkSession, path: str, no_rows: DataFrame, note: Callable[[int], None] = lambda _: None) -> int:
    """Take over the right to merge, and return the epoch. `no_rows`: an empty DataFrame in the
    columns of the manifest, which is created if it does not exist. `note`: called with each epoch
    before it is tried, since a claim that raises an error may have succeeded."""
    return _claim(spark, path, manifest_path(path), no_rows, note)


def claim_appends(spark: SparkSession, path: str, no_rows: DataFrame) -> int:
    """Take over the right to append to `changes`, which must exist, and return the epoch.
    `no_rows`: an empty DataFrame in the columns of `changes`."""
    return _claim(spark, path, changes_path(path), no_rows)


def _claim(
    spark: SparkSession, path: str, location: str, no_rows: DataFrame, note: Callable[[int], None] = lambda _: None
) -> int:
    for _ in range(_ATTEMPTS):
        before = number_if_any(spark, location, WRITER)
        epoch = max((before or 0) + 1, time.time_ns())
        note(epoch)
        try:
            TABLE_FORMAT.write_once(no_rows, location, "append", epoch, application=WRITER, merge_schema=True)
        except TABLE_FORMAT.CONCURRENT:
            continue
        if TABLE_FORMAT.noted_number(spark, location, WRITER) == epoch:
            return epoch
    raise taken_over(path)


def give_back(spark: SparkSession, path: str, epoch: int, no_rows: DataFrame) -> None:
    """Leave the merges to the former writer. Do nothing if another writer has taken them over.
    `no_rows`: as for `claim`."""
    location = manifest_path(path)
    for _ in range(_ATTEMPTS):
        if TABLE_FORMAT.noted_number(spark, location, WRITER) != epoch:
            return
        with suppress(*TABLE_FORMAT.CONCURRENT):
            TABLE_FORMAT.write_once(no_rows, location, "append", epoch, application=_GIVEN_BACK, merge_schema=True)
            return


def is_given_back(spark: SparkSession, path: str) -> bool:
    writer, ended = TABLE_FORMAT.noted_numbers(spark, manifest_path(path), WRITER, _GIVEN_BACK)
    return writer == ended


def expected_epoch(epoch: int) -> dict[str, int]:
    """Return the epoch that a commit of this writer expects to be noted
    (TableFormat.write_once)."""
    return {WRITER: epoch}


def check(spark: SparkSession, path: str, epoch: int) -> None:
    """Raise WriterSuperseded if another writer has taken over the merges."""
    if TABLE_FORMAT.noted_number(spark, manifest_path(path), WRITER) != epoch:
        raise taken_over(path)


def check_appends(spark: SparkSession, path: str, epoch: int, appended_lsn: int | None = None) -> None:
    """Raise WriterSuperseded if another writer has taken over the appends, or if the last append is
    not at `appended_lsn` (-1: there is none; None: do not check this)."""
    writer, appended = TABLE_FORMAT.noted_numbers(spark, changes_path(path), WRITER, APPLICATION)
    if writer != epoch or appended_lsn not in (None, -1 if appended is None else appended):
        raise taken_over(path)


def check_format_version(spark: SparkSession, path: str) -> None:
    """Raise MirrorError if this release does not know the format version of the mirror."""
    refuse_newer_format(path, number_if_any(spark, manifest_path(path), FORMAT_APPLICATION))


def note_format_version(spark: SparkSession, path: str, form: int, no_rows: DataFrame) -> None:
    """Note the format version, once. Releases that do not know this version refuse the mirror.
    `no_rows`: as for `claim`."""
    TABLE_FORMAT.write_once(
        no_rows, manifest_path(path), "append", form, application=FORMAT_APPLICATION, merge_schema=True
    )


class WriterSuperseded(MirrorError):
    """Another writer has taken over the appends or the merges of the mirror."""


def taken_over(path: str) -> WriterSuperseded:
    return WriterSuperseded(
        f"another writer has taken over the mirror at {path}: this writer is stopping",
        hint=one_writer_hint("mirror"),
    )


def one_writer_hint(output: str) -> str:
    """Return advice for the case that two processes write to one mirror or changelog."""
    return (
        f"Only one process can write to a {output}: the one that was started last. If the other process is the one that "
        "should write, do not restart this one. Otherwise, stop the other process, then restart this one."
    )
