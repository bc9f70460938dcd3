"""Find published tables that were never read, and tables whose rows were added, removed or changed
without an event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import asyncpg

from gateway.config.settings import SnapshotSettings
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.connection import transaction
from gateway.postgres.publication import PublicationLoader
from gateway.snapshot.discovery.unsent_changes import Comparison
from gateway.snapshot.progress_log import log_quarantined, log_read_before, log_unsent
from gateway.snapshot.rules.published_content import FILE_UNKNOWN, LeafContent, PublishedContent
from gateway.snapshot.sql import EXISTING, NEW_XID, PRESENT
from gateway.snapshot.stored_state import TableState
from gateway.snapshot.table_task import RENAMED
from gateway.snapshot.table_tasks import TableTasks
from schemas.lsn import Lsn

_NOT_FOUND: Final = "it was not published for a time, or only just when the gateway ended"
ALTERED: Final = "columns were altered in a transaction that was streamed or prepared before its commit"
HORIZON_STEP: Final = 50_000_000
"""The stored horizon of an unchanged table is renewed after this many transactions."""


class Discovery:
    """Check the publications and the catalog, and queue tables to be read.

    `is_first`: nothing was delivered before this session, so all tables are new.
    `has_streamed_before`: changes were delivered before, but no snapshot was taken. `is_after_gap`:
    changes were lost after the last transaction of the previous session. `names` has the names of
    the publications.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        sql: asyncpg.Connection,
        names: Sequence[str],
        publications: PublicationLoader,
        tasks: TableTasks,
        *,
        is_first: bool,
        has_streamed_before: bool,
        is_after_gap: bool,
    ) -> None:
        self._settings = settings
        self._sql = sql
        self._publications = publications
        self._tasks = tasks
        self._is_first = is_first
        self._has_streamed_before = has_streamed_before
        self._is_after_gap = is_after_gap
        self._names = frozenset(names)
        self._comparison = Comparison(sql, names)
        self._logged_names: dict[int, set[tuple[str, str]]] = {}
        """Other names that a relation has had, or has now, according to messages in the log. A
        Relation message with such a name may arrive later."""
        self._returned: set[int] = set()
        """Relations of `_logged_names` of which a Relation message had the same name as `contents`
        again."""
        self._renames_in_stream: set[int] = set()
        """Relations that were reported since the last check because a Relation message had a name
        that differs from that in `contents`."""
        self._leaves_in_stream: dict[int, set[int]] = {}
        """Partitions that Relation messages have named, by the oid of their root, and that are not
        compared yet."""
        self._departed_leaves: set[int] = set()
        """Partitions that no longer existed at a check. Their Relation messages may still
        arrive."""
        self._unseen: set[int] = set()
        """Relations that no check has seen yet, although their Relation messages have arrived."""
        self._absent: dict[int, int] = {}
        """Relations that were not in the catalog at an earlier check, each with a transaction id.
        Every transaction that the stream had sent by then has a lower one."""
        self._dropped: list[tuple[Lsn, list[int]]] = []
        """Relations that were dropped, with an LSN after their last change."""

    async def check(self) -> None:
        """Check the publications and the catalog once.

        Tables that are no longer published are forgotten. New tables are queued: with the purpose
        REPLACE if consumers may have rows of them, otherwise with FILL. They are stored as
        NOT_TO_BE_READ if they are in quarantine, snapshot.mode is not initial, or changes were
        delivered before any snapshot. Then the tables that are NOT_TO_BE_READ or DONE are compared
        with their contents at the last check. Those of tables that wait for their first read are
        stored, so that the read can be compared with them. Raises WalgateError.

        Nothing is done while a publication is missing: it may have been renamed, and the start of a
        session, or the stream, reports it.
        """
        tasks = self._tasks
        unseen, self._unseen = self._unseen, set()
        publications = await self._publications.facts(self._sql)
        if not publications.keys() >= self._names:
            self._unseen |= unseen
            return
        relations = {r.relation_oid: r for facts in publications.values() for r in facts.relations}
        found_before = {*tasks.by_oid, *tasks.settled, *(tasks.contents.by_oid.keys() - tasks.unpublished)}
        for oid in found_before - relations.keys():
            tasks.no_longer_published(oid)
        excluded = {r.relation_oid for facts in publications.values() for r in facts.excluded}
        await self._forget(unseen, relations.keys() | excluded)
        new = [each for oid, each in relations.items() if oid not in tasks.settled and oid not in tasks.by_oid]
        quarantined = [each for each in new if each.relation_oid in tasks.quarantined]
        if quarantined:
            new = [each for each in new if each not in quarantined]
            log_quarantined([f"{relation.namespace}.{relation.name}" for relation in quarantined])
        for relation in quarantined:
            tasks.never_read(TableState(relation.relation_oid, relation.namespace, relation.name, ""))
        reads_none = self._has_streamed_before or self._settings.mode != "initial"
        if self._has_streamed_before and new and self._settings.mode == "initial":
            log_read_before([f"{relation.namespace}.{relation.name}" for relation in new])
        elif new and not reads_none:
            tasks.snapshot.begin(len(new))
        for relation in new:
            oid = relation.relation_oid
            state = TableState(oid, relation.namespace, relation.name, "" if reads_none else tasks.snapshot.id)
            was_unpublished = tasks.published_again(oid)
            if reads_none:
                tasks.never_read(state)
                if was_unpublished:
                    log_unsent(relation.namespace, relation.name, _NOT_FOUND, reads=False)
            elif was_unpublished or self._is_after_gap or tasks.snapshot.has_unwatched or tasks.snapshot.may_reuse(oid):
                tasks.wait(replace(state, purpose="REPLACE"))
            else:
                tasks.add(state, misses_keys=not self._is_first)
        self._has_streamed_before = self._is_first = self._is_after_gap = False
        tasks.snapshot.catalog_checked()
        await self._compare()

    async def published(self, sql: asyncpg.Connection | None) -> dict[tuple[str, str], int]:
        """Return the oids of the tables that are published now, by schema and name. `sql`: a
        session other than that of `check`; if it is None, the tables of the last query are
        returned. Raises WalgateError."""
        publications = self._publications.known if sql is None else await self._publications.facts(sql)
        return {(r.namespace, r.name): r.relation_oid for facts in publications.values() for r in facts.relations}

    async def _forget(self, unseen: set[int], published: set[int]) -> None:
        """Forget the relations of `unseen` that exist, and those that were dropped.

        The former were published only for a time. Consumers have some of their rows, so they are
        read with the purpose REPLACE if they are published again. A relation that does not exist
        may be created by a transaction that the stream sends before its commit is visible. It was
        dropped if it does not exist after all transactions that were sent have ended.
        """
        tasks = self._tasks
        sent = {*unseen, *self._absent} - published
        sought = sent | tasks.unpublished - published
        if not sought:
            return
        with classified_errors("querying tables that were published for a time"):
            async with transaction(self._sql, isolation="repeatable_read"):
                rows = await self._sql.fetch(EXISTING, sorted(sought))
                first_running, lsn = await self._sql.fetchrow(PRESENT)
                absent = sought - {oid for oid, *_ in rows}
                xid = int(await self._sql.fetchval(NEW_XID)) if absent - self._absent.keys() else 0
        for oid, namespace, name, is_partition in rows:
            if oid in sent and oid not in tasks.unpublished and not is_partition:
                tasks.no_longer_published(oid, f"{namespace}.{name}")
        absent -= tasks.settled | tasks.by_oid.keys()
        self._absent = {oid: self._absent.get(oid, xid) for oid in absent}
        dropped = [oid for oid, xid in self._absent.items() if xid < first_running]
        for oid in dropped:
            del self._absent[oid]
            tasks.dropped(oid)
        if dropped:
            self._dropped.append((Lsn.parse(lsn), dropped))

    def pop_passed(self, resume_lsn: int) -> list[int]:
        """Return the dropped relations of which no change can come in the stream any more, and
        forget them. `resume_lsn`: every transaction that commits before it was received."""
        passed = [oid for lsn, oids in self._dropped if lsn <= resume_lsn for oid in oids]
        self._dropped = [each for each in self._dropped if each[0] > resume_lsn]
        return passed

    async def _compare(self) -> None:
        """Find settled tables whose rows were added, removed or changed without an event. `_reads`
        queues them, or only logs them."""
        tasks = self._tasks
        for oid in self._leaves_in_stream.keys() & tasks.contents.by_oid.keys():
            self._add_leaves(oid, self._leaves_in_stream.pop(oid))
        returned, self._returned = self._returned, set()
        renamed = set(self._renames_in_stream)
        contents = dict(tasks.contents.by_oid)  # what arrives during the check is compared by the next one
        check = await self._comparison.check([*tasks.settled, *tasks.waiting_without_content])
        changed = []
        for oid, now in list(check.contents.items()):
            before = contents.get(oid)
            if before is None or not check.is_as_before(oid, before):
                changed.append((oid, now, before))
            elif tasks.contents.by_oid.get(oid) is not before:
                continue
            elif check.horizon - before.horizon >= HORIZON_STEP:
                tasks.contents.is_now(oid, replace(now, horizon=check.horizon))
            else:
                tasks.contents.is_unchanged(oid, check.horizon)
        for oid, now, before in changed:
            await self._account_for(oid, replace(now, horizon=check.horizon), before, check.until)
        for oid in returned:
            self._logged_names.pop(oid, None)
        self._renames_in_stream -= renamed

    async def _account_for(
        self, oid: int, now: PublishedContent, before: PublishedContent | None, until: float
    ) -> None:
        tasks = self._tasks
        reason: str | None = ""
        if before is not None:
            horizon = tasks.contents.horizon(oid, before)
            if now.account is not None and not now.account.memberships:
                return  # it is no longer published, which the next check finds, too
            reason = await self._comparison.reason(self._renamed(oid, before, now), now, horizon, until)
            if reason is None or tasks.contents.by_oid.get(oid) is not before or oid not in tasks.settled:
                return
            self._departed_leaves |= {leaf.oid for leaf in before.leaves}
            self._departed_leaves -= {leaf.oid for leaf in now.leaves}
            if (before.schema, before.name) != (now.schema, now.name):
                self._logged_names.setdefault(oid, set()).add((before.schema, before.name))
        if not reason or oid in tasks.quarantined or not self._reads(oid, now.schema, now.name, reason):
            tasks.contents.is_now(oid, now)

    def _renamed(self, oid: int, before: PublishedContent, now: PublishedContent) -> PublishedContent:
        """Return `before`, with the names of `now` if a Relation message had another name since the
        last check: that change of names was reported already."""
        if oid not in self._renames_in_stream or before.account is None or now.account is None:
            return before
        account = replace(before.account, moved=now.account.moved, named=now.account.named)
        return replace(before, schema=now.schema, name=now.name, account=account)

    def relation_received(self, oid: int, namespace: str, name: str, *, is_excluded: bool) -> None:
        """Report that a Relation message with this name has arrived. `is_excluded`: no rows of the
        relation are written.

        If the name differs from that in `contents`, the changes of the relation go to another topic
        from here on, even if it is renamed back before the next check. If a schema is renamed and
        renamed back, only the stream shows it.
        """
        tasks = self._tasks
        content = tasks.contents.by_oid.get(oid)
        is_known = oid in tasks.settled or oid in tasks.by_oid or oid in tasks.unpublished or oid in self._unseen
        if not is_known and not is_excluded:
            self._unseen.add(oid)
            tasks.not_found_yet(oid)
        if content is not None and oid in tasks.by_oid and (content.schema, content.name) != (namespace, name):
            tasks.is_replaced(oid, RENAMED)
        if content is None or oid not in tasks.settled or oid in tasks.quarantined:
            return
        if (content.schema, content.name) == (namespace, name):
            if oid in self._logged_names:
                self._returned.add(oid)
        elif (namespace, name) not in self._logged_names.setdefault(oid, set()):
            self._logged_names[oid].add((namespace, name))
            self._renames_in_stream.add(oid)
            self._reads(
                oid, content.schema, content.name, f"it was renamed to {namespace}.{name}, for a time or for good"
            )

    def partition_received(self, oid: int, root: int) -> bool:
        """Report that a Relation message of a partition whose rows are sent as rows of `root` has
        arrived. Return whether the partition is one that no check has seen. If the next check does
        not see it either, its rows are gone.
        """
        content = self._tasks.contents.by_oid.get(root)
        if oid in self._departed_leaves:
            return False
        if root not in self._tasks.settled and root not in self._tasks.by_oid:
            return False
        if content is None:
            self._leaves_in_stream.setdefault(root, set()).add(oid)
            return False
        return self._add_leaves(root, {oid})

    def _add_leaves(self, root: int, oids: set[int]) -> bool:
        """Add partitions that no check has seen to the stored content of a relation. Return whether
        there are any."""
        content = self._tasks.contents.by_oid[root]
        new = oids - {leaf.oid for leaf in content.leaves} if content.is_partitioned else set()
        if new:
            leaves = (*content.leaves, *(LeafContent(oid, FILE_UNKNOWN, "") for oid in sorted(new)))
            self._tasks.contents.is_now(root, replace(content, leaves=leaves))
        return bool(new)

    def rows_in_doubt(self, oid: int, namespace: str, name: str) -> None:
        """Read a relation again, because its rows were sent without the numbers of columns, or with
        those of others. The lock of a prepared transaction keeps it from being read before that has
        ended."""
        tasks = self._tasks
        task = tasks.by_oid.get(oid)
        if task is not None and task.state.purpose in ("FILL", "REPLACE"):
            tasks.is_replaced(oid, ALTERED)
        elif (task is not None or oid in tasks.settled) and oid not in tasks.quarantined:
            self._reads(oid, namespace, name, ALTERED)

    def _reads(self, oid: int, schema: str, name: str, reason: str) -> bool:
        """Return whether the table is to be read again, which snapshot.mode = initial with
        snapshot.read_again allows; if so, queue it. Log the reason in either case."""
        reads = self._settings.mode == "initial" and self._settings.read_again
        log_unsent(schema, name, reason, reads=reads)
        if reads:
            self._tasks.snapshot.begin(1)
            self._tasks.queue(oid, schema, name, "REPLACE")
        return reads
