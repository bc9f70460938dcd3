"""The memory that the process may use."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def memory_limit(root: Path = Path("/")) -> int:
    """Return the number of bytes that the process may use: the host's memory or, if lower, the
    limit of the address space (`ulimit -v`) or of a cgroup, such as a container's. `root` has the
    directories /proc and /sys."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    with suppress(OSError, ValueError):
        for file in _limits_of_cgroups(root):
            with suppress(OSError, ValueError):  # "max" means that there is no limit
                limits.append(int(file.read_text()))
    return min(limits)


def _limits_of_cgroups(root: Path) -> Iterator[Path]:
    """Yield the files that may have a limit: those of the process's cgroup and of its parents. In a
    container, the path may be that of the host, and the container's own cgroup is mounted as the
    root."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounted, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mounted, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        cgroup = PurePosixPath(path.lstrip("/"))
        yield from (mounted / each / name for each in (cgroup, *cgroup.parents))
