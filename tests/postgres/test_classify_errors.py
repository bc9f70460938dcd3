from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import asyncpg
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.errors import InternalError, NeedsText, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.names import APPLICATION_NAME
from gateway.postgres.classify_errors import (
    CannotDecode,
    LossReported,
    beside_stream,
    classified_errors,
    classify,
    classify_exception,
    classify_in_stream,
    classify_notice,
)
from gateway.postgres.connection import connect_sql
from gateway.postgres.server_message import ServerMessage
from gateway.startup.reaction_by_sqlstate import OTHER, TABLE
from tests.conftest import Database


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("08006", Retry), ("08P01", StopForOperator), ("28P01", RetrySlowly), ("28000", RetrySlowly), ("42501", RetrySlowly),
        ("57P01", Retry), ("57P02", Retry), ("57P03", Retry), ("57014", Retry), ("57P04", Retry), ("40001", Retry),
        ("40P01", Retry), ("53100", RetrySlowly), ("53200", RetrySlowly), ("53300", RetrySlowly), ("53400", RetrySlowly),
        ("42704", Retry), ("55006", Retry), ("55000", RetrySlowly), ("58P01", RetrySlowly),
        ("58P02", RetrySlowly),
        ("25006", RetrySlowly), ("22023", StopForOperator), ("0A000", RetrySlowly), ("42P01", InternalError),
        ("XX000", RetrySlowly), ("3D000", RetrySlowly), ("42601", StopForOperator),
    ],
)  # fmt: skip
def test_sqlstate_decides_what_happens_next(sqlstate: str, kind: type[WalgateError]) -> None:
    error = classify(ServerMessage("ERROR", sqlstate, "text"), "start")
    assert type(error) is kind
    assert f"start: ERROR {sqlstate}" in error.message
    assert kind is Retry or error.hint


@given(st.text(st.sampled_from("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"), min_size=5, max_size=5))
def test_a_code_that_a_function_of_the_database_has_made_up_is_waited_for(sqlstate: str) -> None:
    assume(sqlstate not in TABLE and sqlstate[:2] not in TABLE)
    error = classify(ServerMessage("ERROR", sqlstate, "text"), "start")
    assert (type(error), error.hint) == OTHER


@given(
    st.sampled_from(sorted(code for code in TABLE if len(code) == 2)), st.text("0123456789PX", min_size=3, max_size=3)
)
def test_a_code_that_is_not_listed_is_one_of_its_class(kind: str, rest: str) -> None:
    assume(kind + rest not in (*TABLE, "54000"))
    expected, hint = TABLE[kind]
    error = classify(ServerMessage("ERROR", kind + rest, "text"), "start")
    assert (type(error), error.hint) == (expected, hint)


@pytest.mark.parametrize("sqlstate", ["P0001", "42P01", "22012", "22023", "ABCDE", "28000", "40001"])
def test_whatever_a_login_event_trigger_raises_is_waited_for(sqlstate: str) -> None:
    raised = asyncpg.PostgresError.new({"C": sqlstate, "M": "maintenance window", "W": "PL/pgSQL function nologin()"})
    error = classify_exception(raised, "connection", at_login=True)
    assert type(error) is (Retry if sqlstate == "40001" else RetrySlowly)
    assert "maintenance window" in error.message or sqlstate.startswith("22")
    assert sqlstate == "40001" or "login event trigger" in error.hint


def test_no_error_of_a_session_beside_the_stream_stops_the_gateway() -> None:
    raised = asyncpg.PostgresSyntaxError("syntax error")
    with pytest.raises(RetrySlowly, match="syntax error"), beside_stream():
        raise classify_exception(raised, "reading") from raised
    with pytest.raises(StopForOperator, match="of our own"), beside_stream():
        raise StopForOperator("of our own")


@pytest.mark.parametrize(
    "text",
    [
        'can no longer access replication slot "s"',
        'cannot read from logical replication slot "s"',
        'can no longer get changes from replication slot "s"',
    ],
)
def test_whether_a_slot_is_lost_the_next_start_judges(text: str) -> None:
    assert type(classify(ServerMessage("ERROR", "55000", text), "start")) is Retry


@pytest.mark.parametrize(
    ("sqlstate", "binary", "kind"),
    [
        ("42704", False, Retry),
        ("42883", True, NeedsText),
        ("42883", False, InternalError),
        ("57P01", True, Retry),
    ],
)
def test_the_stream_knows_more_of_some_codes(sqlstate: str, binary: bool, kind: type[WalgateError]) -> None:
    error = classify_in_stream(ServerMessage("ERROR", sqlstate, "text"), "stream", binary=binary)
    assert type(error) is kind
    assert f"ERROR {sqlstate}: text" in error.message


@pytest.mark.parametrize(
    ("sqlstate", "file", "routine", "kind"),
    [
        ("22012", "int.c", "int4div", CannotDecode),
        ("22P02", "numutils.c", "pg_strtoint32_safe", CannotDecode),
        ("22003", "int.c", "int4mul", CannotDecode),
        ("2201B", "regexp.c", "RE_compile_and_cache", CannotDecode),
        ("22008", "timestamp.c", "timestamp_pl_interval", CannotDecode),
        ("22023", "timestamp.c", "timestamp_trunc", CannotDecode),
        ("54000", "oracle_compat.c", "repeat", CannotDecode),
        ("0A000", "pgoutput.c", "pgoutput_column_list_init", CannotDecode),
        ("XX000", "syscache.c", "SearchSysCache", CannotDecode),
        ("XX001", "bufmgr.c", "WaitReadBuffers", CannotDecode),
        ("42P01", "namespace.c", "RangeVarGetRelidExtended", CannotDecode),
        ("54000", "stringinfo.c", "enlargeStringInfo", StopForOperator),
        ("22021", "mbutils.c", "report_invalid_encoding", StopForOperator),
        ("22021", "mbutils.c", "report_invalid_encoding_int", StopForOperator),
        ("22P05", "mbutils.c", "report_untranslatable_char", StopForOperator),
        ("22008", "timestamp.c", "interval2tm", StopForOperator),
        ("53100", "fd.c", "FileWrite", RetrySlowly),
        ("57P01", "postgres.c", "ProcessInterrupts", Retry),
        ("25P04", "postgres.c", "ProcessInterrupts", RetrySlowly),
    ],
)
def test_what_the_server_cannot_decode_is_an_error_of_the_place(
    sqlstate: str, file: str, routine: str, kind: type[WalgateError]
) -> None:
    context = 'slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/01A2B3C4'
    said = ServerMessage("ERROR", sqlstate, "a secret", file=file, routine=routine, context=context)
    error = classify_in_stream(said, "stream", binary=True, is_streaming=True)
    assert type(error) is kind
    if isinstance(error, CannotDecode):
        assert error.reported.change_lsn == 0x01A2B3C4 and "0/1A2B3C4" in error.message
        assert not sqlstate.startswith("22") or sqlstate == "22023" or "secret" not in str(error)
        assert "standby" not in error.hint


@pytest.mark.parametrize(
    ("may_be_wedged", "kind"), [(True, StopForOperator), (False, CannotDecode)], ids=["two-phase of 18", "others"]
)
def test_a_file_that_is_not_mapped_is_given_up_only_where_nothing_else_helps(
    may_be_wedged: bool, kind: type[WalgateError]
) -> None:
    said = ServerMessage("ERROR", "XX000", 'could not map filenumber "base/5/16400" to relation OID')
    error = classify_in_stream(said, "stream", binary=True, is_streaming=True, may_be_wedged=may_be_wedged)
    assert type(error) is kind and ("source.two_phase = false" in error.hint) is may_be_wedged


@pytest.mark.parametrize(
    ("sqlstate", "message"),
    [
        ("XX000", "invalid memory alloc request size 1080000003"),
        ("54000", "out of memory"),  # to 17
        ("54000", "string buffer exceeds maximum allowed length (1073741823 bytes)"),
        ("54000", "Zeichenkettenpuffer überschreitet die maximale Länge"),
    ],
)
def test_row_that_is_too_large_gets_a_way_out(sqlstate: str, message: str) -> None:
    error = classify(ServerMessage("ERROR", sqlstate, message), "read")
    assert type(error) is StopForOperator and "source.binary" in error.hint


SKIPPED = ServerMessage("WARNING", "55000", "skipped", file="pgoutput.c", routine="LoadPublications")
STANDBY_DOWN = ServerMessage("WARNING", "55000", "no active_pid", file="slot.c", routine="StandbySlotsHaveCaughtup")
STANDBY_GONE = replace(STANDBY_DOWN, sqlstate="22023", message="does not exist")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (SKIPPED, LossReported),
        (replace(SKIPPED, message="Publikation ausgelassen"), LossReported),
        (ServerMessage("WARNING", "57P02", "terminating connection", file="postgres.c", routine="quickdie"), Retry),
        (STANDBY_DOWN, None),
        (STANDBY_GONE, None),
        (ServerMessage("WARNING", "01000", "hm", file="x.c", routine="y"), None),
    ],
)
def test_a_warning_is_judged_by_where_the_server_raises_it(
    said: ServerMessage, kind: type[WalgateError] | None
) -> None:
    error = classify_notice(said, "read")
    assert (None if error is None else type(error)) is kind


@pytest.mark.parametrize(
    ("sqlstate", "routine", "kind"),
    [
        ("42704", "get_publication_oid", LossReported),
        ("42704", "ReplicationSlotAcquire", Retry),
        ("58P01", "WalSndSegmentOpen", LossReported),
        ("58P01", "ReorderBufferRestoreChanges", RetrySlowly),
    ],
)
def test_an_error_within_the_stream_that_means_a_loss_is_judged_by_the_next_start(
    sqlstate: str, routine: str, kind: type[WalgateError]
) -> None:
    said = ServerMessage("ERROR", sqlstate, "text", routine=routine)
    assert type(classify_in_stream(said, "stream", binary=True)) is kind


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (asyncpg.InvalidPasswordError("no"), RetrySlowly),
        (asyncpg.CannotConnectNowError("starting up"), Retry),
        (ConnectionRefusedError(111, "refused"), Retry),
        (TimeoutError(), Retry),
        (asyncpg.InterfaceError("connection is closed"), Retry),
        (asyncpg.InternalClientError("another operation is in progress"), Retry),
        (asyncpg.ClientConfigurationError("bad DSN"), InternalError),
        (asyncpg.ConnectionDoesNotExistError("gone"), Retry),
        (ConnectionError("PostgreSQL server rejected SSL upgrade"), RetrySlowly),
        (asyncpg.TargetServerAttributeNotMatched("no host is a primary"), RetrySlowly),
        (KeyError("x"), InternalError),
        (Retry("already"), Retry),
    ],
)
def test_exceptions_of_driver_and_socket_are_classified(raised: BaseException, kind: type[WalgateError]) -> None:
    assert type(classify_exception(raised, "connection")) is kind


def sql_of(hint: str) -> str:
    return hint[hint.index("SELECT") :].partition(". ")[0]


@pytest.mark.integration
async def test_hints_about_a_lock_have_sql_that_names_its_holder(database: Database) -> None:
    holder, other, waiter = [await database.connect() for _ in range(3)]
    await holder.execute("CREATE TABLE t ()")
    await holder.execute("BEGIN; LOCK TABLE t")
    sql = await connect_sql(database.dsn, search_path="public")
    with pytest.raises(Retry, match="querying t: timed out") as timed_out, classified_errors("querying t"):
        await sql.fetch("SELECT FROM t", timeout=0.1)
    with pytest.raises(Retry, match="55P03") as refused, classified_errors("querying t"):
        await sql.execute("SET lock_timeout = 1; SELECT FROM t")
    sql.terminate()
    locks = await other.fetch(sql_of(refused.value.hint))
    assert (holder.get_server_pid(), "t") in [(row["pid"], row["relation"]) for row in locks]
    await waiter.execute(f"SET application_name = {APPLICATION_NAME}")
    waiting = asyncio.create_task(waiter.execute("SELECT FROM t"))
    async with asyncio.timeout(10):
        while not (found := await other.fetch(f"{sql_of(timed_out.value.hint)} AND datname = current_database()")):
            await asyncio.sleep(0.02)
    assert [tuple(row) for row in found] == [([holder.get_server_pid()], "SELECT FROM t")]
    await holder.execute("ROLLBACK")
    await waiting


@pytest.mark.parametrize("error", [TimeoutError(), TimeoutError(110, "Connection timed out")])
def test_a_host_that_does_not_answer_is_said_to_be_unreachable(error: TimeoutError) -> None:
    assert "firewall" in classify_exception(error, "connection", at_login=True).hint
    assert ("firewall" in classify_exception(error, "query").hint) is bool(error.errno)


@pytest.mark.parametrize("code", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL])
def test_a_host_to_which_there_is_no_route_may_have_an_ipv6_address(code: int) -> None:
    hint = classify_exception(OSError(code, "no"), "connection", at_login=True).hint
    assert "firewall" in hint and "IPv6" in hint
    assert "IPv6" not in classify_exception(ConnectionRefusedError(errno.ECONNREFUSED, "no"), "connection").hint


def test_a_connection_that_was_cut_off_is_told_in_words_of_the_gateway() -> None:
    states = asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
    said = classify_exception(states, "querying the catalog")
    assert said.message == "querying the catalog: the connection ended in the middle of an answer" and said.hint
    lost = classify_exception(ConnectionError("unexpected connection_lost() call"), "connection")
    assert lost.message == "connection: the server closed the connection before it answered" and lost.hint


def test_arguments_that_the_driver_refuses_are_not_quoted() -> None:
    assert "geheim" not in str(classify_exception(asyncpg.ClientConfigurationError("bad DSN 'geheim'"), "connection"))
