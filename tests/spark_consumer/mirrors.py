"""Mirrors that merge after each batch, as `--merge-every 0` does: their tables are compared with
the source right after it."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import version_manifest, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror

merging_mirror = partial(AppendingMirror, merge_every_s=0.0)
waiting_mirror = partial(AppendingMirror, merge_every_s=math.inf)
"""Merges with `merge_waiting` alone."""


_merges: Counter[str] = Counter()
"""Merges so far, by the path of their mirror."""


def merge_waiting(spark: SparkSession, mirror: AppendingMirror) -> None:
    """Merge the changes that wait.

    What a version shows before that is what the merge makes of the tables: each is compared, by
    value, at the second merge of a mirror and at every sixth one after it. The comparison takes
    longer than the merge.
    """
    _merges[mirror.path] += 1
    if _merges[mirror.path] % 6 != 2:
        mirror.finish(spark, merge=True)
        return
    before = None
    with suppress(MirrorError):  # what the merge refuses as well, unless somebody has copied the table meanwhile
        before = _rows(spark, mirror.path) if mirror.reached_lsn >= 0 else None
    mirror.finish(spark, merge=True)
    if before is None or before[0] != getattr(
        version_manifest.recorded_version(spark, mirror.path), "commit_lsn", None
    ):
        return  # what only a merge knows: table_states.first_unreadable
    after = _rows(spark, mirror.path)
    assert before == after


def _rows(spark: SparkSession, path: str) -> tuple[int, dict[str, list[str]]]:
    version = versions.read(spark, path)
    return version.commit_lsn, {name: _texts(frame) for name, frame in version.items()}


def _texts(frame: Any) -> list[str]:
    names = sorted(frame.columns)
    rows = frame.select(*("`" + name.replace("`", "``") + "`" for name in names)).toArrow().to_pylist()
    return sorted(repr({name: _plain(row[name]) for name in names}) for row in rows)


def _plain(value: Any) -> Any:
    """A map has no order; where nothing is special, a merge may leave it out."""
    if isinstance(value, list) and all(isinstance(entry, tuple) for entry in value):
        return sorted(value) or None
    return value
