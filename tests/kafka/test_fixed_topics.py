"""Messages that belong to no relation: what is told of those that are left out."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from gateway.config.source import SourceSettings
from gateway.kafka.fixed_topics import message_selection
from gateway.transactions.transaction import ExcludedMessage


@pytest.mark.parametrize("records_exclusions", [True, False])
def test_a_message_that_is_left_out_is_said_to_be_in_a_marker_where_there_are_markers(records_exclusions: bool) -> None:
    source = SourceSettings(dsn=SecretStr("postgresql://localhost/db"), slot="s", publications=("p",))
    selection = message_selection(source, records_exclusions=records_exclusions)
    with capture_logs() as logged:
        selection.leave_out(ExcludedMessage(5, 100, "prefix", 1))
    (entry,) = logged
    assert ("marker" in entry["hint"]) == records_exclusions
    assert "source.message_prefixes" in entry["hint"]
