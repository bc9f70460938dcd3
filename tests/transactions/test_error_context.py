from __future__ import annotations

import pytest

from gateway.errors import InternalError, Retry, StopForOperator
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.stream import StreamStart
from gateway.pgoutput.transaction import Begin
from gateway.transactions.error_context import add_context
from schemas.lsn import Lsn
from tests.pgoutput.writer import write
from tests.transactions.stream import RELATION_OID, Stream

ROW = b"U" + RELATION_OID.to_bytes(4)
ROW_IN_STREAM = b"D" + (11).to_bytes(4) + RELATION_OID.to_bytes(4)
UNKNOWN_ROW = b"I" + (1).to_bytes(4)


def located(stream: Stream, payload: bytes) -> str:
    error = StopForOperator("what went wrong", hint="what to do")
    add_context(error, stream.machine, payload, Lsn(0x1_0000_0010))
    assert error.hint == "what to do" and str(error) == f"{error.message}\nhint: what to do"
    return error.message


def test_an_error_names_operation_relation_transaction_and_lsn() -> None:
    stream = Stream()
    begin = Begin(Lsn(8), 0, 771)
    assert located(stream, write(begin)) == "what went wrong (Begin message, LSN 1/10)"
    stream.receive(begin)
    assert located(stream, ROW) == "what went wrong (UPDATE of public.t, transaction 771, commit LSN 0/8, LSN 1/10)"
    assert (
        located(stream, UNKNOWN_ROW)
        == "what went wrong (INSERT of relation 1, transaction 771, commit LSN 0/8, LSN 1/10)"
    )
    truncate = write(Truncate(None, (RELATION_OID, 1), False, False))
    of_both = "what went wrong (TRUNCATE of public.t, relation 1, transaction 771, commit LSN 0/8, LSN 1/10)"
    assert located(stream, truncate) == of_both
    assert located(stream, truncate[:-1]) == of_both.replace(", relation 1", "")
    assert located(stream, b"?") == "what went wrong (unknown message, transaction 771, commit LSN 0/8, LSN 1/10)"


def test_inside_a_stream_it_names_the_subtransaction() -> None:
    stream = Stream()
    stream.receive(StreamStart(10, True))
    stream.row(subxid=11)
    assert located(stream, ROW_IN_STREAM).endswith("(DELETE of public.t, transaction 10, subtransaction 11, LSN 1/10)")


def test_an_error_keeps_its_class_and_its_cause() -> None:
    cause, error = OSError(), Retry("gone")
    error.__cause__ = cause
    add_context(error, Stream().machine, b"C", Lsn(8))
    assert type(error) is Retry and error.__cause__ is cause
    memory = MemoryError()
    add_context(memory, Stream().machine, b"C", Lsn(8))


def test_what_was_not_raised_on_purpose_is_a_defect_whose_text_is_not_shown() -> None:
    with pytest.raises(InternalError, match=r"^ValueError in .*py:\d+ .* \(Commit message, LSN 0/8\)") as caught:
        refuse("a row's value")
    assert isinstance(caught.value.__cause__, ValueError)
    assert "a row's value" not in str(caught.value)


def refuse(value: str) -> None:
    try:
        int(value)
    except ValueError as error:
        add_context(error, Stream().machine, b"C", Lsn(8))
