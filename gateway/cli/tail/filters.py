"""Filters by table and operation. The begin and the end of a transaction are shown only if one of
its changes is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from gateway.cli.tail.message_json import Shown
from gateway.errors import StopForOperator
from gateway.names import is_table

OPERATIONS: Final = ("insert", "update", "delete", "truncate", "message", "read")
"""The operations to choose from. `read` stands for the rows of snapshots, which are only in
topics."""
_BEGINS: Final = frozenset({"Begin", "Begin Prepare", "Stream Start"})
_ENDS: Final = frozenset({"Commit", "Prepare", "Stream Stop"})
_ENDS_LATER: Final = frozenset(
    {"Stream Commit", "Stream Abort", "Stream Prepare", "Commit Prepared", "Rollback Prepared"}
)
"""Messages that may come after other transactions, and are therefore matched by xid."""


def check_operations(operations: Iterable[str]) -> frozenset[str]:
    """Return the operations as a set. Raises StopForOperator for an unknown one."""
    unknown = sorted(set(operations) - set(OPERATIONS))
    if unknown:
        near = [match for name in unknown for match in get_close_matches(name.lower(), OPERATIONS, 1)]
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise StopForOperator(
            f"not an operation: {', '.join(unknown)}", hint=f"{meant}use one of {', '.join(OPERATIONS)}"
        )
    return frozenset(operations)


class MessageFilter:
    """A filter that is given all messages in their order, and yields those to show."""

    def __init__(self, tables: Sequence[str], operations: Iterable[str]) -> None:
        self._tables = tuple(tables)
        self._operations = check_operations(operations)
        self._begin: Shown | None = None
        self._is_shown = False
        self._xids: set[int] = set()

    def unmatched(self, relations: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the patterns that match none of the relations, each with the relation that was
        probably meant, or ""."""
        for pattern in self._tables:
            if not any(is_table(relation, (pattern,)) for relation in relations):
                names = relations if "." in pattern else [relation.partition(".")[2] for relation in relations]
                yield pattern, next(iter(get_close_matches(pattern, names, 1)), "")

    def choose(self, shown: Shown) -> Iterator[Shown]:
        """Yield `shown` if it is chosen, after the transaction's begin if that was held back."""
        if not self._tables and not self._operations:
            yield shown
        elif shown["message"] in _BEGINS:
            self._begin, self._is_shown = shown, False
        elif shown["message"] in _ENDS:
            self._begin = None
            if self._is_shown:
                yield shown
            self._is_shown = False
        elif shown["message"] in _ENDS_LATER:
            if shown["xid"] in self._xids:
                yield shown
        elif self._is_chosen(shown):
            if self._begin is not None:
                self._xids.add(self._begin["xid"])
                yield self._begin
                self._begin = None
            self._is_shown = True
            yield shown

    def _is_chosen(self, shown: Shown) -> bool:
        operation = shown["message"].lower()
        if operation not in OPERATIONS:
            return not self._operations and operation == "relation" and is_table(shown["relation"], self._tables)
        if self._operations and operation not in self._operations:
            return False
        if not self._tables:
            return True
        return any(is_table(one, self._tables) for one in shown.get("relations", (shown.get("relation", ""),)))
