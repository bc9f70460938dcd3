"""Which test process runs which files, and in which order, so that no core is idle and none is idle at the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_PLAYED_ONCE = "tests/evolution/"  # one scene for most files


def _runs_spark(path: Path) -> bool:
    return "spark_consumer" in path.parts


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Large files come first, so that no process has a long one when the others are done. Files with Spark are spread over the
    others: theirs is the CPU time, the others wait for servers most of theirs."""
    largest_first = sorted(paths, key=lambda path: -path.stat().st_size)
    spark = [path for path in largest_first if _runs_spark(path)]
    order = [path for path in largest_first if not _runs_spark(path)]
    step = len(order) * 5 / 6 / max(len(spark), 1)
    for number, path in enumerate(spark):
        order.insert(number + int(number * step), path)
    return order


class SparkInFewProcesses(LoadFileScheduling):  # type: ignore[misc]
    """Spark takes a minute of CPU time in each process until its Java is compiled: the first process runs files with Spark as
    long as there are any, the second takes them as they come, the rest run others."""

    def _split_scope(self, nodeid: str) -> str:
        return _PLAYED_ONCE if nodeid.startswith(_PLAYED_ONCE) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = self.nodes.index(node)
        if number != 1:
            fitting = next((file for file in self.workqueue if _runs_spark(Path(file)) == (number == 0)), None)
            if fitting is not None:
                self.workqueue.move_to_end(fitting, last=False)
        super()._assign_work_unit(node)
