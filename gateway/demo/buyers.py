"""Many small transactions: each buyer has a connection, a random generator and a range of ids of
its own.

Buyers never change the same row, so that none waits for another, and each writes the same rows for
the same seed, however they are interleaved. A buyer remembers the rows that it owns, without those
that it rolled back.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import asyncpg

from gateway.demo import goods

IDS_PER_BUYER = 1_000_000
IDS_PER_RUN = 10**12  # a shop that is opened again uses other ids

Connection: TypeAlias = asyncpg.Connection


@dataclass(slots=True)
class Tally:
    """Counts of what the shop has committed: `transactions` that changed rows (or wrote a
    transactional message), and the row changes of all these transactions."""

    transactions: int = 0
    row_changes: int = 0
    rolled_back: int = 0
    done: list[str] = field(default_factory=list)  # names of the scenes so far

    def committed(self, row_changes: int) -> None:
        self.transactions += 1
        self.row_changes += row_changes


@dataclass(slots=True)
class Buyer:
    connection: Connection
    rng: random.Random
    first_id: int
    customer_ids: list[int] = field(default_factory=list)
    open_orders: dict[int, int] = field(default_factory=dict)  # order id -> number of lines
    made_ids: int = 0

    @property
    def first_cart_id(self) -> int:
        """First id of the buyer's carts, whose key is of a small type: 1000 for the first buyer of
        any run, 2000 for the next, and so on."""
        return self.first_id % IDS_PER_RUN // 1000

    def next_id(self) -> int:
        self.made_ids += 1
        return self.first_id + self.made_ids

    async def add(self, table: str, row: goods.Row) -> None:
        await self.connection.execute(goods.insert(table), goods.text_of(row))

    async def buy(self, tally: Tally) -> None:
        """Run a random transaction; the first one always creates a customer."""
        action = self.rng.choices(_ACTIONS, _WEIGHTS)[0] if self.open_orders else _open_account
        async with self.connection.transaction():
            row_changes = await action(self)
        tally.committed(row_changes)


async def _open_account(buyer: Buyer) -> int:
    customer_id = buyer.next_id()
    await buyer.add("customers", goods.customer(buyer.rng, customer_id))
    buyer.customer_ids.append(customer_id)
    return 1 + await _order(buyer)


async def _order(buyer: Buyer) -> int:
    order_id, line_count = buyer.next_id(), buyer.rng.randrange(1, 6)
    await buyer.add("orders", goods.order(buyer.rng, order_id, buyer.rng.choice(buyer.customer_ids)))
    for line in range(line_count):
        await buyer.add("items", goods.item(buyer.rng, order_id, line))
    buyer.open_orders[order_id] = line_count
    return 1 + line_count


async def _order_after_second_thoughts(buyer: Buyer) -> int:
    """Create an order; lines added after a savepoint are rolled back, two levels deep."""
    row_changes = await _order(buyer)
    order_id = next(reversed(buyer.open_orders))
    rolled_back = buyer.connection.transaction()
    await rolled_back.start()
    await buyer.add("items", goods.item(buyer.rng, order_id, 1000))
    async with buyer.connection.transaction():
        await buyer.add("items", goods.item(buyer.rng, order_id, 1001))
        await buyer.connection.execute("UPDATE orders SET status = 'returned' WHERE id = $1", order_id)
    await rolled_back.rollback()
    async with buyer.connection.transaction():
        await buyer.add("items", goods.item(buyer.rng, order_id, 1000))
    return row_changes + 1


async def _pay(buyer: Buyer) -> int:
    order_id = buyer.rng.choice(list(buyer.open_orders))
    await buyer.add("payments", goods.payment(buyer.rng, order_id))
    # The column `letter` is not changed: REPLICA IDENTITY FULL sends it in the old tuple, and as
    # unchanged in the new one.
    await buyer.connection.execute("UPDATE orders SET status = 'paid', total = total + 0.01 WHERE id = $1", order_id)
    return 2


async def _edit_account(buyer: Buyer) -> int:
    """Change a customer, but not its TOASTed notes."""
    await buyer.connection.execute(
        "UPDATE customers SET rating = $2, active = NOT active, balance = balance - 1.5 WHERE id = $1",
        buyer.rng.choice(buyer.customer_ids),
        buyer.rng.uniform(0, 5),
    )
    return 1


async def _write_note(buyer: Buyer) -> int:
    await buyer.connection.execute(
        "UPDATE customers SET notes = $2 WHERE id = $1",
        buyer.rng.choice(buyer.customer_ids),
        goods.toasted(buyer.rng) if buyer.rng.random() < 0.8 else None,
    )
    return 1


async def _move_line(buyer: Buyer) -> int:
    """Change a key: the last line of an order gets another number."""
    order_id, line_count = buyer.open_orders.popitem()
    await buyer.connection.execute(
        "UPDATE items SET line = line + 100000 WHERE order_id = $1 AND line = $2", order_id, line_count - 1
    )
    return 1


async def _cancel(buyer: Buyer) -> int:
    order_id, _ = buyer.open_orders.popitem()
    items = await buyer.connection.execute("DELETE FROM items WHERE order_id = $1", order_id)
    await buyer.connection.execute("DELETE FROM orders WHERE id = $1", order_id)
    return 1 + affected(items)


async def _fill_cart(buyer: Buyer) -> int:
    await buyer.connection.execute(
        goods.insert("carts") + " ON CONFLICT (id) DO UPDATE SET skus = excluded.skus",
        goods.text_of(goods.cart(buyer.rng, buyer.first_cart_id + buyer.rng.randrange(50))),
    )
    await buyer.add("visits", goods.visit(buyer.rng))
    return 2


_CHOICES: tuple[tuple[Callable[[Buyer], Awaitable[int]], int], ...] = (
    (_open_account, 15),
    (_order, 25),
    (_order_after_second_thoughts, 6),
    (_pay, 20),
    (_edit_account, 14),
    (_write_note, 4),
    (_move_line, 4),
    (_cancel, 4),
    (_fill_cart, 8),
)
_ACTIONS = [action for action, _ in _CHOICES]
_WEIGHTS = [weight for _, weight in _CHOICES]


def affected(command_tag: str) -> int:
    """Return the number of rows in a command tag: `DELETE 3` -> 3 (PostgreSQL manual, 54.7
    CommandComplete)."""
    return int(command_tag.rpartition(" ")[2])
