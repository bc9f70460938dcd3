"""The script of the live page, without a browser: what it makes of a status. Needs Node.js."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

from gateway.observe.status_board import StatusBoard
from gateway.observe.web_ui import SHOWN_TOPICS

NOW = 1_000_000.0
_STUBS = """
const made = () => ({ children: [], style: {}, dataset: {}, textContent: "", value: "",
  append(...of) { this.children.push(...of); }, replaceChildren(...of) { this.children = of; },
  querySelector: made, setAttribute(name, value) { this[name] = value; }, addEventListener() {} });
const known = {};
globalThis.document = { getElementById: id => known[id] ??= made(), createElement: () => made(), createElementNS: () => made(),
  querySelectorAll: () => [], addEventListener() {}, documentElement: made() };
globalThis.EventSource = class { addEventListener() {} };
globalThis.setInterval = () => 0;
const said = one => typeof one === "string" ? one : [one.textContent, ...one.children.map(said)].filter(Boolean).join(" ");
"""


def shown(status: dict[str, Any], expression: str) -> Any:
    """`expression` of the script, `s` being the status that it has shown."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    (script,) = re.findall(r"<script>(.*?)</script>", files("gateway.observe").joinpath("page.html").read_text(), re.S)
    ask = f"const s = {json.dumps(status)}; show(s); console.log(JSON.stringify({expression}));"
    done = subprocess.run([node, "-e", _STUBS + script + ask], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def status(topic_count: int = 1, **change: Any) -> dict[str, Any]:
    board = StatusBoard(slot_name="walgate", prefix="cdc", version="0.1.0")
    for number in range(topic_count):
        board.count(f"cdc.public.table_{number:04}", number, number)
    told = board.snapshot(SHOWN_TOPICS).as_json() | {"topic_count": topic_count, "records": 0}
    return told | {"time": NOW} | change


HOLDER = {
    "kind": "transaction",
    "name": "",
    "pid": 7,
    "user": "",
    "application": "",
    "state": "",
    "retained_bytes": None,
    "remedy": "end it",
    "blocks": False,
}


def test_a_list_of_topics_that_is_cut_says_so() -> None:
    assert shown(status(topic_count=SHOWN_TOPICS), "known.cut.textContent") == ""
    many = status(topic_count=1234)
    assert shown(many, "known.cut.textContent") == "busiest 100 of 1,234 (most records)"
    nothing = '(known.filter.value = "table_0001", topics(s), said(known.topics))'
    assert shown(many, nothing) == "none of the busiest 100 of 1,234 (most records) matches"


@pytest.mark.parametrize("table", ["public.orders", '"odd.schema"."my $table"', "public.it's"])
def test_commands_for_tables_with_odd_names_can_be_pasted_into_a_shell(table: str) -> None:
    told = shown(status(snapshot={"paused": False, "left": 0, "tables": []}), f"readmission(s, {json.dumps(table)})")
    assert told.endswith(f"walgate readmit {shlex.quote(table)} && walgate snapshot start {shlex.quote(table)}")


@pytest.mark.parametrize("server_time", [NOW - 3600, NOW, NOW + 3600, None])
def test_ages_of_what_postgresql_dates_are_by_its_clock(server_time: float | None) -> None:
    at = NOW if server_time is None else server_time
    now = status(server_time=server_time, heartbeat_time=at - 50, blockers=[HOLDER | {"since": at - 100}])
    assert shown(now, "describe(s.blockers[0], s)").endswith("(process 7, 100 s old)")
    hidden = now | {"blockers": [HOLDER | {"since": at - 100, "age_is_at_least": True}]}
    assert shown(hidden, "describe(s.blockers[0], s)").endswith("(process 7, at least 100 s old)")
    assert not any("process 7" in one["text"] for one in shown(now, "problems(s)"))
    assert any(
        "process 7" in one["text"] for one in shown(now | {"blockers": [HOLDER | {"since": at - 1000}]}, "problems(s)")
    )
    figures = "(box = (id, state, figures) => { known[id].figures = figures; }, flow(s), known.readers.figures)"
    assert ["heartbeat", "50 s ago"] in shown(now, figures)
