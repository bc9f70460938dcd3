"""Every command and option of `walgate` that README.md and docs/ name exists, and every command is
named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from gateway.cli.main import app
from spark_consumer.jobs.cli import app as jobs
from tests.walk.walk import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM: Any = get_command(app)
COMMANDS: dict[str, Any] = {**PROGRAM.commands, **get_command(jobs).commands}  # type: ignore[attr-defined]


def named(text: str) -> Iterator[list[str]]:
    """Words after `walgate`, of code within a line and of blocks."""
    text = text.replace("\\\n", " ")
    spans = [*re.findall(r"`walgate ([^`]+)`", text), *re.findall(r"^ *walgate ([^`\n]+)$", text, re.MULTILINE)]
    for span in spans:
        yield shlex.split(re.sub(r"[\[\]|]", " ", span), comments=True)


def unknown(words: list[str]) -> list[str]:
    """What of this does not exist."""
    command = PROGRAM
    if not words[0].startswith(("--", "...", "COMMAND")):
        command = COMMANDS.get(words[0])
        if command is not None and words[0] == "snapshot" and len(words) > 1:
            command = command.commands.get(words[1])
        if command is None:
            return words[:2]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_what_is_named_exists(page: Any) -> None:
    assert {" ".join(words): unknown(words) for words in named(page.read_text("utf-8")) if unknown(words)} == {}


def test_every_command_is_named() -> None:
    words = {words[0] for page in PAGES for words in named(page.read_text("utf-8"))}
    assert set(COMMANDS) - words == set()


@pytest.mark.parametrize("text", ["`walgate chekc`", "    walgate mirror --pth /data", "`walgate snapshot strat`"])
def test_a_name_that_does_not_exist_is_found(text: str) -> None:
    (words,) = named(text)
    assert unknown(words)
