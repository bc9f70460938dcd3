"""A model of one published table whose content changes unseen: statements, changes, looks at the
catalog and restarts of the gateway in random order.

The model knows what pgoutput sends: a change is sent if the table is logged, in its publication
without a row filter, and in its schema, and if the publication publishes the kind of change. The
gateway has the account of its last look alone, which is durable (`gateway.snapshot.rules`), and
reads the table again where `unsent` says why.

    nothing is lost       after the last look, consumers have the rows of the source
    nothing is needless   GRANT, SET STATISTICS and copies of the files (VACUUM FULL, CLUSTER) alone
                          do not cause the table to be read

`broken` takes a part of the account out; the histories must then go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from gateway.snapshot.rules.published_content import (
    Account,
    LeafContent,
    Membership,
    PublishedContent,
    TypeVersion,
    unsent,
)

CURES: Final = (
    "membership", "publication", "schema", "name", "labels", "files", "copies", "toast", "truncate", "durable"
)  # fmt: skip
_ALL: Final = "iudt"


class World:
    """`rows` are those of the source: text of the key -> (xmin, value). `delivered` is what
    consumers have."""

    def __init__(self, seed: int, broken: str = "") -> None:
        assert broken in ("", *CURES)
        self.rng = random.Random(seed)
        self.broken = broken
        self.wrong: list[str] = []
        self.next_xid = 100
        self.rows: dict[str, tuple[int, int]] = {}
        self.delivered: dict[str, int] = {}
        self.is_logged = self.is_member = self.is_whole = self.is_in_schema = True
        self.actions = self.rng.choice((_ALL, _ALL, "iud"))
        self.label = "sad"
        self.made = self.moved = self.named = self.columns = self.attached = self.published = self.labelled = 1
        self.filenode, self.toast = 1, self.rng.choice((0, 1))
        self.before: PublishedContent | None = None
        self.is_touched = False  # since the last look, by more than GRANT and copies of the files
        self.look()

    def xid(self) -> int:
        self.next_xid += 1
        return self.next_xid

    # -- what happens to rows

    def sends(self, letter: str) -> bool:
        return self.is_logged and self.is_member and self.is_whole and self.is_in_schema and letter in self.actions

    def change(self) -> None:
        xid = self.xid()
        for _ in range(self.rng.randrange(1, 4)):
            key = f"{self.rng.randrange(6)} {self.label}"
            letter = self.rng.choice("iud")
            if (letter == "i") == (key in self.rows):
                continue
            if letter == "d":
                del self.rows[key]
            else:
                self.rows[key] = (xid, xid)
            if not self.sends(letter):
                continue
            if letter == "d":
                self.delivered.pop(key, None)
            else:
                self.delivered[key] = xid

    def truncate(self) -> None:
        self.is_touched = True
        self.filenode = self.xid()
        self.rows = {}
        if self.sends("t"):
            self.delivered = {}

    def _rewrite(self, *, keeps_xmin: bool) -> None:
        xid = self.filenode = self.xid()
        self.toast = self.toast and xid
        if not keeps_xmin:
            self.rows = {key: (xid, value) for key, (_, value) in self.rows.items()}

    def copy_files(self) -> None:
        """VACUUM FULL and CLUSTER."""
        self._rewrite(keeps_xmin=True)

    def touch_columns(self) -> None:
        """GRANT on a column, SET STATISTICS."""
        self.columns = self.xid()

    def change_type(self) -> None:
        self.is_touched = True
        self.columns = self.xid()
        self._rewrite(keeps_xmin=False)
        self.rows = {key: (xmin, -abs(value)) for key, (xmin, value) in self.rows.items()}

    # -- away and back: each of these is called twice, with anything between

    def set_logged(self, is_logged: bool) -> None:
        self.is_touched = True
        self.is_logged = is_logged
        self._rewrite(keeps_xmin=False)

    def set_member(self, is_member: bool) -> None:
        self.is_touched = True
        self.is_member, self.attached = is_member, self.xid()

    def set_whole(self, is_whole: bool) -> None:
        self.is_touched = True
        self.is_whole, self.attached = is_whole, self.xid()

    def set_actions(self, is_back: bool) -> None:
        self.is_touched = True
        self.actions, self.published = _ALL if is_back else self.rng.choice(("i", "iu", "id")), self.xid()

    def set_schema(self, is_in_schema: bool) -> None:
        self.is_touched = True
        self.is_in_schema, self.moved = is_in_schema, self.xid()

    def set_name(self, _: bool) -> None:
        """Another table may have had its name: its changes were written to the same topic."""
        self.is_touched = True
        self.named = self.xid()
        if self.rng.random() < 0.3:
            self.delivered["of another"] = self.named

    def rename_label(self) -> None:
        self.is_touched = True
        self.labelled = self.xid()
        new = f"label{self.labelled}"
        self.rows = {key.replace(self.label, new): row for key, row in self.rows.items()}
        self.label = new

    # -- the gateway

    def content(self) -> PublishedContent:
        member = Membership(7, str(self.published), "p", self.actions, str(self.attached), self.is_whole)
        types = (TypeVersion(500, str(self.labelled)),)
        account = Account(str(self.made), str(self.moved), str(self.named), 10, (member,), types)
        leaf = LeafContent(1, self.filenode, str(self.columns), toast=self.toast)
        return PublishedContent("public", "t", False, (leaf,), account, self.next_xid + 1)

    def look(self) -> None:
        """A table that is not published is forgotten, and read when it is found again."""
        if not (self.is_logged and self.is_member and self.is_in_schema):
            self.before = None
            return
        now = self.content()
        reason = "it is new" if self.before is None else self._judged(self.before, now)
        if reason:
            if self.before is not None and not self.is_touched and self._has_old_rows(self.before):
                self.wrong.append(f"read without need: {reason}")
            self.delivered = {key: value for key, (_, value) in self.rows.items()} if self.is_whole else {}
        self.before, self.is_touched = now, False

    def restart(self) -> None:
        """What is stored with the state of the table is there again."""
        if self.broken == "durable" and self.before is not None:
            self.before, self.is_touched = self.content(), False

    def _has_old_rows(self, before: PublishedContent) -> bool:
        return any(xmin < before.horizon for xmin, _ in self.rows.values())

    def _judged(self, before: PublishedContent, now: PublishedContent) -> str:
        assert before.account is not None and now.account is not None
        former, latter = before.account, now.account
        copied = {1} if self._has_old_rows(before) else set()
        match self.broken:
            case "membership":
                (then,), (member,) = former.memberships, latter.memberships
                latter = replace(latter, memberships=(replace(member, listing=then.listing, is_whole=then.is_whole),))
            case "publication":
                (then,), (member,) = former.memberships, latter.memberships
                latter = replace(latter, memberships=(replace(member, version=then.version, actions=then.actions),))
            case "schema":
                latter = replace(latter, moved=former.moved)
            case "name":
                latter = replace(latter, named=former.named)
            case "labels":
                latter = replace(latter, types=former.types)
            case "copies":
                copied = set()
            case "truncate":
                (member,) = latter.memberships
                former = replace(former, memberships=(replace(former.memberships[0], actions=_ALL),))
                latter = replace(latter, memberships=(replace(member, actions=_ALL),))
                same = former.memberships[0].version == member.version
                latter = latter if same else now.account
        (leaf,), (then_leaf,) = now.leaves, before.leaves
        if self.broken == "files":
            leaf = replace(leaf, filenode=then_leaf.filenode)
        if self.broken == "toast":
            leaf = replace(leaf, toast=then_leaf.toast)
        return unsent(replace(before, account=former), replace(now, account=latter, leaves=(leaf,)), copied)


def run(seed: int, broken: str = "") -> list[str]:
    """One history; what went wrong."""
    world = World(seed, broken)
    rng = world.rng
    once: list[Callable[[], None]] = [
        world.copy_files, world.touch_columns, world.change_type, world.truncate, world.rename_label,
    ]  # fmt: skip
    aways: list[Callable[[bool], None]] = [
        world.set_logged, world.set_member, world.set_whole, world.set_actions, world.set_schema, world.set_name,
    ]  # fmt: skip
    away: list[Callable[[bool], None]] = []
    for _ in range(rng.randrange(10, 60)):
        what = rng.random()
        if what < 0.45:
            world.change()
        elif what < 0.6:
            rng.choice(once)()
        elif what < 0.72:
            (new,) = rng.sample(aways, 1)
            if new not in away:
                new(False)
                away.append(new)
        elif what < 0.9 and away:
            away.pop(rng.randrange(len(away)))(True)
        elif what < 0.95:
            world.look()
        else:
            world.restart()
    _come_back(away)
    world.look()
    wrong = list(world.wrong)
    if world.delivered != {key: value for key, (_, value) in world.rows.items()}:
        wrong.append("consumers have other rows than the source")
    return wrong


def _come_back(away: Iterable[Callable[[bool], None]]) -> None:
    for back in away:
        back(True)
