"""Generated literals for every kind of type: what PostgreSQL accepts as `'...'::type`, with the odd
ones weighted up."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Literals = SearchStrategy[str]


def integers(low: int, high: int) -> Literals:
    return (st.integers(low, high) | st.sampled_from([low, high, 0, low // 2, high // 2])).map(str)


def _float_text(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return repr(number) if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


_FLOAT4_TIES = [
    struct.unpack("<f", struct.pack("<I", bits))[0] for bits in (1, 2, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x4B800000)
]
float8 = (
    st.floats()
    | st.floats(-1e6, 1e6)
    | st.integers(-400, 400).map(lambda power: float(f"1e{power}"))
    | st.sampled_from([0.0, -0.0, 5e-324])
).map(_float_text)
float4 = (
    st.floats(width=32) | st.sampled_from(_FLOAT4_TIES) | st.integers(-38, 38).map(lambda p: float(f"1e{p}"))
).map(_float_text)
boolean = st.sampled_from(["t", "f"])

_digits = st.text("0123456789", min_size=1, max_size=60) | st.integers(0, 10**12).map(str)
numeric = st.one_of(
    st.builds(lambda sign, whole, fraction: f"{sign}{whole}.{fraction}", st.sampled_from(["", "-"]), _digits, _digits),
    st.builds(lambda whole, power: f"{whole}e{power}", _digits, st.integers(-60, 60)),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "0", "0.000", "-0.0", "9" * 1000, "1e131000", "1e-16000", "10000.0000"]
    ),
)


def decimal(precision: int, scale: int) -> Literals:
    """Values of numeric(precision, scale), up to its limits."""
    limit = 10**precision - 1
    numbers = (
        st.integers(-limit, limit)
        | st.integers(-min(limit, 10**6), min(limit, 10**6))
        | st.sampled_from([limit, -limit])
    )
    return numbers.map(lambda unscaled: f"{unscaled}e{-scale}") | st.just("NaN")


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40) | st.sampled_from(
    ["", " ", "null", "NULL", "{}", '"', "\\", "\U0001f40d", "a" * 8191, "a" * 8192, "é" * 5000, "\t\n\r", "\x01\x7f"]
)
bytea = (st.binary(max_size=60) | st.just(bytes(10_000))).map(lambda value: "\\x" + value.hex())
uuid = st.uuids().map(str)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)
json_text = st.builds(
    lambda value, spaces: json.dumps(value, indent=spaces), _json, st.sampled_from([None, 1])
) | st.sampled_from(['{"a":1,"a":2}', "1.50e+3", ' {"b" : [ ] } ', '"\\u00e9"', "1" * 300])
xml = st.sampled_from(
    [
        "<a/>",
        "<a b='c'>é &amp; ü</a>",
        "x<b/>y",
        '<?xml version="1.0" encoding="UTF-8"?><a/>',
        '<?xml version="1.1"?><a/>',
        "<a>\U0001f40d</a>",
    ]
)
jsonpath = st.sampled_from(["$.a[*] ? (@ > 2)", "strict $.b", "$", 'lax $."x y".z', "($.a + 1).abs()"])

_year = st.integers(1, 9999) | st.integers(1990, 2040) | st.sampled_from([1, 4712, 4713, 9999, 10000, 294275, 5874896])
_bc = st.sampled_from(["", "", "", " BC"])
_micros = st.integers(0, 999_999) | st.sampled_from([0, 0, 500_000, 100, 999_999])


def _day(year: int, month: int, day: int) -> str:
    return f"{year:04d}-{month:02d}-{day:02d}"


_calendar = st.builds(_day, _year, st.integers(1, 12), st.integers(1, 31))
_clock = st.builds(
    lambda h, m, s, f: f"{h:02d}:{m:02d}:{s:02d}.{f:06d}",
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(0, 59),
    _micros,
)
_zone = st.builds(
    lambda sign, h, m, s: f"{sign}{h:02d}:{m:02d}:{s:02d}",
    st.sampled_from("+-"),
    st.integers(0, 15),
    st.integers(0, 59),
    st.sampled_from([0, 0, 0, 17]),
)
_infinite = st.sampled_from(["infinity", "-infinity"])
_special_days = st.sampled_from(
    ["4713-01-01 BC", "0001-12-31 BC", "0001-01-01", "9999-12-31", "10000-01-01", "1970-01-01", "2000-02-29"]
)
date = st.builds(str.__add__, _calendar, _bc) | _infinite | _special_days
time = _clock | st.sampled_from(["24:00:00", "00:00:00", "23:59:59.999999", "23:59:60"])
timetz = st.builds(str.__add__, time, _zone)
timestamp = (
    st.builds(lambda day, clock, bc: f"{day} {clock}{bc}", _calendar, _clock, _bc)
    | _infinite
    | st.sampled_from(
        [
            "9999-12-31 23:59:59.999999",
            "10000-01-01 00:00:00",
            "0001-01-01 00:00:00",
            "1969-12-31 23:59:59.999999",
            "294276-12-31 23:59:59.999999",
        ]
    )
)
timestamptz = (
    st.builds(lambda day, clock, zone, bc: f"{day} {clock}{zone}{bc}", _calendar, _clock, _zone, _bc) | timestamp
)
_some = st.integers(0, 59) | st.just(0)
interval = st.builds(
    lambda months, days, sign, h, m, s, f: f"{months} months {days} days {sign}{h}:{m:02d}:{s:02d}.{f:06d}",
    st.integers(-100_000, 100_000) | st.integers(-13, 13),
    st.integers(-10_000, 10_000) | st.just(0),
    st.sampled_from(["", "-"]),
    st.integers(0, 5_000) | st.just(0),
    _some,
    _some,
    _micros,
) | st.sampled_from(
    ["infinity", "-infinity", "0", "-1 mon +1 day", "178956970 years", "2562047788:00:54.775807", "-0.5 seconds"]
)
_ipv6 = st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF, 0xDB8]), min_size=8, max_size=8).map(
    lambda words: str(IPv6Address(b"".join(word.to_bytes(2) for word in words)))
)
_address = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str) | _ipv6
inet = _address | st.builds(lambda address, bits: f"{address}/{bits}", _address, st.integers(0, 128))


def _network(address: IPv4Address | IPv6Address, share: float) -> str:
    bits = round(share * address.max_prefixlen)
    shift = address.max_prefixlen - bits
    return f"{type(address)(int(address) >> shift << shift)}/{bits}"


cidr = st.builds(_network, st.ip_addresses(v=4) | st.ip_addresses(v=6) | _ipv6.map(IPv6Address), st.floats(0, 1))
macaddr = st.binary(min_size=6, max_size=6).map(lambda value: value.hex(":"))
macaddr8 = st.binary(min_size=8, max_size=8).map(lambda value: value.hex(":"))


def bits(low: int, high: int) -> Literals:
    return st.text("01", min_size=low, max_size=high)


money = st.builds(lambda whole, cents: f"{whole}.{cents:02d}", st.integers(-(10**15), 10**15), st.integers(0, 99))

_number = float8.filter(lambda number: number not in ("NaN",)) | st.integers(-99, 99).map(str)
point = st.builds(lambda x, y: f"({x},{y})", _number, _number)
_points = st.lists(point, min_size=1, max_size=5).map(",".join)
lseg = st.builds(lambda a, b: f"[{a},{b}]", point, point)
box = st.builds(lambda a, b: f"{a},{b}", point, point)
path = _points.map(lambda value: f"({value})") | _points.map(lambda value: f"[{value}]")
polygon = _points.map(lambda value: f"({value})")
line = st.builds(lambda a, b, c: f"{{{a},{b},{c}}}", st.integers(1, 9), _number, _number)
circle = st.builds(lambda centre, radius: f"<{centre},{radius}>", point, st.floats(0, 1e9).map(repr))

_lexeme = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8).map(
    lambda word: "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"
)
_lexeme_place = st.builds(
    lambda at, weight: f"{at}{weight}", st.integers(1, 16383), st.sampled_from(["", "A", "B", "C", "D"])
)
tsvector = st.lists(
    st.builds(
        lambda word, places: word + (":" + ",".join(places) if places else ""),
        _lexeme,
        st.lists(_lexeme_place, max_size=3),
    ),
    max_size=5,
).map(" ".join)
_operand = st.builds("{}{}".format, _lexeme, st.sampled_from(["", ":*", ":AB", ":*CD"]))
tsquery = st.recursive(
    _operand,
    lambda part: (
        part.map("!({})".format)
        | st.builds("({}) {} ({})".format, part, st.sampled_from(["&", "|", "<->", "<3>", "<0>"]), part)
    ),
    max_leaves=6,
) | st.lists(_lexeme, min_size=1, max_size=4).map(" & !".join)

pg_lsn = st.builds(lambda high, low: f"{high:X}/{low:X}", st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
tid = st.builds(lambda block, place: f"({block},{place})", st.integers(0, 2**32 - 1), st.integers(0, 65535))
snapshot = st.lists(st.integers(3, 2**40), min_size=2, max_size=6, unique=True).map(
    lambda xids: (lambda s: f"{s[0]}:{s[-1]}:{','.join(map(str, s[1:-1]))}")(sorted(xids))
)


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def ranges(bound: Literals) -> Literals:
    """Bounds in any order: the server takes those that make a range."""
    end = bound.map(_quoted) | st.just("")
    return st.builds(
        lambda o, a, b, c: f"{o}{a},{b}{c}", st.sampled_from("[("), end, end, st.sampled_from(")]")
    ) | st.just("empty")


def ordered_ranges(numbers: SearchStrategy[int], write: Callable[[int], str] = str) -> Literals:
    pair = st.tuples(numbers, numbers).map(sorted)
    return st.builds(
        lambda o, p, c: f"{o}{_quoted(write(p[0]))},{_quoted(write(p[1]))}{c}",
        st.sampled_from("[("),
        pair,
        st.sampled_from(")]"),
    )


def multiranges(one: Literals) -> Literals:
    return st.lists(one, max_size=4).map(lambda values: "{" + ",".join(values) + "}")


def arrays(element: Literals, delimiter: str = ",") -> Literals:
    """One-dimensional ones mostly; two dimensions; odd lower bounds; NULL elements; empty."""
    item = element.map(_quoted) | st.just("NULL")
    one = st.lists(item, max_size=6)
    join = delimiter.join
    plain = one.map(lambda values: "{" + join(values) + "}")
    shifted = st.builds(
        lambda low, values: f"[{low}:{low + len(values) - 1}]={{{join(values)}}}",
        st.integers(-5, 5),
        st.lists(item, min_size=1, max_size=4),
    )
    matrix = st.lists(st.lists(item, min_size=2, max_size=2), min_size=1, max_size=3).map(
        lambda rows: "{" + join("{" + join(row) + "}" for row in rows) + "}"
    )
    return st.one_of(plain, plain, plain, shifted, matrix)


def composites(*attributes: Literals) -> Literals:
    fields = [attribute.map(_quoted) | st.just("") for attribute in attributes]
    return st.tuples(*fields).map(lambda values: "(" + ",".join(values) + ")")


hstore = st.dictionaries(
    text.filter(lambda key: len(key) < 100), text.filter(lambda item: len(item) < 100) | st.none(), max_size=4
).map(
    lambda pairs: ",".join(
        f"{_quoted(key)}=>{'NULL' if item is None else _quoted(item)}" for key, item in pairs.items()
    )
)
ltree = st.lists(st.text("abcXYZ019_", min_size=1, max_size=6), max_size=4).map(".".join)
vector3 = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr), min_size=3, max_size=3).map(
    lambda numbers: "[" + ",".join(numbers) + "]"
)
