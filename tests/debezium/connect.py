"""Kafka Connect for the tests: the real one, standalone, with Debezium's sink and Confluent's Avro
converter.

What it needs beside Kafka's own jars is pinned in `artifacts.lock` here; the converter comes with
Debezium Server.
"""

from __future__ import annotations

import json
import signal
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from bench.debezium import STOP_TIMEOUT_S, converter_jars
from gateway.local import Kafka, Registry
from gateway.local.artifacts import cache_folder, jars, load_lock, repository_url
from gateway.local.download import Download, fetch
from gateway.local.guard import Child, Guard
from gateway.local.java import java
from gateway.local.ports import HOST, free_port

LOCK_PATH = Path(__file__).with_name("artifacts.lock")
START_TIMEOUT_S = 180.0
HEAP = "512m"


@dataclass(frozen=True, slots=True)
class Worker:
    child: Child
    url: str

    def raise_failures(self) -> None:
        """Fails with the trace of a task that has failed."""
        for name in _read(f"{self.url}/connectors"):
            for task in _read(f"{self.url}/connectors/{name}/status")["tasks"]:
                assert task["state"] != "FAILED", f"{name}: {task['trace']}"


def files(set_name: str) -> list[Path]:
    """Of one set of `artifacts.lock`, downloaded where they are missing."""
    folder = cache_folder() / "artifacts"
    wanted = [(one, folder / one.coordinate.path) for one in load_lock(LOCK_PATH)[set_name]]
    missing = [Download(one.coordinate.path, path, one.size, one.sha256) for one, path in wanted if not path.exists()]
    if missing:
        fetch(repository_url(), missing)
    return [path for _, path in wanted]


@asynccontextmanager
async def connect_worker(
    kafka: Kafka, registry: Registry, connectors: Mapping[str, Mapping[str, str]], plugin: Sequence[Path] = ()
) -> AsyncIterator[Worker]:
    """A worker that runs these connectors (name -> settings); it answers when this enters.
    `plugin`: the jars of one, else Debezium's sink."""
    guard = await Guard.open("connect")
    try:
        plugins = guard.folder / "plugins"
        _lay_out(plugins, plugin)
        url = f"http://{HOST}:{free_port()}"
        settings = _worker_settings(kafka, registry, guard.folder, url) | {"plugin.path": str(plugins)}
        configurations = [_written(guard.folder / "worker.properties", settings)]
        for name, own in connectors.items():
            configurations.append(_written(guard.folder / f"{name}.properties", {"name": name, **own}))
        child = await guard.start("connect", _command(guard.folder, configurations))

        async def answers() -> bool:
            try:
                return set(_read(f"{url}/connectors")) == set(connectors)
            except (URLError, ConnectionError, TimeoutError):
                return False

        await child.ready(answers, START_TIMEOUT_S)
        yield Worker(child, url)
        await child.stop(signal.SIGTERM, STOP_TIMEOUT_S)
    finally:
        await guard.close()


def _lay_out(plugins: Path, jars_of_plugin: Sequence[Path]) -> None:
    if not jars_of_plugin:
        (archive,) = files("debezium-sink")
        with tarfile.open(archive) as tar:
            tar.extractall(plugins, filter="data")
    for jar in jars_of_plugin:
        place = plugins / "plugin" / jar.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(jar)


def _worker_settings(kafka: Kafka, registry: Registry, folder: Path, url: str) -> dict[str, str]:
    converters = {
        f"{side}.converter{name}": value
        for side in ("key", "value")
        for name, value in (
            ("", "io.confluent.connect.avro.AvroConverter"),
            (".schema.registry.url", registry.url),
        )
    }
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        **converters,
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "listeners": url,
        "consumer.isolation.level": "read_committed",
        "consumer.auto.offset.reset": "earliest",
        "consumer.metadata.max.age.ms": "1000",
    }


def _written(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _command(folder: Path, configurations: list[Path]) -> list[str | Path]:
    class_path = [*files("connect"), *jars("kafka"), *converter_jars()]
    return [
        java(),
        *(f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
        f"-Djava.io.tmpdir={folder}",
        *("-cp", ":".join(map(str, class_path)), "org.apache.kafka.connect.cli.ConnectStandalone"),
        *configurations,
    ]


def _read(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)
