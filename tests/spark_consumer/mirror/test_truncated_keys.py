"""Tables without a key that are emptied with TRUNCATE and get a key: nothing from before counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror.fold.replica_identity import change_of_key, first_positions
from tests.spark_consumer.feeder import Feeder
from tests.spark_consumer.mirror.test_mirror import run_mirror
from tests.spark_consumer.mirror.test_replica_identity import ITEMS, KEYED, LOG, item, keys, mirrored, one_oid, records
from tests.spark_consumer.mirrors import merged_rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("places", "cut"),
    [
        ([(3, 20, 0), (3, 20, 1), (1, 20, 2)], None),
        ([(3, 20, 0), (3, 20, 1), (1, 20, 2), (2, 30, 0), (3, 40, 0), (1, 50, 0)], 40),
    ],
)
def test_what_precedes_a_truncate_has_no_key_that_counts(places: list[tuple[int, int, int]], cut: int | None) -> None:
    """But only a table with a key loses its rows by a TRUNCATE: a log does not."""
    own = records(*places, truncates={(20, 1)})
    assert change_of_key(ITEMS, own, first_positions(own), keys, one_oid) == cut
    for place in (0, 2):
        own = records(*places, truncates={(20, place)})
        with pytest.raises(MirrorError, match="within one transaction"):
            change_of_key(ITEMS, own, first_positions(own), lambda number: ("id",) if number == 3 else (), one_oid)


def test_a_log_that_is_truncated_may_get_a_key(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """In one transaction, or when it has its key. Its rows from before could not get it: two are
    equal."""
    logs = feeder.table(LOG), feeder.table(replace(LOG, name="others", oid=LOG.oid + 1))
    begun = feeder.begin()
    for table in logs:
        begun.insert(table, item(1, "a"))
        begun.insert(table, item(1, "a"))
    begun.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    items, others = logs
    keyed = feeder.alter(items, KEYED)
    made = feeder.begin()
    made.truncate(items)
    made.insert(keyed, item(2, "b"))
    made.commit()
    made = feeder.begin()
    others = feeder.alter(others, replace(KEYED, name="others", oid=LOG.oid + 1))
    made.truncate(others)
    made.insert(others, item(3, "c"))
    made.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path) == [item(2, "b")]
    assert merged_rows(tmp_path, others.name)[others.name] == [{**item(3, "c"), "_special": None}]
