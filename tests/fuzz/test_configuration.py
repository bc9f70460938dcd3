"""Configuration files and variables, mutated: settings, or StopForOperator that does not tell a
secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.settings import load_settings
from gateway.errors import StopForOperator
from tests.fuzz.campaign import LONG_INPUTS, campaign

SHORT_INPUTS = 1_000
SECRET = "geheim"
FILES = [
    b'[source]\nslot = "walgate"\npublications = ["a", "b"]\ntwo_phase = true\ncheck_interval_s = 2.5\n',
    b'[kafka]\nprefix = "cdc"\npartitions = 6\ncompression = "zstd"\nretention_ms = 86400000\n',
    b'[[kafka.topics]]\npattern = "cdc.*"\npartitions = 12\n[kafka.topics.config]\n"a.b" = "1"\n',
    b'[registry]\nurl = "http://localhost:8081"\nusername = "u"\npassword = "geheim"\ntimeout_s = 3\n',
    b'[schemas]\non_incompatible = "register"\n[http]\nport = 8080\n',
]
VARIABLES = {
    "WALGATE_SOURCE__PUBLICATIONS": b"one, two",
    "WALGATE_SOURCE__CHECK_INTERVAL_S": b"10.5",
    "WALGATE_KAFKA__TOPICS": b'[{"pattern": ".*", "partitions": 3, "config": {"retention.ms": "1"}}]',
    "WALGATE_KAFKA__MEMORY_BYTES": b"16777216",
    "WALGATE_HTTP__PORT": b"8080",
    "WALGATE_KAFKA__TOPICS__0": b"1",
}


def fuzz(folder: Path, monkeypatch: pytest.MonkeyPatch, input_count: int) -> int:
    monkeypatch.setenv("WALGATE_SOURCE__DSN", f"postgresql://u:{SECRET}@h/d")
    file = folder / "walgate.toml"
    names = list(VARIABLES)

    def is_configuration(number: int, mutated: bytes) -> bool:
        name = names[number % len(names)]
        file.write_bytes(mutated if number % 2 else b"")
        if not number % 2:
            monkeypatch.setenv(name, mutated.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
        refusal = ""
        try:
            load_settings(file)
        except StopForOperator as error:
            refusal = str(error)
        finally:
            monkeypatch.delenv(name, raising=False)
        assert SECRET not in refusal
        return not refusal

    return campaign([*FILES, *VARIABLES.values()], is_configuration, input_count)


def test_mutated_configuration_is_refused_or_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = fuzz(tmp_path, monkeypatch, SHORT_INPUTS)
    assert SHORT_INPUTS // 50 < accepted < SHORT_INPUTS * 3 // 4, "the mutations are too wild or too tame to be of use"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_lot_of_mutated_configuration_is_refused_or_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzz(tmp_path, monkeypatch, LONG_INPUTS // 10)
