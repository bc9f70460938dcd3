"""A real browser without a window: Chromium of this computer, driven by Playwright. None is
installed for it."""

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
    """Skips the test where there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip(f"no browser is installed (Debian: chromium): none of {', '.join(PROGRAMS)} is on the path")
    return found


@asynccontextmanager
async def open_page(url: str, **options: Any) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page of its own, and what its script complained of. `options` are those of Playwright's
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
    """Into `folder`, or where the environment says (PICTURES=docs/pictures)."""
    await page.screenshot(path=Path(os.environ.get("PICTURES", folder)) / f"{name}.png")
