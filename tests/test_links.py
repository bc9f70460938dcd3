"""Everything that the documentation refers to exists: pages and their sections, messages of the
code, metrics."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gateway.observe import metrics
from gateway.observe.status_board import StatusBoard

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def sections(page: Path) -> set[str]:
    """Return the anchors that common viewers create for headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "")).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text("utf-8")):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, section = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        assert not section or section in sections(found), target


def test_links_of_the_documentation_stay_within_it() -> None:
    """Other files of the repository are not on the site that `make docs` builds."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for target in _LINK.findall(page.read_text("utf-8")):
            file = target.partition("#")[0]
            if "://" not in file and not file.startswith("mailto:"):
                assert (page.parent / file).resolve().is_relative_to(ROOT / "docs"), f"{page.name}: {target}"


def texts_of_the_code() -> str:
    """Return all string constants, including the parts of f-strings."""
    found: list[str] = []
    for room in ("gateway", "schemas", "spark_consumer"):
        for path in (ROOT / room).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            found += [
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    return "\n".join(found)


def messages_of_the_index() -> list[str]:
    """Return the messages of docs/symptoms.md, with ... for the variable parts."""
    page = (ROOT / "docs/symptoms.md").read_text("utf-8")
    tables = [table.split("\n\n")[0].splitlines()[2:] for table in page.split("| message |")[1:]]
    return [message for table in tables for line in table for message in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_messages_of_the_index_are_those_of_the_code() -> None:
    messages = messages_of_the_index()
    assert len(messages) > 20
    code = texts_of_the_code()
    for message in messages:
        for piece in message.split("..."):
            assert piece.strip() in code, f"{message!r}: the code says {piece.strip()!r} nowhere"


def test_every_metric_has_its_place_in_the_index() -> None:
    """Alerts refer to these metrics."""
    metrics.show(StatusBoard())
    exported = {family.name + "_total" * (family.type == "counter") for family in metrics.REGISTRY.collect()}
    named = set(re.findall(r"`(walgate_\w+)`", (ROOT / "docs/symptoms.md").read_text("utf-8")))
    asked = set(
        re.findall(
            r"\b(walgate_\w+)", re.sub(r"runbook:.*", "", (ROOT / "deploy/monitoring/alerts.yml").read_text("utf-8"))
        )
    )
    assert named <= exported and asked <= named
