"""When a mirror's changes are merged: in a thread of its own, every so many seconds while something
waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_consumer.errors import MirrorError

MERGE_EVERY_S = 60.0
MERGES_SHARE = 0.2
MERGE_AT_LEAST_EVERY_S = 300.0
"""Where nobody has said how often, merges take no more than this share of the time, since batches
need the same cores; but they are made at least so often."""
RETENTION_S = 24 * 3600.0
PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""Between attempts of a merge."""


class MergeThread:
    """`every_s`: from the start of one merge to that of the next, at least; None: MERGE_EVERY_S, or
    up to MERGE_AT_LEAST_EVERY_S where merges would take more than MERGES_SHARE of the time.
    `retrying`: is told why a merge failed that will be made again, and the pause before, in
    seconds.

    idle --want, postpone--> waiting --every_s over, or at_once--> merging --> idle
    waiting --postpone--> waiting, every_s from now on
    merging --fails--> pause --> merging, PAUSES_S times; then, or with a MirrorError, ended, and `check` raises it
    any  --end---> ended: a merge that runs comes to its end

    Who calls `merge_now` waits for the merge that begins next.
    """

    def __init__(
        self,
        merge: Callable[[], None],
        every_s: float | None,
        retrying: Callable[[Exception, float], None] = lambda *_: None,
    ) -> None:
        self._merge, self._retrying = merge, retrying
        self._every_s = MERGE_EVERY_S if every_s is None else every_s
        self._is_ours = every_s is None
        self._changed = threading.Condition()
        self._wanted = self._at_once = self._ended = False
        self._due = 0.0  # by the monotonic clock
        self._begun = self._done = 0  # merges
        self._is_over = False  # no merge will begin any more
        self._problem: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="merges", daemon=True)
        self._thread.start()

    def want(self, *, at_once: bool = False) -> None:
        with self._changed:
            self._wanted, self._at_once = True, self._at_once or at_once
            self._changed.notify_all()

    def postpone(self, at_least_s: float = 0.0) -> None:
        """Wanted, but not for the next `every_s` seconds, or more, unless at once."""
        with self._changed:
            self._wanted, self._due = True, time.monotonic() + max(self._every_s, at_least_s)
            self._changed.notify_all()

    def merge_now(self) -> None:
        """Returns behind a merge that began after this call, or where no merge will begin any more.
        Raises what ended them."""
        with self._changed:
            awaited = self._begun + 1
            self._wanted = self._at_once = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= awaited or self._is_over)
        self.check()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raises what ended the merges."""
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            self._merge_while_wanted()
        except Exception as problem:  # of any kind: the thread that appends raises it
            self._problem = problem
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _merge_while_wanted(self) -> None:
        self._due = time.monotonic() + self._every_s
        while self._is_due():
            began = time.monotonic()
            self._due = began + self._every_s
            self._merge_again()
            with self._changed:
                self._done = self._begun
                self._changed.notify_all()
            if self._is_ours:
                spaced_s = min((time.monotonic() - began) / MERGES_SHARE, MERGE_AT_LEAST_EVERY_S)
                with self._changed:
                    self._due = max(self._due, began + spaced_s)

    def _merge_again(self) -> None:
        """Whatever storage or a cluster says may pass; what Walgate itself says does not."""
        for pause_s in PAUSES_S:
            try:
                self._merge()
                return
            except MirrorError:
                raise
            except Exception as problem:
                if self._ended:
                    raise
                self._retrying(problem, pause_s)
            with self._changed:
                if self._changed.wait_for(lambda: self._ended, pause_s):
                    return
        self._merge()

    def _is_due(self) -> bool:
        """Waits until a merge is; False: ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ended)
            while not (self._at_once or self._ended) and (left_s := self._due - time.monotonic()) > 0:
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            self._wanted = self._at_once = False
            self._begun += not self._ended
            return not self._ended
