"""Partitions whose replica identity differs from their root's, where rows are sent as the root's:
PostgreSQL takes the letter of an old tuple from the root, and its values from the partition."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from tests.runtime.test_topic_names import NewGateway
from tests.support.topics import Topics
from tests.support.written import checked

pytestmark = pytest.mark.integration

TABLES = """
CREATE TABLE whole (id int PRIMARY KEY, note text NOT NULL, large text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF whole FOR VALUES FROM (10) TO (20);
ALTER TABLE low ALTER large SET STORAGE EXTERNAL;
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE high REPLICA IDENTITY FULL;
CREATE PUBLICATION walgate FOR TABLE whole WITH (publish_via_partition_root = true);
INSERT INTO whole VALUES (1, 'low', repeat('x', 9000)), (11, 'high', 'y'), (3, 'low', 'z');
"""


@pytest.mark.parametrize("dialect", ["walgate", "debezium"])
async def test_an_old_row_of_which_only_the_key_was_sent_is_not_one_of_nulls(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str, dialect: str
) -> None:
    sql = await database.connect()
    gateway = new_gateway(snapshot__mode="never", kafka__dialect=dialect, kafka__partitions=1)
    await sql.execute(TABLES)
    await gateway.streaming()
    await sql.execute("INSERT INTO whole VALUES (12, 'announced first', 'w')")
    await sql.execute("UPDATE whole SET id = 2 WHERE id = 1")  # `large` is not sent
    await sql.execute("DELETE FROM whole WHERE id = 3")
    await sql.execute("UPDATE whole SET note = 'changed' WHERE id = 11; DELETE FROM whole WHERE id = 11")
    await sql.execute("INSERT INTO whole VALUES (4, 'the end', NULL)")
    topic = f"{topic_prefix}.public.whole"

    def ends(found: list[object]) -> bool:
        return any(isinstance(value, dict) and (value["after"] or {}).get("id") == 4 for value in found)

    records = [value for _, value in topics.read(topic, until=ends) if value is not None]
    if dialect == "walgate":
        (moved,) = [each for each in records if each["op"] == "UPDATE" and each["after"]["id"] == 2]
        assert (moved["before"], moved["old_key"], moved["unchanged"]) == (None, {"id": 1}, ["large"])
        deleted = {
            each["old_key"]["id"]: each["before"] for each in records if each["op"] == "DELETE" and each["old_key"]
        }
        assert deleted == {1: None, 3: None}
        whole = [each["before"] for each in records if each["op"] in ("UPDATE", "DELETE") and each["before"]]
    else:
        deleted = {each["before"]["id"]: each["before"]["note"] for each in records if each["op"] == "d"}
        assert deleted == {1: "", 3: "", 11: "changed"}
        whole = [
            each["before"] for each in records if each["op"] in "ud" and each["before"] and each["before"]["id"] > 9
        ]
    assert [(row["id"], row["note"], row["large"]) for row in whole] == [(11, "high", "y"), (11, "changed", "y")]
    assert "old_rows_incomplete" in gateway.log()
    assert "public.low" in await checked(gateway, 0)
    assert await gateway.stop() == 0
