"""Distribution of test files to test processes, and their order, so that all cores are busy until
the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_PLAYED_ONCE = "tests/evolution/"  # most of its files share one scene
_SPARK, _FAULTS, _OTHER = "spark_consumer", "exactly_once", "other"
_KINDS = (
    {_SPARK},
    {_SPARK, _OTHER},
    {_FAULTS},
)  # kinds of the first processes; the remaining processes run the other kinds


def _kind(path: Path) -> str:
    return next((kind for kind in (_SPARK, _FAULTS) if kind in path.parts), _OTHER)


def _rank(kind: str, own: set[str]) -> int:
    """Return the order in which a process takes files: its own kinds first, then those that do not
    need servers with a long start."""
    return 0 if kind in own else 1 if kind == _OTHER else 2


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort large files first, so that no process is left with a long one at the end. Files with
    Spark are distributed among the others: they need CPU time, while the others mostly wait for
    servers."""
    largest_first = sorted(paths, key=lambda path: -path.stat().st_size)
    spark = [path for path in largest_first if _kind(path) == _SPARK]
    order = [path for path in largest_first if _kind(path) != _SPARK]
    step = len(order) * 5 / 6 / max(len(spark), 1)
    for number, path in enumerate(spark):
        order.insert(number + int(number * step), path)
    return order


class KindsInFewProcesses(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process files of its own kinds as long as there are any. Spark takes a minute of
    CPU time in each process until its Java is compiled, and tests that break servers need a broker
    in each."""

    def _split_scope(self, nodeid: str) -> str:
        return _PLAYED_ONCE if nodeid.startswith(_PLAYED_ONCE) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = self.nodes.index(node)
        own = _KINDS[number] if number < len(_KINDS) else {_OTHER}
        self.workqueue.move_to_end(min(self.workqueue, key=lambda file: _rank(_kind(Path(file)), own)), last=False)
        super()._assign_work_unit(node)
