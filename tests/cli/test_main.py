"""Exit codes: what a supervisor of the process goes by."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import PANELS, app
from gateway.errors import DataGap
from gateway.observe.http_client import ask_status
from gateway.observe.http_routes import start_http
from gateway.observe.status_board import StatusBoard
from spark_consumer.jobs.cli import app as spark_jobs
from spark_consumer.jobs.options import BATCHES, OBSERVE, OUTPUT, SOURCE, SPARK

EX_CONFIG = 78
WALGATE = Path(sys.executable).with_name("walgate")


@contextmanager
def silent_port() -> Iterator[int]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def health(monkeypatch: pytest.MonkeyPatch, port: int, host: str = "127.0.0.1") -> tuple[int, str]:
    monkeypatch.setenv("WALGATE_HTTP__PORT", str(port))
    monkeypatch.setenv("WALGATE_HTTP__HOST", host)
    result = CliRunner().invoke(app, ["health"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_health_needs_the_port_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    board = StatusBoard()
    port = start_http("127.0.0.1", 0, board)
    assert health(monkeypatch, port) == (1, "waiting for the first start\n")
    board.wait_for("")
    assert health(monkeypatch, port) == (0, "streaming\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1"])
def test_a_gateway_that_listens_everywhere_or_on_ipv6_is_found(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this computer has no IPv6")
    board = StatusBoard()
    board.wait_for("")
    port = start_http(host, 0, board)
    assert health(monkeypatch, port, host) == (0, "streaming\n")
    found = ask_status(host, port)
    assert found is not None and found["state"] == "streaming"


def test_health_of_what_does_not_answer_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observe.http_client.PROBE_TIMEOUT_S", 0.1)
    with silent_port() as port:
        assert health(monkeypatch, port) == (1, f"waiting for 127.0.0.1:{port}: timed out\n")
    code, output = health(monkeypatch, port)
    assert code == 1 and "refused" in output


def test_health_without_a_port_is_a_wrong_configuration() -> None:
    result = CliRunner().invoke(app, ["health"])
    assert result.exit_code == EX_CONFIG and "http.port is not set" in result.output
    assert "WALGATE_HTTP__PORT" in result.output


def test_a_gap_needs_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(_: object) -> None:
        raise DataGap("the slot is lost")

    monkeypatch.setenv("WALGATE_SOURCE__DSN", "postgresql://u@h/d")
    monkeypatch.setattr("gateway.runtime.supervisor.serve", serve)
    monkeypatch.setattr("gateway.cli.main.set_up_logs", lambda *_: None)  # the logs are those of the whole run
    result = CliRunner().invoke(app, ["run"])
    assert result.exit_code == EX_CONFIG and "the slot is lost" in result.output


def test_what_is_not_an_lsn_is_refused_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__DSN", "postgresql://u@127.0.0.1:1/d")
    result = CliRunner().invoke(app, ["skip", "--lsn", "x"])
    assert result.exit_code == EX_CONFIG and "'x' is not an LSN" in result.output and "connection" not in result.output


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["chekc"], "check"),
        (["snapshot", "strat"], "start"),
        (["status", "--wtach"], "--watch"),
        (["tail", "--op", "insrt"], "insert"),
        (["run", "--log-format", "jsn"], "json"),
    ],
)
def test_what_was_probably_meant_is_named(arguments: list[str], meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__DSN", "postgresql://u@127.0.0.1:1/d")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (2, EX_CONFIG)
    assert re.search(rf"(Did you mean|Possible options|did you mean|is not one of).*{meant}", result.output, re.S)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--topics", "--publication", "p"], "--publication"),
        (["--topics", "--in-progress"], "--in-progress"),
        (["--from-beginning"], "--topics"),
    ],
)
def test_options_of_tail_that_would_do_nothing_are_refused(options: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["tail", *options])
    assert result.exit_code == 2 and named in result.output and result.output.count("\n") == 1, result.output


def test_the_shell_completes_commands_and_options() -> None:
    for words, expected in (
        ("walgate sta", "status"),
        ("walgate tail --from", "--from-beginning"),
        ("walgate mirror --merge", "--merge-every"),
        ("walgate dump --mir", "--mirror"),
    ):
        asked = {"_WALGATE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [WALGATE], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.split() == [expected], done.stderr


def titles(text: str) -> list[str]:
    return [title for title in re.findall(r"^╭─ (.+?) ─+╮$", text, re.M) if title != "Options"]


def test_the_help_has_groups_in_the_order_in_which_they_are_needed() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    assert titles(text) == list(PANELS)
    assert re.findall(r"^│ ([a-z][a-z-]+) ", text, re.M) == [
        *("run", "snapshot"),
        *("check", "status", "health", "tail", "decode", "verify", "versions", "version"),
        *("readmit", "skip", "accept-gap", "adopt"),
        *("mirror", "merge", "consume", "dump"),
        "demo",
    ]
    assert "Exit code" not in text


def test_the_options_of_a_mirror_have_groups() -> None:
    text = CliRunner().invoke(spark_jobs, ["mirror", "--help"], env={"COLUMNS": "120"}).output
    assert set(titles(text)) == {SOURCE, OUTPUT, BATCHES, SPARK, OBSERVE}
