"""Scheduling of merges: a thread merges at intervals while changes are waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_consumer.errors import MirrorError

MERGE_EVERY_S = 60.0
MERGES_SHARE = 0.2
MERGE_AT_LEAST_EVERY_S = 300.0
"""Merges for which no interval was specified take at most MERGES_SHARE of the time, since batches
need the same cores. They begin at least every MERGE_AT_LEAST_EVERY_S seconds, unless batches of a
backlog postpone them (`postpone`)."""
PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""Seconds between attempts of a merge."""


class MergeThread:
    """Thread that runs `merge`. `every_s`: least number of seconds between the starts of two
    merges, unless the second is requested at once. None: MERGE_EVERY_S, or up to
    MERGE_AT_LEAST_EVERY_S if merges would take more than MERGES_SHARE of the time. `retrying`:
    called with the error of a merge that will be retried, and the seconds until then. `merged`:
    called after each call of `merge` without an error, also one that merged nothing.

    idle --want, postpone--> waiting --every_s over, or at_once--> merging --> idle
    waiting --postpone--> waiting, every_s from now on
    merging --fails--> pause --> merging, at most len(PAUSES_S) times
    merging --fails once more, or with MirrorError--> ended, and `check` raises the error
    any  --end---> ended, after the running merge

    A caller of `merge_now` waits for the next merge that begins.
    """

    def __init__(
        self,
        merge: Callable[[], None],
        every_s: float | None,
        retrying: Callable[[Exception, float], None] = lambda *_: None,
        merged: Callable[[], None] = lambda: None,
    ) -> None:
        self._merge, self._retrying, self._merged = merge, retrying, merged
        self._every_s = MERGE_EVERY_S if every_s is None else every_s
        self._is_ours = every_s is None
        self._changed = threading.Condition()
        self._wanted = self._at_once = self._ended = False
        self._due = 0.0  # monotonic clock
        self._begun = self._done = 0  # numbers of merges
        self._is_over = False  # whether no further merge will begin
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
        """Request a merge, but not in the next `every_s` seconds (or `at_least_s`, if that is
        more), unless one is requested at once."""
        with self._changed:
            self._wanted, self._due = True, time.monotonic() + max(self._every_s, at_least_s)
            self._changed.notify_all()

    def merge_now(self) -> None:
        """Return after a call of `merge` that began after this one, or when no further merge will
        begin. Raises the error that ended the merges."""
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
        """Raise the error that ended the merges."""
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            self._merge_while_wanted()
        except Exception as problem:  # of any kind: `check` raises it in the thread that appends
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
        """Merge, and retry after errors of the storage or the cluster, which may be temporary. A
        MirrorError is not."""
        for pause_s in PAUSES_S:
            try:
                self._merge()
                self._merged()
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
        self._merged()

    def _is_due(self) -> bool:
        """Wait until a merge is due. Return False if the thread was ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ended)
            while not (self._at_once or self._ended) and (left_s := self._due - time.monotonic()) > 0:
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            self._wanted = self._at_once = False
            self._begun += not self._ended
            return not self._ended
