"""The Java artifacts of the local parts: their list, their download, and their place on disk.

`artifacts.lock` lists each file with its Maven coordinates, size and SHA-256, in sets: `kafka`,
`registry`, `delta`, `delta-4-1`, `delta-4-0`, `spark-kafka`, `s3a`, `s3proxy`, `debezium`,
`postgres-14`, `postgres-15`, `postgres-16`. Files are kept in `$WALGATE_CACHE`, or else
`$XDG_CACHE_HOME/walgate` or `~/.cache/walgate`. They are downloaded from Maven's central
repository, whose address jgo has, or from `$WALGATE_REPOSITORY`. This is the address of a mirror
or, without a network, a folder in a repository's layout. `python -m gateway.local.artifacts FOLDER`
makes such a folder.
"""

from __future__ import annotations

import asyncio
import lzma
import os
import shutil
import tarfile
import tempfile
import threading
import tomllib
import zipfile
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from gateway.local.download import Download, fetch

LOCK_PATH = Path(__file__).with_name("artifacts.lock")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A Maven coordinate: `group:artifact:version[:packaging[:classifier]]`."""

    group: str
    artifact: str
    version: str
    packaging: str = "jar"
    classifier: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = text.split(":")
        if not 3 <= len(parts) <= 5 or not all(parts):
            raise ValueError(f"not a Maven coordinate: {text!r}")
        return cls(*parts)

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.packaging}"

    @property
    def path(self) -> str:
        """The path in a Maven repository (Maven Repository Layout, "default")."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"

    def __str__(self) -> str:
        parts = [self.group, self.artifact, self.version]
        if self.packaging != "jar" or self.classifier:
            parts.append(self.packaging)
        if self.classifier:
            parts.append(self.classifier)
        return ":".join(parts)


@dataclass(frozen=True, slots=True)
class Artifact:
    coordinate: Coordinate
    size: int
    sha256: str


def repository_url() -> str:
    """Return `$WALGATE_REPOSITORY`, or jgo's address of the central repository. jgo is imported
    late, because that takes 0.2 s and is not needed if the cache is complete."""
    if chosen := os.environ.get("WALGATE_REPOSITORY"):
        return chosen.rstrip("/")
    from jgo.constants import MAVEN_CENTRAL_URL

    return str(MAVEN_CENTRAL_URL)


@cache
def load_lock(path: Path = LOCK_PATH) -> dict[str, tuple[Artifact, ...]]:
    """Return every set of the lock file, by name."""
    with path.open("rb") as file:
        sets = tomllib.load(file)
    return {
        name: tuple(Artifact(Coordinate.parse(text), facts["size"], facts["sha256"]) for text, facts in files.items())
        for name, files in sets.items()
    }


def cache_folder() -> Path:
    """Return the folder in which downloads are kept between runs; create it if it is missing."""
    if chosen := os.environ.get("WALGATE_CACHE"):
        folder = Path(chosen)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "walgate"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def locked_version(set_name: str, artifact: str) -> str:
    """Return the version of an artifact of a set: `locked_version("kafka", "kafka_2.13")` is
    "4.3.1"."""
    for locked in load_lock()[set_name]:
        if locked.coordinate.artifact == artifact:
            return locked.coordinate.version
    raise KeyError(f"{artifact} is not in set {set_name} of {LOCK_PATH.name}")


async def fetched(*names: str) -> None:
    """Download the missing files of these sets, under one progress bar, and unpack those that are
    archives.

    Cancellation stops the downloads; the next run continues them. Raises what `fetch` raises.
    """
    stop = threading.Event()
    try:
        await asyncio.to_thread(_fetch_and_unpack, names, stop)
    except asyncio.CancelledError:
        stop.set()
        raise


def _fetch_and_unpack(names: tuple[str, ...], stop: threading.Event) -> None:
    archives = [name for name in names if len(load_lock()[name]) == 1]
    fetch_sets(*(name for name in names if name not in archives or not _unpacked_folder(name).exists()), stop=stop)
    for name in archives:
        unpacked(name)


def fetch_sets(*names: str, stop: threading.Event | None = None) -> dict[str, tuple[Path, ...]]:
    """Download the missing files of these sets, and return the paths of all files, in the lock's
    order. Blocks. Raises what `fetch` raises."""
    return _fetch_into(cache_folder() / "artifacts", names, stop)


def _fetch_into(folder: Path, names: tuple[str, ...], stop: threading.Event | None) -> dict[str, tuple[Path, ...]]:
    lock = load_lock()
    wanted = {name: [(one, folder / one.coordinate.path) for one in lock[name]] for name in names}
    missing = [
        Download(one.coordinate.path, path, one.size, one.sha256)
        for pairs in wanted.values()
        for one, path in pairs
        if not (path.exists() and path.stat().st_size == one.size)
    ]
    if missing:
        fetch(repository_url(), missing, stop)
    return {name: tuple(path for _, path in pairs) for name, pairs in wanted.items()}


def jars(set_name: str) -> tuple[Path, ...]:
    """Return the jars of one set, for a class path."""
    return fetch_sets(set_name)[set_name]


def _unpacked_folder(set_name: str) -> Path:
    (artifact,) = load_lock()[set_name]
    name = f"{artifact.coordinate.artifact}-{artifact.coordinate.version}-{artifact.sha256[:12]}"
    return cache_folder() / "unpacked" / name


def unpacked(set_name: str) -> Path:
    """Return the folder with the content of a set that is one archive: a tar.gz, or a jar that
    contains one .txz. Blocks.

    The folder is named by the archive's hash and renamed into place when complete, so that two
    processes may do this at the same time. The archive is not kept.
    """
    (artifact,) = load_lock()[set_name]
    target = _unpacked_folder(set_name)
    if target.exists():
        return target
    parent = target.parent
    (archive,) = jars(set_name)
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".unpack-") as scratch:
        content = Path(scratch) / "content"
        _UNPACK[artifact.coordinate.packaging](archive, content)
        content.chmod(0o755)
        try:
            content.rename(target)
        except OSError:
            if not target.exists():
                raise
    archive.unlink(missing_ok=True)
    return target


def _unpack_tarball(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        _extract(tar, target)


def _unpack_jar(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as jar:
        (name,) = [one for one in jar.namelist() if one.endswith(".txz")]
        with jar.open(name) as packed, lzma.open(packed) as tarball, tarfile.open(fileobj=tarball, mode="r|") as tar:
            _extract(tar, target)


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    # Python before 3.11.4 has no filters; the archive's hash was checked, so it is the locked one
    # in any case.
    tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
    tar.extractall(target)


_UNPACK: dict[str, Callable[[Path, Path], None]] = {"tar.gz": _unpack_tarball, "jar": _unpack_jar}


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with modes and links, but without static libraries, headers and
    documentation."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*.a", "include", "doc", "man"))


def main() -> None:
    """Download every artifact into a folder that `WALGATE_REPOSITORY` can name."""
    parser = ArgumentParser("python -m gateway.local.artifacts", description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    _fetch_into(parser.parse_args().folder, tuple(load_lock()), None)


if __name__ == "__main__":
    main()
