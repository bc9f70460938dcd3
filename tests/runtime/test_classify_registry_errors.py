"""What the registry's errors become for the gateway: what happens next, and what the log keeps."""

from __future__ import annotations

import pytest
import structlog

from gateway.errors import StopForOperator
from gateway.schema_errors import classified_schema_errors
from schemas.errors import IncompatibleSchema


def test_a_schema_that_readers_could_not_read_stops_and_is_in_the_log_as_a_whole() -> None:
    error = IncompatibleSchema("readers could not", hint="the way on", subject="cdc.t-value", schema_text='{"type":1}')
    assert str(error) == "readers could not\nhint: the way on"
    with (
        structlog.testing.capture_logs() as logged,
        pytest.raises(StopForOperator, match="readers could not") as stop,
        classified_schema_errors(),
    ):
        raise error
    assert stop.value.hint == "the way on"
    assert [(entry["event"], entry["subject"], entry["schema"]) for entry in logged] == [
        ("schema_rejected", "cdc.t-value", '{"type":1}')
    ]
