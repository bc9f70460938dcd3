"""docs/topics.md shows the events that the code writes, and names every field; docs/monitoring.md
names every metric."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import fastavro

from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import encode_markers
from gateway.events.row_encoder import RowEncoder
from gateway.observe.metrics import REGISTRY, show
from gateway.observe.status_board import StatusBoard
from gateway.pgoutput.decode import decode
from gateway.pgoutput.letters import ROW_MESSAGES
from gateway.pgoutput.relation import Relation
from gateway.relations.describe import describe
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.native_record_writer import EventVersion, EventWriter
from schemas.change_schema import OPERATIONS, change_schema
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.wire_format import FRAME_BYTES, frame
from tests.golden.recording import recording

DOCS = Path(__file__).parents[1] / "docs"
INT4 = TypeFacts(23, "pg_catalog", "int4", Kind.BASE)
TEXT = TypeFacts(25, "pg_catalog", "text", Kind.BASE)
VALUE_SCHEMA_ID, KEY_SCHEMA_ID = 10, 11


class NewTopic:
    """A topic of three partitions that begin at offset 0."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ends = [0, 0, 0]
        self.values: list[bytes] = []

    def append(self, key: bytes | None, value: bytes, manifest: Manifest | None) -> None:
        assert key is not None and manifest is not None
        partition = crc32(key) % 3
        manifest.add((self.name, partition), self.ends[partition], 1)
        self.ends[partition] += 1
        self.values.append(value)

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        raise NotImplementedError

    def too_large(self, what: str, size: int) -> NoReturn:
        raise NotImplementedError


def test_the_examples_are_what_a_recorded_transaction_becomes() -> None:
    recorded = recording("postgresql-18/identity.text")
    nothing: Any = None
    machine = TransactionMachine(
        epoch=1, resume_lsn=0, last_commit_lsn=0, prepared=(), writer=EventWriter(1, nothing), messages=nothing
    )
    topic = NewTopic("cdc.public.by_key")
    schema: Any = None
    for raw in recorded.messages:
        message = decode(raw.payload, in_stream=raw.in_stream, protocol_version=recorded.protocol_version)
        if raw.payload[0] in ROW_MESSAGES:
            machine.change(raw.payload, 0, len(raw.payload), raw.change_lsn)
        elif isinstance(message, Relation):
            if message.name != "by_key":
                break
            description = describe(message, {23: INT4, 25: TEXT})
            schema = change_schema(description, "cdc")
            encoder = RowEncoder(description, VALUE_SCHEMA_ID, KEY_SCHEMA_ID)
            machine.announce(message.relation_oid, None, EventVersion("by_key", VALUE_SCHEMA_ID, encoder, topic))
        else:
            machine.receive(message, raw.change_lsn)
    written = [_decoded(value, schema) for value in topic.values]
    markers = encode_markers(frame(1), machine.take_markers(), machine.epoch)
    written += [_decoded(value, TRANSACTION_MARKER) for value in markers]
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", _page("topics"), re.S)]
    assert len(shown) == 4
    assert all(example in written for example in shown if "fields" not in example)
    assert [example for example in shown if "fields" in example] == [_without_docs(schema)]


def test_every_field_is_named() -> None:
    row = ColumnDescription("id", INT4, -1, identity=True)
    change = change_schema(RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, (row,)), "cdc")
    manifest = _field(TRANSACTION_MARKER, "manifest")["type"][1]
    ranges = _field(manifest, "ranges")["type"]["items"]
    page = _page("topics")
    for schema in (change, TRANSACTION_MARKER, manifest, ranges, POSITION):
        for field in schema["fields"]:
            assert f"`{field['name']}`" in page, f"{schema['name']}.{field['name']}"
    of_messages = [field["name"] for field in LOGICAL_MESSAGE["fields"]]
    assert of_messages[:9] == [field["name"] for field in change["fields"]][:9]
    for name in of_messages[9:]:
        assert f"`{name}`" in page
    for word in (*OPERATIONS, *TRANSACTION_MARKER["fields"][0]["type"]["symbols"]):
        assert re.search(rf"\b{word}\b", page), word


def test_every_metric_is_named() -> None:
    show(StatusBoard())
    page = _page("monitoring")
    named = set(re.findall(r"`(walgate_[a-z_]+)", page))
    exported = {family.name + "_total" * (family.type == "counter") for family in REGISTRY.collect()}
    assert named == exported


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_docs(value) for name, value in schema.items() if name != "doc"}
    return [_without_docs(value) for value in schema] if isinstance(schema, list) else schema


def _decoded(value: bytes, schema: Any) -> Any:
    record = fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), schema, None)
    return json.loads(json.dumps(record, default=lambda time: time.isoformat()))


def _field(schema: Any, name: str) -> Any:
    return next(field for field in schema["fields"] if field["name"] == name)


def _page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")
