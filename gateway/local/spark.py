"""What a Spark job of ours needs from outside the Python packages: a Java without the incubator modules, Delta's jars."""

from __future__ import annotations

from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home


def spark_environment() -> dict[str, str]:
    """Variables for `python -m spark_consumer`; downloads the jars when they are not in the cache."""
    return {"JAVA_HOME": str(spark_java_home()), "WALGATE_SPARK_JARS": ",".join(map(str, jars("delta")))}
