"""docs/stops.md, from the code: every place where the gateway raises what ends it with exit code 78.

`python -m tests.stops > docs/stops.md`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_ROOMS: Final = (
    *("judgement", "service", "replication", "kafka", "transactions", "events", "values", "pgoutput", "snapshot"),
    "operate",
)
_FIRST: Final = "StopForOperator"
_GAP: Final = "exactly_once/test_repairs.py::test_a_gap_is_accepted_and_marked_and_the_stream_goes_on"
_ADOPTED: Final = (
    "exactly_once/test_repairs.py::test_a_position_is_adopted_after_pg_upgrade_and_nothing_is_lost_or_doubled"
)
_SKIPPED: Final = (
    "exactly_once/test_quarantine.py::test_a_stop_names_the_transaction_and_skip_leaves_out_exactly_that_one"
)
_QUARANTINED: Final = "exactly_once/test_quarantine.py::test_tables_in_quarantine_leave_the_others_alone"
WALKED: Final[dict[tuple[str, str], str]] = {
    ("gateway/judgement/slot.py _lost", "{invalidation_reason}"): _GAP,
    ("gateway/judgement/position.py check_progress", "no longer exists"): _GAP,
    ("gateway/judgement/position.py check_progress", "were read by another process"): _GAP,
    ("gateway/judgement/notice.py _judge_left_out", "the server left out changes"): _GAP,
    ("gateway/judgement/server.py check_identity", "this is a different server"): _ADOPTED,
    ("gateway/kafka/outlet.py too_large", ""): _QUARANTINED,
    ("gateway/service/schema_errors.py classified_schema_errors", "{message}"): _SKIPPED,
}
"""Tests that go from a stop to a gateway that streams again, on real servers. Key: place, and a part of what it says."""

_HEAD: Final = """# Every exit code 78

Generated from the code by `python -m tests.stops`; a test verifies that both are equal. Each line is a place in the code that
raises an error with which the gateway, or a command, exits with code 78: an operator must make a decision. Conditions that may
pass without intervention are not listed here: the gateway waits for them ([faults.md](faults.md)). `{...}` is a placeholder. If
such an error occurs while the stream runs, it first ends only the session, and the next start decides. The last column names a
test that goes from the error to a gateway that streams again, if there is one.
"""


@dataclass(frozen=True, slots=True)
class Stop:
    place: str
    kind: str
    message: str
    hint: str


def stops() -> list[Stop]:
    files = [path for room in _ROOMS for path in sorted((ROOT / "gateway" / room).glob("*.py"))]
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files}
    kinds = _kinds(list(trees.values()))
    return [stop for path, tree in trees.items() for stop in _of_file(path, tree, kinds)]


def _kinds(trees: list[ast.Module]) -> set[str]:
    """StopForOperator and what is derived from it."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    kinds = {_FIRST}
    while more := {name for name, of in bases.items() if of & kinds} - kinds:
        kinds |= more
    return kinds


def _of_file(path: Path, tree: ast.Module, kinds: set[str]) -> Iterator[Stop]:
    name = path.relative_to(ROOT)
    module = import_module(".".join(name.with_suffix("").parts))
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds:
                message = _text(call.args[0], module) if call.args else ""
                hint = next((_text(word.value, module) for word in call.keywords if word.arg == "hint"), "")
                yield Stop(f"{name} {function.name}", call.func.id, message, hint)


def _text(node: ast.expr, module: Any) -> str:
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.JoinedStr(values):
            return "".join(_text(value, module) for value in values)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name):
            known = getattr(module, name, None)
            return known if isinstance(known, str) else f"{{{name}}}"
        case ast.FormattedValue(value=ast.Attribute(attr=name)) | ast.Attribute(attr=name):
            return f"{{{name}}}"
        case ast.BinOp(left, ast.Add(), right):
            return _text(left, module) + _text(right, module)
    return "{...}"


def is_of(stop: Stop, key: tuple[str, str]) -> bool:
    place, said = key
    return stop.place == place and said in stop.message


def _walked(stop: Stop) -> str:
    return next((test for key, test in WALKED.items() if is_of(stop, key)), "")


def page() -> str:
    parts = [_HEAD, "| place | class | message | hint | test |\n|---|---|---|---|---|"]
    for stop in stops():
        cells = (stop.place, stop.kind, stop.message, stop.hint, _walked(stop))
        parts.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
