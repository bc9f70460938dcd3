"""What a session makes of its end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.errors import StopForOperator, WalgateError
from gateway.kafka.transaction_delivery import TransactionTimedOut
from gateway.runtime.replication_loop import ReadWhole
from gateway.runtime.session import Session
from gateway.runtime.session_memory import SessionMemory
from gateway.snapshot.pending_chunks import ChunksAreStreamed
from gateway.transactions.machine import RolledBackMessages
from gateway.transactions.position import Position
from schemas.lsn import Lsn

NOT_ASKED: Any = None
_NOWHERE = Lsn(0)


def hint_of(*, error: WalgateError | None, dialect: str = "walgate", skip_lsn: Lsn = _NOWHERE, **source: object) -> str:
    """Of a transaction that has timed out twice. `error` has ended the session before."""
    settings = Settings.model_validate(
        {
            "source": {"dsn": "postgresql://x", "slot": "s", "publications": ["p"], **source},
            "kafka": {"bootstrap_servers": "x", "prefix": "x", "dialect": dialect},
            "registry": {"url": "http://x"},
        }
    )
    memory = SessionMemory()
    if error is not None:
        error.change(memory)
    session = Session(settings, NOT_ASKED, memory)
    session._choose_streaming(Position("71", 1, "shop", "s", "cdc", ("p",), "1.0", skip_lsn=skip_lsn))
    session._stop_if_again(Lsn(1), TransactionTimedOut("too long"))
    with pytest.raises(StopForOperator) as stop:
        session._stop_if_again(Lsn(1), TransactionTimedOut("too long"))
    return stop.value.hint


@pytest.mark.parametrize(
    ("offered", "error", "settings"),
    [
        ("source.messages = false", RolledBackMessages("x"), {"messages": True}),
        ("", RolledBackMessages("x"), {"messages": True, "skip_lsn": Lsn(5)}),
        ("", RolledBackMessages("x"), {"messages": False}),
        ("", ChunksAreStreamed("x"), {"messages": True}),
        ("", ReadWhole(StopForOperator("x")), {"messages": True}),
        ("", None, {"messages": True}),
        ("", None, {"messages": True, "skip_lsn": Lsn(5)}),
        ("source.large_transactions = stream", None, {"messages": True, "large_transactions": "whole"}),
        ("", None, {"messages": True, "dialect": "debezium"}),
    ],
)
def test_a_transaction_that_takes_too_long_twice_is_offered_the_way_to_smaller_parts(
    offered: str, error: WalgateError | None, settings: dict[str, Any]
) -> None:
    hint = hint_of(error=error, **settings)
    assert hint.startswith("raise kafka.transaction_timeout_s")
    for way in ("source.messages = false", "source.large_transactions = stream"):
        assert (way in hint) == (way == offered)
