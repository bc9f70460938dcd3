"""What `walgate verify` chooses, and what it makes of verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.verify import (
    DIFFERENT,
    EQUAL,
    UNDECIDED,
    VerificationResult,
    as_json,
    check_read,
    choose_tables,
    no_progress_hint,
    render,
)
from gateway.cli.verify_mirror_folder import MirrorFolder
from gateway.errors import Retry, StopForOperator
from gateway.snapshot.stored_state import NOT_TO_BE_READ, StoredStates, StreamState, TableState
from gateway.startup.facts import PublicationFacts, PublishedRelation
from schemas.verdict import Difference, TableVerdict, encode_lsn, encode_verdict, ended_path, verdict_path


def relation(oid: int, namespace: str, name: str) -> PublishedRelation:
    return PublishedRelation(oid, namespace, name, "DEFAULT", ("id",), (), None)


PUBLICATIONS = {
    "p": PublicationFacts(
        1, "p", False, False, frozenset(), (relation(1, "public", "orders"), relation(2, "odd.schema", "orders"))
    ),
    "q": PublicationFacts(
        2, "q", False, False, frozenset(), (relation(1, "public", "orders"), relation(3, "public", "items"))
    ),
}


def verdict(table: str = "public.orders", changed: int = 0) -> TableVerdict:
    keys = (Difference("CHANGED", '{"id":7}', ("n",)),) * changed
    return TableVerdict(table, "VERIFY", "one", 10, 20, 1000, changed, keys=keys)


def test_tables_are_chosen_as_elsewhere() -> None:
    assert choose_tables(PUBLICATIONS, []) == {1: "public.orders", 2: '"odd.schema".orders', 3: "public.items"}
    assert choose_tables(PUBLICATIONS, ["orders"]).keys() == {1, 2}
    assert choose_tables(PUBLICATIONS, ["public.*s"]).keys() == {1, 3}
    assert choose_tables(PUBLICATIONS, ['"odd.schema".orders']).keys() == {2}  # as it is printed
    with pytest.raises(StopForOperator, match="matches --table"):
        choose_tables(PUBLICATIONS, ["nothing"])
    with pytest.raises(StopForOperator, match=r"matches --table public\.itmes, --table more\*\n"):
        choose_tables(PUBLICATIONS, ["public.orders", "public.itmes", "more*"])
    with pytest.raises(StopForOperator, match="have no tables"):
        choose_tables({}, [])


def test_a_table_whose_rows_have_not_come_yet_is_not_verified() -> None:
    states = StoredStates(
        tables={
            1: TableState(1, "a", "known", "", status=NOT_TO_BE_READ),
            2: TableState(2, "a", "done", "", status="DONE"),
            3: TableState(3, "a", "verified", "", "VERIFY", "READING"),
            4: TableState(4, "a", "filled", "", "FILL", "READING"),
        }
    )
    check_read(states, {1: "a.known", 2: "a.done", 3: "a.verified"})
    with pytest.raises(Retry, match=r"a\.filled, a\.waiting"):
        check_read(states, {1: "a.known", 4: "a.filled", 5: "a.waiting"})


def test_a_pause_is_named_if_nothing_advances() -> None:
    assert "walgate snapshot resume" in no_progress_hint(StoredStates(StreamState(paused=True)))
    for stream in (None, StreamState()):
        assert "walgate merge" in no_progress_hint(StoredStates(stream))


def test_the_exit_code_tells_what_was_found() -> None:
    assert VerificationResult((verdict(),)).exit_code == EQUAL
    assert VerificationResult((verdict(),), absent=("public.items",)).exit_code == UNDECIDED
    assert VerificationResult((verdict(),), quarantined=("public.items",)).exit_code == UNDECIDED
    assert VerificationResult((verdict(changed=1),), absent=("public.items",)).exit_code == DIFFERENT
    assert VerificationResult((verdict(changed=1),), (verdict(),)).exit_code == EQUAL
    assert VerificationResult((verdict(changed=1),), (verdict(changed=1),)).exit_code == DIFFERENT


def test_a_comparison_that_could_not_look_for_surplus_rows_says_so() -> None:
    unknown = replace(verdict(), surplus_unknown=True)
    outcome = VerificationResult((unknown,))
    assert outcome.exit_code == UNDECIDED and as_json(outcome)["tables"][0]["surplus_unknown"]
    assert render(outcome).startswith("public.orders: no difference, 1,000 rows compared; surplus rows are unknown")
    assert VerificationResult((replace(unknown, changed=1),)).exit_code == DIFFERENT
    assert "1 changed, 0 missing, 0 surplus; surplus rows" in render(VerificationResult((replace(unknown, changed=1),)))
    assert VerificationResult((replace(unknown, changed=1),), (verdict(),)).exit_code == EQUAL


def test_an_outcome_is_shown_with_its_keys() -> None:
    outcome = VerificationResult((verdict(changed=30), verdict("public.items")), (verdict(),), ("public.more",))
    shown = render(outcome).splitlines()
    assert shown[0] == "public.orders: 30 differences in 1,000 rows compared: 30 changed, 0 missing, 0 surplus"
    assert shown[1:21] == ['  CHANGED {"id":7} (n)'] * 20
    assert shown[21:] == [
        "  more: --json, and <mirror>/differences",
        "  after the repair: public.orders: equal, 1,000 rows compared",
        "public.items: equal, 1,000 rows compared",
        "public.more: not in the mirror",
    ]
    found = as_json(outcome)
    assert (found["equal"], found["difference_count"], found["row_count"]) == (False, 0, 2000)
    assert [(table["changed"], len(table["keys"]), table["repaired"]) for table in found["tables"]] == [
        (30, 30, True), (0, 0, False),
    ]  # fmt: skip
    keyless = TableVerdict("a.b", "VERIFY", "one", 1, 2, 3, surplus=1, keys=(Difference("SURPLUS", None),))
    assert render(VerificationResult((keyless,))).splitlines()[1] == "  SURPLUS a row of a table without a key"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_verdicts_are_read_from_a_path_and_from_a_url(tmp_path: Path, scheme: str) -> None:
    folder = MirrorFolder(f"{scheme}{tmp_path}/")
    assert folder.verdict("public.orders") is None and folder.ended_lsn() == folder.reached_lsn() == -1
    path = Path(verdict_path(str(tmp_path), "public.orders"))
    path.parent.mkdir(parents=True)
    path.write_text(encode_verdict(verdict())[:20])
    assert folder.verdict("public.orders") is None
    path.write_text(encode_verdict(verdict()))
    Path(ended_path(str(tmp_path))).write_text(encode_lsn(20))
    assert folder.verdict("public.orders") == verdict() and folder.ended_lsn() == 20


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StopForOperator, match="is not a directory"):
        MirrorFolder(str(tmp_path / "nothing"))
    with pytest.raises(StopForOperator, match="cannot open it"):
        MirrorFolder("gopher://x/y")
    (tmp_path / "verdicts").write_text("not a folder")
    with pytest.raises(Retry, match="cannot be read"):
        MirrorFolder(str(tmp_path)).ended_lsn()
