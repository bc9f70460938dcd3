"""Delta Lake as the format of a mirror's tables: this module has the functions of
table_format.TableFormat."""

from __future__ import annotations

from spark_consumer.mirror.delta.catalog_names import register
from spark_consumer.mirror.delta.cleanup import (
    compact_files,
    has_old_entries,
    keep_newest,
    keep_replaced_files,
    maintenance_settings,
    remove_before,
    tidy_log,
)
from spark_consumer.mirror.delta.delta_table import (
    CHANGELOG_PROPERTIES,
    align,
    allow_names,
    applied_commit_lsn,
    at_version,
    byte_count,
    exists,
    note_property,
    noted_number,
    noted_numbers,
    noted_property,
    properties,
    rewrite,
    rows,
    version,
    was_overwritten,
)
from spark_consumer.mirror.delta.delta_write import (
    CONCURRENT,
    TAKEN_OVER,
    append,
    create_appended,
    delete,
    delete_unmatched,
    despite_conflicts,
    merge,
    once,
    write_once,
)
from spark_consumer.mirror.delta.log_entries import commits
from spark_consumer.mirror.delta.session_settings import compacts, session_defaults, without_compaction

__all__ = [
    "CHANGELOG_PROPERTIES",
    "CONCURRENT",
    "TAKEN_OVER",
    "align",
    "allow_names",
    "append",
    "applied_commit_lsn",
    "at_version",
    "byte_count",
    "commits",
    "compact_files",
    "compacts",
    "create_appended",
    "delete",
    "delete_unmatched",
    "despite_conflicts",
    "exists",
    "has_old_entries",
    "keep_newest",
    "keep_replaced_files",
    "maintenance_settings",
    "merge",
    "note_property",
    "noted_number",
    "noted_numbers",
    "noted_property",
    "once",
    "properties",
    "register",
    "remove_before",
    "rewrite",
    "rows",
    "session_defaults",
    "tidy_log",
    "version",
    "was_overwritten",
    "without_compaction",
    "write_once",
]
