"""The limits of the memory, as the kernel's files show them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from gateway.memory import memory_limit

OF_HOST = memory_limit(Path("/nonexistent"))
V1 = "5:cpu:/\n4:memory:/docker/ab\n0::/\n"
V2 = "0::/system.slice/walgate.service\n"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (V2, {}, OF_HOST),
        (V2, {"system.slice/walgate.service/memory.max": "max"}, OF_HOST),
        (V2, {"system.slice/walgate.service/memory.max": "3000", "system.slice/memory.max": "2000"}, 2000),
        ("0::/\n", {"memory.max": "1000"}, 1000),
        ("0::/../ab\n", {"memory.max": "1000"}, 1000),
        (V1, {"memory/docker/ab/memory.limit_in_bytes": "3000"}, 3000),
        (V1, {"memory/memory.limit_in_bytes": "4000", "memory/docker/ab/memory.limit_in_bytes": "9223372036854771712"}, 4000),
        (V1, {"memory.max": "max", "memory/memory.limit_in_bytes": "4000"}, 4000),
    ],
)  # fmt: skip
def test_the_lowest_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in limits.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == expected


def test_so_does_that_of_the_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500, 500))
    assert memory_limit() == 500
