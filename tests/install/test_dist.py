"""`make dist`: its wheels are complete, need no compiler, and run the demo in a fresh
environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.quick_java import users_environment

ROOT = Path(__file__).parents[2]
DIST = str(ROOT / "tools/dist.py")
UV = str(Path(sys.executable).with_name("uv"))

pytestmark = pytest.mark.timeout(900)


def dist(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DIST, "--folder", str(folder), "--only", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def modules(wheel: Path) -> set[str]:
    return {name for name in ZipFile(wheel).namelist() if name.endswith((".py", ".avsc", ".lock", ".sql"))}


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of plain Python. Its folder has an earlier one, as after another version."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "walgate-0.0.1-py3-none-any.whl").touch()
    built = dist(folder, "sdist", "pure")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    return wheel


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder that the account which runs PostgreSQL can enter."""
    with tempfile.TemporaryDirectory(prefix="dist-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_wheel_of_the_source_distribution_has_every_file_of_the_checkout(pure: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    rooms = {name.split("/")[0] for name in modules(pure)}
    assert rooms >= {"gateway", "schemas", "spark_consumer", "walgate.py"}
    suffixes = (".py", ".avsc", ".lock", ".sql")
    assert modules(pure) >= {
        line
        for line in tracked.stdout.splitlines()
        if line.split("/")[0] in rooms and line.endswith(suffixes) and (ROOT / line).exists()
    }
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=pure.parent, capture_output=True, text=True)
    assert checked.stdout.count(": OK") == 2, checked.stdout + checked.stderr


DEMO = """
import sys
from gateway.demo import scenes, workload
scenes.BULK_ROWS = workload.BULK_ROWS = int(sys.argv.pop())
from walgate import main
main()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("bulk_rows", [20_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_the_demo_runs_from_a_wheel_and_survives_kill_9_of_the_gateway(
    pure: Path, temporary: Path, bulk_rows: int
) -> None:
    """The environment has what the wheel's extras ask for, in the locked versions, and nothing of
    this checkout. The import of `walgate demo` has 200,000 rows; far fewer are streamed, too."""
    environment = temporary / "environment"
    program = str(environment / "bin/walgate")
    subprocess.run([UV, "--quiet", "venv", "--python", sys.executable, str(environment)], check=True)
    words = [UV, "--quiet", "pip", "install", "--python", f"{environment}/bin/python", f"{pure}[local,spark]"]
    locked = ["-c", str(ROOT / "requirements.lock")]
    # PySpark comes as source, whose wheel uv keeps in its cache where the index lets it.
    if subprocess.run([*words, *locked, "--offline"], capture_output=True, check=False).returncode != 0:
        subprocess.run([*words, *locked], check=True)
    folder = temporary / "demo"
    folder.mkdir(mode=0o755)
    asked = ("demo", "--seconds", "5", "--kill-gateway", "--seed", "11", str(bulk_rows))
    demo = subprocess.run(
        [f"{environment}/bin/python", "-P", "-c", DEMO, *asked],
        env=users_environment() | {"TMPDIR": str(folder)},
        cwd=temporary,
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout[-4000:]
    facts = json.loads(demo.stdout.splitlines()[-1])
    assert facts["equal"]
    assert facts["tables"] == 6
    assert facts["gateway_starts"] == 2
    assert facts["rows_compared"] > 150_000 + bulk_rows
    assert facts["gateway_peak_rss_mb"] < 150
    assert not list(folder.iterdir())
    version = subprocess.run([program, "version"], cwd=temporary, check=True, capture_output=True, text=True).stdout
    assert version.endswith(", plain Python\n")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_compiled_wheel_has_a_platform_tag_that_an_index_takes_and_needs_no_compiler(tmp_path: Path) -> None:
    subprocess.run(["make", ".venv-tools/.ready"], cwd=ROOT, check=True, capture_output=True)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    built = tmp_path / "dist"
    command = [f"{ROOT}/.venv-tools/bin/python", DIST, "--folder", str(built), "--only", "compiled", "--python", minor]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("*.whl")
    assert "-manylinux" in wheel.name and f"-cp{minor.replace('.', '')}-" in wheel.name
    environment = tmp_path / "environment"
    subprocess.run([UV, "--quiet", "venv", "--python", sys.executable, str(environment)], check=True)
    install = [UV, "--quiet", "pip", "install", "--python", f"{environment}/bin/python", str(wheel)]
    subprocess.run(
        [*install, "-c", str(ROOT / "requirements.lock")], env={**os.environ, "CC": "no-such-cc"}, check=True
    )
    version = subprocess.run(
        [f"{environment}/bin/walgate", "version"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert version.stdout.endswith(", compiled\n")


def test_without_docker_the_images_are_left_out_and_the_reason_is_given(tmp_path: Path) -> None:
    command = [sys.executable, DIST, "--folder", str(tmp_path), "--only", "images"]
    environment = os.environ | {"DOCKER_HOST": "tcp://127.0.0.1:9"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "images are not built: Docker is not installed, or its daemon does not answer" in done.stderr
