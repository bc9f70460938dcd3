"""What a session makes of its end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.errors import StopForOperator
from gateway.kafka.transaction_delivery import TransactionTimedOut
from gateway.runtime.session import Session
from gateway.runtime.session_memory import SessionMemory
from schemas.lsn import Lsn

NOT_ASKED: Any = None


def hint_of(*, reads_whole: bool, dialect: str = "walgate", **source: object) -> str:
    """Of a transaction that has timed out twice."""
    settings = Settings.model_validate(
        {
            "source": {"dsn": "postgresql://x", "slot": "s", "publications": ["p"], **source},
            "kafka": {"bootstrap_servers": "x", "prefix": "x", "dialect": dialect},
            "registry": {"url": "http://x"},
        }
    )
    session = Session(settings, NOT_ASKED, SessionMemory())
    session._reads_whole = reads_whole
    session._stop_if_again(Lsn(1), TransactionTimedOut("too long"))
    with pytest.raises(StopForOperator) as stop:
        session._stop_if_again(Lsn(1), TransactionTimedOut("too long"))
    return stop.value.hint


@pytest.mark.parametrize(
    ("offered", "reads_whole", "settings"),
    [
        ("source.messages = false", True, {"messages": True}),
        ("", True, {"messages": False}),
        ("", False, {"messages": True}),
        ("source.large_transactions = stream", True, {"messages": True, "large_transactions": "whole"}),
        ("", True, {"messages": True, "dialect": "debezium"}),
    ],
)
def test_a_transaction_that_takes_too_long_twice_is_offered_the_way_to_smaller_parts(
    offered: str, reads_whole: bool, settings: dict[str, Any]
) -> None:
    hint = hint_of(reads_whole=reads_whole, **settings)
    assert hint.startswith("raise kafka.transaction_timeout_s")
    for way in ("source.messages = false", "source.large_transactions = stream"):
        assert (way in hint) == (way == offered)
