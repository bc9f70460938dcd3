"""`python -m tests.support.java_archives`: creates archives of the classes that a broker, a registry and a
mirror load, for quick_java.py, and the jar of tests/java. Takes 50 s, once."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars
from gateway.local.java import java
from gateway.local.kafka import QUICK_START
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.reader.registry import Registry as SchemaRegistry
from spark_consumer.reader.registry import SchemaCache
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.support.quick_java import ARCHIVES, FOLDER, JAVA, JAVA_HOME, MAKES, SOURCES, home

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))


def make() -> None:
    """Run a broker, a registry and a mirror for a moment; the classes they have loaded are archived
    when they end."""
    if JAVA_HOME in os.environ or ((made := home()) / "ready").exists():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    (made / "bin").mkdir(parents=True)
    program = made / "bin" / "java"
    program.write_text(JAVA.format(java=f"'{java()}'", home=f"'{made}'", makes=MAKES))
    program.chmod(0o755)
    base = made / "base.jsa"
    subprocess.run([java(), "-Xshare:dump", f"-XX:SharedArchiveFile={base}"], stdout=subprocess.PIPE, check=True)
    os.environ |= {JAVA_HOME: str(made), MAKES: "1"}
    asyncio.run(_work(made / "files.jar"))
    assert {path.stem for path in made.glob("*.jsa")} == {"base", *ARCHIVES}
    (made / "ready").touch()


async def _work(jar: Path) -> None:
    """Start all three at once, and end them at once: a start leaves a core idle for half of the
    time."""
    kafka, registry = Kafka(jvm_options=[QUICK_START]), Registry()
    with tempfile.TemporaryDirectory() as folder:
        try:
            spark, *_ = await asyncio.gather(asyncio.to_thread(_session, folder), kafka.start(), registry.start())
            await asyncio.to_thread(_mirror, spark, folder, kafka.bootstrap_servers, registry.url)
            _compile(spark.sparkContext._gateway.jvm, jar)
            await asyncio.gather(asyncio.to_thread(_end, spark), kafka.stop(), registry.stop())
        finally:
            await asyncio.gather(kafka.close(), registry.close())


def _session(folder: str) -> Any:
    settings = {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.local.dir": f"{folder}/local"}
    return local_session("archives", java_home=java().parents[1], jars=jars("delta"), cores=2, settings=settings)


def _mirror(spark: Any, folder: str, bootstrap_servers: str, registry_url: str) -> None:
    feeder = Feeder(bootstrap_servers, registry_url, "archives")
    mirror = AppendingMirror(f"{folder}/mirror", SchemaCache(SchemaRegistry({"url": registry_url})), merge_every_s=0.0)
    items = feeder.table(ITEMS)
    for number in range(2):
        transaction = feeder.begin()
        transaction.insert(items, {"id": number, "name": "a"})
        transaction.commit()
        feeder.kafka_commit()
        mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), number)
    assert versions.read(spark, f"{folder}/mirror")["public.items"].count() == 2
    feeder.close()


def _end(spark: Any) -> None:
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _compile(jvm: Any, jar: Path) -> None:
    """Compile with the compiler that Spark uses for its queries: the packages' Java has none."""
    with ZipFile(jar, "w") as file:
        for path in SOURCES.iterdir():
            if path.suffix != ".java":
                file.write(path, path.name)
                continue
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(path.read_text())
            for name, code in dict(compiler.getBytecodes()).items():
                file.writestr(f"{name.replace('.', '/')}.class", code)


if __name__ == "__main__":
    make()
