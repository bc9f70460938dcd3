"""What the benches of mirrors count with; they themselves need minutes."""

from __future__ import annotations

import json
from pathlib import Path

from bench.cost import bytes_written, file_sizes
from bench.spark_backlog import backlog_of
from bench.spark_day import Batches
from bench.spark_freshness import figures, lateness
from spark_consumer.mirror.delta.log_replay import open_delta
from spark_consumer.mirror.paths import changes_path
from spark_consumer.mirror.table_format import APPLICATION


def test_bytes_written_are_those_of_new_and_grown_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "stays").write_bytes(b"12345")
    (tmp_path / "grows").write_bytes(b"1")
    before = file_sizes(tmp_path)
    (tmp_path / "grows").write_bytes(b"123")
    (tmp_path / "folder" / "new").write_bytes(b"1234567")
    (tmp_path / "folder" / ".new.crc").write_bytes(b"a checksum of Hadoop's")
    (tmp_path / "folder" / "1.crc").write_bytes(b"Delta's")
    assert bytes_written(tmp_path, before) == 3 + 7 + 7


def test_a_change_is_late_until_the_first_batch_that_reaches_its_commit() -> None:
    batches = [(100, 12.0), (200, 13.0)]
    late = lateness([(50, 10.0), (100, 11.5), (101, 11.75), (200, 12.75)], batches)
    assert late == [(10.0, 2.0), (11.5, 0.5), (11.75, 1.25), (12.75, 0.25)]
    assert figures(late) == {"count": 4, "p50_s": 1.25, "p95_s": 2.0, "p99_s": 2.0, "most_s": 2.0}


def test_a_backlog_has_as_many_changes_as_were_asked_for() -> None:
    assert backlog_of(10, 5_000_000).changes(1.0) == 5_000_001
    assert "i / 100 % 7" in backlog_of(7, 2000).load[1]


def test_commits_made_without_spark_are_commits_of_delta(tmp_path: Path) -> None:
    table_folder = Path(changes_path(str(tmp_path)))
    log = table_folder / "_delta_log"
    log.mkdir(parents=True)
    fields: list[dict[str, object]] = [
        {"name": name, "type": "string", "nullable": True, "metadata": {}} for name in ("table", "op")
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    (log / f"{0:020}.json").write_text(json.dumps({"metaData": {"schemaString": schema}}))
    (log / f"{0:020}.crc").write_text(json.dumps({"txnId": "x", "tableSizeBytes": 0, "numFiles": 0, "metadata": {}}))
    batches = Batches(None, str(tmp_path))
    batches.append(2)
    batches.append(1)
    table = open_delta(table_folder)
    assert (table.version, table.transactions, batches.lsn) == (3, {APPLICATION: 3}, 3)
    assert [batch["table"].to_pylist() for batch in table.batches()] == [["public.items"]] * 3
    checksum = json.loads((log / f"{3:020}.crc").read_text())
    size = sum((table_folder / path).stat().st_size for path, _ in table.files)
    assert (checksum["numFiles"], checksum["tableSizeBytes"], "txnId" in checksum) == (3, size, False)
