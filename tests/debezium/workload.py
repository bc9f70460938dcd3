"""One database and one workload for Debezium and Walgate: every type, every operation, every
replica identity.

The tables are in `TABLES` (`moneys` has no binary form); `STATEMENTS` are transactions, run one
after another. What makes Debezium stop is not among them: NULL in an array of enums that is NOT
NULL, a timetz whose offset has seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXTENSIONS: Final = ("hstore", "citext", "ltree")
TYPES: Final = """
create type mood as enum ('sad', 'ok', 'happy');
create domain positive as int4 check (value > 0);
create domain price as numeric(10, 3);
create type pair as (a int4, b text);
"""
COLUMNS: Final = {
    # name: (type, an everyday literal, a second one)
    "t_bool": ("bool", "true", "false"),
    "t_int2": ("int2", "-32768", "7"),
    "t_int4": ("int4", "2147483647", "-5"),
    "t_int8": ("int8", "-9223372036854775808", "12345678901"),
    "t_oid": ("oid", "4294967295", "1"),
    "t_float4": ("float4", "1.5", "'-Infinity'"),
    "t_float8": ("float8", "-0.1", "'NaN'"),
    "t_numeric": ("numeric", "123.4500", "-7"),
    "t_numeric_5_2": ("numeric(5,2)", "999.99", "-0.01"),
    "t_numeric_38_10": ("numeric(38,10)", "-1234567890123456789012345678.0123456789", "0"),
    "t_numeric_50_5": ("numeric(50,5)", "123456789012345678901234567890123456789012345.12345", "-1"),
    "t_numeric_9": ("numeric(9)", "123456789", "-1"),
    "t_text": ("text", "'Zürich \"quoted\"'", "''"),
    "t_varchar": ("varchar(20)", "'abc'", "'ü'"),
    "t_bpchar": ("char(5)", "'ab'", "'abcde'"),
    "t_name": ("name", "'a_name'", "'b'"),
    "t_char": ('"char"', "'x'", "'y'"),
    "t_citext": ("citext", "'CaSe'", "'x'"),
    "t_ltree": ("ltree", "'a.b.c'", "'x'"),
    "t_bytea": ("bytea", "'\\x00ff10'", "''"),
    "t_uuid": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'"),
    "t_json": ("json", "' {\"a\" : [1, 2.50]}'", "'null'"),
    "t_jsonb": ("jsonb", '\'{"b": 1, "a": "ü"}\'', "'[]'"),
    "t_date": ("date", "'2026-11-22'", "'1582-10-04'"),
    "t_time": ("time", "'12:34:56.789012'", "'00:00:00'"),
    "t_time_0": ("time(0)", "'23:59:59'", "'00:00:01'"),
    "t_time_3": ("time(3)", "'12:34:56.789'", "'00:00:00.001'"),
    "t_time_6": ("time(6)", "'12:34:56.789012'", "'00:00:00.000001'"),
    "t_timetz": ("timetz", "'12:34:56.789012+05:30'", "'00:00:00-08'"),
    "t_timestamp": ("timestamp", "'2026-11-22 12:34:56.789012'", "'1969-12-31 23:59:59.999999'"),
    "t_timestamp_0": ("timestamp(0)", "'2026-11-22 12:34:56'", "'1969-12-31 23:59:59'"),
    "t_timestamp_3": ("timestamp(3)", "'2026-11-22 12:34:56.789'", "'1500-01-01 00:00:00.5'"),
    "t_timestamp_4": ("timestamp(4)", "'2026-11-22 12:34:56.7891'", "'1970-01-01'"),
    "t_timestamptz": ("timestamptz", "'2026-11-22 12:34:56.789012+05:30'", "'1969-12-31 23:59:59.5+00'"),
    "t_timestamptz_3": ("timestamptz(3)", "'2026-11-22 12:34:56.780+00'", "'2000-01-01 00:00:00+00'"),
    "t_interval": ("interval", "'1 year 2 mons -3 days 04:05:06.789'", "'-1 mon'"),
    "t_bit_1": ("bit(1)", "B'1'", "B'0'"),
    "t_bit_5": ("bit(5)", "B'10010'", "B'00000'"),
    "t_bit_12": ("bit(12)", "B'100100000001'", "B'000000000000'"),
    "t_varbit_10": ("varbit(10)", "B'1001'", "B'1'"),
    "t_varbit": ("varbit", "B'1001'", "B'1'"),
    "t_inet": ("inet", "'192.168.1.7/24'", "'::1'"),
    "t_cidr": ("cidr", "'10.0.0.0/8'", "'2001:db8::/32'"),
    "t_macaddr": ("macaddr", "'08:00:2b:01:02:03'", "'ff:ff:ff:ff:ff:ff'"),
    "t_macaddr8": ("macaddr8", "'08:00:2b:01:02:03:04:05'", "'ff:ff:ff:ff:ff:ff:ff:ff'"),
    "t_int4range": ("int4range", "'[1,5]'", "'empty'"),
    "t_int8range": ("int8range", "'[1,5)'", "'(,7)'"),
    "t_numrange": ("numrange", "'[1.5,2.50]'", "'(,)'"),
    "t_tsrange": ("tsrange", "'[2026-01-01 00:00,2026-01-02 12:30)'", "'empty'"),
    "t_tstzrange": ("tstzrange", "'[2026-01-01 00:00+00,2026-01-02 12:30+00)'", "'empty'"),
    "t_daterange": ("daterange", "'[2026-01-01,2026-01-05]'", "'empty'"),
    "t_int4multirange": ("int4multirange", "'{[1,3),[5,7)}'", "'{}'"),
    "t_tsvector": ("tsvector", "'a:1 fat:2A'", "''"),
    "t_tsquery": ("tsquery", "'fat & rat'", "'x'"),
    "t_point": ("point", "'(1.5,-2)'", "'(0,0)'"),
    "t_line": ("line", "'{1,2,3}'", "'{1,-1,0}'"),
    "t_lseg": ("lseg", "'[(0,0),(1,1)]'", "'[(0,0),(2,2.5)]'"),
    "t_box": ("box", "'(1,1),(0,0)'", "'(3,4),(1,2)'"),
    "t_path": ("path", "'[(0,0),(1,1),(2,0)]'", "'((0,0),(1,1),(2,0))'"),
    "t_polygon": ("polygon", "'((0,0),(1,1),(2,0))'", "'((0,0),(1,1),(2,0),(0,0))'"),
    "t_circle": ("circle", "'<(1,2),3>'", "'<(0,0),0.5>'"),
    "t_pg_lsn": ("pg_lsn", "'16/B374D848'", "'0/0'"),
    "t_hstore": ("hstore", '\'a=>1, b=>NULL, "c d"=>"x\\"y"\'', "''"),
    "t_mood": ("mood", "'ok'", "'sad'"),
    "t_positive": ("positive", "7", "1"),
    "t_price": ("price", "1234567.891", "0"),
    "t_pair": ("pair", "'(1,x)'", "'(2,)'"),
    "t_bools": ("bool[]", "'{t,f,NULL}'", "'{}'"),
    "t_int2s": ("int2[]", "'{1,NULL,-3}'", "'{}'"),
    "t_int4s": ("int4[]", "'{1,NULL,-3}'", "'{}'"),
    "t_int8s": ("int8[]", "'{1,NULL,-3}'", "'{}'"),
    "t_float4s": ("float4[]", "'{1.5,NULL}'", "'{}'"),
    "t_float8s": ("float8[]", "'{1.5,NULL}'", "'{}'"),
    "t_numerics": ("numeric(10,2)[]", "'{1.5,NULL,-100}'", "'{}'"),
    "t_texts": ("text[]", '\'{a,NULL,"b \\"c\\""}\'', "'{}'"),
    "t_varchars": ("varchar(5)[]", "'{a,NULL}'", "'{}'"),
    "t_bpchars": ("char(3)[]", "'{a,NULL}'", "'{}'"),
    "t_uuids": ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", "'{}'"),
    "t_dates": ("date[]", "'{2026-11-22,NULL}'", "'{}'"),
    "t_times": ("time[]", "'{12:34:56.789012,NULL}'", "'{}'"),
    "t_timestamps": ("timestamp[]", "'{2026-11-22 12:34:56.789012,NULL}'", "'{}'"),
    "t_timestamptzs": ("timestamptz[]", "'{2026-11-22 12:34:56.789012+00,NULL}'", "'{}'"),
    "t_jsons": ("json[]", "array['{\"a\":1}']::json[]", "'{}'"),
    "t_jsonbs": ("jsonb[]", "array['{\"a\":1}']::jsonb[]", "'{}'"),
    "t_inets": ("inet[]", "'{10.0.0.1,NULL}'", "'{}'"),
    "t_moods": ("mood[]", "'{ok,sad}'", "'{}'"),
    "t_citexts": ("citext[]", "'{A,NULL}'", "'{}'"),
    "t_byteas": ("bytea[]", "array['\\x00ff']::bytea[]", "'{}'"),
    "t_intervals": ("interval[]", "'{1 day}'", "'{}'"),
    "t_int4ranges": ("int4range[]", "'{\"[1,5)\"}'", "'{}'"),
    "t_oids": ("oid[]", "'{1,2}'", "'{}'"),
}


EXTREMES: Final = {
    "x_numeric": ("numeric", ("'NaN'", "'Infinity'", "'-Infinity'", "0.000", "1e30", "-1e-20")),
    "x_numeric_5_2": ("numeric(5,2)", ("'NaN'",)),
    "x_date": (
        "date",
        ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12345-01-01'", "'0001-01-01'", "'5874897-12-31'"),
    ),
    "x_timestamp": (
        "timestamp",
        ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12345-01-01 01:02:03.5'", "'294276-12-31 23:59:59.999999'"),
    ),
    "x_timestamp_3": ("timestamp(3)", ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12345-01-01 01:02:03.5'")),
    "x_timestamptz": (
        "timestamptz",
        (
            "'infinity'",
            "'-infinity'",
            "'0044-03-15 01:02:03+00 BC'",
            "'12345-01-01 01:02:03.5+00'",
            "'0001-01-01 00:00:00+00'",
        ),
    ),
    "x_timestamptz_0": ("timestamptz(0)", ("'2026-01-01 00:00:00+00'",)),
    "x_timestamptz_1": ("timestamptz(1)", ("'2026-01-01 00:00:00.5+00'", "'2026-01-01 00:00:00+00'")),
    "x_time": ("time", ("'24:00:00'", "'23:59:59.999999'")),
    "x_time_3": ("time(3)", ("'24:00:00'",)),
    "x_timetz": (
        "timetz",
        ("'24:00:00+00'", "'23:59:59.999999-15:59'", "'12:00:00.5+00'", "'12:34:00+00'", "'24:00:00+01'"),
    ),
    "x_interval": (
        "interval",
        (
            "'0'",
            "'1 mon'",
            "'-1 year -2 mons 3 days'",
            "'00:00:00.000001'",
            "'-00:00:00.5'",
            "'1000000 hours'",
            "'3 days -04:05:06.789'",
            "'1 mon 1 us'",
            "'178000000 years'",
        ),
    ),
    "x_float4": ("float4", ("'NaN'", "'Infinity'", "1e-45", "3.4028235e38", "0.1")),
    "x_bit_12": ("bit(12)", ("B'000000000001'", "B'100000000000'", "B'000100000000'")),
    "x_bit_20": ("bit(20)", ("B'00000000000000000001'", "B'10000000000000000000'")),
    "x_int4s": ("int4[]", ("'[2:3]={1,2}'", "'{{1,2},{3,4}}'")),
    "x_texts": ("text[]", ("'{{a,b},{c,d}}'", '\'{"a,b","NULL",""}\'')),
    "x_bare_numerics": ("numeric[]", ("'{1.50,2}'", "'{NaN}'")),
    "x_hstore": ("hstore", ("'z=>1, y=>2, a=>\"ü x\"'",)),
    "x_char": ('"char"', ("''",)),
    "x_point": ("point", ("'(NaN,Infinity)'",)),
    "x_bits": ("bit(3)[]", ("'{101,010}'",)),
    "x_moneys": ("money[]", ("'{1}'",)),
    "x_names": ("name[]", ("'{a}'",)),
    "x_timetzs": ("timetz[]", ("'{12:34:56.789012+05:30}'",)),
    "x_hstores": ("hstore[]", ("array['a=>1'::hstore]",)),
    "x_ltrees": ("ltree[]", ("'{a.b,c}'",)),
    "x_domains": ("positive[]", ("'{1,2}'",)),
    "x_moods": ("mood[]", ("'{ok,happy}'", "'{}'", "'{ok,NULL}'")),
    "x_int2vector": ("int2vector", ("'1 2'",)),
}


def _extremes() -> str:
    """One row a value: the others are null."""
    rows = [(name, value) for name, (_, values) in EXTREMES.items() for value in values]
    return "; ".join(
        f"insert into extremes (id, {name}) values ({at}, {value})" for at, (name, value) in enumerate(rows, 1)
    )


_NOT_NULL: Final = {name: values for name, values in COLUMNS.items() if name != "t_name"}
"""Debezium writes null for a column of the type name, and stops where it may not be null."""


def _row(key: int, column: int, columns: Mapping[str, tuple[str, str, str]] = COLUMNS) -> str:
    literals = [values[column] for values in columns.values()]
    return f"({key}, {', '.join(literals)})"


_DEFAULTS: Final = """
create table defaults (
    id serial primary key,
    a_bool bool not null default true,
    an_int2 int2 not null default 2,
    an_int4 int4 not null default 7,
    an_int8 int8 not null default 9223372036854775807,
    an_optional_int int4 default 5,
    a_float4 float4 not null default 1.5,
    a_float8 float8 not null default 0.1,
    a_numeric numeric(8,2) not null default 12.5,
    a_bare_numeric numeric not null default 1,
    a_text text not null default 'it''s',
    a_null_text text default null::text,
    a_varchar varchar(9) not null default 'abc',
    a_bpchar char(4) not null default 'ab',
    a_date date not null default '2020-02-03',
    a_today date not null default current_date,
    a_time time not null default '12:34:56',
    a_timestamp timestamp not null default '2020-02-03 04:05:06',
    a_now timestamptz not null default now(),
    a_timestamptz timestamptz not null default '2020-02-03 04:05:06+00',
    a_uuid uuid not null default gen_random_uuid(),
    a_known_uuid uuid not null default '76019d1a-ad2e-4b22-96e9-1a6d6543c818',
    a_json json not null default '{"a": 1}',
    a_mood mood not null default 'ok',
    a_bytea bytea not null default '\\x00ff',
    an_array int4[] not null default '{1,2}',
    an_expression int4 not null default 1 + 2,
    a_negative int4 not null default -3,
    an_upper text not null default upper('x'),
    a_bit bit(3) not null default b'101',
    a_flag bit(1) not null default b'1',
    a_domain positive not null default 3,
    a_day interval not null default '1 day',
    a_month interval default '1 mon',
    an_hour interval default make_interval(hours => 1),
    no_interval interval not null default '00:00:00',
    a_forever timestamptz not null default 'infinity',
    a_far_timestamp timestamp default 'infinity',
    a_far_date date default '-infinity',
    a_midnight time default '24:00:00',
    a_rounded numeric(5,2) default 1.005,
    a_tenth float4 default 0.1,
    a_generated int4 generated always as (2 * 3) stored
);
"""
TABLES: Final = (
    TYPES
    + "".join(f"create extension {name};\n" for name in EXTENSIONS)
    + f"create table every_type (id int4 primary key, {', '.join(f'{n} {v[0]}' for n, v in COLUMNS.items())});\n"
    + f"create table not_null (id int4 primary key, {', '.join(f'{n} {v[0]} not null' for n, v in _NOT_NULL.items())});\n"
    + f"create table extremes (id int4 primary key, {', '.join(f'{n} {v[0]}' for n, v in EXTREMES.items())});\n"
    + _DEFAULTS
    + """
create table by_default (id int8 primary key, note text, amount int4 not null);
create table by_full (id int8 primary key, note text, amount int4 not null);
alter table by_full replica identity full;
create table by_full_without_key (a int4, b text);
alter table by_full_without_key replica identity full;
create table by_index (id int8 primary key, code varchar(10) not null unique, note text);
alter table by_index replica identity using index by_index_code_key;
create table by_nothing (id int8 primary key, note text);
alter table by_nothing replica identity nothing;
create table by_two (region text not null, id int4 not null, note text, primary key (id, region));
create table without_key (a int4, b text);
create table unique_only (a int4, b text not null unique);
create table large (id int4 primary key, small int4, body text, bytes bytea, doc jsonb, tags text[], numbers int4[],
    bigs int8[], uuids uuid[], words varchar, map hstore);
create table large_full (id int4 primary key, small int4, body text);
alter table large_full replica identity full;
create table "Odd Name 😀" ("Id x" int4 primary key, "1st" text, "ümlaut" text, "a-b" text, "😀" text);
create table truncated (id int4 primary key);
create table parted (id int4, day date not null, primary key (id, day)) partition by range (day);
create table parted_2026 partition of parted for values from ('2026-01-01') to ('2027-01-01');
create table evolving (id int4 primary key, a int4);
create table moneys (id int4 primary key, m money, n money not null);
"""
)
_LONG: Final = "(select string_agg(md5(n::text || '{seed}'), '') from generate_series(1, 400) n)"


def _large(seed: str) -> str:
    text = _LONG.format(seed=seed)
    return (
        f"{text}, decode({text}, 'hex'), jsonb_build_object('a', {text}), "
        f"(select array_agg(md5(n::text || '{seed}')) from generate_series(1, 400) n), "
        "(select array_agg(n * 7919) from generate_series(1, 1000) n), "
        "(select array_agg(n * 7919::int8 * 65537) from generate_series(1, 1000) n), "
        f"(select array_agg(md5(n::text || '{seed}')::uuid) from generate_series(1, 400) n), {text}, "
        f"hstore('k', {text})"
    )


STATEMENTS: Final = (
    f"insert into every_type values {_row(1, 1)}, {_row(2, 2)}",
    "insert into every_type (id) values (3)",
    "update every_type set t_int4 = 8 where id = 1",
    "delete from every_type where id = 2",
    f"insert into not_null values {_row(1, 1, _NOT_NULL)}, {_row(2, 2, _NOT_NULL)}",
    "delete from not_null where id = 1",
    "insert into defaults (a_far_timestamp, a_far_date, a_midnight) values ('2026-11-22', '2026-11-22', '00:00:00')",
    "delete from defaults",
    "insert into by_default values (1, 'one', 10), (2, 'two', 20), (3, null, 30)",
    "update by_default set note = 'uno' where id = 1",
    "update by_default set id = 11 where id = 1",
    "delete from by_default where id = 2",
    "insert into by_full values (1, 'one', 10), (2, 'two', 20)",
    "update by_full set note = 'uno' where id = 1",
    "update by_full set id = 11, note = 'elf' where id = 1",
    "delete from by_full where id = 2",
    "insert into by_full_without_key values (1, 'a'), (2, null)",
    "update by_full_without_key set b = 'z' where a = 1",
    "delete from by_full_without_key where a = 2",
    "insert into by_index values (1, 'c1', 'one'), (2, 'c2', 'two')",
    "update by_index set note = 'uno' where id = 1",
    "update by_index set code = 'c9' where id = 1",
    "update by_index set id = 7 where id = 1",
    "delete from by_index where id = 2",
    "insert into by_nothing values (1, 'one')",
    "insert into by_two values ('eu', 1, 'a'), ('us', 1, 'b')",
    "update by_two set note = 'c' where region = 'eu'",
    "update by_two set region = 'as' where region = 'us'",
    "delete from by_two where region = 'eu'",
    "insert into without_key values (1, 'a'), (2, null)",
    "insert into unique_only values (1, 'a')",
    f"insert into large values (1, 1, {_large('x')})",
    "update large set small = 2 where id = 1",
    "update large set id = 2 where id = 1",
    "delete from large where id = 2",
    f"insert into large_full values (1, 1, {_LONG.format(seed='y')})",
    "update large_full set small = 2 where id = 1",
    "delete from large_full where id = 1",
    "insert into \"Odd Name 😀\" values (1, 'a', 'b', 'c', '😀')",
    "insert into truncated values (1), (2)",
    "truncate truncated",
    "insert into parted values (1, '2026-11-22')",
    "begin; insert into by_default values (21, 'x', 1); insert into by_full values (21, 'y', 2);"  # noqa: ISC004
    " update by_default set amount = 5 where id = 21; commit",
    "insert into moneys values (1, '1234.56', '-0.5'), (2, '92233720368547758.07', '-1234567.89'), (3, null, 0)",
    "delete from moneys where id = 1",
    "insert into evolving values (1, 1)",
    "alter table evolving add b text",
    "insert into evolving values (2, 2, 'b')",
    "alter table evolving drop a",
    "update evolving set b = 'c'",
    "select pg_logical_emit_message(true, 'a_prefix', 'some content')",
    _extremes(),
    "insert into by_default values (99, 'the end', 0)",
)
"""Each is a transaction of its own; the last one marks the end."""
