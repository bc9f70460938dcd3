"""Java and Delta's jars for Spark jobs: what the environment names is not replaced, and not
fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import spark

OURS = {"JAVA_HOME": "/ours/java", "WALGATE_SPARK_JARS": "/ours/a.jar,/ours/b.jar"}


@pytest.mark.parametrize(
    "given", [{}, {"JAVA_HOME": "/java"}, {"WALGATE_SPARK_JARS": "/a.jar"}, dict.fromkeys(OURS, "")]
)
def test_each_variable_is_ours_unless_it_is_given(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def java_home() -> Path:
        asked.append("JAVA_HOME")
        return Path("/ours/java")

    def jars(name: str) -> tuple[Path, ...]:
        asked.append("WALGATE_SPARK_JARS")
        return (Path("/ours/a.jar"), Path("/ours/b.jar"))

    monkeypatch.setattr(spark, "spark_java_home", java_home)
    monkeypatch.setattr(spark, "jars", jars)
    missing = {name: value for name, value in OURS.items() if name not in given}
    assert spark.spark_environment(given) == missing
    assert asked == list(missing)
