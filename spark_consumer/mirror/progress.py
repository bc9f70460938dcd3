"""Micro-batches and merges that take long: every ten seconds, what share of one is done, and how
fast it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """`name`: of the micro-batch or merge. `seconds`: since it began. `share`: what is done, 0 to
    1; None: not known. `changes`: how many it has; None: not known."""

    name: str
    seconds: float
    share: float | None
    changes: int | None


@dataclass
class ChangeCount:
    """Of a merge: `total`, and how many of them are written."""

    total: int = 0
    done: int = 0

    def share(self) -> float | None:
        return self.done / self.total if self.total else None


Told = Callable[[Progress], None]


def told_nothing(_: Progress) -> None:
    """For who does not want to know."""


@contextmanager
def told_every(
    tell: Told, name: str, share: Callable[[], float | None], changes: Callable[[], int | None]
) -> Iterator[None]:
    """Calls `tell` every EVERY_S seconds within. `share` and `changes` are asked by a thread of its
    own."""
    began, ended = time.monotonic(), threading.Event()

    def run() -> None:
        while not ended.wait(EVERY_S):
            tell(Progress(name, time.monotonic() - began, share(), changes()))

    thread = threading.Thread(target=run, name=f"progress of {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def task_share(spark: SparkSession) -> Callable[[], float | None]:
    """What share of the tasks is done of the jobs that this thread has started and that have not
    ended."""
    context = spark.sparkContext
    group = context.getLocalProperty("spark.jobGroup.id")

    def share() -> float | None:
        tracker = context.statusTracker()
        try:
            own = set(tracker.getJobIdsForGroup(group))
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds() if job in own]
            stages: list[Any] = [
                tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
            ]
        except Py4JError:  # Spark is being stopped
            return None
        counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
        total = sum(count for _, count in counts)
        return sum(done for done, _ in counts) / total if total else None

    return share


def line_of(progress: Progress) -> str:
    parts = [f"{progress.seconds:.0f} s"]
    if progress.share is not None:
        of_all = "" if progress.changes is None else f" of {progress.changes:,} changes"
        parts.append(f"{progress.share:.0%}{of_all} done")
        if progress.changes is not None:
            parts.append(f"{progress.share * progress.changes / progress.seconds:,.0f} changes/s")
    return f"{progress.name}: {', '.join(parts)}"


def facts_of(progress: Progress) -> dict[str, Any]:
    """For JSON."""
    share = None if progress.share is None else round(progress.share, 3)
    return {
        "working": progress.name,
        "seconds": round(progress.seconds, 1),
        "share": share,
        "changes": progress.changes,
    }
