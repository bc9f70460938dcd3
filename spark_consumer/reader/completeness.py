"""Select the records of a read that belong to its transaction, one record at a time, and prove that
none is missing.

A range may contain records of other transactions, of superseded epochs and of aborted
subtransactions. A record belongs to a range if it has the transaction's (xid, epoch) and its offset
lies within the range. Records of aborted subtransactions are counted, then dropped.
columnar/completeness.py applies the same rule to all records of a fetch at once.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import fastavro

from schemas.change_schema import OPERATIONS
from schemas.lsn import format_lsn
from schemas.wire_format import FRAME_BYTES
from spark_consumer.errors import MalformedRecord, TransactionIncomplete
from spark_consumer.reader.read_planning import Read, transaction_key

# The fields with which every change event and logical message begins. An enum is encoded as an int;
# a message has `transactional` where a change has key_change.
_HEAD: Any = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Head",
        "fields": [
            {"name": "op", "type": "int"},
            *({"name": name, "type": "long"} for name in ("xid", "subxid", "epoch", "change_lsn", "ordinal")),
            {"name": "commit_lsn", "type": ["null", "long"]},
            {"name": "commit_time", "type": ["null", "long"]},
            {"name": "origin", "type": ["null", "string"]},
            {"name": "key_change", "type": "boolean"},
        ],
    }
)
DELETE, TRUNCATE = OPERATIONS.index("DELETE"), OPERATIONS.index("TRUNCATE")


class Head(NamedTuple):
    """The first fields of a record. `operation` is an index in schemas.change_schema.OPERATIONS; it
    is 0 for a message."""

    operation: int
    xid: int
    subxid: int
    epoch: int
    change_lsn: int
    ordinal: int
    key_change: bool


def decode_head(value: bytes, place: str) -> Head:
    """Decode the first fields of a record. Raises MalformedRecord, whose message names `place`:
    topic, partition and offset."""
    data = io.BytesIO(value)
    data.seek(FRAME_BYTES)
    try:
        found: Any = fastavro.schemaless_reader(data, _HEAD, None)
    except Exception as problem:  # fastavro raises a dozen exception types
        raise MalformedRecord(f"{place}: a record ends within its first fields") from problem
    names = ("op", "xid", "subxid", "epoch", "change_lsn", "ordinal", "key_change")
    return Head(*(found[name] for name in names))


class TransactionCounter:
    """Count the records of a read of one transaction; `finish` compares the counts with the
    manifest."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._key = read.transaction_keys[0]
        self._aborted = {subxid for _, subxid in read.aborted}
        self._seen = [0] * len(read.record_counts)

    def takes(self, offset: int, head: Head) -> bool:
        """Count a record, and return whether to pass it on: whether it belongs to the transaction
        and is the one record that is kept for its event."""
        read = self._read
        place = bisect_right(read.first_offsets, offset) - 1
        if transaction_key(head.xid, head.epoch) != self._key or place < 0 or offset > read.last_offsets[place]:
            return False
        self._seen[place] += 1
        if head.subxid in self._aborted:
            return False
        if head.operation == TRUNCATE:
            return bool(read.keeps_truncate[place])
        return not (head.operation == DELETE and head.key_change)

    def finish(self) -> None:
        """Raise TransactionIncomplete unless each range had exactly the number of records in the
        manifest."""
        check_counts(self._read, self._seen)


def check_counts(read: Read, seen: Sequence[int]) -> None:
    """Raise TransactionIncomplete unless `seen` has the record counts of the manifest, by range."""
    wrong = [at for at, count in enumerate(read.record_counts) if seen[at] != count]
    if not wrong:
        return
    at = wrong[0]
    key = read.transaction_keys[at]
    raise TransactionIncomplete(
        f"{read.topic}[{read.partition}] {read.first_offsets[at]}..{read.last_offsets[at]}: {seen[at]} records "
        f"of xid {key & 0xFFFFFFFF}, gateway epoch {key >> 32} (commit_lsn {format_lsn(read.commit_lsns[at])}), but the "
        f"manifest in its marker says {read.record_counts[at]} ({len(wrong)} of {len(seen)} ranges of this read are wrong)",
        hint="Records are missing or duplicated, or belong to an earlier or later topic of the same name (the topic was "
        "recreated). No records from this read were used. Restart the query, which reads the same ranges again. If the "
        "error occurs again, start from a later position (in Spark, with a new checkpoint location, and a new mirror or "
        "changelog).",
    )
