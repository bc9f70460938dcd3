"""A job's settings file and its HTTP port, without Spark."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from spark_consumer.errors import OptionError
from spark_consumer.jobs import cli
from spark_consumer.jobs.run import Run
from spark_consumer.jobs.settings_file import load_settings
from spark_consumer.jobs.status import METRICS, Status, serve
from spark_consumer.mirror.report import BatchReport
from spark_consumer.source.options import parse_options

NAMES = ("bootstrap_servers", "registry", "path", "tables", "once")


def test_a_settings_file_has_options_of_the_command_and_of_the_source_and_secrets_in_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p4ss word\n", "utf-8-sig")
    file = tmp_path / "mirror.toml"
    file.write_text(
        f'registry = "http://r"\ntables = ["public.a", "public.b"]\nonce = true\n[options]\nnoProgressTimeout = 5\n'
        f'kafka.sasl.password = {{ file = "{tmp_path}/secret" }}\n"kafka.sasl.username" = "me"\n'
        f'[conf]\n"spark.cores.max" = 4\nspark.hadoop.fs.s3a.secret.key = {{ file = "{tmp_path}/secret" }}\n',
        "utf-8-sig",
    )
    found = load_settings(file, NAMES)
    assert found.command == {"registry": "http://r", "tables": "public.a,public.b", "once": True}
    assert found.options == {"noProgressTimeout": "5", "kafka.sasl.password": "p4ss word", "kafka.sasl.username": "me"}
    assert found.conf == {"spark.cores.max": "4"}
    assert found.secrets == {"spark.hadoop.fs.s3a.secret.key": "p4ss word"}


def test_the_mirror_of_the_compose_profile_has_known_settings_and_asks_the_services_there() -> None:
    command: Any = typer.main.get_command(cli.app)
    root = Path(__file__).parents[3]
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    found = load_settings(
        root / "deploy/compose/mirror-s3.toml", [item.name for item in command.commands["mirror"].params]
    )
    lines = (root / "deploy/compose/s3proxy.conf").read_text().splitlines()
    server: dict[str, str] = dict(line.split("=", 1) for line in lines)
    s3a = {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in found.conf.items()}
    assert (s3a["access.key"], s3a["secret.key"]) == (server["s3proxy.identity"], server["s3proxy.credential"])
    assert s3a["endpoint"] == server["s3proxy.endpoint"].replace("0.0.0.0", "s3")
    hosts = {
        re.sub(r"^.*//|:.*$", "", str(found.command[name])) for name in ("bootstrap_servers", "registry", "master")
    }
    assert hosts | {"s3"} <= services.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('registri = "x"', "unknown option 'registri'\nDid you mean registry"),
        ("registry = ", "Invalid value"),
        ('[options]\nx = { file = "/nowhere" }', "x: /nowhere: No such file"),
    ],
)
def test_a_settings_file_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mirror.toml").write_text(text)
    with pytest.raises(OptionError, match=said):
        load_settings(tmp_path / "mirror.toml", NAMES)
    (tmp_path / "mirror.toml").write_text(text, "utf-16")
    with pytest.raises(OptionError, match="not in UTF-8"):
        load_settings(tmp_path / "mirror.toml", NAMES)
    with pytest.raises(OptionError, match="No such file"):
        load_settings(tmp_path / "other.toml", NAMES)


def test_the_command_line_wins_over_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(cli, "_run", taken.append)
    (tmp_path / "mirror.toml").write_text(
        'bootstrap_servers = "a:1"\nregistry = "http://r"\npath = "/m"\nprefix = "of_file"\n[options]\nrecordsPerTask = 7\n'
        "noProgressTimeout = 5\n"
    )
    words = ["mirror", "--config", str(tmp_path / "mirror.toml"), "--prefix", "told", "--option", "noProgressTimeout=9"]
    found = CliRunner().invoke(cli.app, words)
    assert found.exit_code == 0, found.output
    given = taken[0].given
    assert (
        given["kafka.bootstrap.servers"] == "a:1" and given["prefix"] == "told" and given["registry.url"] == "http://r"
    )
    assert (given["recordsPerTask"], given["noProgressTimeout"]) == ("7", "9")


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def test_the_port_says_how_the_job_does(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://127.0.0.1:1"}
    run = Run(parse_options(given, streaming=True), None, "lines")
    server = serve(run.status, "127.0.0.1:0")
    try:
        port = server.server_port
        assert ask(port, "/livez")[0] == 200
        assert ask(port, "/readyz") == (503, "waiting for its first query\n")
        run.status.query_waits_for = ""
        assert ask(port, "/readyz") == (200, "running, behind by 0.0 s, 0 bytes of WAL, 0 changes\n")
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        run.report(BatchReport(1, 0x10, 2, 30, {"public.a": 30}, 0.5, commit_time=moment, stale=1))
        run.report(BatchReport(2, 0x20, 1, 5, {"public.a": 5}, 0.25, commit_time=moment))
        lines = ask(port, "/metrics")[1].splitlines()
        assert {
            "walgate_job_commit_lsn 32",
            "walgate_job_changes_total 35",
            "walgate_job_batch_seconds_total 0.75",
        } <= set(lines)
        assert {line.split()[2] for line in lines if line.startswith("# TYPE")} == set(METRICS)
        assert ask(port, "/")[0] == 404
    finally:
        server.shutdown()
        server.server_close()
    for address in ("9000", ":x", "127.0.0.1:65536"):
        with pytest.raises(OptionError, match="HOST:PORT"):
            serve(Status(), address)
    assert "micro-batch 2" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this host has no IPv6")
def test_the_port_may_be_at_an_ipv6_address() -> None:
    for address, asked in (("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")):
        server = serve(Status(), address)
        try:
            with urllib.request.urlopen(f"http://{asked}:{server.server_port}/livez", timeout=30) as answer:
                assert answer.status == 200
        finally:
            server.shutdown()
            server.server_close()


def test_lag_is_the_age_of_the_oldest_transaction_that_waits() -> None:
    status = Status()
    status.set("commit_time_seconds", 100.0)
    assert "walgate_job_lag_seconds 0\n" in status.text(lambda: 130.0)
    status.set("lag_markers", 4)  # of transactions that were rolled back, say
    assert "walgate_job_lag_seconds 0\n" in status.text(lambda: 130.0)
    status.is_behind = True
    assert "walgate_job_lag_seconds 30\n" in status.text(lambda: 130.0)
    status.oldest_waiting = 120.0  # nothing was committed for a while
    assert "walgate_job_lag_seconds 10\n" in status.text(lambda: 130.0)
