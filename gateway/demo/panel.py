"""The panel that shows the demo from its start to the verdict: steps, then changing figures.

On a terminal it is redrawn in place. Without one, with NO_COLOR or in CI, each step is printed as a
line when it ends, and the figures as a line every few seconds. The content is the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

LINE_EVERY_S = 5.0
_REFRESHES_PER_S = 8
_DETAIL_WIDTH = 50  # fixed, so that the column of times does not move

State = Literal["waiting", "running", "done", "failed"]


@dataclass(slots=True)
class Step:
    title: str
    detail: str = ""
    state: State = "waiting"
    started_at: float = 0.0
    seconds: float = 0.0
    spinner: Spinner = field(default_factory=lambda: Spinner("dots", style="cyan"))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at if self.state == "running" else self.seconds

    @property
    def clock(self) -> str:
        return "" if self.state == "waiting" else f"{self.elapsed_s:.1f} s"


class Panel:
    """The demo's panel. `figures` (label -> text) are shown below the steps; `notes` are lines at
    the bottom, to be copied."""

    def __init__(self, title: str, steps: Sequence[str], console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.title = title
        self.notes: list[str] = []
        self._steps = {name: Step(name) for name in steps}
        self._figures: dict[str, str] = {}
        self._printed_at = 0.0
        quiet = not self.console.is_terminal or "NO_COLOR" in os.environ or "CI" in os.environ
        self._live = None if quiet else Live(self, console=self.console, refresh_per_second=_REFRESHES_PER_S)

    def __enter__(self) -> Self:
        if self._live is None:
            self._print(self.title)
        else:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Run a step: it is ticked when the block ends, and crossed if it raises. The caller fills
        `detail`."""
        step = self._steps[name]
        step.state, step.started_at = "running", time.monotonic()
        try:
            yield step
        except BaseException:
            self._end(step, "failed")
            raise
        self._end(step, "done")

    def show(self, figures: Mapping[str, str]) -> None:
        news = figures != self._figures
        self._figures = dict(figures)
        if self._live is None and news and time.monotonic() - self._printed_at >= LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self._print("      " + " | ".join(f"{label} {text}" for label, text in figures.items()))

    def note(self, *lines: str) -> None:
        self.notes.extend(lines)
        if self._live is None:
            for line in lines:
                self._print(f"      {line}")

    def forget(self, *lines: str) -> None:
        """Remove notes that are no longer true; lines already printed remain."""
        self.notes = [note for note in self.notes if note not in lines]

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self.title, style="bold"), self._step_table()]
        if self._figures:
            parts.append(self._figure_table())
        parts.extend(Text(f" {note}", style="dim", overflow="fold") for note in self.notes)
        return Group(*parts)

    def _end(self, step: Step, state: State) -> None:
        step.seconds = time.monotonic() - step.started_at
        step.state = state
        if self._live is None:
            number = list(self._steps).index(step.title) + 1
            word = "OK" if state == "done" else "FAILED"
            self._print(
                f"[{number}/{len(self._steps)}] {step.title:<20} {step.detail:<48} {step.clock:>8}  {word}".rstrip()
            )

    def _step_table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(justify="right", style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="ellipsis", no_wrap=True, min_width=_DETAIL_WIDTH)
        table.add_column(justify="right", no_wrap=True)
        for number, step in enumerate(self._steps.values(), start=1):
            style = "dim" if step.state == "waiting" else ""
            place = f"{number}/{len(self._steps)}"
            table.add_row(_sign(step), place, Text(step.title, style), Text(step.detail, style), step.clock)
        return table

    def _figure_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="ellipsis", no_wrap=True)
        for label, text in self._figures.items():
            table.add_row(f" {label}", text)
        return table

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)


def _sign(step: Step) -> RenderableType:
    match step.state:
        case "running":
            return step.spinner
        case "done":
            return Text("✓", style="green")
        case "failed":
            return Text("✗", style="red")
        case "waiting":
            return Text("·", style="dim")
