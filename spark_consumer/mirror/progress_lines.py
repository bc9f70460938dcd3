"""Progress of micro-batches and merges that take long: every ten seconds, the share that is done
and the speed."""

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
    """Progress of a micro-batch or merge. `name`: its name; `seconds`: time since it began;
    `share`: part that is done, 0 to 1, or None if not known; `changes`: number of its changes, or
    None if not known."""

    name: str
    seconds: float
    share: float | None
    changes: int | None


@dataclass
class ChangeCount:
    """Number of changes of a merge, in total and written so far."""

    total: int = 0
    done: int = 0

    def share(self) -> float | None:
        return self.done / self.total if self.total else None


ProgressListener = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """Ignore the progress."""


@contextmanager
def report_progress(
    tell: ProgressListener, name: str, share: Callable[[], float | None], changes: Callable[[], int | None]
) -> Iterator[None]:
    """Call `tell` every EVERY_S seconds within the context. `share` and `changes` are called in
    another thread."""
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
    """Return a function that computes the share of finished tasks of the running jobs that this
    thread has started."""
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
    """Return the progress as an object for JSON."""
    share = None if progress.share is None else round(progress.share, 3)
    return {
        "working": progress.name,
        "seconds": round(progress.seconds, 1),
        "share": share,
        "changes": progress.changes,
    }
