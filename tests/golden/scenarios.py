"""The SQL whose pgoutput is kept in this folder, and with which options each is read."""

from __future__ import annotations

from dataclasses import dataclass

TEXT = {"proto_version": "1", "messages": "true"}
BINARY = {"proto_version": "1", "messages": "true", "binary": "true"}
STREAMED = {"proto_version": "2", "streaming": "on", "messages": "true"}
STREAMED_BINARY = {**STREAMED, "binary": "true"}
PARALLEL = {"proto_version": "4", "streaming": "parallel", "messages": "true"}
TWO_PHASE = {"proto_version": "3", "two_phase": "on"}
STREAMED_TWO_PHASE = {"proto_version": "3", "streaming": "on", "two_phase": "on"}
PARALLEL_TWO_PHASE = {"proto_version": "4", "streaming": "parallel", "two_phase": "on"}


@dataclass(frozen=True, slots=True)
class Capture:
    """One reading of a scenario's slot. `immediate` streams after every change (PostgreSQL 16 and
    newer)."""

    name: str
    options: dict[str, str]
    immediate: bool = False
    oldest_version: int = 15


@dataclass(frozen=True, slots=True)
class Scenario:
    """`setup` runs before the slot is made; `sql` after it, one statement at a time in one
    session."""

    name: str
    description: str
    setup: tuple[str, ...]
    sql: tuple[str, ...]
    captures: tuple[Capture, ...]
    two_phase: bool = False


# Rows of a table that is not published fill logical_decoding_work_mem (64kB) and add nothing to the
# stream, so that a transaction of a few published rows is streamed.
FILL = "INSERT INTO filler SELECT generate_series(1, 1000)"
ITEM = (
    "CREATE TABLE item (id int PRIMARY KEY, name text)",
    "CREATE TABLE filler (id int)",
    "CREATE PUBLICATION pub FOR TABLE item",
)
# The decoder of the server looks into its catalog as the transaction did; when that was rolled back
# it stops. What an earlier transaction has put into its caches it need not look up.
WARM = ("INSERT INTO item VALUES (0, 'warm')",)

TYPES = Scenario(
    "types",
    "Every kind of column type, with Type messages for those of the user; NULL; values that need care",
    (
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE place AS (x int, name text)",
        'CREATE SCHEMA "other schema"',
        "CREATE TYPE \"other schema\".\"Größe\" AS ENUM ('S', 'XL')",
        """CREATE TABLE everything (id bigint PRIMARY KEY, flag boolean, small smallint, real_ real, double_ double precision,
            price numeric(12,2), free numeric, name text, code char(4), short varchar(10), data bytea, day date, at time,
            at_zone timetz, moment timestamp, moment_zone timestamptz, span interval, token uuid, doc json, docb jsonb,
            numbers int[], words text[], mood mood, size "other schema"."Größe", amount positive, place place,
            stay tstzrange, address inet, bits varbit, kind regclass)""",
        "CREATE PUBLICATION pub FOR TABLE everything",
    ),
    (
        """INSERT INTO everything VALUES (1, true, -2, 1.5, 'NaN', 12.30, 'NaN', E'l1\\nl2 ü', 'ab', 'x', '\\xdeadbeef',
            '2026-02-03', '12:34:56.789', '12:34:56+02', '2026-02-03 04:05:06.789', '2026-02-03 04:05:06.789+00',
            '1 mon 2 days 03:04:05', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', '{"b": [1, null]}', '{1,NULL,3}',
            '{a,"b c"}', 'very happy', 'XL', 5, '(1,home)', '[2026-01-01 00:00:00+00,)', '192.168.0.1/24', '10110',
            'pg_class')""",
        "INSERT INTO everything (id, name) VALUES (2, '')",
        "INSERT INTO everything (id, moment, moment_zone, day) VALUES (3, 'infinity', '-infinity', '-infinity')",
        "UPDATE everything SET mood = NULL, flag = false WHERE id = 1",
        "DELETE FROM everything WHERE id = 2",
    ),
    (Capture("text", TEXT), Capture("binary", BINARY)),
)

IDENTITY = Scenario(
    "identity",
    "Key change, unchanged TOAST, and UPDATE and DELETE under each replica identity",
    (
        "CREATE TABLE by_key (id int PRIMARY KEY, name text, big text)",
        "ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE by_full (id int, name text, big text)",
        "ALTER TABLE by_full ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE by_full REPLICA IDENTITY FULL",
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, CONSTRAINT by_code UNIQUE (code))",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code",
        "CREATE TABLE by_nothing (id int)",
        "ALTER TABLE by_nothing REPLICA IDENTITY NOTHING",
        'CREATE TABLE "Kein Name" ("Schlüssel" int, b int, c int, PRIMARY KEY (c, "Schlüssel"))',
        "CREATE TABLE no_columns ()",
        'CREATE PUBLICATION pub FOR TABLE by_key, by_full, by_index, "Kein Name"',
        "CREATE PUBLICATION inserts FOR TABLE by_nothing, no_columns WITH (publish = 'insert')",
    ),
    (
        "BEGIN",
        "INSERT INTO by_key VALUES (1, 'a', repeat('0123456789', 300)), (2, 'b', NULL)",
        "UPDATE by_key SET name = 'c' WHERE id = 1",
        "UPDATE by_key SET id = 10 WHERE id = 1",
        "UPDATE by_key SET id = 20, name = NULL WHERE id = 2",
        "DELETE FROM by_key WHERE id = 10",
        "COMMIT",
        "INSERT INTO by_full VALUES (1, 'a', repeat('0123456789', 300)), (2, NULL, NULL)",
        "UPDATE by_full SET name = 'c' WHERE id = 1",
        "DELETE FROM by_full",
        "INSERT INTO by_index VALUES (1, 'one')",
        "UPDATE by_index SET id = 2",
        "UPDATE by_index SET code = 'two'",
        "DELETE FROM by_index",
        "INSERT INTO by_nothing VALUES (1)",
        "INSERT INTO no_columns DEFAULT VALUES",
        'INSERT INTO "Kein Name" VALUES (1, 2, 3)',
        'UPDATE "Kein Name" SET c = 4',
        'DELETE FROM "Kein Name"',
    ),
    (Capture("text", TEXT), Capture("binary", BINARY)),
)

TRUNCATE = Scenario(
    "truncate",
    "TRUNCATE of one and of several tables, with both options",
    (
        "CREATE TABLE parent (id serial PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent)",
        "CREATE TABLE alone (id int)",
        "CREATE PUBLICATION pub FOR TABLE parent, child, alone",
    ),
    (
        "TRUNCATE alone",
        "TRUNCATE parent CASCADE",
        "TRUNCATE alone RESTART IDENTITY",
        "TRUNCATE parent, child, alone RESTART IDENTITY CASCADE",
    ),
    (Capture("text", TEXT),),
)

MESSAGES = Scenario(
    "messages",
    "Logical messages inside and outside of transactions, one of a transaction that is rolled back",
    ITEM,
    (
        "SELECT pg_logical_emit_message(true, 'inside', 'text')",
        "SELECT pg_logical_emit_message(false, 'outside', '\\x00ff'::bytea)",
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        "SELECT pg_logical_emit_message(false, 'outside, at once', 'b')",
        "SELECT pg_logical_emit_message(true, '', '')",
        "COMMIT",
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'lost', 'c')",
        "SELECT pg_logical_emit_message(false, 'kept', 'd')",
        "ROLLBACK",
        "INSERT INTO item VALUES (2, 'its commit flushes what is above')",
    ),
    (Capture("text", TEXT),),
)

ORIGIN = Scenario(
    "origin",
    "Transactions with a replication origin: with a commit time of its own, and with an infinite one",
    ITEM,
    (
        "SELECT pg_replication_origin_create('walgate_golden_far')",
        "SELECT pg_replication_origin_session_setup('walgate_golden_far')",
        "INSERT INTO item VALUES (1, 'no position')",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('1/89ABCDEF', '2001-02-03 04:05:06+00')",
        "INSERT INTO item VALUES (2, 'a position')",
        "COMMIT",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('1/89ABCDFF', 'infinity')",
        "INSERT INTO item VALUES (3, 'the end of time')",
        "COMMIT",
        "SELECT pg_replication_origin_session_reset()",
        "SELECT pg_replication_origin_drop('walgate_golden_far')",
    ),
    (Capture("text", TEXT),),
)

DDL = Scenario(
    "ddl",
    "ADD and DROP COLUMN between the rows of one transaction",
    ITEM,
    (
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        "ALTER TABLE item ADD mark int DEFAULT 7",
        "INSERT INTO item VALUES (2, 'b', 8)",
        "ALTER TABLE item DROP name",
        "UPDATE item SET mark = 9 WHERE id = 1",
        "COMMIT",
    ),
    (Capture("text", TEXT),),
)

STREAM_SETUP = (
    *ITEM,
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE moody (id int PRIMARY KEY, mood mood)",
    "ALTER PUBLICATION pub ADD TABLE moody",
)


def _stream_commit(fill: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *WARM,
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        *fill,
        "INSERT INTO moody VALUES (1, 'sad')",
        "UPDATE item SET id = 2 WHERE id = 1",
        "SELECT pg_logical_emit_message(true, 'in a stream', 'x')",
        "SAVEPOINT kept",
        "INSERT INTO item VALUES (3, 'of a subtransaction')",
        "SELECT pg_logical_emit_message(true, 'of a subtransaction', '')",
        "RELEASE kept",
        "SAVEPOINT lost",
        "INSERT INTO item VALUES (4, 'rolled back')",
        *fill,
        "ROLLBACK TO lost",
        "ALTER TABLE item ADD mark int",
        "INSERT INTO item VALUES (5, 'b', 6)",
        "DELETE FROM item WHERE id = 2",
        "TRUNCATE item, moody",
        *fill,
        "COMMIT",
        "INSERT INTO item VALUES (7, 'after')",
    )


def _stream_abort(fill: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *WARM,
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        *fill,
        "SAVEPOINT inner_one",
        "INSERT INTO item VALUES (2, 'b')",
        *fill,
        "ROLLBACK",
        "INSERT INTO item VALUES (3, 'after')",
    )


STREAM_COMMIT = Scenario(
    "stream_commit",
    "A transaction sent while in progress, with every message that can be in it, and a savepoint rolled back",
    STREAM_SETUP,
    _stream_commit((FILL,)),
    (
        Capture("text", STREAMED),
        Capture("binary", STREAMED_BINARY),
        Capture("parallel", PARALLEL, oldest_version=16),
        Capture("not_streamed", TEXT),
    ),
)
STREAM_COMMIT_IMMEDIATE = Scenario(
    "stream_commit_immediate",
    "The same, sent after every change",
    STREAM_SETUP,
    _stream_commit(()),
    (
        Capture("text", STREAMED, immediate=True, oldest_version=16),
        Capture("parallel", PARALLEL, immediate=True, oldest_version=16),
    ),
)
STREAM_ABORT = Scenario(
    "stream_abort",
    "A transaction with a subtransaction, rolled back after it was sent; 18 sees that it was and sends nothing of it",
    ITEM,
    _stream_abort((FILL,)),
    (Capture("text", STREAMED), Capture("parallel", PARALLEL, oldest_version=16)),
)
STREAM_ABORT_IMMEDIATE = Scenario(
    "stream_abort_immediate",
    "The same, sent after every change, which 18 does even though it was rolled back",
    ITEM,
    _stream_abort(()),
    (
        Capture("text", STREAMED, immediate=True, oldest_version=16),
        Capture("parallel", PARALLEL, immediate=True, oldest_version=16),
    ),
)
STREAM_ABORT_ALONE = Scenario(
    "stream_abort_alone",
    "18 sees that the transaction was rolled back and sends nothing of it but a Stream Abort of its subtransaction, and this "
    "even in protocol 1 without streaming",
    ITEM,
    (
        *WARM,
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        "SAVEPOINT inner_one",
        "INSERT INTO item VALUES (2, 'b')",
        "RELEASE inner_one",
        FILL,
        "ROLLBACK",
        "INSERT INTO item VALUES (4, 'after')",
    ),
    (
        Capture("text", STREAMED),
        Capture("parallel", PARALLEL, oldest_version=16),
        Capture("not_streamed", TEXT),
    ),
)
STREAM_ORIGIN = Scenario(
    "stream_origin",
    "A streamed transaction with a replication origin",
    ITEM,
    (
        "SELECT pg_replication_origin_create('walgate_golden_far')",
        "SELECT pg_replication_origin_session_setup('walgate_golden_far')",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('1/89ABCDEF', '2001-02-03 04:05:06+00')",
        "INSERT INTO item VALUES (1, 'a')",
        FILL,
        "INSERT INTO item VALUES (2, 'b')",
        "COMMIT",
        "SELECT pg_replication_origin_session_reset()",
        "SELECT pg_replication_origin_drop('walgate_golden_far')",
    ),
    (Capture("text", STREAMED),),
)

TWO_PHASE_ENDS = Scenario(
    "two_phase",
    "Prepared transactions, one committed, one rolled back; read with the option and, by the slot alone, without",
    ITEM,
    (
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        "PREPARE TRANSACTION 'walgate golden: committed'",
        "INSERT INTO item VALUES (2, 'between')",
        "COMMIT PREPARED 'walgate golden: committed'",
        "BEGIN",
        "INSERT INTO item VALUES (3, 'b')",
        "PREPARE TRANSACTION 'walgate golden: rolled back, ü'",
        "ROLLBACK PREPARED 'walgate golden: rolled back, ü'",
    ),
    (
        Capture("text", TWO_PHASE),
        Capture("binary", {**TWO_PHASE, "binary": "true"}),
        Capture("without_the_option", TEXT),
    ),
    two_phase=True,
)
STREAM_TWO_PHASE = Scenario(
    "stream_two_phase",
    "The same, sent while in progress, with a savepoint rolled back",
    ITEM,
    (
        *WARM,
        "BEGIN",
        "INSERT INTO item VALUES (1, 'a')",
        FILL,
        "SAVEPOINT lost",
        "INSERT INTO item VALUES (2, 'lost')",
        FILL,
        "ROLLBACK TO lost",
        "INSERT INTO item VALUES (3, 'b')",
        "PREPARE TRANSACTION 'walgate golden: streamed'",
        "COMMIT PREPARED 'walgate golden: streamed'",
        "BEGIN",
        "INSERT INTO item VALUES (4, 'c')",
        FILL,
        "PREPARE TRANSACTION 'walgate golden: streamed, rolled back'",
        "ROLLBACK PREPARED 'walgate golden: streamed, rolled back'",
    ),
    (Capture("text", STREAMED_TWO_PHASE), Capture("parallel", PARALLEL_TWO_PHASE, oldest_version=16)),
    two_phase=True,
)

SCENARIOS = (
    TYPES,
    IDENTITY,
    TRUNCATE,
    MESSAGES,
    ORIGIN,
    DDL,
    STREAM_COMMIT,
    STREAM_COMMIT_IMMEDIATE,
    STREAM_ABORT,
    STREAM_ABORT_IMMEDIATE,
    STREAM_ABORT_ALONE,
    STREAM_ORIGIN,
    TWO_PHASE_ENDS,
    STREAM_TWO_PHASE,
)
