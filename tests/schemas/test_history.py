"""What a released version wrote stays readable: schemas/history/<version>/ holds every schema that
was published.

Change and Key are those of one relation with a column of each everyday type; a release adds a
folder and changes none.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many

from schemas.change_schema import change_schema, key_schema
from schemas.compatibility import incompatible_columns
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from tests.events.rows import ALL, relation

HISTORY = Path(__file__).parents[2] / "schemas" / "history"
EXAMPLE = relation(ALL, (0, 5, 8))
NOW: dict[str, Any] = {
    "TransactionMarker": TRANSACTION_MARKER,
    "Position": POSITION,
    "LogicalMessage": LOGICAL_MESSAGE,
    "Change": change_schema(EXAMPLE, "cdc"),
    "Key": key_schema(EXAMPLE, "cdc"),
}


@pytest.mark.parametrize("path", sorted(HISTORY.glob("*/*.avsc")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_published_is_readable_now(path: Path) -> None:
    old = json.loads(path.read_text("utf-8"))
    now = NOW[path.stem]
    assert incompatible_columns(old, now) == []
    writer, reader = fastavro.parse_schema(old), fastavro.parse_schema(now)
    for value in generate_many(old, 20):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, writer, value)
        stream.seek(0)
        written = fastavro.schemaless_reader(stream, writer, None)
        stream.seek(0)
        read = fastavro.schemaless_reader(stream, writer, reader)
        assert _as_written(read, written) == written


def _as_written(read: Any, written: Any) -> Any:
    """What was read, without the fields that newer schemas added at any depth."""
    if isinstance(written, dict):
        return {name: _as_written(read[name], value) for name, value in written.items()}
    if isinstance(written, list):
        return [_as_written(*pair) for pair in zip(read, written, strict=True)]
    return read


def test_every_schema_is_in_the_history() -> None:
    assert {path.stem for path in HISTORY.glob("*/*.avsc")} == NOW.keys()
