"""What a status makes of the answers of Kafka and the registry."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.cli import status
from gateway.cli.status import _column_count, _without_answer, load_status
from gateway.cli.status_text import render
from gateway.config.settings import Settings
from gateway.kafka import position_topic
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import SlotStatus
from schemas.change_schema import change_schema
from tests.conftest import Database
from tests.events.rows import ALL, relation
from tests.support.gateway_process import GatewayProcess, ended, environment_of


def test_columns_are_counted_in_the_row() -> None:
    description = relation(ALL, (0, 5, 8))
    assert _column_count(change_schema(description, "cdc")) == len(description.columns)


@pytest.mark.parametrize(
    ("port", "said"), [(None, "but http.port is not set"), (8088, "but 127.0.0.1:8088 does not answer")]
)
def test_a_gateway_that_cannot_be_asked_is_said_to_run_and_why_its_state_is_unknown(
    port: int | None, said: str
) -> None:
    settings = Settings.model_validate({"source": {"dsn": "postgresql://u@h/d"}, "http": {"port": port}})
    board = StatusBoard()
    board.slot = SlotStatus("walgate", 77, 1, 1, "reserved", None)
    assert _without_answer(settings, board, {}).endswith(f"as process 77, {said}")


@pytest.mark.integration
async def test_neither_a_missing_topic_nor_an_open_transaction_is_a_broker_that_is_down(
    settings: dict[str, str], topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{topic_prefix}.position"
    for module in (status, position_topic):
        monkeypatch.setattr(module, "POSITION_TOPIC", own)
    values: dict[str, dict[str, str]] = {}
    for name, value in settings.items():
        part, _, field = name.partition("__")
        values.setdefault(part, {})[field] = value
    of_gateway = Settings.model_validate(values)
    begun = time.monotonic()
    now = await load_status(of_gateway)
    assert time.monotonic() - begun < status._TIMEOUT_S
    assert all(part["up"] for part in now["parts"]), now["parts"]
    assert "no gateway has stored a resume LSN" in now["waiting_for"] and now["last_error"] is None

    servers: dict[str, Any] = {"bootstrap.servers": settings["kafka__bootstrap_servers"]}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(own, 1, 1)])[own].result(30)
    producer = Producer({**servers, "transactional.id": topic_prefix})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(own, key=b"1/d/s", value=b"v")
    assert producer.flush(30) == 0
    monkeypatch.setattr(status, "_TIMEOUT_S", 3.0)
    now = await load_status(of_gateway)
    producer.abort_transaction(30)
    assert all(part["up"] for part in now["parts"]), now["parts"]
    assert now["waiting_for"] == "a gateway: nothing is reading the slot"
    assert f"{own} could not be read to its end within 3 s" in render(now)


@pytest.mark.integration
async def test_a_gateway_that_an_operator_must_help_is_said_not_to_run_and_why(
    settings: dict[str, str], database: Database, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR TABLE t")
    await sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", topic_prefix)
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    gateway.start()
    assert await gateway.wait() == 78
    done = await ended(("status",), environment_of(settings))
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[0].startswith("gateway       NOT RUNNING: nothing is reading the slot"), lines
    assert lines[1].startswith(f"would stop    slot {topic_prefix} exists, but no resume LSN is stored for it"), lines
    assert "source.adopt_slot = true" in lines[2]
    await sql.execute("SELECT pg_drop_replication_slot($1)", topic_prefix)
    done = await ended(("status",), environment_of(settings))
    assert "NOT RUNNING" in done.stdout and "the last lines of its log say why" in done.stdout, done.stdout
