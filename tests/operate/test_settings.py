from __future__ import annotations

from pathlib import Path

import pytest

from gateway.operate.errors import StopForOperator
from gateway.operate.reference import settings_page
from gateway.operate.settings import load_settings

DSN = "postgresql://u:geheim@h/d"


@pytest.fixture(autouse=True)
def dsn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__DSN", DSN)


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "walgate.toml"
    file.write_text('[source]\nslot = "of_file"\npublications = ["a", "b"]\n[kafka]\npartitions = 5\n')
    monkeypatch.setenv("WALGATE_SOURCE__SLOT", "of_environment")
    settings = load_settings(file)
    assert settings.source.slot == "of_environment"
    assert settings.source.publications == ("a", "b")
    assert (settings.kafka.partitions, settings.kafka.prefix) == (5, "cdc")


def test_a_list_may_be_written_with_commas_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__PUBLICATIONS", "one, two")
    assert load_settings().source.publications == ("one", "two")


def test_overrides_of_topics_are_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__TOPICS", '[{"pattern": ".*big", "partitions": 12}]')
    (override,) = load_settings().kafka.topics
    assert (override.pattern, override.partitions) == (".*big", 12)


def test_a_secret_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_SOURCE__DSN")
    (tmp_path / "dsn").write_text(DSN + "\n")
    monkeypatch.setenv("WALGATE_SOURCE__DSN_FILE", str(tmp_path / "dsn"))
    assert load_settings().source.dsn.get_secret_value() == DSN


def test_secrets_are_not_printed() -> None:
    assert "geheim" not in repr(load_settings())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WALGATE_SOURCE__SLOT", "No Slot", "source.slot"),
        ("WALGATE_KAFKA__PARTITIONS", "0", "kafka.partitions"),
        ("WALGATE_KAFKA__DELIVERY", "sometimes", "kafka.delivery"),
        ("WALGATE_KAFKA__PREFIX", "a b", "kafka.prefix"),
        ("WALGATE_KAFKA__PARTITION", "3", "kafka.partition: "),
        ("WALGATE_KAFKA__TOPICS", "[", "kafka.topics"),
        ("WALGATE_SOURCE", "text", "source"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StopForOperator, match=says) as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("content", ["[kafka", "[nothing]\nx = 1\n"])
def test_a_wrong_file_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "walgate.toml"
    file.write_text(content)
    with pytest.raises(StopForOperator, match="configuration"):
        load_settings(file)


def test_the_page_of_settings_is_that_of_the_settings() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text().strip() == settings_page().strip()
