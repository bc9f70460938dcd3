from __future__ import annotations

from gateway.relations.relation_cache import RelationCache


def test_a_stream_hears_its_own_announcement_and_others_hear_theirs() -> None:
    cache: RelationCache[str] = RelationCache()
    cache.announce(1, "base")
    cache.announce_in_stream(10, 10, 1, "of 10")
    assert cache.find(1, 10) == "of 10"
    assert cache.find(1, 20) == cache.find(1, None) == "base"
    assert cache.find(2, 10) is None


def test_an_aborted_subtransaction_leaves_what_was_before() -> None:
    cache: RelationCache[str] = RelationCache()
    cache.announce_in_stream(10, 10, 1, "of 10")
    cache.announce_in_stream(10, 11, 1, "of 11")
    cache.abort_stream(10, 11)
    assert cache.find(1, 10) == "of 10"
    cache.abort_stream(10, 10)
    assert cache.find(1, 10) is None
    assert len(cache) == 0


def test_a_committed_stream_counts_for_all_unless_the_base_heard_something_newer() -> None:
    cache: RelationCache[str] = RelationCache()
    cache.announce(2, "old base")
    cache.announce_in_stream(10, 10, 1, "of 10")
    cache.announce_in_stream(10, 10, 2, "of 10")
    cache.announce(1, "newer base")
    cache.finish_stream(10)
    assert cache.find(1, None) == "newer base"
    assert cache.find(2, None) == "of 10"


def test_a_relation_that_was_dropped_takes_no_room() -> None:
    cache: RelationCache[str] = RelationCache()
    cache.announce(1, "dropped")
    cache.forget(1)
    cache.forget(2)
    assert cache.find(1, None) is None
    assert len(cache) == 0


def test_the_same_announcement_again_and_again_takes_no_more_room() -> None:
    cache: RelationCache[str] = RelationCache()
    for number in range(1000):
        cache.announce_in_stream(10, 10, 1, f"again {number}")
    assert cache.find(1, 10) == "again 999"
    cache.announce_in_stream(10, 11, 1, "of 11")
    cache.abort_stream(10, 11)
    assert cache.find(1, 10) == "again 999"
