"""What `walgate status` prints of a board, word for word where somebody looks for it."""

from __future__ import annotations

import shlex

import pytest

from gateway.cli.status_text import render
from gateway.errors import Retry
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import GapSeen, RetainedWal, SlotStatus, WalRetentionCause
from gateway.observe.table_status import QuarantinedTable, SnapshotStatus, TableSnapshotStatus

TABLE = TableSnapshotStatus("public.orders", "READING", "REPLACE", 1200, 3, 4)


def printed(board: StatusBoard) -> str:
    return render({**board.snapshot().as_json(), "asked": "gateway"})


def lines(text: str) -> dict[str, str]:
    """The first of each title."""
    return {line[:13].strip(): line[14:] for line in reversed(text.splitlines()) if line[:13].strip()}


def test_what_is_left_out_read_again_or_lost_is_told() -> None:
    board = StatusBoard(slot_name="s", prefix="cdc")
    board.quarantined = (QuarantinedTable("public.poison", "a value cannot be read", 0x16B374D8),)
    board.gap = GapSeen(0x100, 0x200, "a budget")
    board.snapshot_status = lambda: SnapshotStatus(paused=True, left=1, tables=(TABLE,))
    board.leave()  # what was known is kept
    text = printed(board)
    told = lines(text)
    assert told["quarantine"] == "public.poison, since 0/16B374D8: a value cannot be read"
    assert told["last gap"].startswith("changes between 0/100 and 0/200 were lost: a budget")
    assert told["snapshot"] == "unfinished tables: 1, paused"
    assert "public.orders: reading, REPLACE, 1,200 rows in 3 chunks" in text and "walgate readmit" in text


def test_tables_have_rates_and_the_newest_schema() -> None:
    clock = iter(range(0, 1000, 20))
    board = StatusBoard(monotonic=lambda: float(next(clock)))
    board.sample_rates()
    board.count("cdc.public.orders", 100, 9000)
    board.sample_rates()
    board.announced("public.orders", 4, 7)
    board.announced("public.orders", 5, 8)
    board.announced("public.items", 3, 2, known_since=False)
    text = printed(board)
    assert "cdc.public.orders: 100 records, 8.8 kB, " in text and ", 0/s" not in text
    assert "public.orders: schema 5, 8 columns, since " in text and "schema 4" not in text
    assert "public.items: schema 3, 2 columns\n" in text + "\n"


def test_commands_for_tables_with_odd_names_can_be_pasted_into_a_shell() -> None:
    board = StatusBoard()
    board.quarantined = (QuarantinedTable('"odd.schema".$my table', "r", 1),)
    line = next(line for line in printed(board).splitlines() if "walgate readmit" in line)
    words = shlex.split(line.removeprefix("once the cause is removed, "))
    assert words[words.index("readmit") + 1].rstrip(",") == '"odd.schema".$my table'


def test_long_lists_are_cut_and_say_so() -> None:
    board = StatusBoard()
    for number in range(20):
        board.count(f"t{number}", 1, 1)
    board.quarantined = tuple(QuarantinedTable(f"public.t{number}", "r", 1) for number in range(15))
    text = printed(board)
    assert "and 8 more" in text and "and 3 more" in text


def test_who_is_away_and_who_holds_is_named_with_the_remedy() -> None:
    board = StatusBoard()
    board.part_is_down("registry", Retry("no answer", hint="is it up?"), "http://r")
    board.blockers = (WalRetentionCause("prepared", "forgotten", since=1.0, remedy="ROLLBACK PREPARED"),)
    board.blockers += (WalRetentionCause("transaction", "", 7, since=1.0, age_is_at_least=True),)
    text = printed(board)
    assert "process 7, open for at least " in text
    from_earlier_release = board.snapshot().as_json()
    for blocker in from_earlier_release["blockers"]:
        del blocker["age_is_at_least"]
    assert "process 7, open for " in render({**from_earlier_release, "asked": "gateway"})
    assert "DOWN for" in text and "at http://r: no answer" in text and "is it up?" in text
    assert "blocked by    prepared transaction 'forgotten'" in text and "ROLLBACK PREPARED" in text


def test_an_error_that_is_over_gives_no_advice() -> None:
    moment = iter(float(n) for n in range(100))
    board = StatusBoard(clock=lambda: next(moment))
    board.failed(Retry("another gateway took over", hint="stop one of them"))
    assert "took over" in lines(printed(board))["last error"] and "stop one of them" in printed(board)
    board.wait_for("")
    told = lines(printed(board))["last error"]
    assert told.startswith("over since 1970-") and told.endswith("UTC: another gateway took over")
    assert "stop one of them" not in printed(board)
    board.failed(Retry("again", hint="stop one of them"))
    assert "again" in lines(printed(board))["last error"] and "stop one of them" in printed(board)


def test_an_error_that_is_over_for_an_hour_is_no_longer_shown() -> None:
    clock = [0.0]
    board = StatusBoard(clock=lambda: clock[0])
    board.failed(Retry("another gateway took over"))
    board.wait_for("")
    clock[0] = 3599.0
    assert "last error" in printed(board)
    board.wait_for("Kafka")  # another reason to wait does not bring it back
    clock[0] = 3601.0
    assert "last error" not in printed(board)
    assert board.snapshot().recent_errors[0].over_since == 0.0


@pytest.mark.parametrize(
    ("rate", "told"), [(2048.0, "growing by 2.0 kB/s"), (-2048.0, "shrinking by 2.0 kB/s"), (0.0, "not growing")]
)
def test_wal_grows_shrinks_or_stays(rate: float, told: str) -> None:
    board = StatusBoard()
    board.slot = SlotStatus("s", 1, 0, 0, "reserved", None)
    board.held = RetainedWal(4096, rate)
    assert lines(printed(board))["WAL retained"] == f"4.0 kB, {told}"
