"""Random faults of everything at once, for a quarter of an hour: nothing is lost, doubled or out of
order, and nothing stops.

Judged from the log that the source itself keeps, by readers that share no code with the gateway
(history.py, delivered.py, checker.py). `WALGATE_CHAOS_S` sets the duration in seconds,
`WALGATE_TEST_SEED` the order of the faults.
"""

from __future__ import annotations

import asyncio
import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.local import Registry
from tests.exactly_once.chaos import break_at_random
from tests.exactly_once.checker import check, check_attempts
from tests.exactly_once.gaps import described_fault, described_gap, longest_gaps
from tests.exactly_once.history import Truth, load_truth
from tests.exactly_once.site import Follower, Site, open_site
from tests.exactly_once.workload import PUBLICATION, Workload
from tests.support.delivered import read_delivered
from tests.support.scene import Verdict, wait_for_commit

MINUTES = float(os.environ.get("WALGATE_CHAOS_S", "900")) / 60
SEED = int(os.environ.get("WALGATE_TEST_SEED", "0"))
FAULTS_A_MINUTE = 2
DRAIN_TIMEOUT_S = 180.0

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(MINUTES * 60 + 1200)]


async def test_random_faults_of_everything_lose_double_and_reorder_nothing(
    registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_site(registry, topic_prefix, tmp_path) as site:
        workload = Workload(site.work_dsn, seed=SEED, pause_s=0.5 if MINUTES < 10 else 1.0)
        workload.start()
        await workload.run_transactions(5)
        try:
            with Follower(site.cluster.bootstrap_servers, registry.url, topic_prefix) as follower:
                begun = time.monotonic()
                faults = await break_at_random(site, SEED, MINUTES * 60)
                last = await workload.finish()
                delivered = await asyncio.to_thread(
                    wait_for_commit,
                    site.cluster.bootstrap_servers,
                    registry.url,
                    topic_prefix,
                    last,
                    DRAIN_TIMEOUT_S,
                )
                assert delivered, f"the last transaction is not readable after {DRAIN_TIMEOUT_S:.0f} s"
                site.check_gateways()
        except BaseException:
            print("\n\n".join(gateway.log_tail() for gateway in site.gateways))
            raise
        finally:
            await workload.cancel()
        print("\n".join(described_fault(fault, begun) for fault in faults))
        for gap in longest_gaps(follower.seen):
            print(described_gap(gap, site.gateways, faults, begun))
        verdict, truth = await _judged(site)
        print(f"seed {SEED}, {len(faults)} faults in {MINUTES:g} minutes: {verdict}")
        print(f"in the source {_longest_gap_of_source(truth)}")
        assert len(faults) >= FAULTS_A_MINUTE * MINUTES
        assert any("promoted" in fault.what for fault in faults)


async def _judged(site: Site) -> tuple[Verdict, Truth]:
    """Raises AssertionError with every finding."""
    sql = await site.pair.sql()
    truth = await load_truth(sql, PUBLICATION, site.pair.witnessed)
    await sql.close()
    servers, registry = site.cluster.bootstrap_servers, site.registry.url
    committed = await asyncio.to_thread(read_delivered, servers, registry, site.prefix)
    attempted = await asyncio.to_thread(
        read_delivered, servers, registry, site.prefix, "read_uncommitted", known=committed
    )
    findings = check(committed, truth, prefix=site.prefix) + check_attempts(attempted, truth)
    assert not findings, f"{len(findings)} findings:\n" + "\n".join(map(str, findings[:20]))
    changed = [logged for logged in truth.transactions if logged.statements]
    epochs = sum(marker.value["kind"] == "EPOCH" for marker in committed.markers)
    verdict = Verdict(len(changed), truth.event_count, len(committed.events), len(attempted.events), epochs)
    return verdict, truth


def _longest_gap_of_source(truth: Truth) -> str:
    times = [logged.committed.commit_time for logged in truth.transactions if logged.committed]
    seconds = max((later - earlier).total_seconds() for earlier, later in pairwise(times))
    return f"{seconds:.1f} s without a commit"
