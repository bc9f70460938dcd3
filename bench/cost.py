"""Resources that a process uses, as Linux counts them (proc(5)), and bytes written into a
folder."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int | None) -> float:
    """Return user and system time of the process and its threads, in steps of 10 ms; 0 if it has
    ended."""
    if pid is None:
        return 0.0
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = text.rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def other_threads_cpu_s(pid: int) -> float:
    """Return the CPU time of all threads but the first, to the nanosecond; 0 if the process has
    ended."""
    found = 0
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        if folder.name != str(pid):
            try:
                found += int((folder / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found / 1e9


def peak_rss_mb(pid: int) -> float:
    """Return VmHWM, the peak resident memory of the process; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0


def busy_s() -> float:
    """Return the CPU time of the whole computer since its start, without idle and wait times."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / _TICKS_PER_S


def file_sizes(folder: Path) -> dict[Path, int]:
    """Return the sizes of all files below the folder, except the checksums that Hadoop writes
    beside local files."""
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not (path.name.startswith(".") and path.suffix == ".crc")
    }


def bytes_written(folder: Path, before: dict[Path, int]) -> int:
    """Return the total size of files that are new or differ in size from `before` (of
    `file_sizes`)."""
    return sum(size for path, size in file_sizes(folder).items() if before.get(path) != size)
