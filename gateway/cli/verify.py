"""`walgate verify`: make the running gateway read tables with the purpose VERIFY, and wait for a
mirror's verdicts on them.

Like every command, this one is sent through the replication stream, and everything that it causes
has an LSN after that of the command. A verdict of the mirror that began after that LSN is therefore
the answer to the command: no ids are exchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.cli.stream_server import stream_login
from gateway.cli.verify_mirror_folder import MirrorFolder
from gateway.config.settings import Settings
from gateway.errors import Retry, StopForOperator, WalgateError
from gateway.names import is_table
from gateway.postgres.connection import sql_session
from gateway.postgres.credentials import Credentials
from gateway.postgres.server import load_facts
from gateway.runtime.snapshot_status import snapshot_states
from gateway.runtime.stored_positions import quarantined_tables
from gateway.snapshot.commands import emit_command, encode_command
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import NOT_TO_BE_READ, StoredStates
from gateway.snapshot.whole_snapshot import PAUSED
from gateway.startup.facts import PublicationFacts, PublishedRelation
from gateway.transactions.position import position_key
from schemas.lsn import Lsn
from schemas.topic_names import counted, format_relation
from schemas.verdict import TableVerdict

POLL_S: Final = 1.0
PROGRESS_S: Final = 5.0
_POLL_A_TABLE_S: Final = 0.005
_SHOWN_KEYS: Final = 20
"""The number of differing keys that are printed for each table; JSON has all that the mirror
reports."""
EQUAL, DIFFERENT, UNDECIDED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The verdicts of a verification. `first` are the verdicts of the comparison. `repaired` are
    those of a second comparison, of tables that were replaced after the first. `absent` are tables
    that the mirror does not have, `quarantined` tables that were not compared."""

    first: tuple[TableVerdict, ...]
    repaired: tuple[TableVerdict, ...] = ()
    absent: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()

    @property
    def last(self) -> dict[str, TableVerdict]:
        return {verdict.table: verdict for verdict in (*self.first, *self.repaired)}

    @property
    def exit_code(self) -> int:
        if any(verdict.difference_count for verdict in self.last.values()):
            return DIFFERENT
        is_undecided = any(verdict.surplus_unknown for verdict in self.last.values())
        return UNDECIDED if is_undecided or self.absent or self.quarantined else EQUAL


async def verify(
    settings: Settings,
    mirror: str,
    patterns: Sequence[str],
    *,
    repair: bool,
    patience_s: float,
    tell: Callable[[str], None],
) -> VerificationResult:
    """Verify tables. `patience_s` is how long gateway and mirror may both be without progress.
    Raises WalgateError."""
    folder = MirrorFolder(mirror)
    source = settings.source
    login = await stream_login(source)
    async with sql_session(login) as sql:
        facts = await load_facts(sql, source.slot, source.publications, excluded=source.excluded_tables)
    tables = choose_tables(facts.publications, patterns)
    key = position_key(facts.server.system_identifier, facts.server.database, source.slot)
    states = await snapshot_states(settings, key)
    # Without states, no gateway has begun a snapshot.
    in_quarantine = await quarantined_tables(settings, key) if states.tables else ()
    quarantined = [tables.pop(each.relation_oid) for each in in_quarantine if each.relation_oid in tables]
    check_read(states, tables)
    verification = _Verification(settings, login, folder, key, patience_s, tell)
    first = await verification.run("VERIFY", sorted(tables.values())) if tables else []
    absent = sorted(set(tables.values()) - {verdict.table for verdict in first})
    different = [verdict.table for verdict in first if verdict.difference_count]
    repaired: list[TableVerdict] = []
    if repair and different:
        tell(f"tables with differences, which will be replaced: {', '.join(different)}")
        await verification.run("REPLACE", different)
        repaired = await verification.run("VERIFY", different)
    return VerificationResult(tuple(first), tuple(repaired), tuple(absent), tuple(sorted(quarantined)))


def choose_tables(publications: Mapping[str, PublicationFacts], patterns: Sequence[str]) -> dict[int, str]:
    """Return the chosen published tables: schema.table by oid. Raises StopForOperator if a pattern
    matches none, since the table that it was meant for would not be compared."""
    published = {relation.relation_oid: relation for facts in publications.values() for relation in facts.relations}
    if not published:
        raise StopForOperator("the publications have no tables", hint="add tables: ALTER PUBLICATION ... ADD TABLE ...")
    relations = published.values()
    unmatched = [pattern for pattern in patterns if not any(_is_chosen(each, [pattern]) for each in relations)]
    if unmatched:
        raise StopForOperator(
            f"no published table matches --table {', --table '.join(unmatched)}",
            hint="check --table: a pattern is schema.table or table, and may contain the wildcards * and ?. The view "
            "pg_publication_tables lists the published tables",
        )
    return {
        oid: format_relation(relation.namespace, relation.name)
        for oid, relation in published.items()
        if not patterns or _is_chosen(relation, patterns)
    }


def _is_chosen(relation: PublishedRelation, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches the relation, or is its name in quotes as it is printed."""
    return is_table(relation.full_name, patterns) or format_relation(relation.namespace, relation.name) in patterns


def check_read(states: StoredStates, tables: Mapping[int, str]) -> None:
    """Raise Retry if the gateway still has to deliver rows of one of the tables: it would not
    verify that table."""
    unread = [name for oid, name in tables.items() if not _is_read(states, oid)]
    if unread:
        raise Retry(
            f"the rows of {', '.join(unread[:10])}{' and others' if len(unread) > 10 else ''} have not all been delivered yet",
            hint="wait until the snapshot has ended (walgate snapshot status), or choose other tables with --table",
        )


def _is_read(states: StoredStates, oid: int) -> bool:
    state = states.tables.get(oid)
    return state is not None and (state.status in (NOT_TO_BE_READ, Status.DONE.value) or state.purpose == "VERIFY")


def no_progress_hint(states: StoredStates) -> str:
    """Return what to do if neither the gateway nor the mirror advances."""
    if states.stream is not None and states.stream.paused:
        return PAUSED
    return (
        "check that the gateway (walgate status) and the mirror are running, that --mirror is the mirror's path, "
        "and that the gateway's log contains no table_unreadable. "
        "Tables are compared when they are merged: if the mirror has --merge-every inf, run walgate merge"
    )


@dataclass(slots=True)
class _Verification:
    settings: Settings
    login: Credentials
    folder: MirrorFolder
    position_key: bytes
    patience_s: float
    tell: Callable[[str], None]

    async def run(self, purpose: str, tables: Sequence[str]) -> list[TableVerdict]:
        """Send the command for `tables`, and return the verdicts on those that the mirror has.
        Raises Retry if there is no progress."""
        text = encode_command("start", tables, purpose, self.settings.source.slot)
        lsn = await emit_command(self.login, text)
        waiting = _Waiting(purpose, lsn, set(tables), [], time.monotonic())
        while waiting.tables:
            ended = await asyncio.to_thread(self.folder.ended_lsn)
            await self._collect(waiting)
            if ended > lsn:
                break
            await self._look(waiting)
            await asyncio.sleep(max(POLL_S, len(waiting.tables) * _POLL_A_TABLE_S))
        return sorted(waiting.verdicts, key=lambda verdict: verdict.table)

    async def _collect(self, waiting: _Waiting) -> None:
        for table in sorted(waiting.tables):
            verdict = await asyncio.to_thread(self.folder.verdict, table)
            if verdict is None or verdict.begin_lsn <= waiting.lsn or verdict.purpose != waiting.purpose:
                continue
            waiting.tables.remove(table)
            waiting.verdicts.append(verdict)
            waiting.moved_at = time.monotonic()
            if waiting.purpose == "VERIFY":
                self.tell(f"{table}: compared, {counted(verdict.row_count, 'row')}")
            else:
                self.tell(f"{table}: replaced, {verdict.row_count:,} rows")

    async def _look(self, waiting: _Waiting) -> None:
        """Report the progress of gateway and mirror. Raises Retry if neither has made any for
        `patience_s` seconds."""
        now = time.monotonic()
        if now - waiting.looked_at < PROGRESS_S:
            return
        waiting.looked_at = now
        reached = await asyncio.to_thread(self.folder.reached_lsn)
        try:
            states = await snapshot_states(self.settings, self.position_key)
        except StopForOperator:
            raise
        except WalgateError as error:
            self.tell(f"how far the gateway has read is unknown: {error.message}")
            states = StoredStates()
        own = {format_relation(state.schema, state.name): state for state in states.tables.values() if state.name}
        rows = {
            name: own[name].row_count
            for name in sorted(waiting.tables)
            if name in own
            and own[name].purpose == waiting.purpose
            and own[name].status not in (NOT_TO_BE_READ, Status.WAITING.value)
        }
        seen = (reached, tuple(rows.items()))
        if seen != waiting.seen:
            waiting.seen, waiting.moved_at = seen, now
            compared = f"; the mirror has compared up to {Lsn(reached)}" if reached > waiting.lsn else ""
            self.tell(f"tables left: {len(waiting.tables)}, rows read from them: {sum(rows.values()):,}{compared}")
        elif now - waiting.moved_at > self.patience_s:
            names = ", ".join(sorted(waiting.tables)[:10])
            raise Retry(
                f"no result for {names}: neither the gateway nor the mirror has advanced for {self.patience_s:g} s",
                hint=no_progress_hint(states),
            )


@dataclass(slots=True)
class _Waiting:
    """State of a wait for verdicts. `tables` have no verdict yet; `lsn` is the LSN of the
    command."""

    purpose: str
    lsn: Lsn
    tables: set[str]
    verdicts: list[TableVerdict]
    moved_at: float
    looked_at: float = 0.0
    seen: tuple[int, tuple[tuple[str, int], ...]] = (-1, ())


def line_of(verdict: TableVerdict) -> str:
    unknown = (
        "; surplus rows are unknown, since its key changed meanwhile: run walgate verify again"
        if verdict.surplus_unknown
        else ""
    )
    if not verdict.difference_count:
        found = "no difference" if unknown else "equal"
        return f"{verdict.table}: {found}, {counted(verdict.row_count, 'row')} compared{unknown}"
    kinds = f"{verdict.changed:,} changed, {verdict.missing:,} missing, {verdict.surplus:,} surplus"
    differences = counted(verdict.difference_count, "difference")
    return f"{verdict.table}: {differences} in {counted(verdict.row_count, 'row')} compared: {kinds}{unknown}"


def render(outcome: VerificationResult) -> str:
    lines = []
    repaired = {verdict.table: verdict for verdict in outcome.repaired}
    for verdict in outcome.first:
        lines.append(line_of(verdict))
        for each in verdict.keys[:_SHOWN_KEYS]:
            columns = f" ({', '.join(each.columns)})" if each.columns else ""
            lines.append(f"  {each.kind} {each.key or 'a row of a table without a key'}{columns}")
        if verdict.difference_count > _SHOWN_KEYS:
            lines.append("  more: --json, and <mirror>/differences")
        if verdict.table in repaired:
            lines.append(f"  after the repair: {line_of(repaired[verdict.table])}")
    lines += [f"{table}: not in the mirror" for table in outcome.absent]
    lines += [f"{table}: in quarantine, not compared" for table in outcome.quarantined]
    return "\n".join(lines)


def as_json(outcome: VerificationResult) -> dict[str, Any]:
    repaired = {verdict.table for verdict in outcome.repaired}
    return {
        "equal": outcome.exit_code == EQUAL,
        "row_count": sum(verdict.row_count for verdict in outcome.first),
        "difference_count": sum(verdict.difference_count for verdict in outcome.last.values()),
        "absent": list(outcome.absent),
        "quarantined": list(outcome.quarantined),
        "tables": [
            {
                "table": verdict.table,
                "row_count": verdict.row_count,
                "changed": verdict.changed,
                "missing": verdict.missing,
                "surplus": verdict.surplus,
                "surplus_unknown": verdict.surplus_unknown,
                "keys": [{"kind": each.kind, "key": each.key, "columns": list(each.columns)} for each in verdict.keys],
                "repaired": verdict.table in repaired and not outcome.last[verdict.table].difference_count,
            }
            for verdict in outcome.first
        ],
    }
