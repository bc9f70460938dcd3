"""Each check over facts made for it; what real servers say is in test_facts.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lsn import Lsn
from gateway.operate.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.replication.facts import Caution, Expected, Facts
from gateway.replication.preflight import Report, check_running, preflight
from gateway.replication.publication import PublicationFacts, PublishedColumn, PublishedRelation
from gateway.replication.server import ServerFacts
from gateway.replication.slot import SlotFacts

ID = PublishedColumn("id", 23, -1, "integer")
NAME = PublishedColumn("name", 25, -1, "text")
ORDERS = PublishedRelation(101, "shop", "orders", "DEFAULT", ("id",), (ID, NAME), None)
ITEMS = PublishedRelation(102, "shop", "items", "DEFAULT", ("id",), (ID,), None)
PUBLICATION = PublicationFacts(
    7, "p", False, False, frozenset({"insert", "update", "delete", "truncate"}), (ORDERS, ITEMS)
)
SERVER = ServerFacts(
    "71",
    1,
    "shop",
    5,
    180006,
    "logical",
    Lsn(2000),
    "UTF8",
    60.0,
    max_prepared_transactions=10,
    used_slots=1,
    used_senders=1,
)
SLOT = SlotFacts(
    "s", "pgoutput", "logical", "shop", False, None, Lsn(900), Lsn(1000), "reserved", None, False, failover=False
)
FACTS = Facts(SERVER, SLOT, {"p": PUBLICATION})
EXPECTED = Expected("s", ("p",), Lsn(1500), "71", 1, "shop")
FIRST_START = replace(EXPECTED, resume_lsn=None)


def with_server(**change: Any) -> Facts:
    return replace(FACTS, server=replace(SERVER, **change))


def with_slot(**change: Any) -> Facts:
    return replace(FACTS, slot=replace(SLOT, **change))


def with_publication(**change: Any) -> Facts:
    return replace(FACTS, publications={"p": replace(PUBLICATION, **change)})


def without_slot() -> Facts:
    return replace(FACTS, slot=None)


def test_what_is_as_it_must_be_is_found_so() -> None:
    assert preflight(FACTS, EXPECTED) == Report((), ())
    assert check_running(FACTS, FACTS, EXPECTED) == Report((), ())


def test_what_a_standby_says_of_its_timeline_is_not_believed() -> None:
    assert preflight(with_server(in_recovery=True), replace(EXPECTED, timeline=2)).errors == ()


def test_first_start_without_a_slot_is_fine() -> None:
    assert preflight(without_slot(), FIRST_START) == Report((), ())


@pytest.mark.parametrize(
    ("facts", "expected", "kind", "said"),
    [
        (with_server(version_num=130010), EXPECTED, StopForOperator, "13 is too old"),
        (with_server(wal_level="replica"), EXPECTED, StopForOperator, "wal_level is replica"),
        (with_server(encoding="SQL_ASCII"), EXPECTED, StopForOperator, "SQL_ASCII"),
        (with_server(version_num=140000), replace(EXPECTED, two_phase=True), StopForOperator, "two_phase needs"),
        (with_server(version_num=160000), replace(EXPECTED, failover=True), StopForOperator, "failover needs"),
        (with_server(system_identifier="72"), EXPECTED, DataGap, "another server"),
        (replace(with_server(database="other"), slot=replace(SLOT, database="other")), EXPECTED, DataGap, "database other"),
        (FACTS, replace(EXPECTED, timeline=2), DataGap, "left behind"),
        (replace(with_server(used_slots=10), slot=None), FIRST_START, RetrySlowly, "all 10 replication slots"),
        (with_server(used_senders=10), EXPECTED, RetrySlowly, "all 10 WAL senders"),
        (without_slot(), EXPECTED, DataGap, "does not exist, but there is a position"),
        (FACTS, FIRST_START, StopForOperator, "no position of it is known"),
        (with_slot(slot_type="physical", plugin=None, database=None), EXPECTED, StopForOperator, "not logical"),
        (with_slot(plugin="wal2json"), EXPECTED, StopForOperator, "wal2json"),
        (with_slot(database="other"), EXPECTED, StopForOperator, "of database other"),
        (with_slot(temporary=True), EXPECTED, StopForOperator, "temporary"),
        (with_slot(wal_status="lost"), EXPECTED, DataGap, "lost"),
        (with_slot(invalidation_reason="wal_removed", wal_status="lost"), EXPECTED, DataGap, "wal_removed"),
        (with_slot(conflicting=True), EXPECTED, DataGap, "conflicted"),
        (with_slot(active_pid=99), EXPECTED, Retry, "in use by process 99"),
        (with_slot(confirmed_flush_lsn=Lsn(1501)), EXPECTED, DataGap, "1 bytes of WAL were read by somebody else"),
        (with_server(flush_lsn=Lsn(1499)), EXPECTED, DataGap, "set back"),
        (with_server(flush_lsn=Lsn(1499), in_recovery=True), EXPECTED, RetrySlowly, "not replayed"),
        (replace(FACTS, publications={}), EXPECTED, DataGap, "publication p does not exist"),
        (replace(FACTS, publications={}), replace(FIRST_START, slot_made=True), StopForOperator, "does not exist"),
        (
            replace(
                FACTS,
                publications={"p": PUBLICATION, "q": replace(PUBLICATION, name="q", relations=(replace(ORDERS, columns=(ID,)),))},
            ),
            replace(EXPECTED, publications=("p", "q")),
            StopForOperator,
            "different column lists for shop.orders",
        ),
        (
            with_publication(relations=(replace(ORDERS, identity_columns=("id", "line")),)),
            EXPECTED,
            StopForOperator,
            "does not send line of shop.orders",
        ),
    ],
)  # fmt: skip
def test_failed_check_is_one_error_with_its_class_and_a_remedy(
    facts: Facts, expected: Expected, kind: type[WalgateError], said: str
) -> None:
    (error,) = preflight(facts, expected).errors
    assert type(error) is kind
    assert said in error.message
    assert error.hint or kind is RetrySlowly


@pytest.mark.parametrize(
    ("facts", "expected", "said"),
    [
        (with_server(version_num=190000), EXPECTED, "newer than this gateway"),
        (with_server(max_slot_wal_keep_mb=100), EXPECTED, "max_slot_wal_keep_size is 100 MB"),
        (with_server(idle_slot_timeout_s=60.0), EXPECTED, "idle_replication_slot_timeout is 60 s"),
        (with_slot(wal_status="extended"), EXPECTED, "holds back"),
        (with_slot(wal_status="unreserved"), EXPECTED, "about to be lost"),
        (FACTS, replace(EXPECTED, two_phase=True), "without two_phase"),
        (with_slot(failover=True), EXPECTED, "failover = true"),
        (with_publication(relations=()), EXPECTED, "holds no table"),
        (
            with_publication(relations=(replace(ORDERS, replica_identity="NOTHING", identity_columns=()), ITEMS)),
            EXPECTED,
            '"shop"."orders"',
        ),
    ],
)
def test_doubt_is_a_caution_with_a_hint(facts: Facts, expected: Expected, said: str) -> None:
    report = preflight(facts, expected)
    assert report.errors == ()
    (caution,) = report.cautions
    assert said in caution.message and caution.hint


def test_failover_without_synchronized_slots_may_publish_phantoms() -> None:
    report = preflight(with_slot(failover=True), replace(EXPECTED, failover=True))
    assert ["new primary never had" in caution.message for caution in report.cautions] == [True]


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT", "INDEX", "NOTHING"])
@pytest.mark.parametrize("columns", [(), ("id",)])
@pytest.mark.parametrize("actions", [frozenset({"insert"}), frozenset({"insert", "delete"})])
def test_missing_identity_matters_only_where_it_is_needed(
    identity: str, columns: tuple[str, ...], actions: frozenset[str]
) -> None:
    relation = replace(ORDERS, replica_identity=identity, identity_columns=columns)
    report = preflight(with_publication(actions=actions, relations=(relation,)), EXPECTED)
    assert bool(report.cautions) == ("delete" in actions and identity != "FULL" and not columns)


def test_many_tables_are_counted_rather_than_listed() -> None:
    relations = tuple(
        replace(ORDERS, relation_oid=n, name=f"t{n}", replica_identity="NOTHING", identity_columns=())
        for n in range(500)
    )
    (caution,) = preflight(with_publication(relations=relations), EXPECTED).cautions
    assert "and 490 more" in caution.message and len(caution.message) < 400


@pytest.mark.parametrize(("adopt", "made"), [(True, False), (False, True)])
def test_slot_without_position_is_taken_when_told_or_when_it_is_ours(adopt: bool, made: bool) -> None:
    assert preflight(FACTS, replace(FIRST_START, adopt_slot=adopt, slot_made=made)).errors == ()


def test_own_walsender_is_nobody_else() -> None:
    assert preflight(with_slot(active_pid=99), replace(EXPECTED, backend_pid=99)).errors == ()


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_position_must_lie_between_slot_and_server(confirmed: int, resume: int, flush: int) -> None:
    facts = Facts(
        replace(SERVER, flush_lsn=Lsn(flush)), replace(SLOT, confirmed_flush_lsn=Lsn(confirmed)), FACTS.publications
    )
    report = preflight(facts, replace(EXPECTED, resume_lsn=Lsn(resume)))
    assert (report.errors == ()) == (confirmed <= resume <= flush)
    assert all(type(error) is DataGap for error in report.errors)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((Retry("a"), DataGap("b", hint="x")), DataGap),
        ((Retry("a"), RetrySlowly("b")), RetrySlowly),
        ((StopForOperator("a"), RetrySlowly("b")), StopForOperator),
        ((Retry("a"),), Retry),
    ],
)
def test_several_errors_are_raised_as_one_of_the_gravest_class(
    errors: tuple[WalgateError, ...], kind: type[WalgateError]
) -> None:
    with pytest.raises(kind) as caught:
        Report(errors, ()).raise_errors()
    assert type(caught.value) is kind
    assert all(error.message in caught.value.message and error.hint in caught.value.hint for error in errors)


def test_report_without_errors_raises_nothing() -> None:
    Report((), (Caution("a", "b"),)).raise_errors()


CHANGED: list[tuple[Callable[[], Facts], str]] = [
    (lambda: with_publication(relations=(ORDERS,)), "shop.items is no longer published"),
    (lambda: with_publication(actions=frozenset({"insert", "update", "truncate"})), "no longer publishes delete"),
    (lambda: with_publication(via_root=True), "publish_via_partition_root is now true"),
    (lambda: with_publication(all_tables=True), "now for all tables"),
    (lambda: with_publication(relations=(replace(ORDERS, row_filter="(id > 1)"), ITEMS)), "another row filter"),
    (lambda: with_publication(relations=(replace(ORDERS, columns=(ID,)), ITEMS)), "no longer sends name"),
    (
        lambda: with_publication(relations=(ORDERS, replace(ITEMS, name="lines"))),
        "shop.items is shop.lines now: another topic",
    ),
    (
        lambda: with_publication(relations=(ORDERS, ITEMS, replace(ITEMS, relation_oid=103, name="new"))),
        "shop.new is published from now on",
    ),
]


@pytest.mark.parametrize(("changed", "said"), CHANGED)
def test_change_of_the_inventory_is_told(changed: Callable[[], Facts], said: str) -> None:
    report = check_running(FACTS, changed(), EXPECTED)
    assert report.errors == ()
    assert [said in caution.message for caution in report.cautions] == [True]


def test_publication_made_again_is_a_gap() -> None:
    (error,) = check_running(FACTS, with_publication(oid=8), EXPECTED).errors
    assert type(error) is DataGap and "made again" in error.message


def test_publication_that_is_emptied_stops() -> None:
    (error,) = check_running(FACTS, with_publication(relations=()), EXPECTED).errors
    assert type(error) is StopForOperator and "held 2 tables" in error.message


def test_publication_that_is_dropped_is_a_gap() -> None:
    (error,) = check_running(FACTS, replace(FACTS, publications={}), EXPECTED).errors
    assert type(error) is DataGap


def test_caution_that_was_known_at_the_start_is_not_repeated() -> None:
    before = with_slot(wal_status="unreserved")
    assert check_running(before, before, EXPECTED) == Report((), ())
    assert check_running(FACTS, before, EXPECTED).cautions


def test_a_running_stream_may_have_passed_the_facts() -> None:
    """Facts are read while the stream goes on: their end of the WAL may be older than our position."""
    passed = replace(EXPECTED, resume_lsn=Lsn(FACTS.server.flush_lsn + 400))
    assert check_running(FACTS, FACTS, passed) == Report((), ())
    assert preflight(FACTS, passed).errors
