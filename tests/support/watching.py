"""Watches a gateway as operators do: its status, `walgate status` as a process of its own, and the
alerts that Prometheus would raise from its metrics. The truth about the lag is in lag_truth.py."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.http_client import ask_status, probe
from tests.monitoring.prometheus import NAME, STALE, Labels, Samples, Series, firing, seconds
from tests.support.gateway_process import ended, environment_of
from tests.support.scene import Scene

NAMED_S: Final = 15.0
"""So long after it began, whoever is the cause is named everywhere."""
TRUE_S: Final = 0.5
"""The lag may be off by this, at any moment."""
ALMOST_NOTHING_S: Final = 1.5
"""A busy machine delivers a row a second late; that is no lie."""

_FOLDER: Final = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for rule in yaml.safe_load((_FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
}
SCRAPE_S: Final = seconds(yaml.safe_load((_FOLDER / "prometheus.yml").read_text())["global"]["scrape_interval"])


async def status_of(scene: Scene, *options: str) -> tuple[int, str]:
    """`walgate status` as a process of its own: exit code and output."""
    done = await ended(("status", *options), environment_of(scene.gateway.settings))
    return done.returncode, done.stdout


@dataclass
class Recorded:
    """What Prometheus has scraped, at its own interval."""

    port: int
    samples: dict[Labels, Samples] = field(default_factory=dict)
    count: int = 0

    async def scrape(self) -> None:
        now = self.count * SCRAPE_S
        found = await asyncio.to_thread(_scraped, self.port)
        for labels in self.samples.keys() | found.keys():
            self.samples.setdefault(labels, []).append((now, found.get(labels, STALE)))
        self.count += 1

    async def run(self) -> None:
        while True:
            begun = time.monotonic()
            await self.scrape()
            await asyncio.sleep(max(begun + SCRAPE_S - time.monotonic(), 0.0))

    def raised(self, alert: str, older_s: float = 0.0) -> list[str]:
        """The summaries of an alert that fires now, or will if nothing changes within its `for`.
        `older_s`: as if whoever holds the slot had done so for longer."""
        samples = self.samples
        if older_s:
            samples = {labels: _older(labels, values, older_s) for labels, values in samples.items()}
        found = firing([RULES[alert] | {"for": "0s"}], Series(samples), (self.count - 1) * SCRAPE_S, SCRAPE_S)
        return [_filled_in(RULES[alert]["annotations"]["summary"], dict(labels)) for labels in found]


def _scraped(port: int) -> dict[Labels, float]:
    of_job = frozenset({("job", "walgate"), ("instance", "g")})
    up = of_job | {(NAME, "up")}
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=3.0) as answer:
            text = answer.read().decode()
    except (URLError, OSError):
        return {up: 0.0}
    families = text_string_to_metric_families(text)
    values = {
        frozenset({(NAME, one.name), *one.labels.items()}) | of_job: one.value
        for family in families
        for one in family.samples
    }
    return {up: 1.0, **values}


def _older(labels: Labels, values: Samples, more_s: float) -> Samples:
    if (NAME, "walgate_blocker_seconds") not in labels:
        return values
    return [(at, value if value is STALE else value + more_s) for at, value in values]


def _filled_in(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], template)


class Watcher:
    """Of the gateway's port. `recorded` is fed while `watching` runs."""

    def __init__(self, scene: Scene, port: int) -> None:
        self.scene, self.port = scene, port
        self.recorded = Recorded(port)

    async def status(self) -> dict[str, Any]:
        found = await asyncio.to_thread(ask_status, "127.0.0.1", self.port)
        assert found is not None, self.scene.gateway.log_tail()
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool], what: str, within_s: float = 60.0) -> dict[str, Any]:
        begun = time.monotonic()
        while not holds(found := await self.status()):
            assert time.monotonic() - begun < within_s, f"{what}: {found}"
            await asyncio.sleep(0.2)
        return found

    async def ready(self) -> float:
        """The server's time, when nothing is owed."""
        ready = await self.until(lambda found: found["waiting_for"] == "" and found["lag_seconds"] == 0.0, "ready")
        moment: float = ready["server_time"]
        return moment

    async def clock(self) -> float:
        """The server's."""
        found: float = await self.scene.sql("SELECT extract(epoch FROM clock_timestamp())::float8")
        return found

    async def commit(self) -> None:
        await self.scene.workload.one_transaction("plain", 1)

    async def there_is_no_lag(self) -> None:
        """While the stream goes on, each commit is delivered at once."""
        for _ in range(3):
            await self.commit()
            await self.until(lambda seen: seen["lag_seconds"] < ALMOST_NOTHING_S, "the stream goes on", NAMED_S)

    async def is_named(self, alert: str, *words: str, begun: float, older_s: float = 0.0) -> None:
        """By /readyz or the status, by the command, and by an alert; `begun`: monotonic, when it
        began."""
        while True:
            told = [text for text in self.recorded.raised(alert, older_s) if all(word in text for word in words)]
            if told:
                break
            took_s = time.monotonic() - begun
            assert took_s < NAMED_S, f"{alert}: {words} was not named: {self.recorded.raised(alert, older_s)}"
            await asyncio.sleep(0.1)
        print(f"{time.monotonic() - begun:4.1f} s  {alert}: {told[0]}")

    async def command_names(self, *words: str, begun: float) -> None:
        """`walgate status` as a process of its own, run again until it does."""
        while True:
            _, text = await status_of(self.scene)
            took_s = time.monotonic() - begun
            missing = [word for word in words if word not in text]
            assert took_s < NAMED_S, f"walgate status: {missing} after {took_s:.1f} s:\n{text}"
            if not missing:
                break
        print(f"{took_s:4.1f} s  walgate status: {words[0]}")

    async def readyz_names(self, *words: str, begun: float) -> None:
        said = ""
        while not all(word in said for word in words):
            assert time.monotonic() - begun < NAMED_S, f"/readyz: {said!r}"
            await asyncio.sleep(0.1)
            said = await asyncio.to_thread(probe, "127.0.0.1", self.port)
        print(f"{time.monotonic() - begun:4.1f} s  /readyz: {said}")


@asynccontextmanager
async def watching(scene: Scene, port: int) -> AsyncIterator[Watcher]:
    """Prometheus scrapes from now on."""
    watcher = Watcher(scene, port)
    scraping = asyncio.create_task(watcher.recorded.run())
    try:
        yield watcher
    finally:
        scraping.cancel()
