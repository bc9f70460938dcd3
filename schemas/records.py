"""The fixed record schemas: transaction markers, positions, logical decoding messages, snapshot
states."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final


def _load(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(files("schemas").joinpath("records", f"{name}.avsc").read_text("utf-8"))
    return schema


TRANSACTION_MARKER: Final = _load("TransactionMarker")
POSITION: Final = _load("Position")
LOGICAL_MESSAGE: Final = _load("LogicalMessage")
SNAPSHOT_STATE: Final = _load("SnapshotState")
