"""Failpoints are off by default and cost nothing, names are checked, and each one is used in the
gateway."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from gateway import failpoints
from gateway.errors import StopForOperator
from gateway.failpoints import FAILPOINTS, VARIABLE, FailpointReached, failpoint, parse_failpoints
from gateway.runtime.replication_loop import _FAILPOINTS

GATEWAY = Path(failpoints.__file__).parent
CALL = re.compile(r"""failpoint\(\s*["']([a-z_]+)["']""")


def run_with(armed: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from gateway.failpoints import failpoint\n" + program,
        ],
        env=os.environ | {VARIABLE: armed},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_failpoint_that_is_off_does_nothing_and_costs_next_to_nothing() -> None:
    assert failpoints._armed is None
    assert min(timeit.repeat(lambda: failpoint("before_commit"), number=10_000, repeat=5)) / 10_000 < 2e-6


def test_kill_leaves_by_sigkill_at_the_nth_time_and_not_before() -> None:
    ended = run_with(
        "before_commit:kill:3",
        "for n in range(5): print(n, flush=True); failpoint('before_commit')",
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1", "2"]


def test_raise_acts_every_time_where_the_star_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failpoints, "_armed", parse_failpoints("batch_sent:raise:*, all_acked:delay=0"))
    for _ in range(3):
        with pytest.raises(FailpointReached, match="batch_sent"):
            failpoint("batch_sent")
    failpoint("all_acked")
    failpoint("after_commit")


def test_stop_halts_the_process_until_it_is_continued() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from gateway.failpoints import failpoint\nfailpoint('socket_read')",
        ],
        env=os.environ | {VARIABLE: "socket_read:stop"},
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    "text",
    [
        "before_commit",
        "before_commit:explode",
        "before_commit:delay",
        "before_commit:kill=3",
        "before_commit:kill:0",
    ],
)
def test_an_entry_that_is_not_understood_stops_the_start(text: str) -> None:
    with pytest.raises(StopForOperator, match="is not valid"):
        parse_failpoints(text)


def test_an_unknown_name_is_an_error_that_names_the_near_one() -> None:
    with pytest.raises(StopForOperator, match="before_commit"):
        parse_failpoints("before_comit:kill")
    assert "before_commit" in run_with("before_comit:kill", "").stderr


def test_a_call_with_a_name_that_is_not_listed_is_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failpoints, "_armed", parse_failpoints("batch_sent:kill"))
    with pytest.raises(LookupError, match="nowhere"):
        failpoint("nowhere")


def test_at_least_forty_failpoints_exist_and_each_has_its_sentence() -> None:
    assert len(FAILPOINTS) >= 40
    assert all(sentence.endswith(".") and len(sentence) > 20 for sentence in FAILPOINTS.values())


def test_every_failpoint_of_the_list_stands_in_the_gateway_and_no_other_does() -> None:
    called = set(_FAILPOINTS.values())  # one for each kind of message
    for file in GATEWAY.rglob("*.py"):
        called.update(CALL.findall(file.read_text()))
    assert called == FAILPOINTS.keys()
