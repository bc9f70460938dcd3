"""Secret settings of Spark, such as the key of an object store. They are passed to Spark's Java
without being visible in the list of processes."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"  # arguments of the spark-submit with which PySpark starts Java


@contextmanager
def passed_in_file(secrets: Mapping[str, str]) -> Iterator[None]:
    """Pass secret settings to the Java process that Spark starts within the context, in a file that
    only this user can read. Other settings are arguments, which every user of the computer can
    read."""
    if not secrets:
        yield
        return
    with tempfile.NamedTemporaryFile("w", prefix="walgate-", suffix=".conf", encoding="utf-8") as file:
        file.writelines(f"{name}={_property(value)}\n" for name, value in secrets.items())
        file.flush()
        before = os.environ.get(_ARGUMENTS)
        os.environ[_ARGUMENTS] = f"--extra-properties-file {shlex.quote(file.name)} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            del os.environ[_ARGUMENTS]
            if before is not None:
                os.environ[_ARGUMENTS] = before


def _property(value: str) -> str:
    """Escape a value for java.util.Properties."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
