"""The source in a session that knows nothing of Delta or of us: docs/spark.md."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from gateway.local.java import spark_java_home
from spark_consumer.errors import OptionError
from spark_consumer.source.table_options import noted_options, options_of_table, with_options
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.spark_consumer.source.test_formats import NEEDED, columns_of, frame

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT}, ("id",))


@pytest.mark.e2e
@pytest.mark.timeout(300)
async def test_a_notebook_reads_a_table_of_the_catalog_and_gets_short_errors(feeder: Feeder, tmp_path: Path) -> None:
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    for number in range(1, 4):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "owner": "abc"[number - 1]})
        transaction.commit()
    last = feeder.begin()
    last.update(accounts, accounts.rows[1,], {"id": 1, "owner": "x"})
    last.delete(accounts, accounts.rows[2,])
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
    assert "unknown option 'tabel'" in found["refused"] and "Did you mean table?" in found["refused"]
    assert "parse_options" not in found["refused"] and "During handling" not in found["refused"]


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
        way_on = "CREATE TEMPORARY VIEW" if name == "registry.url" else "WITH"
        with pytest.raises(OptionError, match=rf"(?s){name} would be readable.*{way_on}") as caught:
            with_options(columns, {**given, f"option.{name}": text})
        assert "hidden" not in str(caught.value)
