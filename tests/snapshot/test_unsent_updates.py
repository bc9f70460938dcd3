"""A table of which UPDATEs are not sent may miss rows that these move while it is read: the log says
so when its snapshot begins."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.snapshot.progress_log import log_unsent_updates
from gateway.snapshot.rules.published_content import Account, Membership
from tests.snapshot.conftest import task_of
from tests.snapshot.test_resume import SURVEYED


def plan_of(actions: str, *, is_read_at_once: bool = False) -> Any:
    account = Account("1", "2", "3", 10, (Membership(5, "6", "p", actions, "all", True),), ())
    surveyed = replace(SURVEYED, content=replace(SURVEYED.content, account=account))
    return SimpleNamespace(surveyed=surveyed, is_read_at_once=is_read_at_once)


@pytest.mark.parametrize(
    ("origin", "named"), [("any", ["a.inserts"]), ("none", ["a.inserts", "a.everything"])], ids=["any", "none"]
)
def test_tables_that_are_read_in_chunks_without_their_updates_are_named(origin: str, named: list[str]) -> None:
    plans = {"inserts": plan_of("i"), "at_once": plan_of("i", is_read_at_once=True), "everything": plan_of("iudt")}
    tasks = [task_of(oid, name, None, plan) for oid, (name, plan) in enumerate(plans.items())]
    with capture_logs() as logs:
        log_unsent_updates(tasks, origin)
    assert [(entry["event"], entry["log_level"], entry["tables"]) for entry in logs] == [
        ("updates_not_sent", "warning", named)
    ]


def test_a_table_whose_updates_are_sent_is_not_named() -> None:
    with capture_logs() as logs:
        log_unsent_updates([task_of(1, "everything", None, plan_of("iudt"))], "any")
    assert logs == []
