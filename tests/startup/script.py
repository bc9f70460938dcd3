"""Drives the steps of a start with prepared answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.startup.facts import Facts, Stored, SystemIdentity
from gateway.startup.start import Identify, LoadFacts, LookAtPositions, ReadPositions, Step, Steps
from gateway.transactions.position import Position
from tests.startup.facts import SERVER

IDENTITY = SystemIdentity("71", 1, SERVER.flush_lsn, "shop")
Answer = Callable[[Any], Any]


def carried_out(
    steps: Steps,
    facts: Facts,
    stored: Stored,
    answers: Mapping[type, Answer] | None = None,
    *,
    identity: SystemIdentity = IDENTITY,
    done: list[Step] | None = None,
) -> tuple[Position, list[Step]]:
    """The position, and the steps in their order (also in `done`, where the start raises). Each
    observation gets a later moment; `answers` replace the answer to a kind of step."""
    done = [] if done is None else done
    answer: Any = None
    given: dict[type, Answer] = {Identify: lambda _: identity, **(answers or {})}
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value, done
        done.append(step)
        if type(step) in given:
            answer = given[type(step)](step)
        elif isinstance(step, LoadFacts):
            answer = facts
        elif isinstance(step, (ReadPositions, LookAtPositions)):
            answer = stored
        else:
            answer = None
        if isinstance(answer, (Facts, Stored)):
            answer = replace(answer, moment=len(done))
