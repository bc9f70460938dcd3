"""Each check over facts made for it; what real servers say is in tests/postgres/test_facts.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.startup.facts import Expected, Facts
from gateway.startup.findings import OperatorWarning, Report, report_of
from gateway.startup.periodic_check import check_running
from gateway.startup.position_checks import check_progress
from gateway.startup.publication_checks import added_tables, removed_tables
from gateway.startup.server_checks import check_left_behind, check_server, check_slot_capacity
from gateway.startup.start import check_without_position
from gateway.startup.timeline_checks import LeftBehind, NotPrimary
from schemas.lsn import Lsn
from tests.startup.facts import (
    ACTIVE,
    EXPECTED,
    FACTS,
    ID,
    ITEMS,
    ORDERS,
    PUBLICATION,
    SERVER,
    SLOT,
    STORED,
    with_publication,
    with_server,
    with_slot,
    without_slot,
)


def test_what_is_as_it_must_be_has_no_findings() -> None:
    assert check_without_position(FACTS, EXPECTED) == Report((), ())
    assert check_without_position(without_slot(), EXPECTED) == Report((), ())
    assert check_running(FACTS, FACTS, EXPECTED) == Report((), ())


@pytest.mark.parametrize(
    ("facts", "expected", "kind", "said"),
    [
        (with_server(version_num=140001), EXPECTED, StopForOperator, "14.1 is too old"),
        (with_server(wal_level="replica"), EXPECTED, RetrySlowly, "wal_level is replica"),
        (with_server(encoding="SQL_ASCII"), EXPECTED, StopForOperator, "SQL_ASCII"),
        (with_server(version_num=140003), replace(EXPECTED, two_phase=True), StopForOperator, "two_phase needs"),
        (with_server(version_num=160000), replace(EXPECTED, failover=True), StopForOperator, "failover needs"),
        (with_server(used_senders=10), EXPECTED, RetrySlowly, "all 10 WAL senders"),
        (with_slot(slot_type="physical", plugin=None, database=None), EXPECTED, StopForOperator, "not logical"),
        (with_slot(plugin="wal2json"), EXPECTED, StopForOperator, "wal2json"),
        (with_slot(database="other"), EXPECTED, StopForOperator, "belongs to database other"),
        (
            with_server(in_recovery=True),
            EXPECTED,
            NotPrimary,
            "the gateway reads from the primary only",
        ),
        (replace(FACTS, publications={}), EXPECTED, RetrySlowly, "publication p does not exist"),
        (
            replace(
                FACTS,
                publications={
                    "p": PUBLICATION,
                    "q": replace(
                        PUBLICATION, name="q", relations=(replace(ORDERS, columns=(ID,), has_column_list=True),)
                    ),
                },
            ),
            replace(EXPECTED, publications=("p", "q")),
            RetrySlowly,
            "different column lists for shop.orders",
        ),
    ],
)
def test_failed_check_is_one_error_with_its_class_and_a_remedy(
    facts: Facts, expected: Expected, kind: type[WalgateError], said: str
) -> None:
    (error,) = check_without_position(facts, expected).errors
    assert type(error) is kind
    assert said in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (with_server(version_num=190000), "newer than the versions"),
        (with_server(max_slot_wal_keep_mb=100), "max_slot_wal_keep_size is 100 MB"),
        (with_server(idle_slot_timeout_s=60.0), "idle_replication_slot_timeout is 60 s"),
        (with_slot(wal_status="extended"), "retains more WAL"),
        (with_slot(active_pid=99), "in use by process 99: if that is the gateway"),
        (with_slot(wal_status="unreserved"), "about to be invalidated"),
        (with_slot(failover=True), "failover = true"),
        (with_publication(relations=()), "has no tables"),
        (
            with_publication(relations=(replace(ORDERS, replica_identity="NOTHING", identity_columns=()), ITEMS)),
            '"shop"."orders"',
        ),
    ],
)
def test_doubt_is_a_warning_with_a_hint(facts: Facts, said: str) -> None:
    report = check_without_position(facts, EXPECTED)
    assert report.errors == ()
    (warning,) = report.warnings
    assert said in warning.message
    assert warning.hint


@pytest.mark.parametrize(
    ("version", "is_told"),
    [(140005, 0), (150000, 1), (150005, 1), (150006, 0), (160001, 1), (160002, 0), (170000, 0), (180006, 0)],
)
def test_old_rows_without_the_defaults_of_new_columns_are_told_of(version: int, is_told: int) -> None:
    found = check_without_position(with_server(version_num=version), EXPECTED).warnings
    assert sum("sends NULL instead of a column's default" in warning.message for warning in found) == is_told


def test_encodings_in_which_keys_may_become_one_are_warned_of() -> None:
    (warning,) = check_without_position(with_server(encoding="EUC_JP"), EXPECTED).warnings
    assert "become one key" in warning.message
    assert not check_without_position(with_server(encoding="EUC_KR"), EXPECTED).warnings


def test_a_slot_without_two_phase_is_a_warning_where_it_is_wanted() -> None:
    (warning,) = check_without_position(FACTS, replace(EXPECTED, two_phase=True)).warnings
    assert "without two_phase" in warning.message


def test_a_slot_with_failover_can_stay_so_or_be_altered() -> None:
    (warning,) = check_without_position(with_slot(failover=True), EXPECTED).warnings
    assert "set source.failover = true" in warning.hint and "(FAILOVER false)" in warning.hint


def test_failover_without_synchronized_slots_may_publish_phantoms() -> None:
    report = check_without_position(with_slot(failover=True), replace(EXPECTED, failover=True))
    assert ["new primary never had" in warning.message for warning in report.warnings] == [True]


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT", "INDEX", "NOTHING"])
@pytest.mark.parametrize("columns", [(), ("id",)])
@pytest.mark.parametrize("actions", [frozenset({"insert"}), frozenset({"insert", "delete"})])
def test_missing_identity_matters_only_where_it_is_needed(
    identity: str, columns: tuple[str, ...], actions: frozenset[str]
) -> None:
    relation = replace(ORDERS, replica_identity=identity, identity_columns=columns)
    report = check_without_position(with_publication(actions=actions, relations=(relation,)), EXPECTED)
    assert bool(report.warnings) == ("delete" in actions and identity != "FULL" and not columns)


@pytest.mark.parametrize(
    ("version", "said"), [(180000, "publish_generated_columns = stored"), (170006, "do not identify")]
)
def test_a_key_of_which_a_generated_part_is_not_sent_is_no_key(version: int, said: str) -> None:
    relation = replace(ORDERS, identity_columns=("id", "made"), generated_identity=("made",))
    facts = with_publication(relations=(relation,))
    report = check_without_position(replace(facts, server=replace(SERVER, version_num=version)), EXPECTED)
    (warning,) = report.warnings
    assert report.errors == () and said in warning.message + warning.hint and "shop.orders" in warning.message


def test_many_tables_are_counted_rather_than_listed() -> None:
    relations = tuple(
        replace(ORDERS, relation_oid=n, name=f"t{n}", replica_identity="NOTHING", identity_columns=())
        for n in range(500)
    )
    (warning,) = check_without_position(with_publication(relations=relations), EXPECTED).warnings
    assert "and 490 more" in warning.message
    assert len(warning.message) < 400


def test_no_free_slot_matters_only_before_one_is_created() -> None:
    (error,) = check_slot_capacity(with_server(used_slots=10))
    assert type(error) is RetrySlowly
    assert check_without_position(with_server(used_slots=10), EXPECTED).errors == ()


@pytest.mark.parametrize(
    ("facts", "expected", "kind"),
    [
        (FACTS, replace(EXPECTED, timeline=2), LeftBehind),  # the old primary may only be the first that answered
    ],
)
def test_another_server_is_not_read(facts: Facts, expected: Expected, kind: type[WalgateError]) -> None:
    (error,) = check_left_behind(facts, expected)
    assert type(error) is kind


def test_what_a_standby_says_of_its_timeline_is_not_believed() -> None:
    assert list(check_left_behind(with_server(in_recovery=True), replace(EXPECTED, timeline=2))) == []


def progress(before: Facts, after: Facts, resume_lsn: int) -> list[WalgateError]:
    position = replace(ACTIVE, resume_lsn=Lsn(resume_lsn))
    found = check_progress(replace(before, moment=1), replace(STORED, moment=2), replace(after, moment=3), position)
    return list(report_of(found).errors)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_position_lies_between_the_slot_before_it_and_the_end_of_the_wal_after_it(
    confirmed: int, resume: int, flush: int
) -> None:
    before = with_slot(confirmed_flush_lsn=Lsn(confirmed))
    later_slot = replace(SLOT, confirmed_flush_lsn=Lsn(max(confirmed, resume) + 7))
    errors = progress(before, replace(with_server(flush_lsn=Lsn(flush)), slot=later_slot), resume)
    assert (errors == []) == (confirmed <= resume <= flush)
    assert all(type(error) is DataGap for error in errors)


def test_a_slot_that_is_gone_is_a_gap() -> None:
    (error,) = progress(FACTS, without_slot(), 1500)
    assert type(error) is DataGap
    assert "no longer exists" in error.message


def test_facts_in_another_order_prove_nothing() -> None:
    with pytest.raises(AssertionError):
        list(check_progress(replace(FACTS, moment=2), replace(STORED, moment=1), replace(FACTS, moment=3), ACTIVE))


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
    Report((), (OperatorWarning("a", "b"),)).raise_errors()


CHANGED: list[tuple[Callable[[], Facts], str]] = [
    (lambda: with_publication(relations=(ORDERS,)), "no longer contains shop.items"),
    (lambda: with_publication(actions=frozenset({"insert", "update", "truncate"})), "no longer publishes delete"),
    (lambda: with_publication(via_root=True), "publish_via_partition_root is now true"),
    (lambda: with_publication(all_tables=True), "now for all tables"),
    (lambda: with_publication(oid=8), "was dropped and recreated"),
    (lambda: with_publication(inherited=(("shop.orders", "shop.old"),)), "that inherit from tables in publication p"),
    (
        lambda: with_publication(relations=(replace(ORDERS, row_filter="(id > 1)"), ITEMS)),
        "the row filter of shop.orders has changed",
    ),
    (lambda: with_publication(relations=(replace(ORDERS, columns=(ID,)), ITEMS)), "no longer sends name"),
    (
        lambda: with_publication(relations=(ORDERS, replace(ITEMS, name="lines"))),
        "shop.items is now named shop.lines and has another topic",
    ),
    (lambda: replace(FACTS, publications={}), "publication p does not exist"),
]


@pytest.mark.parametrize(("changed", "said"), CHANGED)
def test_a_change_of_the_inventory_is_a_warning_and_the_stream_goes_on(changed: Callable[[], Facts], said: str) -> None:
    report = check_running(FACTS, changed(), EXPECTED)
    assert report.errors == ()
    assert [said in warning.message for warning in report.warnings] == [True]


def test_a_column_that_is_dropped_from_many_tables_is_one_line() -> None:
    """As a migration does it with the partitions of a table, in two publications."""
    parts = tuple(replace(ORDERS, relation_oid=200 + n, name=f"part_{n:02}") for n in range(11))
    narrow = tuple(replace(part, columns=(ID,)) for part in parts)
    before, after = (
        replace(FACTS, publications={name: replace(PUBLICATION, name=name, relations=of) for name in ("p", "q")})
        for of in ((ORDERS, *parts), (ORDERS, *narrow))
    )
    (warning,) = check_running(before, after, EXPECTED).warnings
    assert warning.message == (
        f"publications p, q: {', '.join(f'shop.part_{n:02}' for n in range(10))} and 1 more no longer send name"
    )


def test_a_publication_that_is_emptied_is_a_warning() -> None:
    report = check_running(FACTS, with_publication(relations=()), EXPECTED)
    assert report.errors == ()
    assert ["has no tables" in report.warnings[0].message, "no longer contains" in report.warnings[1].message] == [
        True,
        True,
    ]


def test_tables_that_join_are_no_reason_for_a_warning() -> None:
    new = replace(ITEMS, relation_oid=103, name="new")
    now = with_publication(relations=(ORDERS, ITEMS, new))
    assert check_running(FACTS, now, EXPECTED) == Report((), ())
    assert added_tables(FACTS, now) == [new] and removed_tables(FACTS, now) == []
    assert removed_tables(now, FACTS) == [new] and added_tables(now, FACTS) == []
    assert removed_tables(now, replace(FACTS, publications={})) == []  # a publication that is missing is told by itself


@pytest.mark.parametrize(
    "now",
    [without_slot(), with_slot(wal_status="lost"), with_slot(active_pid=98)],
)
def test_what_looks_like_a_loss_while_the_stream_runs_is_judged_by_the_next_start(now: Facts) -> None:
    expected = replace(EXPECTED, backend_pid=99)
    (error,) = check_running(FACTS, now, expected).errors
    assert isinstance(error, Retry)


def test_our_own_wal_sender_holds_the_slot_for_us() -> None:
    assert check_running(FACTS, with_slot(active_pid=99), replace(EXPECTED, backend_pid=99)).errors == ()


def test_a_slot_that_moves_under_the_stream_is_not_judged_by_an_older_position() -> None:
    """The facts are read while the stream goes on."""
    assert check_running(FACTS, with_slot(confirmed_flush_lsn=Lsn(SERVER.flush_lsn)), EXPECTED).errors == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"wal_level": "replica", "effective_wal_level": "replica"}, None),
        ({"wal_level": "replica", "effective_wal_level": "logical"}, None),
        ({"wal_level": "logical", "effective_wal_level": "logical"}, None),
        ({"wal_level": "minimal", "effective_wal_level": "minimal"}, "wal_level is minimal"),
        (
            {"wal_level": "replica", "effective_wal_level": "replica", "in_recovery": True},
            "the gateway reads from the primary only",
        ),
    ],
)
def test_in_19_the_first_slot_turns_decoding_on(change: dict[str, Any], reason: str | None) -> None:
    facts = with_server(version_num=190000, **change)
    errors = [finding.message for finding in check_server(facts, EXPECTED) if isinstance(finding, RetrySlowly)]
    assert [reason in message for message in errors if reason] == [True] * (reason is not None) and len(errors) <= 1
