"""Spark's own cluster manager with two workers, and a server with the API of S3, on 127.0.0.1."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import logging
import signal
import sys
from pathlib import Path

import pyspark

from gateway.local import Child, Guard
from gateway.local.artifacts import fetch_sets, jars, locked_version
from gateway.local.java import java, spark_java_home
from gateway.local.ports import HOST, answers, free_port
from gateway.local.server import Server

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
# As for the registry: what starts soonest.
SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class ObjectStorage(Server):
    """S3Proxy over a folder: each object is a file, so that a test can look at a mirror without
    S3."""

    KEY, SECRET, BUCKET = "walgate", "secret of the lake", "lake"

    def __init__(self) -> None:
        super().__init__()
        self.version = locked_version("s3proxy", "s3proxy")
        self.port = free_port()

    @property
    def bucket(self) -> Path:
        return self.folder / "buckets" / self.BUCKET

    @property
    def settings(self) -> dict[str, str]:
        """Of Spark, without the secret key."""
        return {
            "spark.hadoop.fs.s3a.endpoint": f"http://{HOST}:{self.port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": self.KEY,
        }

    async def start(self) -> None:
        if self.pid is not None:
            return
        if self._guard is None:
            await asyncio.to_thread(fetch_sets, "s3proxy", "s3a")
            self._guard = await Guard.open("s3")
            self.bucket.mkdir(parents=True)
        settings = {
            "s3proxy.endpoint": f"http://{HOST}:{self.port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.KEY,
            "s3proxy.credential": self.SECRET,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.bucket.parent),
        }
        properties = self.folder / "s3proxy.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (jar,) = jars("s3proxy")
        command: list[str | Path] = [java(), "-Xmx256m", *SMALL_JAVA.split(), "-jar", jar, "--properties", properties]
        self._process = await self._guard.start("s3proxy", command)
        await self._process.ready(lambda: answers(self.port), START_TIMEOUT_S)
        _log.info("%s %s answers on port %d", "S3Proxy", self.version, self.port)


class Cluster(Server):
    """Workers with a core each."""

    def __init__(self, workers: int = 2) -> None:
        super().__init__()
        self.port = free_port()
        self.page = free_port()
        self._count = workers
        self._numbers = itertools.count()
        self.workers: list[Child] = []

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    async def start(self) -> None:
        """Returns when the master knows all workers."""
        if self.pid is not None:
            return
        self._guard = await Guard.open("spark")
        self._process = await self._run("master", MASTER, "--port", str(self.port), "--webui-port", str(self.page))
        await self._process.ready(lambda: answers(self.port), START_TIMEOUT_S)
        for _ in range(self._count):
            await self.add_worker()
        await self._process.ready(self._is_complete, START_TIMEOUT_S)
        _log.info("%s %s answers on port %d", "Spark", pyspark.__version__, self.port)

    async def add_worker(self) -> None:
        name = f"worker-{next(self._numbers)}"
        words = ("--cores", "1", "--memory", "1g", "--webui-port", str(free_port()), "--port", str(free_port()))
        self.workers.append(await self._run(name, WORKER, *words, "--work-dir", str(self.folder / name), self.url))

    async def kill_worker(self) -> None:
        """The first, with its executors."""
        self.workers[0].send_signal(signal.SIGKILL)
        await self.workers.pop(0).wait()

    async def _run(self, name: str, *words: str) -> Child:
        assert self._guard is not None
        command: list[str | Path] = [Path(pyspark.__file__).parent / "bin" / "spark-class", *words, "--host", HOST]
        environment = {
            "JAVA_HOME": str(spark_java_home()), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder), "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        return await self._guard.start(name, command, environment=environment)

    async def _is_complete(self) -> bool:
        return await asyncio.to_thread(self._alive) == self._count

    def _alive(self) -> int:
        connection = http.client.HTTPConnection(HOST, self.page, timeout=5)
        try:
            connection.request("GET", "/json/")
            answer = connection.getresponse()
            return int(json.loads(answer.read())["aliveworkers"]) if answer.status == http.HTTPStatus.OK else 0
        except OSError:
            return 0
        finally:
            connection.close()

    async def stop(self) -> None:
        await self._stop(signal.SIGTERM, STOP_TIMEOUT_S)
