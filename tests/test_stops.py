"""docs/stops.md matches the code."""

from __future__ import annotations

from tests.stops import DEFECTS, INSTEAD, ROOT, WALKED, is_of, page, stops, walked


def test_the_page_of_stops_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "stops.md").read_text("utf-8") == page(), "python -m tests.stops > docs/stops.md"


def test_each_test_that_walks_a_way_on_exists_and_so_does_its_stop() -> None:
    found = stops()
    assert len(found) > 50
    for key, test in (*WALKED.items(), *INSTEAD):
        assert any(is_of(stop, key) for stop in found), key
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8"), test


def test_each_stop_that_is_no_defect_says_what_to_do() -> None:
    assert [stop for stop in stops() if not stop.hint and stop.kind not in DEFECTS] == []


def test_each_stop_is_walked_or_a_defect() -> None:
    assert [stop for stop in stops() if not walked(stop)] == []
