"""Which steps of maintenance are made when some of them fail."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_consumer.mirror.maintenance import Maintenance

STEPS = ("compact", "compact_tables", "remove")
REMOVAL_DUE = (True, False, False, True, False)


@pytest.mark.parametrize(
    ("failing", "made"),
    [
        ((), (STEPS, STEPS[:2], STEPS[:2], STEPS, STEPS[:2])),
        (("remove",), (STEPS, STEPS[:2], STEPS[:2], STEPS, STEPS[:2])),
        (("compact",), (STEPS, STEPS[1:2], STEPS[1:2], STEPS, STEPS[1:2])),
        (STEPS, (STEPS, (), (), STEPS, ())),
    ],
)
def test_a_step_that_failed_is_left_out_alone_until_a_removal_is_due(
    failing: tuple[str, ...], made: tuple[tuple[str, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, tried = Maintenance("/mirror"), list[str]()

    def step(name: str) -> None:
        tried.append(name)
        if name in failing:
            raise PermissionError

    for name in STEPS:
        monkeypatch.setattr(keeper, name, lambda *_, name=name, **_given: step(name))
    keeper._grown.add("/mirror/tables/public/items")
    for is_due, expected in zip(REMOVAL_DUE, made, strict=True):
        if is_due:
            keeper._due = 0.0
        told = keeper.run_if_due(cast(SparkSession, None), (), compacts=True)
        assert tuple(tried) == expected
        assert len(told) == len({*failing} & {*expected})
        tried.clear()
