"""The list of keys to read again, and that what is stored of it is what it holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.snapshot.rules.keys_to_read_again import SEGMENT_KEYS, KeysToReadAgain

STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard", "store", "clear"]), st.integers(0, 1200)), max_size=60)


@given(STEPS)
def test_what_is_stored_is_what_it_holds(steps: list[tuple[str, int]]) -> None:
    keys, model, stored = KeysToReadAgain(), dict[bytes, None](), dict[int, list[bytes]]()

    def store() -> None:
        for number, segment in keys.pop_dirty().items():
            if segment:
                assert len(segment) <= SEGMENT_KEYS
                stored[number] = segment
            else:
                stored.pop(number, None)

    for step, number in steps:
        many = [b"%d" % each for each in range(number)]
        if step == "add":
            for key in many:
                keys.add(key)
            model |= dict.fromkeys(many)
        elif step == "discard":
            for key in many[::2]:
                keys.discard(key)
                model.pop(key, None)
        elif step == "clear":
            keys.clear()
            model.clear()
        else:
            store()
            keys = KeysToReadAgain(stored)
        assert set(keys) == set(model) and len(keys) == len(model)
    store()
    assert sorted(key for segment in stored.values() for key in segment) == sorted(model)


def test_a_new_key_writes_one_segment() -> None:
    keys = KeysToReadAgain(
        {number: [b"%d %d" % (number, each) for each in range(SEGMENT_KEYS)] for number in range(20)}
    )
    keys.add(b"one more")
    assert list(keys.pop_dirty()) == [20]
    assert not keys.is_dirty


def test_the_oldest_come_first() -> None:
    keys = KeysToReadAgain()
    for each in (b"c", b"a", b"b"):
        keys.add(each)
    assert keys.first(2, lambda key: key != b"a") == [b"c", b"b"]
