"""PostgreSQL 18 ends the subtransaction of a transaction that it never streamed.

Story: when its memory is full, 18 looks whether the largest transaction was rolled back meanwhile,
which is so whenever the reader lags. If so it throws the transaction away unsent, but marks its
subtransactions as streamed on the way; their rollback is then announced by a Stream Abort. There
was no Stream Start, and with streaming off and protocol 1 there is no streaming at all. The decoder
refused the message in protocol 1, the state machine refused it without its stream: the gateway
stopped, and would have stopped there again after each start. Found by random workloads on 18.6; 15
and 14 do not.

Scenario: tests/golden/postgresql-18/stream_abort_alone.*
"""

from __future__ import annotations

import pytest

from gateway.pgoutput.stream import StreamAbort
from tests.golden.recording import recording
from tests.transactions.test_recorded_streams import replay


@pytest.mark.parametrize("form", ["text", "parallel", "not_streamed"])
def test_a_stream_abort_without_its_stream_changes_nothing(form: str) -> None:
    stream, messages = replay(recording(f"postgresql-18/stream_abort_alone.{form}"))
    assert any(isinstance(message, StreamAbort) for message in messages)
    assert stream.kinds() == ["BEGIN", "COMMIT", "BEGIN", "COMMIT"]
    assert stream.machine.at_boundary and not stream.machine.open_streams
