"""Filter the standard error of Java while Spark starts it: drop the lines that Java writes at each
start, and report the cause if the start fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

from pyspark.errors import PySparkRuntimeError

from spark_consumer.errors import JavaUnusable

OLDEST_JAVA = 17
_NOISE = re.compile(
    rb"WARNING: Using incubator modules: |WARNING: (A terminally deprecated|sun\.misc\.Unsafe|Please consider reporting)|"
    rb"Using Spark's default log4j profile: |Setting default log level to |To adjust logging level use |"
    rb"Setting Spark log level to |\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) "
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_S = 30.0


class _Pipe:
    """The standard error of Java: buffered until the start has ended, then copied to this process's
    standard error."""

    def __init__(self) -> None:
        self._out = os.dup(2)
        self._lock = threading.Lock()
        self._kept: bytes | None = b""
        self._reading, self.writing = os.pipe()
        threading.Thread(target=self._copy, name="java's stderr", daemon=True).start()

    def restore(self) -> None:
        os.dup2(self._out, 2)

    def release(self) -> None:
        """Write the buffered lines, without the noise, and copy all later output as it arrives."""
        lines = self.kept().splitlines(keepends=True)
        with self._lock:
            self._write(b"".join(line for line in lines if not _NOISE.match(line)))
            self._kept = None

    def kept(self) -> bytes:
        """Return everything that Java has written so far."""
        with self._lock:
            while select([self._reading], [], [], 0)[0] and (chunk := os.read(self._reading, 65536)):
                self._kept = (self._kept or b"") + chunk
            return self._kept or b""

    def _copy(self) -> None:
        while True:
            select([self._reading], [], [])
            with self._lock:
                if not select([self._reading], [], [], 0)[0]:  # `kept` has read it in the meantime
                    continue
                chunk = os.read(self._reading, 65536)
                if not chunk:
                    return
                if self._kept is None:
                    self._write(chunk)
                else:
                    self._kept += chunk

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]


@contextmanager
def quiet_start() -> Iterator[None]:
    """Filter standard error while Spark starts Java within the context. Raises JavaUnusable if Java
    does not start."""
    pipe = _Pipe()
    sys.stderr.flush()
    os.dup2(pipe.writing, 2)  # inherited by Java
    os.close(pipe.writing)
    try:
        yield
    except PySparkRuntimeError as problem:
        pipe.restore()
        if problem.getCondition() != "JAVA_GATEWAY_EXITED":
            pipe.release()
            raise
        raise JavaUnusable(_cause(pipe.kept().decode(errors="replace"))) from None
    except BaseException:
        pipe.restore()
        pipe.release()
        raise
    else:
        pipe.restore()
        pipe.release()


def _cause(said: str) -> str:
    home = os.environ.get("JAVA_HOME", "")
    java = f"{home}/bin/java" if home else shutil.which("java")
    remedy = "set JAVA_HOME to the directory of a Java 17 or 21"
    if home and "WALGATE_SPARK_SETUP" in os.environ:
        remedy += ", or unset it to use the Java of the package walgate"
    if java is None:
        return f"Spark needs Java, but JAVA_HOME is not set, and no java is in PATH: {remedy}"
    if not Path(java).is_file():
        return f"Spark needs Java, but {java} does not exist (JAVA_HOME is {home}): {remedy}"
    version = _version(java)
    if version is not None and version < OLDEST_JAVA:
        return f"Spark needs Java {OLDEST_JAVA} or later, but {java} is Java {version}: {remedy}"
    lines = [line for line in said.splitlines() if line.strip() and not _NOISE.match(line.encode())]
    told = f": {lines[0].strip()}" if lines else ""
    return f"{java} ended while Spark was starting{told} (--verbose shows all that it wrote)"


def _version(java: str) -> int | None:
    """Return Java's major version; None if it cannot be determined."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return None if found is None else int(found[1])
