"""Exclusive right to write to a mirror, held by the writer that opened it last.

Each writer takes an epoch, which it notes in the manifest: a number above that of the former
writer, taken from the clock so that no two are equal. A writer that finds
another epoch than its own stops. The format of the tables refuses the second of two concurrent
commits of one application, and a commit that expects an epoch (`expected_epoch`) if the writer has
changed, or changes during the commit. Only two commits expect the epoch: the append of a batch to
`changes`, and the record of a version in the manifest. A writer that was superseded may still write
a table: the number that each write notes protects it, and only the owner records a version.

Appending to `changes` and merging have one epoch each, stored in `changes` and in the manifest. A
job has both, unless `walgate merge` has taken the second. At its end `walgate merge` notes that its
epoch is given back, and the job takes the second again when its next merge is due.
"""

from __future__ import annotations

import time
from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.paths import FORMAT_APPLICATION, changes_path, manifest_path, refuse_newer_format
from spark_consumer.mirror.storage import TABLE_FORMAT, number_if_any
from spark_consumer.mirror.table_format import APPLICATION

WRITER = "walgate-writer"
_GIVEN_BACK = "walgate-writer-ended"
"""Application whose number is the epoch of a writer that has ended and leaves the mirror to the
former one."""
_ATTEMPTS = 5


def claim(spark: SparkSession, path: str, no_rows: DataFrame) -> int:
    """Take over the mirror and return the epoch. `no_rows`: an empty DataFrame in the columns of
    the manifest, which is created if it does not exist."""
    return _claim(spark, path, manifest_path(path), no_rows)


def claim_appends(spark: SparkSession, path: str, no_rows: DataFrame) -> int:
    """Take over the right to append to `changes`, which must exist, and return the epoch.
    `no_rows`: an empty DataFrame in the columns of `changes`."""
    return _claim(spark, path, changes_path(path), no_rows)


def _claim(spark: SparkSession, path: str, location: str, no_rows: DataFrame) -> int:
    for _ in range(_ATTEMPTS):
        before = number_if_any(spark, location, WRITER)
        epoch = max((before or 0) + 1, time.time_ns())
        try:
            TABLE_FORMAT.write_once(no_rows, location, "append", epoch, application=WRITER, merge_schema=True)
        except TABLE_FORMAT.CONCURRENT:
            continue
        if TABLE_FORMAT.noted_number(spark, location, WRITER) == epoch:
            return epoch
    raise taken_over(path)


def give_back(spark: SparkSession, path: str, epoch: int, no_rows: DataFrame) -> None:
    """Leave the mirror to the former writer; do nothing if another one has taken it over.
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
    """Return what a commit of this writer expects to be noted (TableFormat.write_once)."""
    return {WRITER: epoch}


def check(spark: SparkSession, path: str, epoch: int) -> None:
    """Raise WriterSuperseded if another writer has taken over the mirror."""
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
    """Note the format version, once: releases that do not know it refuse the mirror. `no_rows`: as
    for `claim`."""
    TABLE_FORMAT.write_once(
        no_rows, manifest_path(path), "append", form, application=FORMAT_APPLICATION, merge_schema=True
    )


class WriterSuperseded(MirrorError):
    """Another writer has taken over the mirror."""


def taken_over(path: str) -> WriterSuperseded:
    return WriterSuperseded(
        f"another writer has taken over the mirror at {path}: this writer is stopping",
        hint=one_writer_hint("mirror"),
    )


def one_writer_hint(output: str) -> str:
    """Return what to do where two processes write to one mirror or changelog."""
    return (
        f"Only one process can write to a {output}: the one that was started last. If the other process is the one that "
        "should write, do not restart this one. Otherwise, stop the other process, then restart this one."
    )
