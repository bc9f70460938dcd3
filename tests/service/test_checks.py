"""Who really sends: the server of the SQL connection, told by what the replication connection says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.kafka.position import Position
from gateway.lsn import Lsn
from gateway.operate.errors import DataGap, Retry, WalgateError
from gateway.operate.settings import SourceSettings
from gateway.replication.stream import SystemIdentity
from gateway.service.checks import Checks
from tests.replication.test_preflight import FACTS, SERVER

POSITION = Position("71", 1, "shop", "s", "cdc", ("p",), "0", state="ACTIVE", epoch=3, resume_lsn=Lsn(1500))
PROMOTED_BEHIND = "1\t0/600\tno recovery target specified\n"
PROMOTED_BEFORE = "1\t0/500\tno recovery target specified\n"


class Stream:
    """A replication connection to system `system`, which replays `timeline`."""

    def __init__(self, system: str, timeline: int, history: str) -> None:
        self.identity = SystemIdentity(system, timeline, Lsn(2000), "shop")
        self.history = history

    async def identify(self) -> SystemIdentity:
        return self.identity

    async def timeline_history(self, _: int) -> str:
        return self.history


async def sending_timeline(
    position: Position, *, in_recovery: bool, system: str = "71", timeline: int = 1, history: str = ""
) -> int:
    sql: Any = None
    stream: Any = Stream(system, timeline, history)
    facts = replace(FACTS, server=replace(SERVER, in_recovery=in_recovery))
    checks = Checks(sql, SourceSettings(dsn="postgresql://"), facts, set())  # type: ignore[arg-type]
    return await checks.same_server(stream, position)


@pytest.mark.parametrize("in_recovery", [False, True])
async def test_the_same_server_is_known(in_recovery: bool) -> None:
    assert await sending_timeline(POSITION, in_recovery=in_recovery) == 1


async def test_a_standby_whose_primary_was_promoted_is_the_same_server() -> None:
    """Its catalog still says the former timeline, until the next restartpoint."""
    new = await sending_timeline(POSITION, in_recovery=True, timeline=2, history=PROMOTED_BEHIND)
    assert new == 2
    assert (
        await sending_timeline(replace(POSITION, epoch=0), in_recovery=True, timeline=2, history=PROMOTED_BEFORE) == 2
    )


@pytest.mark.parametrize(
    ("position", "server", "kind"),
    [
        (POSITION, {"in_recovery": False, "timeline": 2}, Retry),
        (POSITION, {"in_recovery": True, "system": "72"}, Retry),
        (POSITION, {"in_recovery": True, "timeline": 2, "history": PROMOTED_BEFORE}, DataGap),
        (replace(POSITION, timeline=2), {"in_recovery": True}, DataGap),
    ],
    ids=["another primary", "another system", "a promotion with a loss", "a standby left behind"],
)
async def test_another_server_is_refused(position: Position, server: dict[str, Any], kind: type[WalgateError]) -> None:
    with pytest.raises(kind) as caught:
        await sending_timeline(position, **server)
    assert type(caught.value) is kind
