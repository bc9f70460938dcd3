"""The verdicts of a mirror, read from the folder to which the mirror writes them: a local path, or
a URL of a file system that PyArrow knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.errors import Retry, StopForOperator
from schemas.verdict import TableVerdict, decode_lsn, decode_verdict, ended_path, reached_path, verdict_path


class MirrorFolder:
    """The folder of a mirror. `path` is the path that the mirror was started with. Raises
    StopForOperator if the folder cannot be read."""

    def __init__(self, path: str) -> None:
        self._root = path.rstrip("/") or path
        self._files: Any = None
        if "://" in path:
            self._files, self._root = _file_system(path)
        elif not Path(path).is_dir():
            raise StopForOperator(
                f"--mirror {path} is not a directory",
                hint="specify the path that was given to walgate mirror with --path, as seen from this host",
            )

    def verdict(self, table: str) -> TableVerdict | None:
        """Return the verdict of the table's last snapshot that ended. Raises Retry."""
        content = self._read(verdict_path(self._root, table))
        return None if content is None else _decoded(decode_verdict, content)

    def ended_lsn(self) -> int:
        """Return the LSN at which the last snapshot ended as a whole; -1 if none has. Raises
        Retry."""
        return self._lsn(ended_path(self._root))

    def reached_lsn(self) -> int:
        """Return the LSN up to which rows of a VERIFY were compared; -1 if none were. Raises
        Retry."""
        return self._lsn(reached_path(self._root))

    def _lsn(self, path: str) -> int:
        content = self._read(path)
        found = None if content is None else _decoded(decode_lsn, content)
        return -1 if found is None else found

    def _read(self, path: str) -> bytes | None:
        try:
            if self._files is None:
                return Path(path).read_bytes()
            with self._files.open_input_file(path) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Retry(
                f"the mirror's results cannot be read: {path}: {error.strerror or type(error).__name__}"
            ) from error


def _decoded(decode: Any, content: bytes) -> Any:
    """Return the decoded content; None if it is still being written."""
    try:
        return decode(content)
    except ValueError:
        return None


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from pyarrow.fs import FileSystem
    except ImportError:
        raise StopForOperator(
            f"--mirror {url}: reading it needs PyArrow", hint="pip install 'walgate[spark]', or mount the directory"
        ) from None
    scheme, _, rest = url.partition("://")
    try:
        files, root = FileSystem.from_uri(f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}")
    except (ValueError, OSError) as error:
        raise StopForOperator(
            f"--mirror {url}: PyArrow cannot open it ({type(error).__name__})",
            hint="use a path or a URL that pyarrow.fs knows (file, s3, gs, abfs, hdfs), or mount the directory",
        ) from error
    return files, root.rstrip("/")
