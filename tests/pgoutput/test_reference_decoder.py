"""Two decoders that share nothing agree: on what is a message, and on what it says."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from gateway.pgoutput.decode import PgOutputMessage, decode
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.relation import Column
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text
from schemas.relation import ReplicaIdentity
from tests.golden.recording import recordings
from tests.pgoutput.reference_decoder import ReferenceDecoder, Refused
from tests.pgoutput.strategies import messages
from tests.pgoutput.writer import write


def plain(value: object) -> object:
    """A field of a message as the reference decoder has it."""
    match value:
        case Text():
            return ("t", value.value)
        case Binary():
            return ("b", value.value)
        case Column():
            return (value.key, value.name, value.type_oid, value.typmod)
        case ReplicaIdentity():
            return value.value
        case tuple():
            return [plain(one) for one in value]
        case _:
            return "u" if value is UNCHANGED else value


def described(message: PgOutputMessage) -> tuple[str, dict[str, object]]:
    return type(message).__name__, {one.name: plain(getattr(message, one.name)) for one in fields(message)}


def check_agreement(payload: bytes, in_stream: bool, protocol_version: int) -> PgOutputMessage | None:
    """The message, or None if both refuse; raises when the decoders differ or anything but
    PgOutputError is raised."""
    message: PgOutputMessage | None
    try:
        message = decode(payload, in_stream=in_stream, protocol_version=protocol_version)
    except PgOutputError:
        message = None
    try:
        expected = ReferenceDecoder(payload, in_stream, protocol_version).decode()
    except Refused:
        assert message is None, f"read as {type(message).__name__}, but the manual does not allow it: {payload.hex()}"
        return None
    assert message is not None, f"refused, but the manual allows it: {payload.hex()}"
    assert described(message) == expected, payload.hex()
    return message


def test_the_decoders_agree_on_every_recorded_message() -> None:
    for recorded in recordings():
        for message in recorded.messages:
            agreed = check_agreement(message.payload, message.in_stream, recorded.protocol_version)
            assert agreed is not None


@given(data=st.data(), in_stream=st.booleans(), protocol_version=st.integers(1, 4))
def test_the_decoders_agree_on_every_legal_message(data: st.DataObject, in_stream: bool, protocol_version: int) -> None:
    check_agreement(write(data.draw(messages(in_stream))), in_stream, protocol_version)


@given(data=st.data(), in_stream=st.booleans(), rubbish=st.binary(max_size=60))
def test_the_decoders_agree_on_what_begins_like_a_message(data: st.DataObject, in_stream: bool, rubbish: bytes) -> None:
    payload = write(data.draw(messages(in_stream)))
    check_agreement(payload[: data.draw(st.integers(0, len(payload)))] + rubbish, in_stream, protocol_version=4)
