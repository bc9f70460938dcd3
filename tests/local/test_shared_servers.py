"""A server of all test processes ends with the last of them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gateway.local.ports import answers
from tests.support.quick_java import JAVA_HOME
from tests.support.shared_servers import shared

_USER = """
import sys, time
from pathlib import Path
from tests.support.shared_servers import shared

with shared("kafka", Path(sys.argv[1])) as port:
    print(port, flush=True)
    time.sleep(300)
"""


@pytest.mark.integration
async def test_a_server_outlives_a_killed_user_and_ends_with_the_last(tmp_path: Path) -> None:
    user = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _USER, str(tmp_path), cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE
    )
    assert user.stdout is not None
    port = int(await user.stdout.readline())
    with shared("kafka", tmp_path) as same:
        user.kill()
        await user.wait()
        assert same == port and await answers(port)
    async with asyncio.timeout(30):
        while await answers(port):
            await asyncio.sleep(0.05)
    with shared("kafka", tmp_path) as anew:
        assert await answers(anew)


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JAVA_HOME, str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match=r"(?s)kafka did not start: .*nowhere"), shared("kafka", tmp_path):
        pass
