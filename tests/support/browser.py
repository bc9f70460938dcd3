"""A headless browser for tests: the computer's Chromium, driven by Playwright. It is not installed
for the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)


def browser_path() -> str:
    """Return the path of Chromium; skip the test if there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip(f"no browser is installed (Debian: chromium): none of {', '.join(PROGRAMS)} is on the path")
    return found


@asynccontextmanager
async def open_page(url: str, **options: Any) -> AsyncIterator[tuple[Page, list[str]]]:
    """Yield a new page, and the list of its script errors. `options` are those of Playwright's
    new_page."""
    complaints: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        try:
            page = await browser.new_page(**options)
            page.set_default_timeout(TIMEOUT_MS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
            await page.goto(url)
            yield page, complaints
        finally:
            await browser.close()


async def picture(page: Page, name: str, folder: Path) -> None:
    """Save a screenshot in `folder`, or in the folder of the environment variable PICTURES
    (PICTURES=docs/pictures)."""
    await page.screenshot(path=Path(os.environ.get("PICTURES", folder)) / f"{name}.png")
