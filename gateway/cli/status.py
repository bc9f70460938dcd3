"""`walgate status`: the gateway's own status if it answers, otherwise the same facts from
PostgreSQL and Kafka directly.

Without a gateway there is no replication stream that shows which part of the WAL belongs to the
publications. The lag is then counted from the last delivered commit, and is an upper bound.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from gateway.cli.check import run_check
from gateway.cli.event_loop import run_on_loop
from gateway.cli.status_text import UNKNOWN, render
from gateway.cli.stream_server import stream_login
from gateway.config.kafka import KafkaSettings
from gateway.config.settings import Settings
from gateway.errors import WalgateError
from gateway.kafka.classify_errors import classify
from gateway.kafka.last_commit import last_commit
from gateway.kafka.position_topic import ReadIncomplete, read_positions
from gateway.kafka.producer import STOP_TIMEOUT_S
from gateway.kafka.shutdown import close_with_timeout
from gateway.kafka.topic_admin import TopicAdmin
from gateway.observe.http_client import ask_status, authority
from gateway.observe.lag import Progress
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import Counts
from gateway.postgres.connection import address_text, sql_session
from gateway.postgres.publication import published_tables
from gateway.postgres.wal_retention import read_clock, retention_causes, slot_status
from gateway.runtime.monitor import ask_mirror, wal_held
from gateway.runtime.snapshot_status import snapshot_states, status_of
from gateway.runtime.stored_positions import stored_position
from gateway.runtime.stream_status import show_position
from gateway.schema_errors import open_registry
from gateway.transactions.position import Position
from schemas.registry_client import RegistryClient
from schemas.topic_names import POSITION_TOPIC, topic_name, transaction_topic, value_subject

_TIMEOUT_S: Final = 8.0
_LISTED_TABLES: Final = 20
WATCH_S: Final = 2.0


async def load_status(settings: Settings, *, with_obstacles: bool = False) -> dict[str, Any]:
    """Return the fields of GatewayStatus, and `asked`: "gateway", or "services" if no gateway
    answers.

    `obstacles` are the findings of `walgate check` that would prevent a start; None if a gateway
    runs or `with_obstacles` is false.
    """
    port = settings.http.port
    if port:
        found = await asyncio.to_thread(ask_status, settings.http.host, port)
        if found is not None:
            return {**found, "asked": "gateway", "obstacles": None}
    of_servers = await _ask_servers(settings)
    runs = of_servers["waiting_for"].startswith(UNKNOWN)
    answer = all(part["up"] for part in of_servers["parts"])
    obstacles = await _obstacles(settings) if with_obstacles and answer and not runs else None
    return {**of_servers, "asked": "services", "obstacles": obstacles}


async def _obstacles(settings: Settings) -> list[dict[str, Any]]:
    """Return the problems that would prevent a start. The reason why the gateway ended may not be
    among them: a row that cannot be sent, for example, is only in the gateway's log."""
    return [asdict(found) for found in await run_check(settings) if found.outcome in ("waits", "stops")]


def show_status(settings: Settings, *, watch: bool, as_json: bool) -> int:
    """Print the status, repeatedly with `watch`, and return the exit code."""
    while True:
        now = run_on_loop(load_status(settings, with_obstacles=not watch))
        if as_json:
            print(json.dumps(now), flush=True)
        else:
            clear = "\x1b[H\x1b[J" if watch and sys.stdout.isatty() else ""
            print(f"{clear}{render(now)}", flush=True)
        if not watch:
            return 1 if now["waiting_for"] else 0
        time.sleep(WATCH_S)


async def _ask_servers(settings: Settings) -> dict[str, Any]:
    board = StatusBoard(slot_name=settings.source.slot, prefix=settings.kafka.prefix)
    board.is_down()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(_ask_postgresql(settings, board))
        reading = group.create_task(_ask_kafka(settings, board))
        for url in settings.http.mirrors:
            group.create_task(ask_mirror(url, board))
    positions, has_markers = await reading
    position = await _ask_registry(settings, board, positions or {}, await asking)
    if position is not None:
        await _ask_of_slot(settings, board, position, has_markers=has_markers)
    board.wait_for(_without_answer(settings, board, positions))
    return board.snapshot().as_json()


def _without_answer(settings: Settings, board: StatusBoard, positions: Mapping[bytes, bytes] | None) -> str:
    """Return what the status waits for if no gateway answers. `positions` is None if unknown."""
    pid, http = board.slot.active_pid if board.slot else None, settings.http
    if pid:
        why = f"{authority(http.host, http.port)} does not answer" if http.port else "http.port is not set"
        return f"{UNKNOWN}: a gateway is reading the slot as process {pid}, but {why}"
    if positions is not None and not _of_slot(positions, settings.source.slot):
        return "a gateway: nothing is reading the slot, and no gateway has stored a resume LSN for it"
    return "a gateway: nothing is reading the slot"


async def _ask_postgresql(settings: Settings, board: StatusBoard) -> list[tuple[str, str]]:
    """Fill in what PostgreSQL knows; return (schema, table) of some published tables."""
    try:
        source = settings.source
        login = await stream_login(source, timeout_s=_TIMEOUT_S)
        async with sql_session(login, timeout_s=_TIMEOUT_S) as sql:
            address = address_text(sql)
            server_time, lsn = await read_clock(sql, _TIMEOUT_S)
            board.wal.note(lsn, server_time, time.monotonic())
            slot = board.slot = await slot_status(sql, source.slot)
            if slot is not None and slot.restart_lsn:
                board.held = wal_held(slot, max(lsn - slot.restart_lsn, 0), 0.0, source.wal_budget_bytes)
            board.blockers = await retention_causes(sql, source.slot)
            tables = await published_tables(sql, source.publications, _LISTED_TABLES, excluded=source.excluded_tables)
        board.part_is_up("postgresql", address)
        return tables
    except WalgateError as error:
        board.part_is_down("postgresql", error)
        return []


async def _ask_kafka(settings: Settings, board: StatusBoard) -> tuple[Mapping[bytes, bytes] | None, bool]:
    """Return the newest record of each key in the position topic, or None if it could not be read,
    and whether the marker topic exists. Only existing topics are read, because a client would wait
    for the metadata of others; and an open Kafka transaction does not count as a broker that is
    down."""
    marker = transaction_topic(settings.kafka.prefix)
    try:
        there = await _existing(settings.kafka, [POSITION_TOPIC, marker])
        board.part_is_up("kafka", settings.kafka.bootstrap_servers)
        positions: Mapping[bytes, bytes] = {}
        if POSITION_TOPIC in there:
            positions, _ = await read_positions(settings.kafka, POSITION_TOPIC, _TIMEOUT_S)
        return positions, marker in there
    except ReadIncomplete as error:
        board.failed(error)
    except WalgateError as error:
        board.part_is_down("kafka", error, settings.kafka.bootstrap_servers)
    return None, False


async def _existing(settings: KafkaSettings, topics: list[str]) -> set[str]:
    admin = TopicAdmin(settings)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await admin.start()
            return set(await admin.existing(topics))
    except TimeoutError as error:
        raise classify(error, "connecting to Kafka") from error
    finally:
        await close_with_timeout(admin.close(), STOP_TIMEOUT_S)


def _of_slot(values: Mapping[bytes, bytes], slot: str) -> list[tuple[bytes, bytes]]:
    """Return the records of the slot. Only the end of a key, the slot's name, is compared: the
    server's identity, with which it begins, is not known while PostgreSQL is down."""
    return [(key, value) for key, value in values.items() if key.endswith(f"/{slot}".encode())]


async def _ask_registry(
    settings: Settings, board: StatusBoard, values: Mapping[bytes, bytes], tables: list[tuple[str, str]]
) -> Position | None:
    """Fill in the schemas of the tables, and return the position of the configured slot."""
    registry = settings.registry
    try:
        async with open_registry(registry, _TIMEOUT_S) as client:
            await client.latest(value_subject(POSITION_TOPIC))
            board.part_is_up("registry", registry.url)
            await _show_schemas(settings, board, client, tables)
            for key, value in _of_slot(values, settings.source.slot):
                position = await stored_position(key, value, client)
                if position.prefix == settings.kafka.prefix:
                    return position
    except WalgateError as error:
        board.part_is_down("registry", error, registry.url)
    return None


async def _show_schemas(
    settings: Settings, board: StatusBoard, client: RegistryClient, tables: list[tuple[str, str]]
) -> None:
    """Fill in the schemas of the tables; since when each is in use is not known here."""
    for namespace, name in tables:
        found = await client.newest(value_subject(topic_name(settings.kafka.prefix, namespace, name)))
        if found is not None:
            schema_id, schema = found
            board.announced(f"{namespace}.{name}", schema_id, _column_count(schema), known_since=False)


def _column_count(schema: Mapping[str, Any]) -> int:
    """Return the number of columns from a change event's schema, in either dialect: the type of
    `before` is a union of null and the row's record."""
    (before,) = (field for field in schema["fields"] if field["name"] == "before")
    return len(before["type"][1]["fields"])


async def _ask_of_slot(settings: Settings, board: StatusBoard, position: Position, *, has_markers: bool) -> None:
    """Fill in what Kafka has in addition to the position: the last commit and the snapshot's
    state."""
    commit = None
    try:
        if has_markers:
            commit = await last_commit(settings.kafka, transaction_topic(position.prefix), _TIMEOUT_S)
        snapshot = status_of(await snapshot_states(settings, position.key))
        board.snapshot_status = lambda: snapshot
    except ReadIncomplete as error:
        board.failed(error)
    except WalgateError as error:
        board.part_is_down("kafka", error)
    _show_position(board, position, commit)


def _show_position(board: StatusBoard, position: Position, commit: tuple[int, float] | None) -> None:
    lsn, moment = commit if commit is not None else (int(position.last_commit_lsn), None)
    show_position(board, position)
    progress = Progress(
        received_lsn=position.resume_lsn,
        delivered_lsn=position.resume_lsn,
        last_commit_lsn=lsn,
        last_commit_time=moment,
        marked_lsn=commit[0] if commit is not None else 0,
        marked_time=moment,
    )
    board.watch(lambda: progress, lambda: Counts(prepared=len(position.prepared)))
