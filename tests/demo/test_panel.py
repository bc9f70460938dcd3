"""The panel without a terminal: one line for each step, and the figures when there is news."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gateway.demo.panel import Panel


def test_each_step_is_one_plain_line_when_it_ends() -> None:
    out = io.StringIO()
    with Panel("the demo", ["Kafka", "Gateway"], Console(file=out, width=120)) as panel:
        with panel.step("Kafka") as step:
            step.detail = "on port 1"
        with pytest.raises(ValueError, match="no"), panel.step("Gateway"):
            raise ValueError("no")
    lines = out.getvalue().splitlines()
    assert lines[0] == "the demo"
    assert lines[1].startswith("[1/2] Kafka")
    assert lines[1].endswith("OK")
    assert lines[2].endswith("FAILED")
    assert "\x1b" not in out.getvalue()


def test_figures_are_printed_once_while_they_stay_the_same() -> None:
    out = io.StringIO()
    panel = Panel("", [], Console(file=out, width=120))
    for _ in range(3):
        panel.show({"shop": "1 transaction", "kafka": "0 events"})
    assert out.getvalue().splitlines() == ["      shop 1 transaction | kafka 0 events"]


@pytest.mark.parametrize("variable", ["NO_COLOR", "CI"])
def test_a_terminal_with_no_color_or_in_ci_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, highlight=False, width=120)
    with Panel("the demo", ["Kafka"], console) as panel, panel.step("Kafka"):
        pass
    assert "✓" not in out.getvalue()
    assert "[1/1] Kafka" in out.getvalue()
