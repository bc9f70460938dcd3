"""The lock says what is downloaded; the cache says where it lies."""

from __future__ import annotations

import asyncio
import io
import tarfile
import zipfile
from pathlib import Path

import pyspark
import pytest

from gateway.local import artifacts
from gateway.local.artifacts import Artifact, Coordinate, cache_folder, fetched, load_lock, locked_version, unpacked
from gateway.local.download import DownloadFailed


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("org.slf4j:slf4j-api:1.7.36", "org/slf4j/slf4j-api/1.7.36/slf4j-api-1.7.36.jar"),
        ("a.b:c:1:tar.gz:all", "a/b/c/1/c-1-all.tar.gz"),
        ("a.b:c:1:zip", "a/b/c/1/c-1.zip"),
    ],
)
def test_a_coordinate_says_its_path_and_reads_back(text: str, path: str) -> None:
    assert Coordinate.parse(text).path == path
    assert str(Coordinate.parse(text)) == text


@pytest.mark.parametrize("text", ["", "a:b", "a::1", "a:b:1:jar:x:y"])
def test_junk_is_no_coordinate(text: str) -> None:
    with pytest.raises(ValueError, match="not a Maven coordinate"):
        Coordinate.parse(text)


def test_the_lock_has_every_set_with_hashes_and_no_address() -> None:
    lock = load_lock()
    postgres = {"postgres-14", "postgres-15", "postgres-16"}
    spark = {"delta", "delta-4-1", "delta-4-0", "spark-kafka"}
    assert set(lock) == {"kafka", "registry", "s3a", "s3proxy", "debezium"} | postgres | spark
    assert all(len(one.sha256) == 64 and one.size > 0 for files in lock.values() for one in files)
    assert "://" not in artifacts.LOCK_PATH.read_text()


def test_kafka_and_its_log_binding_fit_each_other() -> None:
    assert locked_version("kafka", "kafka-clients") == locked_version("kafka", "kafka_2.13")
    assert locked_version("kafka", "log4j-slf4j-impl") == locked_version("kafka", "log4j-core")
    with pytest.raises(KeyError):
        locked_version("kafka", "zookeeper")


def test_s3a_is_of_the_hadoop_that_spark_brings() -> None:
    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    assert client.stem == f"hadoop-client-api-{locked_version('s3a', 'hadoop-aws')}"


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "walgate"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "walgate"
    monkeypatch.setenv("WALGATE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def _tarball(mode: str) -> bytes:
    """An archive with one program."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        member = tarfile.TarInfo("bin/program")
        member.size, member.mode = 4, 0o755
        tar.addfile(member, io.BytesIO(b"#!hi"))
    return buffer.getvalue()


def _jar() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "")
        jar.writestr("binaries.txz", _tarball("w:xz"))
    return buffer.getvalue()


@pytest.mark.parametrize(("packaging", "content"), [("tar.gz", _tarball("w:gz")), ("jar", _jar())])
def test_an_archive_is_unpacked_once_and_not_kept(
    packaging: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = Artifact(Coordinate("g", "a", "1", packaging), len(content), "0" * 64)
    monkeypatch.setenv("WALGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(artifacts, "load_lock", lambda: {"set": (locked,)})
    archive = tmp_path / "artifacts" / locked.coordinate.path
    archive.parent.mkdir(parents=True)
    archive.write_bytes(content)
    folder = unpacked("set")
    assert (folder / "bin" / "program").read_bytes() == b"#!hi"
    assert (folder / "bin" / "program").stat().st_mode & 0o111
    assert not archive.exists()
    assert unpacked("set") == folder
    assert [one.name for one in folder.parent.iterdir()] == ["a-1-000000000000"]


async def test_a_set_that_can_not_be_had_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Artifact(Coordinate("g", "a", "1"), 10, "0" * 64)
    monkeypatch.setenv("WALGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(artifacts, "load_lock", lambda: {"set": (locked, locked)})
    monkeypatch.setattr(artifacts, "repository_url", lambda: "http://127.0.0.1:9")
    monkeypatch.setattr("gateway.local.download.PAUSE_S", 0.0)
    with pytest.raises(DownloadFailed, match="a-1.jar could not be downloaded"):
        await fetched("set")


def test_cancelling_stops_a_download_that_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Artifact(Coordinate("g", "a", "1"), 10, "0" * 64)
    monkeypatch.setenv("WALGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(artifacts, "load_lock", lambda: {"set": (locked, locked)})
    monkeypatch.setattr(artifacts, "repository_url", lambda: "http://127.0.0.1:9")
    monkeypatch.setattr("gateway.local.download.PAUSE_S", 1000.0)

    async def start() -> None:
        await asyncio.wait_for(fetched("set"), 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(start())  # ends only when the thread that downloads has ended
