"""A single merge of everything that was appended to a mirror, for `walgate merge`."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import version_manifest
from spark_consumer.mirror.merge.merger import Merger
from spark_consumer.mirror.paths import changes_path
from spark_consumer.mirror.progress_lines import ProgressListener, ignore_progress
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.retention import RETENTION_S
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.mirror.tables.catalog import Catalog
from spark_consumer.mirror.tables.prepare_table import EMPTY
from spark_consumer.tables import TableName


def merge_once(
    spark: SparkSession,
    path: str,
    report: Callable[[BatchReport], None],
    retention_s: float | None = None,
    catalog: Catalog | None = None,
    working: ProgressListener = ignore_progress,
) -> int | None:
    """Merge everything that was appended before this took over the merges, with the options of the
    mirror. Compact files, and remove what is older than the retention (None: that of the mirror).

    Return the commit LSN that the tables have reached, or None if nothing was ever appended. Raises
    MirrorError, and any error of the maintenance (`walgate mirror` only reports it).
    """
    last = version_manifest.recorded_version(spark, path)
    if last is None and not TABLE_FORMAT.exists(spark, changes_path(path)):
        raise MirrorError(f"there is no mirror at {path}, or it has no micro-batch yet")
    noted = version_manifest.noted_options(spark, path)
    tables = noted.get("tables", last.scope if last is not None else [])
    excludes = noted.get("exclude", TableStates.of(last.table_states).excludes if last is not None else [])
    merger = Merger(
        path,
        {},
        report,
        [TableName.parse(name) for name in tables],
        excludes,
        noted.get("on_recreated", EMPTY),
        noted.get("deletion_vectors", True),
        noted.get("strict", False),
        noted.get("retention_s", RETENTION_S) if retention_s is None else retention_s,
        catalog,
        working=working,
    )
    try:
        merger.open(spark)
        merger.merge_waiting(spark, last_lsn=merger.opened_lsn)
        merger.maintenance.compact(spark)
        merger.maintenance.compact_tables(spark)
        merger.maintenance.remove(spark, () if merger.last is None else merger.last.tables)
    finally:
        merger.give_back(spark)
    return None if merger.last is None else merger.last.commit_lsn
