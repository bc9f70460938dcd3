"""The durable position of a slot: one record in every Kafka transaction, read back at each start.

Topic walgate.position is compacted; the key is `<system identifier>/<database>/<slot>` as UTF-8 text.
"""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field, replace
from typing import Any

import fastavro
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from gateway.events.manifest import Manifest
from gateway.kafka.goodbye import say_goodbye
from gateway.kafka.producer import STOP_TIMEOUT_S, classify
from gateway.lsn import Lsn
from gateway.operate.errors import Retry, StopForOperator
from gateway.operate.settings import KafkaSettings
from gateway.transactions.transaction import Prepared
from schemas.errors import SchemaError
from schemas.framing import FRAME_BYTES, read_schema_id
from schemas.names import POSITION_TOPIC
from schemas.records import POSITION

_SCHEMA = fastavro.parse_schema(POSITION)
_START = Lsn(0)


@dataclass(frozen=True, slots=True)
class Position:
    """`state` is INTENT before the slot is made, then ACTIVE; `resume_lsn` is where replication starts again."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    prefix: str
    publications: tuple[str, ...]
    version: str
    state: str = "INTENT"
    epoch: int = 0
    resume_lsn: Lsn = _START
    last_commit_lsn: Lsn = _START
    prepared: tuple[Prepared, ...] = ()
    schema_id: int = field(default=0, compare=False)
    """With which it was read."""

    @property
    def key(self) -> bytes:
        return f"{self.system_identifier}/{self.database}/{self.slot}".encode()


def encode_position(frame: bytes, position: Position) -> bytes:
    out = io.BytesIO()
    out.write(frame)
    fastavro.schemaless_writer(out, _SCHEMA, _as_record(position))
    return out.getvalue()


def decode_position(value: bytes) -> Position:
    """Raises StopForOperator when the record can not be read: guessing a position would lose or double rows."""
    try:
        schema_id = read_schema_id(value)
        source = io.BytesIO(value[FRAME_BYTES:])
        record: Any = fastavro.schemaless_reader(source, _SCHEMA, None)
        if source.read(1):
            raise ValueError("bytes left over")
        return replace(_from_record(record), schema_id=schema_id)
    except (SchemaError, ValueError, IndexError, EOFError, KeyError, TypeError, OverflowError) as error:
        raise StopForOperator(
            f"a record of {POSITION_TOPIC} is not a position: {type(error).__name__}",
            hint="another program wrote there, or a newer version of the gateway did: use that version",
        ) from error


async def read_positions(
    settings: KafkaSettings, marker_topic: str, timeout_s: float
) -> tuple[dict[bytes, Position], int]:
    """The newest position of every slot, by key, and the end offset of the marker topic.

    Read to the partition's true end. What is committed ends at the first transaction that is still open, which may be of
    another gateway that died: our own newer position would lie behind it, and going on from an older one would double rows.
    So such a transaction is waited for; the broker ends it after its timeout. Raises Retry until then.
    """
    places = place, markers = TopicPartition(POSITION_TOPIC, 0), TopicPartition(marker_topic, 0)
    consumer = _consumer(settings, "read_committed")
    newest: dict[bytes, bytes] = {}
    try:
        async with asyncio.timeout(timeout_s):
            ends = await _true_ends(settings, places)
            await consumer.start()
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            while await consumer.position(place) < ends[place]:
                for record in (await consumer.getmany(place, timeout_ms=200)).get(place, []):
                    if record.value is None:
                        newest.pop(record.key, None)
                    elif record.key is not None:
                        newest[record.key] = record.value
    except TimeoutError as error:
        raise Retry(
            f"{POSITION_TOPIC} was not read to its end in {timeout_s:.0f} s",
            hint="is the broker up? Or another gateway died in a transaction: the broker ends it after its timeout",
        ) from error
    except (KafkaError, OSError) as error:
        raise classify(error, f"reading {POSITION_TOPIC}") from error
    finally:
        await say_goodbye(consumer.stop(), STOP_TIMEOUT_S)
    return {key: decode_position(value) for key, value in newest.items()}, ends[markers]


async def _true_ends(settings: KafkaSettings, places: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
    """The offsets behind the last records, of open transactions too: a consumer of committed records is not told them."""
    consumer = _consumer(settings, "read_uncommitted")
    try:
        await consumer.start()
        ends: dict[TopicPartition, int] = await consumer.end_offsets(list(places))
        return ends
    finally:
        await say_goodbye(consumer.stop(), STOP_TIMEOUT_S)


def _consumer(settings: KafkaSettings, isolation_level: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **settings.client_options(),
        isolation_level=isolation_level,
        enable_auto_commit=False,
        auto_offset_reset="none",
    )


def advance(position: Position, resume_lsn: int, last_commit_lsn: int, prepared: tuple[Prepared, ...]) -> Position:
    return replace(position, resume_lsn=Lsn(resume_lsn), last_commit_lsn=Lsn(last_commit_lsn), prepared=prepared)


def _as_record(position: Position) -> dict[str, Any]:
    return {
        "system_identifier": position.system_identifier,
        "timeline": position.timeline,
        "database": position.database,
        "slot": position.slot,
        "state": position.state,
        "epoch": position.epoch,
        "resume_lsn": int(position.resume_lsn),
        "last_commit_lsn": int(position.last_commit_lsn),
        "prepared": [
            {
                "gid": prepared.gid,
                "xid": prepared.xid,
                "prepare_lsn": int(prepared.prepare_lsn),
                "origin": prepared.origin,
                "manifest": _manifest_record(prepared.manifest),
            }
            for prepared in position.prepared
        ],
        "publications": list(position.publications),
        "prefix": position.prefix,
        "version": position.version,
    }


def _manifest_record(manifest: Manifest) -> dict[str, Any]:
    return {
        "epoch": manifest.epoch,
        "event_count": manifest.event_count,
        "aborted_subxids": manifest.aborted_subxids,
        "schema_ids": manifest.schema_ids,
        "ranges": [
            {
                "topic": topic,
                "partition": partition,
                "first_offset": first_offset,
                "last_offset": last_offset,
                "record_count": record_count,
            }
            for (topic, partition), pieces in manifest.ranges.items()
            for first_offset, last_offset, record_count in pieces
        ],
    }


def _from_record(record: dict[str, Any]) -> Position:
    return Position(
        system_identifier=record["system_identifier"],
        timeline=record["timeline"],
        database=record["database"],
        slot=record["slot"],
        prefix=record["prefix"],
        publications=tuple(record["publications"]),
        version=record["version"],
        state=record["state"],
        epoch=record["epoch"],
        resume_lsn=Lsn(record["resume_lsn"]),
        last_commit_lsn=Lsn(record["last_commit_lsn"]),
        prepared=tuple(
            Prepared(
                entry["gid"],
                entry["xid"],
                entry["prepare_lsn"],
                entry["origin"],
                _manifest_from_record(entry["manifest"]),
            )
            for entry in record["prepared"]
        ),
    )


def _manifest_from_record(record: dict[str, Any]) -> Manifest:
    manifest = Manifest(
        record["epoch"], record["event_count"], list(record["aborted_subxids"]), list(record["schema_ids"])
    )
    for entry in record["ranges"]:
        manifest.ranges.setdefault((entry["topic"], entry["partition"]), []).append(
            (entry["first_offset"], entry["last_offset"], entry["record_count"])
        )
    return manifest
