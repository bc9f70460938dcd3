"""The state of a slot's snapshots for `walgate snapshot status`, read from Kafka in the same way as
at a start of the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.config.settings import Settings
from gateway.kafka.position_topic import read_snapshot_states
from gateway.kafka.topic_admin import TopicAdmin
from gateway.observe.table_status import LISTED_TABLES, SnapshotStatus, TableSnapshotStatus
from gateway.postgres.connection import sql_session
from gateway.postgres.credentials import Credentials
from gateway.postgres.server import server_facts
from gateway.runtime.stored_positions import quarantined_tables
from gateway.schema_errors import open_registry
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import (
    NOT_TO_BE_READ,
    RESELECT,
    StoredStates,
    TableState,
    decode_states,
    of_slot,
    writer_ids,
)
from gateway.transactions.position import position_key
from gateway.transactions.transaction import Quarantined
from schemas.errors import RegistryRefused
from schemas.registry_client import RegistryClient
from schemas.topic_names import SNAPSHOT_TOPIC, counted


async def snapshot_status(settings: Settings, login: Credentials) -> tuple[StoredStates, tuple[Quarantined, ...]]:
    """Return the stored states of the slot's snapshots (empty if none was taken), and the tables in
    quarantine. PostgreSQL is queried for its identity. Raises WalgateError."""
    async with sql_session(login) as sql:
        server = await server_facts(sql)
    key = position_key(server.system_identifier, server.database, settings.source.slot)
    states = await snapshot_states(settings, key)
    return states, await quarantined_tables(settings, key) if states.stream else ()


async def snapshot_states(settings: Settings, position_key: bytes) -> StoredStates:
    """Read the states of a slot's snapshots, which are empty if there are none. Raises
    WalgateError."""
    admin = TopicAdmin(settings.kafka)
    await admin.start()
    try:
        if not await admin.existing([SNAPSHOT_TOPIC]):
            return StoredStates()
    finally:
        await admin.close()
    values = of_slot(position_key, await read_snapshot_states(settings.kafka, settings.kafka.delivery_timeout_s))
    async with open_registry(settings.registry, settings.registry.timeout_s) as client:
        return await load_states(values, client)


async def load_states(values: Mapping[bytes, bytes], client: RegistryClient) -> StoredStates:
    """Decode the snapshot records of one slot. Raises StopForOperator and SchemaError."""
    writers = {}
    for number in writer_ids(values.values()):
        try:
            writers[number] = await client.schema(number)
        except RegistryRefused as error:
            if error.hint:  # credentials
                raise
    return decode_states(values, writers)


def status_of(states: StoredStates) -> SnapshotStatus:
    """Return the unfinished tables, for the status."""
    left = [state for state in _started(states) if state.status != Status.DONE.value]
    tables = tuple(
        TableSnapshotStatus(
            f"{state.schema}.{state.name}",
            state.status,
            state.purpose,
            state.row_count,
            state.chunk_count,
            state.stale_count,
        )
        for state in left[:LISTED_TABLES]
    )
    return SnapshotStatus(states.stream is not None and states.stream.paused, len(left), tables)


def status_lines(states: StoredStates, quarantined: Sequence[Quarantined] = ()) -> Iterator[str]:
    if states.stream is None:
        yield "no snapshot was taken for this slot"
        return
    tables = _started(states)
    left = sum(state.status != Status.DONE.value for state in tables)
    paused = " (paused)" if states.stream.paused else ""
    yield (
        f"{'a snapshot' if len(tables) == 1 else 'snapshots'} of {counted(len(tables), 'table')} "
        f"{'was' if len(tables) == 1 else 'were'} started; {left} {'is' if left == 1 else 'are'} unfinished{paused}"
    )
    for state in tables:
        again = sum(map(len, states.keys.get(state.relation_oid, {}).values()))
        yield (
            f"{state.schema}.{state.name}: {state.status.lower()}, {state.purpose}, {counted(state.row_count, 'row')} in "
            f"{counted(state.chunk_count, 'chunk')}, {counted(state.stale_count, 'stale row')} discarded, "
            f"{counted(again, 'key')} to read again"
        )
    for table in quarantined:
        yield f"{table.full_name}: in quarantine, not read until walgate readmit"


def _started(states: StoredStates) -> list[TableState]:
    """Return the tables of snapshots, sorted by name. Left out are tables whose rows are not read,
    and tables of which single rows are read again because UPDATEs did not send unchanged TOAST
    values."""
    found = (s for s in states.tables.values() if s.name and s.status != NOT_TO_BE_READ and s.purpose != RESELECT)
    return sorted(found, key=lambda state: (state.schema, state.name))
