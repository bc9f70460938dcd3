"""All snapshots of a session are one state machine: TableTasks moves it, everyone else asks and
reports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[2] / "gateway/snapshot"
FILES = sorted(ROOM.rglob("*.py"))
OF_OTHER_ROOMS = {
    "coordinator.py": {"self._machine.on_left_out"},
    "publish_chunk.py": {"transaction.manifest.snapshot"},
}
"""Attributes of the state machine and of its transaction, which a snapshot sets."""
REPORTS = {
    "table_task.py": {"begin_again", "resume", "go_on_reading", "pop_keys_to_reselect", "pop_restart_reason"},
    "chunk_reader.py": {"shorten", "snapshot_taken"},
    "publish_chunk.py": {"is_stale"},
    "change_tracking.py": {"record_unchanged_toast", "prepared", "rolled_back", "committed_without_keys"},
}
"""Methods that change a table's progress, and that are called by others than TableTasks."""


def fields(tree: ast.Module) -> set[str]:
    """Return the fields of the classes that a module defines."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        target.id
        for node in classes
        for target in [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
        if isinstance(target, ast.Name)
    }


def writes(source: str) -> Iterator[str]:
    """Yield what is assigned or deleted of objects that are not `self`, and of no class of the
    module."""
    tree = ast.parse(source)
    own = fields(tree)
    for node in ast.walk(tree):
        target = node.value if isinstance(node, ast.Subscript) else node
        is_write = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)) and isinstance(target, ast.Attribute)
        if not is_write or not isinstance(target, ast.Attribute):
            continue
        if ast.unparse(target.value) != "self" and target.attr not in own:
            yield ast.unparse(target)


def transitions(source: str, name: str, mutators: set[str]) -> set[str]:
    """Return the methods of a class that change it: they assign to it, or call one of its methods
    that does, or one of `mutators` of its fields."""
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef) and not node.decorator_list}
    changing: set[str] = set()
    for _ in methods:
        for method, body in methods.items():
            texts = [ast.unparse(node) for node in ast.walk(body) if isinstance(node, ast.Attribute)]
            stores = any(
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
                for node in ast.walk(body)
            )
            calls = any(text.removeprefix("self.") in changing for text in texts)
            mutates = any(text.startswith("self._") and text.rpartition(".")[2] in mutators for text in texts)
            if stores or calls or mutates:
                changing.add(method)
    return changing - {"__init__"}


def moves(source: str, names: set[str]) -> Iterator[str]:
    """Yield the methods with these names that are used of a task, or of its progress."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner.lstrip("_") in ("task", "progress"):
                yield node.attr


CONTAINERS = {"add", "append", "clear", "discard", "pop", "update", "difference_update"}
RANGES = transitions((ROOM / "rules/ranges_to_read.py").read_text(), "CtidPlan", CONTAINERS | {"popleft", "appendleft"})
PROGRESS = transitions((ROOM / "rules/table_progress.py").read_text(), "TableProgress", CONTAINERS | RANGES)
TASK = transitions((ROOM / "table_task.py").read_text(), "TableTask", CONTAINERS | PROGRESS)


def test_no_module_writes_the_state_of_another_one() -> None:
    found = {path.name: set(writes(path.read_text())) for path in FILES}
    assert {name: texts for name, texts in found.items() if texts} == OF_OTHER_ROOMS


def test_one_module_moves_the_tables() -> None:
    assert {"set_up", "chunk_read", "chunk_failed", "begin_again", "cancelled", "pop_keys_to_reselect"} <= TASK
    assert {"begin", "nothing_left", "end", "next_chunk", "shorten", "published", "give_back", "is_stale"} <= PROGRESS
    found = {path.name: set(moves(path.read_text(), TASK | PROGRESS)) for path in FILES}
    assert found.pop("table_tasks.py") >= {"chunk_read", "next_chunk", "begin"}
    assert {name: texts for name, texts in found.items() if texts} == REPORTS


@pytest.mark.parametrize(
    "source", ["task.plan = None", "self._task.plan = None", "tasks.by_oid[1] = task", "del task.plan", "t.count += 1"]
)
def test_a_write_from_outside_is_seen(source: str) -> None:
    assert len(list(writes(source))) == 1


@pytest.mark.parametrize(
    "source", ["task.begin_again()", "chunk.progress.give_back(chunk)", "f = self._task.set_aside"]
)
def test_a_move_from_outside_is_seen(source: str) -> None:
    assert len(list(moves(source, TASK | PROGRESS))) == 1
