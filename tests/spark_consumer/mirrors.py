"""Mirrors that merge after each batch, as `--merge-every 0` does: their tables are compared with
the source right after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.local.dump import newest
from spark_consumer.mirror.local.version_list import listed_versions
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import Row

Story = Generator[None, Any, None]
"""What happens to a table. It yields where the mirror is to run, and gets its reports."""
merging_mirror = partial(AppendingMirror, merge_every_s=0.0)
waiting_mirror = partial(AppendingMirror, merge_every_s=math.inf)
"""Merges with `merge_waiting` alone."""


_merges: Counter[str] = Counter()
"""Merges so far, by the path of their mirror."""


class RunningMirror:
    """A mirror that takes batches, and merges each. It goes on with what it has opened, which takes
    as long as a merge, until one of them fails or `restart` is called. `told`: its options."""

    def __init__(self, path: str, registry_url: str, **told: Any) -> None:
        self.path, self.schemas, self.told = path, SchemaCache(Registry({"url": registry_url})), told
        self.reports: list[BatchReport] = []
        self._mirror: AppendingMirror | None = None

    def take(self, batch: DataFrame, *, merges: bool = True) -> list[BatchReport]:
        """Return what was reported."""
        mirror = self._mirror or waiting_mirror(self.path, self.schemas, self.reports.append, **self.told)
        self._mirror = None
        self.reports.clear()
        mirror.apply(batch, 0)
        if merges:
            merge_waiting(batch.sparkSession, mirror)
        else:
            mirror.finish(batch.sparkSession, merge=False)
        self._mirror = mirror
        return list(self.reports)

    def restart(self) -> None:
        """Make the next batch one of a mirror that knows nothing but what is stored."""
        self._mirror = None


_running: dict[str, RunningMirror] = {}


def running_mirror(path: Path, registry_url: str) -> RunningMirror:
    """Return the mirror that runs at a path. Of other tests none is kept."""
    if str(path) not in _running:
        _running.clear()
        _running[str(path)] = RunningMirror(str(path), registry_url)
    return _running[str(path)]


def merged_rows(path: str | Path, *names: str) -> dict[str, list[Row]]:
    """Return the rows of these tables (none: of all) as they were merged last. They are read
    without Spark, whose readers take a second or more for each table."""
    return {
        table.name: [row for part in table.files.batches() for row in part.to_pylist()]
        for table in newest(Path(path), names)
    }


def play(run: Callable[[], list[BatchReport]], *stories: Story) -> None:
    """Play stories of different tables in one mirror, since to make a mirror takes longer than to
    merge a table. Where all of them wait it runs once, and they get its reports."""
    reports: list[BatchReport] | None = None
    left = list(stories)
    while left:
        waiting = []
        for story in left:
            with suppress(StopIteration):
                story.send(reports)
                waiting.append(story)
        left, reports = waiting, run() if waiting else None


def merge_waiting(spark: SparkSession, mirror: AppendingMirror) -> None:
    """Merge the changes that wait.

    What a version shows before that is what the merge makes of the tables: each is compared, by
    value, at the second merge of a mirror and at every sixth one after it. The comparison takes as
    long as the merge.
    """
    _merges[mirror.path] += 1
    if _merges[mirror.path] % 6 != 2:
        mirror.finish(spark, merge=True)
        return
    before = None
    with suppress(MirrorError):  # what the merge refuses as well, unless somebody has copied the table meanwhile
        before = _shown(spark, mirror.path) if mirror.reached_lsn >= 0 else None
    mirror.finish(spark, merge=True)
    if before is None or before[0] != listed_versions(Path(mirror.path))[-1].commit_lsn:
        return  # what only a merge knows: table_states.first_unreadable
    after = {name: _texts(rows) for name, rows in merged_rows(mirror.path).items()}
    assert before[1] == after


def _shown(spark: SparkSession, path: str) -> tuple[int, dict[str, list[str]]]:
    version = versions.read(spark, path)
    return version.commit_lsn, {name: _texts(frame.toArrow().to_pylist()) for name, frame in version.items()}


def _texts(rows: list[Row]) -> list[str]:
    return sorted(repr({name: _plain(row[name]) for name in sorted(row)}) for row in rows)


def _plain(value: Any) -> Any:
    """A map has no order; where nothing is special, a merge may leave it out."""
    if isinstance(value, list) and all(isinstance(entry, tuple) for entry in value):
        return sorted(value) or None
    return value
