"""The verdict of a mirror on the snapshot of a table, once the snapshot has ended in the mirror: a
small JSON file below the mirror's path.

    <path>/verdicts/<schema>/<table>.json    of the last snapshot of the table that ended
    <path>/verdicts/ended.json               of the last snapshot that ended as a whole
    <path>/verdicts/reached.json             how far the rows of a VERIFY have been compared

Each file is replaced as a whole. `walgate verify` reads these files, wherever the mirror runs
(docs/decisions/0022).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from schemas.topic_names import parse_relation, topic_part

MOST_KEYS: Final = 1000
"""The maximum number of differences that a verdict lists; <path>/differences has all of them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs. `kind` is CHANGED, MISSING or SURPLUS. `key` is JSON text, or None if the
    table has no key. `columns` has the columns that differ."""

    kind: str
    key: str | None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """The result of a table's snapshot.

    `table` is the name that schemas.topic_names.format_relation returns. `row_count` is the number
    of rows that the snapshot has read. `changed`, `missing` and `surplus` are the numbers of rows
    that a VERIFY has found; `keys` lists the first differences. `begin_lsn` and `end_lsn` are the
    LSNs of SNAPSHOT_BEGIN and SNAPSHOT_END. `surplus_unknown`: whether surplus rows could not be
    determined, since the table's key changed meanwhile.
    """

    table: str
    purpose: str
    snapshot_id: str
    begin_lsn: int
    end_lsn: int
    row_count: int
    changed: int = 0
    missing: int = 0
    surplus: int = 0
    keys: tuple[Difference, ...] = ()
    surplus_unknown: bool = False

    @property
    def difference_count(self) -> int:
        return self.changed + self.missing + self.surplus


def verdict_path(path: str, table: str) -> str:
    """Return the path of a table's verdict. Raises ValueError unless `table` is schema.table."""
    parts = parse_relation(table)
    if parts is None:
        raise ValueError(f"{table!r} is not schema.table")
    return f"{path}/verdicts/{topic_part(parts[0])}/{topic_part(parts[1])}.json"


def ended_path(path: str) -> str:
    return f"{path}/verdicts/ended.json"


def reached_path(path: str) -> str:
    return f"{path}/verdicts/reached.json"


def encode_verdict(verdict: TableVerdict) -> str:
    facts = asdict(verdict)
    if not verdict.surplus_unknown:  # earlier releases do not know it
        del facts["surplus_unknown"]
    return json.dumps(facts) + "\n"


def decode_verdict(text: bytes) -> TableVerdict:
    """Parse a verdict. Raises ValueError, also for a file that is not completely written yet."""
    try:
        facts = json.loads(text)
        keys = tuple(Difference(each["kind"], each["key"], tuple(each["columns"])) for each in facts.pop("keys"))
        return TableVerdict(**facts, keys=keys)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a verdict") from error


def encode_lsn(commit_lsn: int) -> str:
    return json.dumps({"commit_lsn": commit_lsn}) + "\n"


def decode_lsn(text: bytes) -> int:
    """Parse the file written by `encode_lsn`. Raises ValueError."""
    try:
        return int(json.loads(text)["commit_lsn"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("not a commit LSN") from error
