"""Whole transactions without Spark: prints each committed transaction with its changes as it
arrives, until Ctrl-C.

    python examples/follow_transactions.py 127.0.0.1:9092 http://127.0.0.1:8081/apis/ccompat/v7 cdc
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress

from schemas.lsn import format_lsn
from spark_consumer.reader.transactions import TransactionReader


async def follow(servers: str, registry: str, prefix: str, transactions: int | None = None) -> list[str]:
    """Print transactions, and return the lines. Stops after `transactions` of them; None: never."""
    lines: list[str] = []
    async with TransactionReader(servers, registry, prefix=prefix) as reader:
        async for transaction in reader:
            counts = Counter([f"{change.op} {change.table}" async for change in transaction.changes()])
            what = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
            lines.append(f"{format_lsn(transaction.facts.commit_lsn)} xid {transaction.facts.xid}: {what}")
            print(lines[-1], flush=True)
            if len(lines) == transactions:
                break
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(follow(*sys.argv[1:4]))
