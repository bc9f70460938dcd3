"""What is wrong with a DSN is said without the DSN: it holds the password. No server is there."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from gateway.operate.errors import Retry, StopForOperator, WalgateError
from gateway.replication.connection import connect_sql

NOBODY = "127.0.0.1:1/d"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:pa/geheim@{NOBODY}",
        f"postgresql://u:pa?geheim@{NOBODY}",
        f"postgresql://u:pa?geheim=@{NOBODY}",
        f"postgresql://u:pa#geheim@{NOBODY}",
        f"postgresql://u:pa[geheim@{NOBODY}",
        "postgresql://u:p@[geheim:1/d",
        "postgresql://u:p@geheim:1@127.0.0.1:1/d",
        f"postgresql://u:p\u2100geheim@{NOBODY}",
        "geheim://u@h/d",
        "host=127.0.0.1 user=u password=geheim",
        f"postgresql://u:p@{NOBODY}?sslmode=geheim",
        f"postgresql://u:p@{NOBODY}?target_session_attrs=geheim",
    ],
)
async def test_a_dsn_that_can_not_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(StopForOperator, match=r"source\.dsn can not be used") as caught:
        await connect_sql(dsn, timeout_s=2)
    assert "percent-encode" in caught.value.hint
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


async def test_an_at_sign_in_the_password_is_not_quoted() -> None:
    with pytest.raises(WalgateError) as caught:
        await connect_sql(f"postgresql://u:pa@geheim@{NOBODY}", timeout_s=2)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("parameter", ["sslrootcert", "sslcert", "sslcrl"])
async def test_a_certificate_that_is_not_there_is_named(parameter: str) -> None:
    with pytest.raises(StopForOperator, match=f"{parameter} .*: /not/there"):
        await connect_sql(f"postgresql://u@{NOBODY}?sslmode=require&{parameter}=/not/there", timeout_s=2)


async def test_a_socket_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Retry):
        await connect_sql(f"postgresql://u@/d?host={tmp_path}&sslrootcert={__file__}", timeout_s=2)
