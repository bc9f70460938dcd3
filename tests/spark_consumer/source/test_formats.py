"""The two formats and `decode`, as far as they go without Spark: which options and columns they
take."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from schemas.change_schema import change_schema
from spark_consumer.arrow import spark_schema
from spark_consumer.errors import OptionError, UnsupportedSchema
from spark_consumer.source import datasource
from spark_consumer.source.datasource import WalgateChanges, WalgateTransactions
from spark_consumer.source.decode import decode_changes
from spark_consumer.source.frames import RAW, TableFrame
from spark_consumer.source.rows import KnownSchemas
from tests.spark_consumer.feeder import INT8, TEXT, relation

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://127.0.0.1:1"}


def frame(*columns: str) -> TableFrame:
    described = relation("items", {"id": INT8, **dict.fromkeys(columns, TEXT)}, ("id",))
    return TableFrame.of(change_schema(described, "cdc"))


def columns_of(table: TableFrame) -> StructType:
    return spark_schema(table.schema)


def test_a_frame_whose_table_was_altered_since_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource, "table_frame", lambda *_: frame("b", "c"))
    changes = WalgateChanges({**NEEDED, "table": "public.items"})
    changes.reader(columns_of(frame("b", "c")))
    for start in (changes.reader, changes.streamReader):
        with pytest.raises(UnsupportedSchema, match=r"(?s)columns of public.items have changed.*load\(\) again"):
            start(columns_of(frame("a", "b")))


@pytest.mark.parametrize("choice", [{"table": "public.a"}, {"tables": "public.a"}, {"includeMessages": "true"}])
def test_transactions_take_no_choice_of_changes(choice: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="walgate-transactions returns transactions"):
        WalgateTransactions({**NEEDED, **choice}).schema()


def test_a_record_of_a_schema_that_decode_did_not_see_is_named() -> None:
    empty = dict.fromkeys(RAW.names)
    record = pa.RecordBatch.from_pylist([{**empty, "op": "INSERT", "schema_id": 12, "value": b"12345"}], RAW)
    known = pickle.loads(pickle.dumps(KnownSchemas({11: "{}"})))  # as into a task
    with pytest.raises(UnsupportedSchema, match="(?s)schema 12.*call decode again"):
        list(decode_changes(iter([record]), frame("b"), known))
