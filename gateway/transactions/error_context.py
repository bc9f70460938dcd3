"""Add to an error where in the stream it occurred, as apply_error_callback in PostgreSQL's worker.c
does. No other module does this."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb
from typing import Final

from gateway.errors import InternalError, WalgateError
from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.decode import MESSAGE_NAMES
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.letters import DELETE, INSERT, RELATION, ROW_MESSAGES, TRUNCATE, UPDATE
from gateway.pgoutput.row import read_tuples
from gateway.transactions.machine import TransactionMachine
from schemas.lsn import Lsn

_OPERATIONS: Final = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
_COUNT_AND_OPTIONS: Final = 5
"""The size of the count and the options, which precede the relations in a Truncate message."""
_INNERMOST_FRAMES: Final = 4


def add_context(error: Exception, machine: TransactionMachine, payload: bytes, change_lsn: int) -> None:
    """Add to the message of `error` what `payload` is (INSERT of public.orders), its transaction
    and its LSN. For a row or a Relation message, also set its `relation_oid`.

    Raises InternalError in place of an error that is not a WalgateError; a MemoryError is left as
    it is.
    """
    lsn = f", LSN {Lsn(change_lsn)}" if change_lsn else ""  # a Relation message has none
    value = "" if isinstance(error, WalgateError | MemoryError) else _value(machine, payload)
    context = f"({_operation(machine, payload)}{value}{_transaction(machine)}{lsn})"
    relation_oid = _relation_oid(machine, payload)
    if isinstance(error, WalgateError):
        error.message = f"{error.message} {context}"
        error.args = (error.message,)
        error.relation_oid = relation_oid
    elif not isinstance(error, MemoryError):
        defect = defect_of(error, context)
        defect.relation_oid = relation_oid
        raise defect from error


def defect_of(error: Exception, context: str) -> InternalError:
    """Return the InternalError for an error that is not a WalgateError."""
    frames = extract_tb(error.__traceback__)[-_INNERMOST_FRAMES:]
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return InternalError(
        f"{type(error).__name__} in {places} {context}",
        hint="this is a bug in the gateway: report the error, and do not drop the slot",
    )


def _value(machine: TransactionMachine, payload: bytes) -> str:
    """Describe the value of a row that cannot be encoded, if there is one: its column, and the byte
    of the message at which the value begins."""
    relation_oid = _relation_oid(machine, payload)
    if relation_oid is None or payload[0] == RELATION or (version := machine.in_force(relation_oid)) is None:
        return ""
    cursor = Cursor(payload, _relation_at(machine) + 4, "row")
    try:
        places = [version.failing(part) for part in read_tuples(cursor)]
    except PgOutputError:
        return ""
    return next((f", {place}" for place in places if place is not None), "")


def _relation_at(machine: TransactionMachine) -> int:
    """Return the position of the relation's oid in a row message or a Relation message."""
    return 5 if machine.in_stream else 1


def _relation_oid(machine: TransactionMachine, payload: bytes) -> int | None:
    if payload[0] not in ROW_MESSAGES and payload[0] != RELATION:
        return None
    start = _relation_at(machine)
    return int.from_bytes(payload[start : start + 4])


def _operation(machine: TransactionMachine, payload: bytes) -> str:
    letter = payload[0]
    if letter == TRUNCATE:
        oids = payload[_relation_at(machine) + _COUNT_AND_OPTIONS :]  # may be incomplete, which may be the error
        names = [_relation_name(machine, int.from_bytes(oids[at : at + 4])) for at in range(0, len(oids) - 3, 4)]
        return f"TRUNCATE of {', '.join(names)}"
    operation = _OPERATIONS.get(letter)
    if operation is None:
        return f"{MESSAGE_NAMES.get(letter, 'unknown')} message"
    relation_oid = _relation_oid(machine, payload)
    assert relation_oid is not None
    return f"{operation} of {_relation_name(machine, relation_oid)}"


def _relation_name(machine: TransactionMachine, relation_oid: int) -> str:
    version = machine.in_force(relation_oid)
    return f"relation {relation_oid}" if version is None else version.name


def _transaction(machine: TransactionMachine) -> str:
    current = machine.current
    if current is None:
        return ""
    subxid = current.subxid
    commit_lsn = machine.current_commit_lsn
    commit = "" if commit_lsn is None else f", commit LSN {commit_lsn}"
    return f", transaction {current.xid}{'' if subxid == -1 else f', subtransaction {subxid}'}{commit}"
