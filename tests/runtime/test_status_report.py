"""What a status makes of the answers of Kafka and the registry."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.cli import status
from gateway.cli.status import _column_count, load_status
from gateway.cli.status_text import render
from gateway.config.settings import Settings
from gateway.kafka import position_topic
from schemas.change_schema import change_schema
from tests.events.rows import ALL, relation


def test_columns_are_counted_in_the_row() -> None:
    description = relation(ALL, (0, 5, 8))
    assert _column_count(change_schema(description, "cdc")) == len(description.columns)


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
