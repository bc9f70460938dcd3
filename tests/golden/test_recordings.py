"""What real servers sent is read, written back to the same bytes, and makes sense as a
conversation."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import get_args

import pytest

from gateway.pgoutput.decode import PgOutputMessage, decode
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Relation, Type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleData
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from schemas.lsn import Lsn
from schemas.relation import ReplicaIdentity
from tests.golden.recording import Recording, recording, recordings
from tests.pgoutput.writer import INFINITIES, write

MAJORS = (15, 18)
each_recording = pytest.mark.parametrize("recorded", recordings(), ids=lambda recorded: recorded.name)
each_major = pytest.mark.parametrize("major", MAJORS)


def decoded(recorded: Recording) -> list[PgOutputMessage]:
    return [
        decode(message.payload, in_stream=message.in_stream, protocol_version=recorded.protocol_version)
        for message in recorded.messages
    ]


def decoded_name(major: int, name: str) -> list[PgOutputMessage]:
    return decoded(recording(f"postgresql-{major}/{name}"))


def tuples(message: PgOutputMessage) -> list[TupleData]:
    if isinstance(message, Insert | Update | Delete):
        parts = (getattr(message, part, None) for part in ("key", "old", "new"))
        return [part for part in parts if part is not None]
    return []


def texts(values: TupleData) -> list[str | None]:
    return [value.value.decode() if isinstance(value, Text) else None for value in values]


@each_recording
def test_every_message_is_read_and_written_back_to_the_same_bytes(recorded: Recording) -> None:
    assert recorded.messages
    for message, read in zip(recorded.messages, decoded(recorded), strict=True):
        assert write(read) == message.payload


@each_major
def test_all_19_messages_were_recorded_from_each_version(major: int) -> None:
    kinds = {type(read) for recorded in recordings() if recorded.major == major for read in decoded(recorded)}
    assert kinds == set(get_args(PgOutputMessage))


@each_major
def test_stream_abort_has_lsn_and_time_only_where_parallel_streaming_exists(major: int) -> None:
    aborts = [
        (recorded.options.get("streaming", "on"), read)
        for recorded in recordings()
        if recorded.major == major
        for read in decoded(recorded)
        if isinstance(read, StreamAbort)
    ]
    assert {streaming for streaming, _ in aborts} == ({"on", "parallel"} if major >= 16 else {"on"})
    for streaming, abort in aborts:
        assert (abort.abort_lsn is not None, abort.abort_time is not None) == (streaming == "parallel",) * 2


@each_recording
def test_transactions_open_and_close_in_order(recorded: Recording) -> None:
    """Begin's commit LSN is Commit's, Prepare repeats Begin Prepare, rows come inside, segments are
    numbered truly."""
    current: Begin | BeginPrepare | StreamStart | None = None
    segments: dict[int, int] = defaultdict(int)
    for raw, message in zip(recorded.messages, decoded(recorded), strict=True):
        match message:
            case Begin() | BeginPrepare():
                assert current is None and raw.xid == message.xid
                current = message
            case Commit():
                assert isinstance(current, Begin)
                assert (current.commit_lsn, current.commit_time) == (message.commit_lsn, message.commit_time)
                assert message.commit_lsn < message.end_lsn
                current = None
            case Prepare():
                assert isinstance(current, BeginPrepare)
                assert (current.prepare_lsn, current.end_lsn) == (message.prepare_lsn, message.end_lsn)
                assert (current.prepare_time, current.xid, current.gid) == (
                    message.prepare_time, message.xid, message.gid
                )  # fmt: skip
                assert message.prepare_lsn < message.end_lsn
                current = None
            case StreamStart():
                assert current is None
                assert message.first_segment == (segments[message.xid] == 0)
                segments[message.xid] += 1
                current = message
            case StreamStop():
                assert isinstance(current, StreamStart)
                current = None
            case StreamCommit() | StreamPrepare():
                assert current is None and segments[message.xid] > 0
            case StreamAbort():
                assert current is None
                alone = recorded.scenario == "stream_abort_alone" and recorded.major == 18
                assert (segments[message.xid] > 0) != alone
            case CommitPrepared() | RollbackPrepared():
                assert current is None
            case Message() if not message.transactional:
                assert message.xid is None
            case _:
                assert current is not None
                assert raw.in_stream == isinstance(current, StreamStart)
                assert isinstance(message, Origin) or (message.xid is not None) == raw.in_stream
    assert current is None


@each_recording
def test_rows_have_the_columns_of_their_relation(recorded: Recording) -> None:
    relations: dict[int, Relation] = {}
    for message in decoded(recorded):
        if isinstance(message, Relation):
            relations[message.relation_oid] = message
        for values in tuples(message):
            assert isinstance(message, Insert | Update | Delete)
            assert len(values) == len(relations[message.relation_oid].columns)
        if isinstance(message, Update | Delete) and message.key is not None:
            columns = relations[message.relation_oid].columns
            assert [value is not None for value in message.key] == [column.key for column in columns]


@each_recording
def test_values_come_in_the_format_that_was_asked_for(recorded: Recording) -> None:
    kinds = {type(value) for read in decoded(recorded) for values in tuples(read) for value in values}
    if recorded.options.get("binary"):
        assert Binary in kinds  # types without a send function stay text
    else:
        assert Binary not in kinds


@each_recording
def test_times_are_of_the_day_of_the_recording_or_of_the_origin(recorded: Recording) -> None:
    for message in decoded(recorded):
        for field in ("commit_time", "prepare_time", "rollback_time", "abort_time"):
            time = getattr(message, field, None)
            if time is not None and time not in INFINITIES:
                year = datetime.fromtimestamp(time / 1e6, UTC).year
                assert year >= 2025 or (year == 2001 and "origin" in recorded.scenario)


@each_major
def test_key_change_unchanged_toast_and_identities_are_told_apart(major: int) -> None:
    messages = decoded_name(major, "identity.text")
    identities = {message.name: message.replica_identity for message in messages if isinstance(message, Relation)}
    assert identities == {
        "by_key": ReplicaIdentity.DEFAULT,
        "by_full": ReplicaIdentity.FULL,
        "by_index": ReplicaIdentity.INDEX,
        "by_nothing": ReplicaIdentity.NOTHING,
        "Kein Name": ReplicaIdentity.DEFAULT,
        "no_columns": ReplicaIdentity.DEFAULT,
    }
    updates = [message for message in messages if isinstance(message, Update)]
    plain, key_change, second, full, other_column, code, composite = updates
    assert (plain.key, plain.old) == (None, None)
    assert plain.new == (Text(b"1"), Text(b"c"), UNCHANGED)
    assert key_change.key == (Text(b"1"), None, None) and key_change.new[2] is UNCHANGED
    assert (second.key, second.new) == ((Text(b"2"), None, None), (Text(b"20"), None, None))
    # Under FULL the value that the new tuple leaves out is in the old tuple.
    assert full.old == (Text(b"1"), Text(b"a"), Text(b"0123456789" * 300))
    assert full.new == (Text(b"1"), Text(b"c"), UNCHANGED)
    assert other_column.key is None
    assert code.key == (None, Text(b"one"))
    assert composite.key == (Text(b"1"), None, Text(b"3"))
    deletes = [message for message in messages if isinstance(message, Delete)]
    assert [message.old is not None for message in deletes] == [False, True, True, False, False]
    assert [message.new for message in messages if isinstance(message, Insert)][-2] == ()


@each_major
def test_types_of_the_user_are_announced_before_their_relation(major: int) -> None:
    for form in ("text", "binary"):
        messages = decoded_name(major, f"types.{form}")
        types = {message.type_oid: message for message in messages if isinstance(message, Type)}
        assert {(message.namespace, message.name) for message in types.values()} == {
            # int4 is the base type of the domain, under the domain's oid
            ("public", "mood"), ("other schema", "Größe"), ("pg_catalog", "int4"), ("public", "place"),
        }  # fmt: skip
        (relation,) = [message for message in messages if isinstance(message, Relation)]
        user_types = {column.type_oid for column in relation.columns if column.type_oid >= 16384}
        assert user_types == set(types)
        assert max(messages.index(message) for message in types.values()) < messages.index(relation)
        assert {column.name: column.typmod for column in relation.columns}["price"] == (12 << 16 | 2) + 4


@each_major
def test_text_values_are_as_psql_shows_them(major: int) -> None:
    messages = decoded_name(major, "types.text")
    first, empty, infinite = [texts(message.new) for message in messages if isinstance(message, Insert)]
    assert first == [
        "1", "t", "-2", "1.5", "NaN", "12.30", "NaN", "l1\nl2 ü", "ab  ", "x", "\\xdeadbeef", "2026-02-03", "12:34:56.789",
        "12:34:56+02", "2026-02-03 04:05:06.789", "2026-02-03 04:05:06.789+00", "P1M2DT3H4M5S",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '{"a": 1}', '{"b": [1, null]}', "{1,NULL,3}", '{a,"b c"}', "very happy",
        "XL", "5", "(1,home)", '["2026-01-01 00:00:00+00",)', "192.168.0.1/24", "10110", "pg_class",
    ]  # fmt: skip
    assert empty == ["2"] + [None] * 6 + [""] + [None] * 22
    assert [infinite[position] for position in (11, 14, 15)] == ["-infinity", "infinity", "-infinity"]


@each_major
def test_logical_messages_come_with_prefix_and_content(major: int) -> None:
    messages = [message for message in decoded_name(major, "messages.text") if isinstance(message, Message)]
    assert [(message.transactional, message.prefix, message.content) for message in messages] == [
        (True, "inside", b"text"),
        (False, "outside", b"\0\xff"),
        (False, "outside, at once", b"b"),
        (True, "", b""),
        (False, "kept", b"d"),
    ]
    assert all(message.message_lsn > 0 for message in messages)


@each_major
def test_origins_come_with_their_name_position_and_time(major: int) -> None:
    messages = decoded_name(major, "origin.text")
    origins = [message for message in messages if isinstance(message, Origin)]
    assert origins == [
        Origin(Lsn(0), "walgate_golden_far"),
        Origin(Lsn.parse("1/89ABCDEF"), "walgate_golden_far"),
        Origin(Lsn.parse("1/89ABCDFF"), "walgate_golden_far"),
    ]
    times = [message.commit_time for message in messages if isinstance(message, Begin)]
    assert times[1:] == [int(datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp()) * 1_000_000, (1 << 63) - 1]


@each_major
def test_truncate_names_all_its_relations(major: int) -> None:
    messages = decoded_name(major, "truncate.text")
    names = {message.relation_oid: message.name for message in messages if isinstance(message, Relation)}
    truncates = [message for message in messages if isinstance(message, Truncate)]
    assert [
        ({names[oid] for oid in message.relation_oids}, message.cascade, message.restart_identity)
        for message in truncates
    ] == [
        ({"alone"}, False, False),
        ({"parent", "child"}, True, False),
        ({"alone"}, False, True),
        ({"alone", "parent", "child"}, True, True),
    ]


@each_major
def test_rows_of_a_rolled_back_savepoint_carry_the_subxid_that_is_aborted(major: int) -> None:
    messages = decoded_name(major, "stream_commit.text")
    (abort,) = [message for message in messages if isinstance(message, StreamAbort)]
    lost = [message for message in messages if isinstance(message, Insert) and message.new[0] == Text(b"4")]
    assert [message.xid for message in lost] == [abort.subxid]
    kept = {message.xid for message in messages if isinstance(message, Insert) and message.xid is not None}
    assert len(kept - {abort.subxid}) == 3  # of the transaction, of the released savepoint, and after the rollback
    (commit,) = [message for message in messages if isinstance(message, StreamCommit)]
    assert commit.xid == abort.xid != abort.subxid and commit.commit_lsn < commit.end_lsn


def test_version_18_aborts_the_subtransaction_of_a_transaction_it_never_streamed() -> None:
    """It saw in time that the transaction had been rolled back; the abort of a savepoint still
    comes. 15 streamed it."""
    kinds = [type(message) for message in decoded_name(18, "stream_abort_alone.text")]
    assert StreamStart not in kinds and kinds.count(StreamAbort) == 1
    assert [type(message) for message in decoded_name(15, "stream_abort_alone.text")].count(StreamAbort) == 2


def test_version_18_sends_stream_abort_even_without_streaming() -> None:
    assert StreamAbort in [type(message) for message in decoded_name(18, "stream_abort_alone.not_streamed")]
    assert StreamAbort not in [type(message) for message in decoded_name(15, "stream_abort_alone.not_streamed")]


@each_major
def test_a_two_phase_slot_sends_prepares_in_protocol_1_too(major: int) -> None:
    without, with_option = decoded_name(major, "two_phase.without_the_option"), decoded_name(major, "two_phase.text")
    assert without == with_option
    assert {Prepare, CommitPrepared, RollbackPrepared} <= {type(message) for message in without}


@each_major
def test_the_ends_of_prepared_transactions_match_their_prepares(major: int) -> None:
    for name in ("two_phase.text", "stream_two_phase.text"):
        messages = decoded_name(major, name)
        prepared = {
            (message.gid, message.xid): message for message in messages if isinstance(message, Prepare | StreamPrepare)
        }
        (committed,) = [message for message in messages if isinstance(message, CommitPrepared)]
        (rolled_back,) = [message for message in messages if isinstance(message, RollbackPrepared)]
        assert committed.commit_lsn >= prepared[committed.gid, committed.xid].end_lsn  # an end is exclusive
        prepare = prepared[rolled_back.gid, rolled_back.xid]
        assert (rolled_back.prepare_end_lsn, rolled_back.prepare_time) == (prepare.end_lsn, prepare.prepare_time)
        assert rolled_back.rollback_end_lsn > prepare.end_lsn
        assert rolled_back.rollback_time >= prepare.prepare_time
