"""The statements that PostgreSQL runs before the clock starts. Sizes are those of `--scale 1`.

A backlog ends with one row in a separate transaction, so that its end is a known position in the
WAL (bench/scene.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.run import ROWS_IN_A_TURN

PUBLICATION = "bench"


@dataclass(frozen=True, slots=True)
class Backlog:
    """A workload. `load` is statements with {count}, each executed separately, as a DO block that
    commits must be; `pgbench` runs TPC-B instead; `last` adds one row."""

    name: str
    title: str
    tables: str
    load: tuple[str, ...]
    last: str
    count: int
    changes_per_unit: int = 1
    pgbench: bool = False
    table_count: int = 1

    def units(self, scale: float) -> int:
        return max(100, round(self.count * scale))

    def changes(self, scale: float) -> int:
        """Return the number of changes in the slot, including the last row."""
        return self.units(scale) * self.changes_per_unit + 1


_NARROW = """
create table bench (id bigint primary key, a int, b text, c numeric(12,2), d timestamptz, e bool, f text);
"""
W1_ROWS = """
insert into bench
select n, n % 1000, 'customer ' || n, (n % 100000) / 100.0, '2026-01-01Z'::timestamptz + n * interval '1 s', n % 2 = 0,
       'a note of some length for row ' || n
from generate_series({first}, {last}) n
"""


def _in_transactions(statement: str, size: int) -> str:
    """Return a DO block that runs `statement` for {count} rows, `size` of them per transaction."""
    body = statement.format(first="i", last=f"least(i + {size - 1}, {{count}})")
    return f"do $$ begin for i in 1..{{count}} by {size} loop {body}; commit; end loop; end $$"


_WIDE_COLUMNS = [
    *(f"i{n} int" for n in range(12)),
    *(f"l{n} bigint" for n in range(8)),
    *(f"t{n} text" for n in range(12)),
    *(f"n{n} numeric(12,2)" for n in range(8)),
    *(f"s{n} timestamptz" for n in range(5)),
    *(f"b{n} bool" for n in range(4)),
]
_WIDE_VALUES = ", ".join(
    [
        *(f"n % {100 * (k + 1)}" for k in range(12)),
        *(f"n * {k + 1}::bigint" for k in range(8)),
        *(f"'text {k} of row ' || n" for k in range(12)),
        *(f"(n % {10000 * (k + 1)}) / 100.0" for k in range(8)),
        *(f"'2026-01-01Z'::timestamptz + n * interval '{k + 1} s'" for k in range(5)),
        *(f"n % {k + 2} = 0" for k in range(4)),
    ]
)

W4_ROWS = f"insert into bench select n, {_WIDE_VALUES} from generate_series({{first}}, {{last}}) n"

W1 = Backlog(
    "W1",
    "inserts of 7 columns, 100 in a transaction",
    _NARROW,
    (_in_transactions(W1_ROWS, 100),),
    W1_ROWS.format(first="0", last="0"),
    1_000_000,
)
W2 = Backlog(
    "W2",
    "pgbench TPC-B: 3 updates and an insert in a transaction",
    "alter table pgbench_history add column hid bigserial primary key",
    (),
    "update pgbench_branches set bbalance = 0 where bid = 1",
    60_000,
    changes_per_unit=4,
    pgbench=True,
)
W4 = Backlog(
    "W4",
    "inserts of 50 columns, 100 in a transaction",
    f"create table bench (id bigint primary key, {', '.join(_WIDE_COLUMNS)})",
    (_in_transactions(W4_ROWS, 100),),
    "insert into bench (id) values (0)",
    150_000,
)
W5 = Backlog(
    "W5",
    "inserts of 2 kB, 100 in a transaction",
    "create table bench (id bigint primary key, body text); alter table bench alter body set storage external",
    (
        _in_transactions(
            "insert into bench select n, repeat(md5(n::text), 62) from generate_series({first}, {last}) n", 100
        ),
    ),
    "insert into bench (id) values (0)",
    250_000,
)
_UPDATES = """
do $$ begin for i in 1..{count} by 100 loop
    update bench set a = a + 1, d = d + interval '1 s' where id between (i % 50000) and (i % 50000) + 99;
    commit;
end loop; end $$
"""
W6 = Backlog(
    "W6",
    "updates of 7 columns with REPLICA IDENTITY FULL, 100 in a transaction",
    _NARROW
    + "alter table bench replica identity full;"
    + W1_ROWS.format(first="1", last="50000")
    + "; alter table bench set (fillfactor = 50, autovacuum_enabled = off); create index on bench (a)",
    (_UPDATES,),
    "update bench set a = 0 where id = 1",
    400_000,
)
TABLE_COUNT = 1000
_IN_TURN = f"""
do $$ begin for i in 1..{{count}} by {ROWS_IN_A_TURN} loop
    execute format('insert into bench%s select n, n %% 1000, ''customer '' || n, (n %% 100000) / 100.0,
        ''2026-01-01Z''::timestamptz + n * interval ''1 s'', n %% 2 = 0, ''a note of some length for row '' || n
        from generate_series(%s, %s) n', i / {ROWS_IN_A_TURN} % {TABLE_COUNT}, i, i + {ROWS_IN_A_TURN - 1});
    commit;
end loop; end $$
"""
TABLES = Backlog(
    "T1000",
    "W1's rows into one table, then as many into 1,000 tables in turn",
    f"do $$ begin for t in 0..{TABLE_COUNT - 1} loop execute format('create table bench%s (id bigint primary key, a int,"
    " b text, c numeric(12,2), d timestamptz, e bool, f text)', t); end loop; end $$; " + _NARROW,
    (
        _in_transactions(W1_ROWS, ROWS_IN_A_TURN),
        _IN_TURN,
    ),
    "insert into bench0 (id) values (0)",
    1_000_000,
    changes_per_unit=2,
    table_count=TABLE_COUNT,
)

BACKLOGS = {backlog.name: backlog for backlog in (W1, W2, W4, W5, W6, TABLES)}

LARGE_ROWS = 1_000_000
"""Rows of W3's one live transaction, in W1's table."""
