"""The source in a session that knows nothing of Delta or of us: docs/spark.md."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.datasource import DataSourceReader

from gateway.local.java import spark_java_home
from spark_consumer.errors import OptionError
from spark_consumer.source.filters import FilterPushdown, Wanted
from spark_consumer.source.table_options import noted_options, options_of_table, with_options
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.spark_consumer.source.test_formats import NEEDED, columns_of, frame

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT}, ("id",))


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_a_notebook_reads_a_table_of_the_catalog_and_gets_short_errors(feeder: Feeder, tmp_path: Path) -> None:
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    others = await asyncio.to_thread(feeder.table, relation("others", {"id": INT8}, ("id",)))
    for number in range(1, 4):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": "abc"[number - 1]})
        transaction.commit()
    last = feeder.begin()
    last.update(accounts, accounts.rows[1,], {"id": 1, "owner": "x"})
    last.delete(accounts, accounts.rows[2,])
    last.insert(others, {"id": 1})
    last.commit()
    await asyncio.to_thread(feeder.kafka_commit)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("plain_session_job.py")),
        json.dumps(feeder.options()), "public.accounts", str(tmp_path),
        env={**os.environ, "JAVA_HOME": str(spark_java_home()), "PYSPARK_PYTHON": sys.executable},
        stdout=asyncio.subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 250)
    assert process.returncode == 0
    found = json.loads(output.splitlines()[-1])
    assert found["table"] == [["INSERT", "b"]] and found["bounded"] == 0
    assert found["pushed"] == [["DELETE", 3], ["INSERT", 1], ["INSERT", 2]]
    assert "unknown option 'tabel'" in found["refused"] and "Did you mean table?" in found["refused"]
    assert "parse_options" not in found["refused"] and "During handling" not in found["refused"]
    if hasattr(DataSourceReader, "pushFilters"):  # Spark 4.1 and later
        assert "PushedFilters: [" in found["plan"] or "commit_lsn" in found["plan"]


def test_the_options_of_a_table_come_back_with_its_columns() -> None:
    written = {**NEEDED, "table": "public.items"}
    given = {
        **written,
        **{f"option.{name}": text for name, text in written.items()},
        "owner": "me",
        "provider": "walgate",
    }
    assert options_of_table(given) == written and options_of_table(written) == written
    columns = columns_of(frame("a"))
    assert noted_options(with_options(columns, given)) == written
    assert with_options(columns, written) is columns and noted_options(columns) == {}
    for name, text in (
        ("kafka.sasl.password", "hidden"), ("registry.url", "http://user:hidden@localhost:8081"),
        ("kafka.sasl.oauthbearer.assertion.private.key.passphrase", "hidden"), ("kafka.sasl.oauthbearer.config", "x=hidden"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=rf"(?s){name} would be readable.*WITH") as caught:
            with_options(columns, {**given, f"option.{name}": text})
        assert "hidden" not in str(caught.value)


def test_filters_leave_what_may_match() -> None:
    def given(kind: str, name: str, value: object = None) -> object:
        return type(kind, (SimpleNamespace,), {})(attribute=(name,), value=value)

    wanted = Wanted()
    for one in (
        given("GreaterThan", "commit_lsn", 10), given("GreaterThanOrEqual", "commit_lsn", 5), given("LessThan", "commit_lsn", 90),
        given("In", "op", ("INSERT", "DELETE")), given("EqualTo", "op", "DELETE"), given("IsNotNull", "op"),
        given("EqualTo", "table", "public.a"), given("StringContains", "table", "b"), type("Not", (), {})(),
        given("EqualTo", "xid", 7),
    ):  # fmt: skip
        wanted = wanted.narrowed(one)
    assert wanted == Wanted(11, 89, frozenset({"DELETE"}), frozenset({"public.a"}))
    assert Wanted().narrowed(given("EqualTo", "commit_lsn", 7)) == Wanted(7, 7)
    nested = type("EqualTo", (SimpleNamespace,), {})(attribute=("after", "op"), value="x")
    assert Wanted().narrowed(nested) == Wanted()


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark 4.0 pushes no filters to Python")
def test_spark_does_not_refuse_a_reader_where_the_setting_is_off() -> None:
    """As pyspark/sql/worker/plan_data_source_read.py looks at it."""
    assert FilterPushdown(lambda _: None).__func__ is DataSourceReader.pushFilters
