"""What is wrong with a DSN is said without the DSN: it holds the password. No server is there."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from gateway.errors import Retry, StopForOperator
from gateway.postgres.connection import connect_sql

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
    with pytest.raises(StopForOperator, match=r"source\.dsn cannot be used") as caught:
        await connect_sql(dsn, timeout_s=2)
    assert "percent-encode" in caught.value.hint
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("password", "character"),
    [
        ("pa@geheim", "@"),
        ("12/geheim", "/"),
        ("12?geheim", "?"),
        ("12#geheim", "#"),
        ("a@geheim/b", "@"),
        ("a@geheim?b", "?"),
    ],
)
async def test_a_character_of_the_password_that_must_be_encoded_is_named(password: str, character: str) -> None:
    """With digits before it, the rest would even be taken for a port."""
    with pytest.raises(StopForOperator, match=rf"cannot be used: [{character}] is not percent-encoded") as caught:
        await connect_sql(f"postgresql://u:{password}@{NOBODY}", timeout_s=2)
    assert f"%{ord(character):02X}" in caught.value.hint
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:p%40%2F%3F%23@{NOBODY}",
        f"postgresql://{NOBODY}?user=u&application_name=me@here",
        f"postgresql://u@{NOBODY}?application_name=a/b@c",
        "postgresql://u:p@[::1]:1,127.0.0.1:1/d",
    ],
)
async def test_what_is_encoded_or_stands_elsewhere_is_no_mistake(dsn: str) -> None:
    with pytest.raises(Retry, match=r"127\.0\.0\.1:1: ConnectionRefusedError"):
        await connect_sql(dsn, timeout_s=2)


async def test_a_channel_binding_that_is_none_is_not_quoted() -> None:
    value = "".join(("ge", "heim"))  # tracebacks quote this file
    with pytest.raises(StopForOperator, match=r"source\.dsn cannot be used") as caught:
        await connect_sql(f"postgresql://u:p@{NOBODY}?channel_binding={value}")
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("parameter", ["sslrootcert", "sslcert", "sslcrl"])
async def test_a_certificate_that_is_not_there_is_named(parameter: str) -> None:
    with pytest.raises(StopForOperator, match=f"{parameter} .*: /not/there"):
        await connect_sql(f"postgresql://u@{NOBODY}?sslmode=require&{parameter}=/not/there", timeout_s=2)


async def test_a_socket_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Retry):
        await connect_sql(f"postgresql://u@/d?host={tmp_path}&sslrootcert={__file__}", timeout_s=2)
