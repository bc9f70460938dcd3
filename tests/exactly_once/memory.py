"""The gateway's resident set over a stretch of time, and the limits that are promised for it."""

from __future__ import annotations

import asyncio
import time

from tests.support.scene import Scene

RESIDENT_LIMIT_BYTES = 200 << 20
SLOPE_LIMIT_BYTES_PER_MINUTE = 1 << 20
SLOPE_SPAN_S = 30.0
"""A slope over less time is noise."""


class Memory:
    """Sampled from now on until `end`."""

    def __init__(self, scene: Scene, interval_s: float = 0.2) -> None:
        self._scene = scene
        self._interval_s = interval_s
        self._samples: list[tuple[float, int]] = []
        self._task = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        while True:
            self._samples.append((time.monotonic(), self._scene.gateway.resident_bytes))
            await asyncio.sleep(self._interval_s)

    def end(self) -> str:
        """The figures in words. Raises AssertionError when the resident set was too large, or
        grew."""
        self._task.cancel()
        half = self._samples[len(self._samples) // 2 :]
        span_s = half[-1][0] - half[0][0]
        highest, slope = max(size for _, size in self._samples), _slope_per_minute(half)
        figures = f"highest resident set {highest >> 20} MB, {slope / (1 << 20):+.2f} MB a minute over the last {span_s:.0f} s"
        assert highest < RESIDENT_LIMIT_BYTES, figures
        assert span_s < SLOPE_SPAN_S or slope < SLOPE_LIMIT_BYTES_PER_MINUTE, figures
        return figures


def _slope_per_minute(samples: list[tuple[float, int]]) -> float:
    """Least squares."""
    times = [when - samples[0][0] for when, _ in samples]
    sizes = [size for _, size in samples]
    mean_time, mean_size = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((when - mean_time) ** 2 for when in times) or 1.0
    return 60 * sum((when - mean_time) * (size - mean_size) for when, size in zip(times, sizes, strict=True)) / spread
