"""What a process costs, as Linux counts it: proc(5); what was written into a folder."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int | None) -> float:
    """User and system time of the process and its threads, in steps of 10 ms; 0 when it is gone."""
    if pid is None:
        return 0.0
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = text.rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def other_threads_cpu_s(pid: int) -> float:
    """CPU time of the threads beside the first, to the nanosecond; 0 when the process is gone."""
    found = 0
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        if folder.name != str(pid):
            try:
                found += int((folder / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found / 1e9


def peak_rss_mb(pid: int) -> float:
    """VmHWM: the most memory that the process ever had resident; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0


def busy_s() -> float:
    """CPU time of everything on this computer since its start, idle and waiting apart."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / _TICKS_PER_S


def file_sizes(folder: Path) -> dict[Path, int]:
    """All files below it, but for the checksums that Hadoop keeps beside local files."""
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not (path.name.startswith(".") and path.suffix == ".crc")
    }


def bytes_written(folder: Path, before: dict[Path, int]) -> int:
    """Of files that are new or have another size than `before`, which file_sizes found."""
    return sum(size for path, size in file_sizes(folder).items() if before.get(path) != size)
