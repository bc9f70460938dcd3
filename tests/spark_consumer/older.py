"""A source whose first part was mirrored by a release that had no `changes`:
data/older_mirror.tar.gz.

The archive was made at the commit before the one that added AppendingMirror ("A mirror can append
its batches and merge later"), from the stream of `Source.begin`, in batches of 10 changes, with
`query` and the Mirror of that release: its folder, without hidden files. It has what a restart
finds: tables, manifest, keys of a snapshot that has not ended, and the checkpoint of the query.
LSNs and the offsets of markers are the same each time; schema ids are not the registry's, which
numbers schemas of all tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from schemas.change_schema import change_schema
from schemas.relation import ReplicaIdentity
from tests.spark_consumer.feeder import FLOAT8, INT4, INT8, NUMERIC, NUMERIC_12_2, TEXT, Feeder, Row, Table, relation

ARCHIVE = Path(__file__).parent / "data" / "older_mirror.tar.gz"
FIRST_ID = 900_001
MONEY = (NUMERIC, NUMERIC_12_2)
ITEMS = relation("items", {"id": INT8, "name": TEXT, "note": TEXT, "price": MONEY}, ("id",))
MORE = relation("items", {"id": INT8, "name": TEXT, "note": TEXT, "price": MONEY, "extra": INT4}, ("id",))
STOCK = relation("stock", {"region": INT8, "code": TEXT, "n": INT4}, ("region", "code"), ReplicaIdentity.FULL)
CALLS = relation("calls", {"page": TEXT, "seconds": FLOAT8}, (), ReplicaIdentity.FULL)


@dataclass
class Source:
    feeder: Feeder
    schemas: dict[int, Any]
    items: Table
    stock: Table
    calls: Table

    @classmethod
    def begin(cls, feeder: Feeder) -> Source:
        """What the release before has mirrored: INSERT to TRUNCATE, a column more, and half of a
        snapshot that replaces rows."""
        made = cls(feeder, {}, *(feeder.table(each) for each in (ITEMS, STOCK, CALLS)))
        for table in (made.items, made.stock, made.calls):
            made.number(table)
        made.commit(*((made.items, None, item(number)) for number in range(12)))
        made.commit(*((made.stock, None, piece(number)) for number in range(6)), (made.calls, None, call("/old")))
        lost = feeder.begin()
        lost.truncate(made.calls)
        lost.commit()
        made.commit(
            (made.items, made.items.rows[1,], {**item(1), "note": "x" * 3000}), (made.calls, None, call("/new"))
        )
        made.items = made.number(feeder.alter(made.items, MORE))
        made.commit(
            (made.items, made.items.rows[2,], {**made.items.rows[2,], "id": 200, "extra": 5}),
            (made.items, made.items.rows[3,], None),
            (made.stock, made.stock.rows[1, "c1"], {**piece(1), "region": 100}),
        )
        feeder.bound("SNAPSHOT_BEGIN", made.stock, "REPLACE")
        feeder.chunk(made.stock, [piece(2, 20), piece(3, 30)], "REPLACE")
        made.commit((made.stock, made.stock.rows[100, "c1"], {**piece(1, 7), "region": 100}))
        feeder.kafka_commit()
        return made

    def go_on(self) -> None:
        """A column that was not sent, a moved key, and the snapshot's end."""
        feeder, items, stock = self.feeder, self.items, self.stock
        transaction = feeder.begin()
        transaction.update(items, items.rows[1,], {**items.rows[1,], "name": "again"}, unchanged=("note",))
        transaction.update(items, items.rows[200,], {**items.rows[200,], "id": 2}, unchanged=("note",))
        transaction.delete(items, items.rows[4,])
        transaction.insert(items, {**item(50), "extra": 50})
        transaction.insert(self.calls, call("/newer"))
        transaction.commit()
        self.commit((stock, stock.rows[3, "c3"], None), (stock, None, piece(9)))
        feeder.bound("SNAPSHOT_END", stock, "REPLACE", rows=2)
        stock.rows = {key: stock.rows[key] for key in [(2, "c2"), (100, "c1"), (9, "c9")]}
        self.commit((stock, stock.rows[2, "c2"], piece(2, 21)), (items, None, {**item(51), "extra": None}))
        feeder.kafka_commit()

    def number(self, table: Table) -> Table:
        table.schema_id = FIRST_ID + len(self.schemas)
        self.schemas[table.schema_id] = change_schema(table.description, self.feeder.prefix)
        return table

    def commit(self, *changed: tuple[Table, Row | None, Row | None]) -> None:
        """Table, old row, new row."""
        transaction = self.feeder.begin()
        for table, old, new in changed:
            if old is None:
                assert new is not None
                transaction.insert(table, new)
            elif new is None:
                transaction.delete(table, old)
            else:
                transaction.update(table, old, new)
        transaction.commit()


def item(number: int) -> Row:
    price = Decimal(number * 100 + 25).scaleb(-2) if number % 3 else None
    return {"id": number, "name": f"item é {number}", "note": "n" * number, "price": price}


def piece(number: int, n: int = 1) -> Row:
    return {"region": number, "code": f"c{number}", "n": n}


def call(page: str) -> Row:
    return {"page": page, "seconds": 1.5}


def query(spark: SparkSession, feeder: Feeder, apply: Any, path: Path, limit: int) -> DataStreamWriter:
    options = feeder.options(maxChangesPerTrigger=str(limit), includeMarkers="true")
    frame = spark.readStream.format("walgate").options(**options).load()
    return frame.writeStream.foreachBatch(apply).option("checkpointLocation", f"{path}/checkpoint")
