"""A job's command in this process, with the session of the tests: the same code, without a start of
Java and Python for each."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from spark_consumer.jobs.cli import app
from spark_consumer.jobs.options import SparkChoice
from spark_consumer.jvm import cloned
from tests.spark_consumer.feeder import Feeder, words_of


def run_here(spark: SparkSession, verb: str, feeder: Feeder, path: Path, *more: str) -> tuple[int, str]:
    """Exit code, and what it wrote to stderr."""
    done = _invoke(spark, verb, feeder, path, *more)
    return done.exit_code, done.stderr


def reports_here(spark: SparkSession, verb: str, feeder: Feeder, path: Path, *more: str) -> list[dict[str, Any]]:
    """What it reported."""
    done = _invoke(spark, verb, feeder, path, *more)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _invoke(spark: SparkSession, verb: str, feeder: Feeder, path: Path, *more: str) -> Result:
    words = [*words_of(feeder), "--path", str(path), "--progress", "json", *more]
    session = cloned(spark)
    session.stop = lambda: None  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patched, _signals_as_before():
        patched.setattr(SparkChoice, "session", lambda *_, **__: session)
        done = CliRunner().invoke(app, [verb, *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@contextmanager
def _signals_as_before() -> Iterator[None]:
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
