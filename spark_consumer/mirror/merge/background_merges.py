"""Merges of a mirror beside the batches, in the same process: when one is due, how many cores it
gets, and how `walgate merge` takes them over for a while."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from spark_consumer.mirror import version_manifest, writer_epoch
from spark_consumer.mirror.merge.merge_thread import MergeThread
from spark_consumer.mirror.merge.merger import TABLES_AT_ONCE, Merger
from spark_consumer.mirror.spark_settings import NO_SETTINGS, settings, tasks
from spark_consumer.reader.registry import Schema

# With this many unmerged changes, merge at once, even while more of a backlog is being read.
MANY_CHANGES = 10_000_000
# A batch of at least this many changes is part of a backlog.
BACKLOG_CHANGES = 250_000
_LOOK_AGAIN_S = 1.0  # time between checks whether `walgate merge` has ended, if `every_s` is less


@dataclass
class BackgroundMerges:
    """The merges of a mirror, performed in a thread. `new_merger`: returns a Merger with these
    value schemas; `every_s`, `retrying`, `handed_over`, `merged`: as for AppendingMirror."""

    new_merger: Callable[[dict[int, Schema]], Merger]
    every_s: float | None
    retrying: Callable[[Exception, float], None]
    handed_over: Callable[[], None]
    merged: Callable[[], None]
    merger: Merger = field(init=False)
    thread: MergeThread = field(init=False)
    session: SparkSession | None = field(default=None, init=False)
    has_first: bool = field(default=False, init=False)  # whether there is a version, or its merge was requested
    waiting: int = field(default=0, init=False)  # number of unmerged changes
    has_backlog: bool = field(default=False, init=False)  # whether any unmerged batch was large
    _was_large: bool = field(default=False, init=False)  # whether the last batch had BACKLOG_CHANGES
    _batch: int = field(default=0, init=False)
    _append_epoch: int = field(default=0, init=False)
    _is_handed_over: bool = field(default=False, init=False)
    _opening: Merger | None = field(default=None, init=False)  # takes the merges back; kept if that fails

    def __post_init__(self) -> None:
        self.merger = self.new_merger({})
        self.thread = MergeThread(self._merge_in_background, self.every_s, self.retrying, self.merged)

    @property
    def merges_here(self) -> bool:
        """Whether this process merges before its end."""
        return self.every_s is None or math.isfinite(self.every_s)

    @property
    def last(self) -> version_manifest.RecordedVersion | None:
        return self.merger.last

    def open(self, session: SparkSession) -> None:
        """Take over the merges, unless this process merges only at its end, or not at all."""
        if self.merges_here:
            self.merger.open(session)

    def start(self, session: SparkSession, append_epoch: int, appended_lsn: int) -> None:
        """Start the thread, and merge at once what an earlier run has appended."""
        self.session, self._append_epoch = session, append_epoch
        if self.merges_here and appended_lsn > self.merger.merged_lsn:
            self.thread.want(at_once=True)
        self.thread.start()

    def note_batch(self, batch: int, changes: int, *, ends_snapshot: bool) -> None:
        """Record that a batch of this many changes was appended, and request a merge.

        A batch of BACKLOG_CHANGES or more is part of a backlog, and postpones the merge: one large
        merge costs less than several, and batches need the cores. The backlog is merged at once
        after the first smaller batch, or when MANY_CHANGES are unmerged; otherwise, `every_s` after
        its last batch.

        The end of a snapshot is merged at once, since only a merge reports it, and only a merge
        can apply some of these (table_states.first_unreadable). So is the first batch of a new
        mirror, unless it is part of a backlog, so that programs that read the tables directly soon
        find them. Nothing is requested here if `every_s` is 0, since AppendingMirror then calls
        `merge_now` after each batch.
        """
        self._batch = batch
        self.waiting += changes
        if not self.merges_here or self.every_s == 0:
            return
        was_large, self._was_large = self._was_large, changes >= BACKLOG_CHANGES
        self.has_backlog |= self._was_large
        if ends_snapshot or self.waiting >= MANY_CHANGES:
            self.thread.want(at_once=True)
        elif self._was_large:
            self.thread.postpone()
        else:
            self.thread.want(at_once=was_large or not self.has_first)
            self.has_first = True

    def finish(self, session: SparkSession) -> None:
        """Merge everything that was appended, in this thread, when no other merge begins any more.
        Do nothing if `walgate merge` has the merges, unless `every_s` is infinity: then take them
        from it."""
        self.session = session
        if not self.merges_here:
            self.merger.open(session)
        self._merge(TABLES_AT_ONCE)

    def _merge_in_background(self) -> None:
        """Merge while batches run. Batches need cores too: a small job of a merge has half as many
        tasks as there are cores, and no more tables than that are written at once. These limits do
        not apply after a backlog, or if batches wait for the merge. The cores are counted for each
        merge, since executors may have been added."""
        assert self.session is not None
        if self.has_backlog or self.every_s == 0:
            self._merge(TABLES_AT_ONCE)
        else:
            half = max(1, self.session.sparkContext.defaultParallelism // 2)
            self._merge(min(TABLES_AT_ONCE, half), tasks(half))

    def _merge(self, tables_at_once: int, own: Mapping[str, str] = NO_SETTINGS) -> None:
        """Merge, then do maintenance. While `walgate merge` has taken over the merges, do nothing.
        `own`: settings for the session of the merges."""
        assert self.session is not None
        self.waiting, self.has_backlog = 0, False
        with settings(self.session, own):
            while not self._has_merged(self.session, tables_at_once):
                if not self._is_given_back(self.session):
                    if not self._is_handed_over:
                        self._is_handed_over = True
                        self.handed_over()
                    self.thread.postpone(_LOOK_AGAIN_S)
                    return
                self._opening = self.new_merger(self.merger.schemas)
        self.merger.maintain(self.session, self._batch, compacts=True)

    def _has_merged(self, spark: SparkSession, tables_at_once: int) -> bool:
        """Merge everything appended. Return False if another writer has taken over the merges."""
        try:
            if self._opening is not None:
                self._take_back(spark, self._opening)
            self.merger.tables_at_once = tables_at_once
            self.merger.merge_waiting(spark, self._batch)
        except writer_epoch.WriterSuperseded:
            self._opening = None
            return False
        self._is_handed_over = False
        return True

    def _take_back(self, spark: SparkSession, opening: Merger) -> None:
        """Take the merges back from a `walgate merge` that has ended. After an error this is
        repeated, unless another `walgate merge` has claimed the merges: then raise
        WriterSuperseded. Merges that `opening` has claimed already are not given back any more."""
        if not self._is_given_back(spark):
            opening.check_writer(spark)
        opening.open(spark)
        self.merger, self._opening = opening, None

    def _is_given_back(self, spark: SparkSession) -> bool:
        """Return whether `walgate merge` has given the merges back. Raises WriterSuperseded if
        another writer has taken over the appends."""
        writer_epoch.check_appends(spark, self.merger.path, self._append_epoch)
        return writer_epoch.is_given_back(spark, self.merger.path)
