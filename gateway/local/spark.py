"""The requirements of the Spark jobs that are not Python packages: Delta's jars, and a Java
runtime, which has no incubator modules.

`python -m gateway.local.spark` prints the variables that the environment lacks, as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from gateway.errors import StopForOperator
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home

# By release of Spark, the set of artifacts.lock with the build of Delta for it.
_DELTA = {"4.0": "delta-4-0", "4.1": "delta-4-1", "4.2": "delta"}


def delta_jars() -> tuple[Path, ...]:
    """Return Delta's jars for the installed PySpark. Raises StopForOperator."""
    installed = version("pyspark")
    release = ".".join(installed.split(".")[:2])
    if release not in _DELTA:
        raise StopForOperator(
            f"Delta has no release for PySpark {installed}, which is installed",
            hint=f"Mirrors and changelogs need PySpark {', '.join(_DELTA)}: pip install 'walgate[spark]'.",
        )
    return jars(_DELTA[release])


def spark_environment(given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the variables for `python -m spark_consumer` that `given` lacks. Downloads the jars if
    they are needed and not in the cache. An empty WALGATE_SPARK_JARS means that Spark's own folder
    contains them."""
    ours = {}
    if "JAVA_HOME" not in given:
        ours["JAVA_HOME"] = str(spark_java_home())
    if "WALGATE_SPARK_JARS" not in given:
        ours["WALGATE_SPARK_JARS"] = ",".join(map(str, delta_jars()))
    return ours


def main() -> None:
    try:
        print(json.dumps(spark_environment(os.environ)))
    except StopForOperator as error:
        print(f"walgate: {error}", file=sys.stderr)
        raise SystemExit(78) from None


if __name__ == "__main__":
    main()
