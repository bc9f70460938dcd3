"""Tests of the documentation's site: every page has its place in the reading order, and is
displayed without horizontal scrolling."""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.browser import browser_path, open_page

ROOT = Path(__file__).parents[1]
PARTS = ["Start", "Understand", "Operate", "Consume", "Reference"]
WIDTHS = (1440, 390)
SEARCHES = {"exit code 78": "/stops/", "advertised": "/symptoms/", "quarantine": "/quarantine/"}

CUT_OFF = """() => [...document.querySelectorAll(".md-content pre > code, .md-content .md-typeset__scrollwrap")]
    .filter(block => block.clientWidth > 0 && block.scrollWidth > block.clientWidth + 1)
    .map(block => block.innerText.slice(0, 200))"""
"""Code blocks and tables that have to be scrolled sideways."""


def navigation() -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return parts


def pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    children = entry if isinstance(entry, list) else entry.values()
    return [page for child in children for page in pages(child)]


def test_every_page_has_one_place_in_the_reading_order() -> None:
    assert [title for part in navigation() for title in part] == PARTS
    assert sorted(pages(navigation())) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_decisions_are_neither_in_the_navigation_nor_in_the_search() -> None:
    assert not [page for page in pages(navigation()) if "/" in page]
    assert yaml.safe_load((ROOT / "docs/decisions/.meta.yml").read_text()) == {"search": {"exclude": True}}


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing: a browser requests hundreds of files."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address of the site as built by `make docs`, and its folder."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(["make", ".venv-tools/.ready"], cwd=ROOT, check=True, capture_output=True)
    build = [".venv-tools/bin/mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def addresses() -> list[str]:
    return ["/" if page == "index.md" else f"/{page.removesuffix('.md')}/" for page in pages(navigation())]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_pages_fit_and_the_search_finds_what_an_operator_types(site: tuple[str, Path]) -> None:
    browser_path()
    url, folder = site
    for width in WIDTHS:
        async with open_page(url, viewport={"width": width, "height": 900}) as (page, complaints):
            for address in addresses():
                response = await page.goto(url + address)
                assert response is not None and response.ok, address
                widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
                needed, there = await page.evaluate(widths)
                assert needed <= there, f"{address} needs {needed} pixels of {there}"
                cut_off = await page.evaluate(CUT_OFF) if width == max(WIDTHS) else []
                assert cut_off == [], f"{address} has code or tables that are cut off: {cut_off}"
            assert complaints == []
    async with open_page(url, viewport={"width": 1440, "height": 900}, color_scheme="dark") as (page, _):
        assert await page.locator("body").get_attribute("data-md-color-scheme") == "slate"
        assert await page.locator(".md-tabs__link").all_inner_texts() == PARTS
        for words, address in SEARCHES.items():
            await page.goto(url)
            await page.locator("input.md-search__input").press_sequentially(words)
            results = page.locator(".md-search-result__item > a")
            await results.first.wait_for()
            links = [await result.get_attribute("href") or "" for result in (await results.all())[:8]]
            assert any(address in link for link in links), (words, links)
    index = json.loads((folder / "search/search_index.json").read_text("utf-8"))
    assert not [document for document in index["docs"] if document["location"].startswith("decisions/")]


@pytest.mark.long
def test_programs_find_the_source_of_every_page(site: tuple[str, Path]) -> None:
    _, folder = site
    listed = (folder / "llms.txt").read_text("utf-8")
    for page in pages(navigation()):
        assert f"]({page}): " in listed
        assert (folder / page).read_text("utf-8").startswith(("#", "\n#", "<!--")), page
