"""Locations of the parts of a mirror.

<path>/tables/<schema>/<table>    one table for each name of a relation, escaped as in topics
<path>/manifest                   one row for each slice of a merge: see version_manifest.py
<path>/changes, <path>/schemas    appended changes, and their value schemas: see changes.py
<path>/kept/<schema>/<table>/<oid> a relation that was dropped and recreated, as it was before
                                  (--on-recreated keep-as)
<path>/seen/<schema>/<table>/...  keys found while a snapshot replaces or verifies a table: see
                                  snapshot_keys.py
<path>/differences                differences that a VERIFY has found: see verify/comparison.py
<path>/verdicts                   result of each table's last snapshot: see schemas/verdict.py
<path>/_position                  last batch without new rows: see output_position.py
<path>/_topic                     name of the marker topic: see jobs/checkpoint_checks.py
<path>/checkpoint                 Spark's checkpoint
"""

from __future__ import annotations

from schemas.topic_names import topic_part
from spark_consumer.errors import MirrorError
from spark_consumer.tables import TableName


def table_path(path: str, table: TableName) -> str:
    """Return the location of a table. Names are escaped as in topics, so no name can lead out of
    the directory."""
    return f"{path}/tables/{topic_part(table.namespace)}/{topic_part(table.name)}"


def kept_path(path: str, table: TableName, oid: int) -> str:
    return f"{path}/kept/{topic_part(table.namespace)}/{topic_part(table.name)}/{oid}"


def seen_root(path: str) -> str:
    return f"{path}/seen"


def seen_path(path: str, table: TableName, begin_lsn: int) -> str:
    return f"{seen_root(path)}/{topic_part(table.namespace)}/{topic_part(table.name)}/{begin_lsn:016X}"


def differences_path(path: str) -> str:
    return f"{path}/differences"


def changes_path(path: str) -> str:
    return f"{path}/changes"


def schemas_path(path: str) -> str:
    return f"{path}/schemas"


def manifest_path(path: str) -> str:
    return f"{path}/manifest"


FORMAT_APPLICATION = "walgate-form"
"""Application whose number in the manifest is the format version of the mirror."""
APPENDED_FORMAT = 2
NEWEST_FORMAT = APPENDED_FORMAT


def refuse_newer_format(path: str, form: int | None) -> None:
    """Raise MirrorError if this release does not know the format version. None: no number is
    stored."""
    if form is not None and form > NEWEST_FORMAT:
        raise MirrorError(
            f"the mirror at {path} was written by a newer release of Walgate, in format version {form}; this release supports "
            f"versions up to {NEWEST_FORMAT}, and would miss changes that the mirror contains",
            hint="Use the newer release. To return to this one, create a mirror at another path.",
        )
