"""What Debezium Server 3.6.3 wrote for the workload, by options: `python -m
tests.debezium.recorded` asks it again (minutes).

A recording is JSON in xz: schemas, and records with Python's own notation of their fields; long
values are cut to a hash.
"""

from __future__ import annotations

import ast
import asyncio
import json
import lzma
import sys
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from gateway.config.debezium import DebeziumSettings
from gateway.local import LocalParts, Postgres
from tests.debezium import workload
from tests.debezium.encoded import PREFIX, Record
from tests.debezium.scene import PUBLICATION, Reader, is_the_end, make_topics, prepare, topics
from tests.debezium.server import debezium_server

FOLDER = Path(__file__).with_name("recordings")
OPTIONS: Final[dict[str, DebeziumSettings]] = {
    "default": DebeziumSettings(provide_transaction_metadata=True, skipped_operations=()),
    "text": DebeziumSettings(
        decimal_handling_mode="string",
        time_precision_mode="connect",
        interval_handling_mode="string",
        hstore_handling_mode="map",
        binary_handling_mode="base64",
    ),
    "other": DebeziumSettings(
        decimal_handling_mode="double",
        time_precision_mode="isostring",
        binary_handling_mode="hex",
        include_unknown_datatypes=True,
    ),
    "micros": DebeziumSettings(time_precision_mode="microseconds", binary_handling_mode="base64-url-safe"),
    "nanos": DebeziumSettings(time_precision_mode="nanoseconds"),
    "time_micros": DebeziumSettings(time_precision_mode="adaptive_time_microseconds"),
}
STOPS_AT: Final = {"nanos": "not_null"}
"""Options -> the table at which Debezium stops: a time that nanoseconds cannot hold is null, which
the field may not be."""
_LONG = 400


def settings_of(options: DebeziumSettings) -> Mapping[str, str]:
    """As Debezium Server wants them."""
    said = {name: str(value).lower() for name, value in options.model_dump().items() if isinstance(value, str | bool)}
    said["skipped_operations"] = ",".join(sorted(options.skipped_operations)) or "none"
    del said["tombstones_on_delete"]  # on
    del said["format"], said["format_schemas_enable"], said["compacted_topics"], said["reselect_unavailable_values"]
    return {f"debezium.source.{name.replace('_', '.')}": value for name, value in said.items()}


def shortened(value: Any) -> Any:
    """Long texts and arrays as a hash, bytes and decimals as themselves."""
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if len(repr(value)) > _LONG:
        return "sha256 " + sha256(repr(value).encode()).hexdigest()
    return value


def load(name: str) -> list[Record]:
    found = json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
    schemas = found["schemas"]
    return [
        Record(topic, _value(key), _value(value), _at(schemas, key_schema), _at(schemas, value_schema))
        for topic, key, value, key_schema, value_schema in found["records"]
    ]


def _value(text: str) -> Any:
    """`repr` of dictionaries of None, numbers, texts, bytes, lists and decimals."""
    named = {"Decimal": Decimal, "nan": float("nan"), "inf": float("inf")}
    ast.parse(text, mode="eval")
    return eval(text, {"__builtins__": {}}, named)


def _at(schemas: list[Any], index: int | None) -> Any:
    return None if index is None else schemas[index]


def save(name: str, records: list[Record]) -> None:
    schemas: list[Any] = []

    def index(schema: Any) -> int | None:
        if schema is None:
            return None
        if schema not in schemas:
            schemas.append(schema)
        return schemas.index(schema)

    rows = [
        (r.topic, repr(r.key), repr(shortened(r.value)), index(r.key_schema), index(r.value_schema)) for r in records
    ]
    FOLDER.mkdir(exist_ok=True)
    content = json.dumps({"records": rows, "schemas": schemas}, separators=(",", ":")).encode()
    (FOLDER / f"{name}.json.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


async def _record(names: list[str]) -> None:
    async with LocalParts(postgres=Postgres(settings={"wal_level": "logical"})) as parts:
        for number, name in enumerate(names):
            database, prefix = f"d{number}", f"{PREFIX}{number}"
            admin = await parts.postgres.connect()
            await admin.execute(f"create database {database}")
            sql = await parts.postgres.connect(database)
            await prepare(sql)
            slot = f"slot{number}"
            await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
            for statement in workload.STATEMENTS:
                if name not in STOPS_AT or STOPS_AT[name] not in statement:
                    await sql.execute(statement)
            wanted = await topics(sql, prefix)
            make_topics(parts.kafka.bootstrap_servers, wanted)
            reader = Reader(parts.kafka.bootstrap_servers, parts.registry.url, wanted)
            settings = settings_of(OPTIONS[name])
            async with debezium_server(parts, sql, slot, prefix, PUBLICATION, settings) as server:
                records = await reader.until(is_the_end, server.child)
            save(name, [_with_prefix(record, prefix) for record in records])
            print(name, len(records), flush=True)


def _with_prefix(record: Record, prefix: str) -> Record:
    return Record(
        renamed(record.topic, prefix), record.key, record.value,
        renamed(record.key_schema, prefix), renamed(record.value_schema, prefix),
    )  # fmt: skip


def renamed(named: Any, prefix: str) -> Any:
    """A topic or a schema as if its prefix were PREFIX."""
    return json.loads(json.dumps(named).replace(f'"{prefix}.', f'"{PREFIX}.'))


if __name__ == "__main__":
    asyncio.run(_record(sys.argv[1:] or list(OPTIONS)))
