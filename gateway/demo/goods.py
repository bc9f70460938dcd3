"""Rows of the shop, generated at random: the same seed gives the same rows.

Each function returns one row as a JSON object for `json_populate_record`. PostgreSQL's input
functions read every value from its text, so that values for which Python has no type (infinity,
NaN, years BC) can be written like all others.
"""

from __future__ import annotations

import json
import random
import string
from typing import TypeAlias
from uuid import UUID

Row: TypeAlias = dict[str, object]

_FIRST = (
    "Ada",
    "Blaise",
    "Chloé",
    "Dmitri",
    "Eiríkur",
    "Fatima",
    "Grażyna",
    "Håkon",
    "Ines",
    "Jürgen",
    "美咲",
    "Κώστας",
)
_LAST = (
    "Lovelace",
    "O'Brien",
    "Müller",
    "Ødegård",
    "Σοφού",
    "da Silva",
    "山田",
    'the "Quick"',
    "van\tTab",
    "back\\slash",
)
_SKUS = ("bolt-m6", "nut-m6", "washer", "gear 12/48", "belt", "cog", "spring", "clamp")
_TOASTED_LENGTH = 3000  # characters; over TOAST's threshold of about 2,000 bytes a row, hence stored out of line


def insert(table: str) -> str:
    """Return an INSERT whose only argument is a row as JSON text."""
    return f"INSERT INTO {table} SELECT r.* FROM json_populate_record(NULL::{table}, $1::json) r"


def text_of(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)


def customer(rng: random.Random, customer_id: int) -> Row:
    name = f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"
    return {
        "id": customer_id,
        "name": name,
        "email": f"{customer_id}@shop.example" if rng.random() < 0.9 else None,
        "active": rng.random() < 0.8,
        "birthday": _date(rng),
        "call_at": f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(10**6):06}",
        "rating": rng.choice([rng.uniform(0, 5), "NaN", "Infinity", "1e-40", "-0"]),
        "balance": money(rng) if rng.random() < 0.95 else "NaN",
        "profile": {"visits": rng.randrange(100), "ratio": rng.random(), "tags": [None, True, "ü\"'"]},
        "notes": toasted(rng),
        "avatar": "\\x" + rng.randbytes(rng.randrange(40)).hex(),
        "tags": [rng.choice(["vip", "", 'quo"te', "com,ma", "NULL", None, "back\\"]) for _ in range(rng.randrange(4))],
        "reference": str(UUID(bytes=rng.randbytes(16))),
        "fax": f"+49 30 {rng.randrange(10**7):07}",
        "created_at": _moment(rng) + "+02:00",
    }


def order(rng: random.Random, order_id: int, customer_id: int) -> Row:
    return {
        "id": order_id,
        "customer_id": customer_id,
        "status": "new",
        "placed_at": _moment(rng),
        "due_on": rng.choice([_date(rng), "infinity", None]),
        "total": money(rng),
        "weight": rng.choice([rng.uniform(0, 1e9), rng.random() * 1e-300, "-Infinity", "NaN", 0.1 + 0.2]),
        "lots": [rng.randrange(-(2**31), 2**31) for _ in range(rng.randrange(4))],
        "letter": toasted(rng) if rng.random() < 0.3 else None,
    }


def item(rng: random.Random, order_id: int, line: int) -> Row:
    return {
        "order_id": order_id,
        "line": line,
        "sku": rng.choice(_SKUS),
        "quantity": rng.randrange(-(2**15), 2**15),
        "price": money(rng),
        "discount": rng.choice([None, rng.random()]),
        "gift": rng.choice([None, True, False]),
    }


def payment(rng: random.Random, order_id: int) -> Row:
    return {
        "id": str(UUID(bytes=rng.randbytes(16))),
        "order_id": order_id,
        "amount": money(rng),
        "rate": f"{rng.randrange(10**9)}.{rng.randrange(10**20):020}" if rng.random() < 0.9 else "Infinity",
        "paid_at": _moment(rng) + "-05:30" if rng.random() < 0.9 else "infinity",
        "receipt": {"no": rng.randrange(10**6), "paid": money(rng), "by": rng.choice(_FIRST)},
        "signature": "\\x" + rng.randbytes(16).hex() if rng.random() < 0.7 else None,
    }


def cart(rng: random.Random, cart_id: int) -> Row:
    return {"id": cart_id, "skus": rng.choices(_SKUS, k=rng.randrange(1, 4)), "touched_at": _moment(rng)}


def visit(rng: random.Random) -> Row:
    return {
        "page": f"/{rng.choice(_SKUS)}?id={rng.randrange(10**9)}",
        "seconds": rng.expovariate(0.1),
        "seen_at": _moment(rng) + "Z",
    }


def money(rng: random.Random) -> str:
    return f"{rng.randrange(-(10**7), 10**9) / 100:.2f}"


def toasted(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_letters + "äß€ \n", k=_TOASTED_LENGTH))


def _date(rng: random.Random) -> str:
    return f"{rng.randrange(1900, 2100)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def _moment(rng: random.Random) -> str:
    clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    return f"{_date(rng)} {clock}.{rng.randrange(10**6):06}"
