"""The live page in a real browser: what it says of a gateway's state, by mouse and keyboard, light
and dark, wide and narrow."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import ExitStack

import pytest
from playwright.async_api import expect

from gateway.errors import Retry
from gateway.observe.http_routes import start_http
from gateway.observe.http_server import MOST_CONNECTIONS
from gateway.observe.lag import Progress
from gateway.observe.mirror_status import MirrorStatus
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import Counts, OpenStream, RetainedWal, SlotStatus, WalRetentionCause
from gateway.observe.table_status import QuarantinedTable
from gateway.observe.web_ui import SHOWN_TOPICS
from tests.observe.test_http import connect, get
from tests.support.browser import browser_path, open_page

END = 1 << 33
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def board() -> StatusBoard:
    """Of a gateway to which nothing is wrong."""
    made = StatusBoard(slot_name="walgate", prefix="cdc", version="0.1.0")
    now = time.time()
    for part, address in (("postgresql", "db:5432"), ("kafka", "k1:9092"), ("registry", "http://r")):
        made.part_is_up(part, address)  # type: ignore[arg-type]
    made.wait_for("")
    made.watch(lambda: Progress(END, END, None, END - 9, now), Counts)
    made.slot = SlotStatus("walgate", 991, END - 9999, END - 9, "reserved", None)
    made.held = RetainedWal(9999, 100.0)
    made.count("cdc.public.orders", 1200, 90000)
    made.count("cdc.public.items", 7, 99)
    made.announced("public.orders", 4, 7)
    return made


def events(port: int, count: int) -> list[tuple[str, str]]:
    with socket.create_connection(("127.0.0.1", port), 20) as made, made.makefile("r", encoding="utf-8") as reader:
        made.sendall(b"GET /events HTTP/1.1\r\nHost: here\r\n\r\n")
        found: list[tuple[str, str]] = []
        name = ""
        while len(found) < count:
            line = reader.readline()
            assert line, "the stream has ended"
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                found.append((name, line[6:]))
        return found


def test_the_page_needs_nothing_from_elsewhere(board: StatusBoard) -> None:
    port = start_http("127.0.0.1", 0, board)
    code, headers, html = get(port, "/")
    assert code == 200 and headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for address in re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)["']""", html):
        assert address.startswith(("data:", "/status", "/metrics")), address
    assert "https://" not in html and not re.findall(r"@import|<iframe|<object", html)


def test_events_begin_with_the_history_and_are_short(board: StatusBoard) -> None:
    for number in range(1000):
        board.count(f"cdc.public.table_{number}", number, number)
    (first, history), (second, status), (third, later) = events(start_http("127.0.0.1", 0, board), 3)
    assert (first, second, third) == ("history", "status", "status")
    assert isinstance(json.loads(history), list)
    told = json.loads(status)
    assert told["topic_count"] == 1002 and len(told["topics"]) == SHOWN_TOPICS
    assert told["records"] == 1207 + sum(range(1000))
    assert json.loads(later)["time"] > told["time"]


def test_streams_give_way_to_a_probe(board: StatusBoard) -> None:
    port = start_http("127.0.0.1", 0, board)
    with ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 8):
            connect(port, stack, b"GET /events HTTP/1.1\r\nHost: here\r\n\r\n").recv(20)
        assert get(port, "/livez")[0] == 200


async def test_what_is_wrong_is_seen_at_once(board: StatusBoard) -> None:
    browser_path()
    port = start_http("127.0.0.1", 0, board)
    async with open_page(f"http://127.0.0.1:{port}/", viewport={"width": 1200, "height": 800}) as (page, complaints):
        verdict = page.locator("#verdict")
        await expect(verdict).to_have_class("good")
        await expect(page.locator("#lag")).to_contain_text("unknown")  # nobody has read the server's clock here
        assert "problem" not in await page.title()
        board.part_is_down("kafka", Retry("asking Kafka: refused", hint="is the broker up?"))
        await expect(verdict).to_have_class("bad")
        await expect(verdict).to_contain_text("Kafka (k1:9092) has not answered")
        await expect(verdict).to_contain_text("is the broker up?")
        await expect(page.locator("#kafka")).to_have_class("down")
        board.part_is_up("kafka")
        await expect(verdict).to_have_class("good")
        board.held = RetainedWal(95, 1.0, 100, "max_slot_wal_keep_size", 5.0, "extended")
        await expect(verdict).to_contain_text("95 % of max_slot_wal_keep_size")
        board.held = RetainedWal(5, 1.0)
        board.blockers = (
            WalRetentionCause(
                "prepared", EVIL, since=time.time() - 4000, remedy="COMMIT PREPARED or ROLLBACK PREPARED"
            ),
        )
        await expect(verdict).to_contain_text(f"Prepared transaction {EVIL}")  # as text, not as HTML
        await expect(page.locator("#open")).to_contain_text("ROLLBACK PREPARED")
        board.blockers = ()
        board.failed(Retry("the way is lost", hint="look for it"))
        await expect(page.locator("#errors")).to_contain_text("look for it")
        await expect(page.locator("#errors")).to_contain_text("not over")
        await expect(verdict).to_contain_text("the way is lost")
        board.wait_for("")
        await expect(page.locator("#errors")).to_contain_text("over since")
        await expect(verdict).not_to_contain_text("the way is lost")
        board.mirror(MirrorStatus("http://m:9465", up=True, state="running", commit_lsn=16, lag_seconds=1.5))
        await expect(page.locator("#readers")).to_contain_text("running, 1.5 s behind")
        await expect(page.locator("#states")).to_contain_text("running, 1.5 s behind")
        await expect(page.locator("#states")).to_contain_text("written up to 0/10")
        board.mirror(MirrorStatus("http://m:9465", up=False, error="refused"))
        await expect(verdict).to_contain_text("Mirror m:9465 has not answered")
        await expect(page.locator("#readers")).to_have_class("down")
        board.watch(Progress, lambda: Counts(open_streams=(OpenStream(771, time.time() - 90, 20000),)))
        await expect(page.locator("#open")).to_contain_text("xid 771")
        await expect(page.locator("#schemas")).to_contain_text("public.orders")
        assert not complaints


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_it_is_used_by_keyboard_and_on_a_telephone(board: StatusBoard, scheme: str) -> None:
    browser_path()
    port = start_http("127.0.0.1", 0, board)
    narrow = {"width": 360, "height": 740}
    async with open_page(f"http://127.0.0.1:{port}/", viewport=narrow, color_scheme=scheme) as (page, complaints):
        await expect(page.locator("#topics")).to_contain_text("cdc.public.orders")
        assert await page.evaluate("document.documentElement.scrollWidth") <= narrow["width"]
        verdict = await page.locator("#verdict").bounding_box()
        assert verdict is not None and verdict["y"] + verdict["height"] < narrow["height"]
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.keyboard.press("/")
        await page.keyboard.type("item")
        await expect(page.locator("#topics tr")).to_have_count(1)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.matches(':focus-visible')")
        await page.locator("#theme").focus()
        await page.keyboard.press("Enter")
        other = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert other != ground and (sum(map(int, re.findall(r"\d+", ground)[:3])) > 380) is (scheme == "light")
        assert not complaints


async def test_sql_is_copied_by_a_button_and_every_blocker_is_named(board: StatusBoard) -> None:
    browser_path()
    long_ago = time.time() - 4000
    board.blockers = tuple(
        WalRetentionCause("transaction", "", pid, since=long_ago, remedy=f"end it: SELECT pg_terminate_backend({pid})")
        for pid in range(7001, 7007)
    )
    board.quarantined = tuple(QuarantinedTable(f"public.poison_{number}", "a reason", END) for number in range(5))
    async with open_page(f"http://127.0.0.1:{start_http('127.0.0.1', 0, board)}/") as (page, complaints):
        for pid in range(7001, 7007):
            await expect(page.locator("#verdict")).to_contain_text(f"process {pid}")
        for number in range(5):
            await expect(page.locator("#verdict")).to_contain_text(f"public.poison_{number}")
        await page.locator("#open .copy").nth(2).click()
        await expect(page.locator("#copied")).to_have_text("Copied: SELECT pg_terminate_backend(7003)")
        await page.locator("#filter").focus()
        await page.keyboard.press("ControlOrMeta+v")
        await expect(page.locator("#filter")).to_have_value("SELECT pg_terminate_backend(7003)")
        assert not complaints


async def test_names_break_at_their_separators_and_the_axis_is_as_long_as_the_data(board: StatusBoard) -> None:
    browser_path()
    name = "cdc.warehouse_inventory.customer_order_line_items_of_the_last_quarter"
    board.count(name, 10**6, 1)
    port, narrow = start_http("127.0.0.1", 0, board), {"width": 390, "height": 844}
    async with open_page(f"http://127.0.0.1:{port}/", viewport=narrow) as (page, complaints):
        cell = page.locator("#topics td.name", has_text="warehouse").first
        await expect(cell).to_have_text(name)
        lines = await cell.evaluate(_LINES)
        assert len(lines) > 1 and "".join(lines) == name
        assert all(line[-1] in "._" for line in lines[:-1]), lines
        assert await page.evaluate("document.documentElement.scrollWidth") <= narrow["width"]
        for chart in ("#chart", "#rates"):
            await expect(page.locator(chart)).to_contain_text("60 s ago")
        assert not complaints


_LINES = """cell => {
  const range = document.createRange(), lines = [];
  let top = null;
  for (const node of cell.childNodes) for (let at = 0; at < (node.data || "").length; at++) {
    range.setStart(node, at); range.setEnd(node, at + 1);
    const place = range.getBoundingClientRect().top;
    if (place !== top) { lines.push(""); top = place; }
    lines[lines.length - 1] += node.data[at];
  }
  return lines;
}"""
