"""What a log collector gets: one object a line whoever speaks, and no value of a variable."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import time
from typing import Any

import pytest

from gateway.observe.logs import LibraryLines, RepeatedMessages

SPEAKS = """
import logging, sys, warnings
import structlog
from aiokafka.errors import InvalidProducerIdMapping
from gateway.observe.logs import set_up_logs

set_up_logs(*sys.argv[1:])
structlog.get_logger().info("started", hint="")
structlog.get_logger().warning("again", hint="do this", table="café")
logging.getLogger("aiokafka.conn").warning("lost %s", "broker 1")
logging.getLogger("aiokafka.conn").error("lost %s", "broker 2")
try:
    raise OSError("cut")
except OSError:
    logging.getLogger("aiokafka.client").exception("Unexpected")
logging.getLogger("asyncio").info("not worth a line")
for error in (InvalidProducerIdMapping(), KeyError("of the library")):
    try:
        raise error
    except Exception:
        logging.getLogger("aiokafka.producer.sender").exception("Unexpected error in sender routine")
warnings.warn("old\\nthing", DeprecationWarning, stacklevel=1)

def row(secret):
    raise KeyError("broken")

row("s3" + "cret")
"""


def spoken(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", SPEAKS, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "s3cret" not in done.stderr
    return done.stderr.splitlines()


def test_each_line_is_an_object_also_of_libraries_and_of_the_last_error() -> None:
    found: list[dict[str, Any]] = [json.loads(line) for line in spoken("json")]
    assert [(each["event"], each["level"]) for each in found[:3]] == [
        ("started", "info"),
        ("again", "warning"),
        ("lost broker 1", "warning"),
    ]
    assert "hint" not in found[0] and found[1]["hint"] == "do this" and found[1]["table"] == "café"
    assert found[2]["logger"] == "aiokafka.conn"
    assert (found[3]["event"], found[3]["level"]) == ("Unexpected: OSError: cut", "warning")
    expired, broken = found[4:6]
    assert (
        "InvalidProducerIdMapping" in expired["event"] and "\n" not in expired["event"] and "exception" not in expired
    )
    assert "Traceback" in broken["exception"] and "KeyError: 'of the library'" in broken["exception"]
    assert "DeprecationWarning: old\nthing" in found[6]["event"]
    assert found[7]["event"] == "defect" and "KeyError: 'broken'" in found[7]["exception"]
    assert len(found) == 8 and all(each["timestamp"].endswith("Z") for each in found)


def test_the_level_is_the_least_that_is_said() -> None:
    events = [json.loads(line)["event"] for line in spoken("json", "error")]
    assert (events[-1], len(events)) == ("defect", 2)


def test_a_person_reads_lines_without_an_empty_hint() -> None:
    lines = spoken("console")
    assert "started" in lines[0] and "hint" not in lines[0]
    assert "lost broker 1" in lines[2]


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_are_for_a_terminal_that_wants_them(no_color: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", SPEAKS, "console"],
        stderr=theirs,
        env=environment | ({"NO_COLOR": "1"} if no_color else {}),
        timeout=60,
        check=False,
    )
    os.close(theirs)
    said = os.read(ours, 1 << 16)
    os.close(ours)
    assert b"started" in said
    assert (b"\x1b[" not in said) is no_color


def record(name: str, message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, None)


def test_a_library_is_silent_while_its_service_is_said_to_be_down() -> None:
    lines = LibraryLines()
    assert lines.filter(record("aiokafka.client", "Unable to update metadata from %s", [1]))
    lines.service_is_down("kafka")
    for message in ("Unable to update metadata from %s", "Cannot send %s"):
        assert not lines.filter(record("aiokafka.client", message, 1))
    assert lines.filter(record("asyncpg", "lost"))  # of the other service
    assert lines.filter(record("asyncio", "Task was destroyed")) and lines.filter(
        record("asyncio", "Task was destroyed")
    )
    assert lines.service_is_up("kafka") == 2
    assert lines.service_is_up("kafka") == 0


def test_a_library_says_the_same_once_a_minute_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, now = LibraryLines(), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said = []
    for _ in range(100):
        each = record("aiokafka.client", "Unable to update metadata from %s", [1])
        if lines.filter(each):
            said.append((each.levelname, each.getMessage()))
        now += 1.0
    told = "Unable to update metadata from [1]"
    assert said == [("WARNING", told), ("WARNING", f"{told} (59 more of these in the meantime)")]


def test_two_that_take_turns_are_told_ever_more_seldom_too() -> None:
    repeats = RepeatedMessages()
    told = [repeats.again(("refused", "timed out")[n % 2], "12:00") for n in range(40)]
    assert sum(each is not None for each in told) == 10


def test_what_repeats_is_told_ever_more_seldom() -> None:
    repeats = RepeatedMessages()
    told = [repeats.again(f"no answer from port {1000 + n}", f"12:{n:02}") for n in range(20)]
    assert [n + 1 for n, each in enumerate(told) if each is not None] == [1, 2, 4, 8, 16]
    assert told[0] == {} and told[15] == {"times": 16, "since": "12:00"}
    assert repeats.again("another reason", "13:00") == {}
    assert repeats.again("another reason", "13:01") == {"times": 2, "since": "13:00"}
    repeats.forget()
    assert repeats.again("another reason", "14:00") == {}
