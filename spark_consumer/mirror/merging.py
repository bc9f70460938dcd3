"""When a mirror's changes are merged: in a thread of its own, every so many seconds while something waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MERGE_EVERY_S = 60.0
RETENTION_S = 24 * 3600.0


class Merging:
    """`merge`: says whether it is to be called again. `every_s`: from the start of one merge to that of the next, at least.

    idle --want--> waiting --every_s over, or at_once--> merging --> idle
    any  --end---> ended: a merge that runs comes to its end
    """

    def __init__(self, merge: Callable[[], bool], every_s: float) -> None:
        self._merge, self._every_s = merge, every_s
        self._changed = threading.Condition()
        self._wanted = self._at_once = self._ended = False
        self._problem: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="merges", daemon=True)
        self._thread.start()

    def want(self, *, at_once: bool = False) -> None:
        with self._changed:
            self._wanted, self._at_once = True, self._at_once or at_once
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raises what ended the last merge."""
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        while self._is_due(due):
            due = time.monotonic() + self._every_s
            try:
                if not self._merge():
                    return
            except Exception as problem:  # of any kind: the thread that appends raises it
                self._problem = problem
                return

    def _is_due(self, due: float) -> bool:
        """Waits until a merge is; False: ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ended)
            self._changed.wait_for(lambda: self._at_once or self._ended, max(0.0, due - time.monotonic()))
            self._wanted = self._at_once = False
            return not self._ended
