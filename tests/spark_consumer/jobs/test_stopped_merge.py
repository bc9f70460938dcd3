"""`walgate merge` that is stopped by a signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# Without Spark. `merge_once` gives the merges back in a `finally` too.
PROGRAM = """
import time
from spark_consumer.jobs.cli import app
from spark_consumer.jobs.options import SparkChoice
from spark_consumer.mirror.merge import merge_command

def merge_once(*_):
    try:
        print("merging", flush=True)
        time.sleep(60)
    finally:
        print("given back", flush=True)

SparkChoice.session = lambda *_: None
merge_command.merge_once = merge_once
app(["merge", "--path", "/nowhere"], prog_name="walgate")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_merge_that_is_stopped_gives_the_merges_back(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "merging\n"
        program.send_signal(number)
        assert program.stdout.read() == "given back\n"
    assert program.returncode > 0
