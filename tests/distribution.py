"""Which test process runs which files, and in which order, so that no core is idle and none is idle
at the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_PLAYED_ONCE = "tests/evolution/"  # one scene for most files
_SPARK, _FAULTS, _OTHER = "spark_consumer", "exactly_once", "other"
_KINDS = ({_SPARK}, {_SPARK, _OTHER}, {_FAULTS})  # of the first processes; the rest run others


def _kind(path: Path) -> str:
    return next((kind for kind in (_SPARK, _FAULTS) if kind in path.parts), _OTHER)


def _rank(kind: str, own: set[str]) -> int:
    """What a process with these kinds takes first: theirs, then what needs nothing that takes long
    to start."""
    return 0 if kind in own else 1 if kind == _OTHER else 2


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Large files come first, so that no process has a long one when the others are done. Files
    with Spark are spread over the others: theirs is the CPU time, the others wait for servers most
    of theirs."""
    largest_first = sorted(paths, key=lambda path: -path.stat().st_size)
    spark = [path for path in largest_first if _kind(path) == _SPARK]
    order = [path for path in largest_first if _kind(path) != _SPARK]
    step = len(order) * 5 / 6 / max(len(spark), 1)
    for number, path in enumerate(spark):
        order.insert(number + int(number * step), path)
    return order


class KindsInFewProcesses(LoadFileScheduling):  # type: ignore[misc]
    """Spark takes a minute of CPU time in each process until its Java is compiled, tests that break
    servers a broker in each: a process takes files of its kinds as long as there are any."""

    def _split_scope(self, nodeid: str) -> str:
        return _PLAYED_ONCE if nodeid.startswith(_PLAYED_ONCE) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = self.nodes.index(node)
        own = _KINDS[number] if number < len(_KINDS) else {_OTHER}
        self.workqueue.move_to_end(min(self.workqueue, key=lambda file: _rank(_kind(Path(file)), own)), last=False)
        super()._assign_work_unit(node)
