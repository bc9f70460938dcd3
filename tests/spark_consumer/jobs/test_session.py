"""What a Spark session is asked for, without Spark."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.local.java import spark_java_home
from spark_consumer.errors import MirrorError
from spark_consumer.jobs import session
from spark_consumer.jvm import java_session
from spark_consumer.mirror.delta.java_delta import delta_log_class
from spark_consumer.mirror.delta.session_settings import FORGETS_NUMBERS, SESSION


class Builder:
    """Of a session; `file`: what Spark's Java is told by a file; `unset`: names taken from the session."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.file = ""
        self.unset: list[str] = []

    def config(self, *, map: dict[str, str]) -> Builder:  # noqa: A002
        self.settings |= map
        return self

    def appName(self, name: str) -> Builder:
        return self.config(map={"spark.app.name": name})

    def getOrCreate(self) -> SimpleNamespace:
        words = os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()
        if "--extra-properties-file" in words:
            file = Path(words[words.index("--extra-properties-file") + 1])
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            self.file = file.read_text()
        return SimpleNamespace(conf=SimpleNamespace(unset=self.unset.append))


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    for name in ("PYTHONPATH", "PYTHONSAFEPATH", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back behind the test
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=made))
    for done in ("register", "tune"):
        monkeypatch.setattr(session, done, lambda *_: None)
    return made


def test_a_cluster_gets_what_the_jobs_rely_on_and_nothing_of_this_computer(builder: Builder) -> None:
    session.job_session("job", "spark://master:7077", ["/a.jar", "/b.jar"], settings={"spark.log.level": "WARN"})
    assert builder.settings.items() >= session.NEEDED.items()
    assert builder.settings["spark.master"] == "spark://master:7077"
    assert builder.settings["spark.jars"] == "/a.jar,/b.jar" and builder.settings["spark.log.level"] == "WARN"
    assert not {"spark.driver.host", "spark.sql.shuffle.partitions", "spark.driver.memory"} & builder.settings.keys()
    assert builder.unset == [FORGETS_NUMBERS]


def test_what_spark_submit_was_told_wins(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"spark.jars": "/of_submit.jar", "spark.log.level": "INFO", "spark.sql.extensions": "other.Extension"}
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "submitted_settings", lambda: told)
    session.job_session("job", "", ["/a.jar"], memory_mb=512, settings={"spark.x": "1"}, secrets={"spark.key": "p"})
    found = builder.settings
    assert (found["spark.jars"], found["spark.log.level"], found["spark.x"]) == ("/of_submit.jar", "INFO", "1")
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,other.Extension"
    assert found["spark.key"] == "p" and "spark.master" not in found and "spark.driver.memory" not in found


def test_secrets_are_not_among_the_arguments_of_a_process(builder: Builder) -> None:
    secrets = {"spark.hadoop.fs.s3a.secret.key": "a\\b=c\nd"}
    session.local_session("job", cores=1, settings={"spark.x": "1"}, secrets=secrets)
    assert builder.file == "spark.hadoop.fs.s3a.secret.key=a\\\\b=c\\nd\n"
    assert builder.settings.items() >= {"spark.x": "1", "spark.master": "local[1]", "spark.ui.enabled": "false"}.items()
    assert not secrets.keys() & builder.settings.keys() and "PYSPARK_SUBMIT_ARGS" not in os.environ


REFUSED = r"(?s)do not run over Spark Connect.*spark-submit"


def test_a_session_of_spark_connect_is_refused_by_name() -> None:
    connect: Any = SimpleNamespace()
    for look in (delta_log_class, java_session):
        with pytest.raises(MirrorError, match=REFUSED):
            look(connect)


@pytest.mark.parametrize(
    ("master", "settings", "remote"),
    [("sc://spark:15002", {}, ""), ("local", {"spark.remote": "local"}, ""), ("local", {}, "sc://spark:15002")],
)
def test_a_server_of_spark_connect_is_refused_before_it_is_asked(
    master: str, settings: dict[str, str], remote: str, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(MirrorError, match=REFUSED):
        session.job_session("job", master, settings=settings)
    assert not builder.settings


def test_a_local_session_without_jars_knows_no_delta(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else each query of a program that only reads topics ends with a class that is not there."""
    session.local_session("reads")
    assert not SESSION.keys() & builder.settings.keys()
    builder.settings.clear()
    session.local_session("reads", settings={"spark.jars": "/delta.jar"})
    assert builder.settings.items() >= SESSION.items()
    builder.settings.clear()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    session.local_session("reads")
    assert builder.settings.items() >= SESSION.items()


@pytest.mark.integration
def test_a_program_reads_without_jars() -> None:
    program = (
        "from spark_consumer.jobs.session import local_session as s; print(s('x').range(4).where('id > 1').count())"
    )
    environment = {**os.environ, "JAVA_HOME": str(spark_java_home())}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "2", done.stderr
