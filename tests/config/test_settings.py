from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config.kafka import KafkaSettings
from gateway.config.settings import load_http_settings, load_settings
from gateway.errors import StopForOperator
from tools.settings_page import settings_page

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


@pytest.mark.parametrize("text", ["one, two", '["one", "two"]', ' [ "one","two"]'])
@pytest.mark.parametrize("name", ["publications", "message_prefixes"])
def test_a_list_may_be_written_with_commas_or_as_json(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"WALGATE_SOURCE__{name.upper()}", text)
    assert getattr(load_settings().source, name) == ("one", "two")


def test_an_empty_list_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__MESSAGE_PREFIXES", "")
    assert load_settings().source.message_prefixes == ()


@pytest.mark.parametrize("text", ["a:1,[::1]:2", '["a:1", "[::1]:2"]'])
def test_servers_may_be_a_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__BOOTSTRAP_SERVERS", text)
    assert load_settings().kafka.bootstrap_servers == "a:1,[::1]:2"
    monkeypatch.delenv("WALGATE_KAFKA__BOOTSTRAP_SERVERS")
    (tmp_path / "walgate.toml").write_text('[kafka]\nbootstrap_servers = ["a:1", "[::1]:2"]\n')
    assert load_settings(tmp_path / "walgate.toml").kafka.bootstrap_servers == "a:1,[::1]:2"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[kafka]\npartition = 3\n", r"kafka\.partition: there is no such setting; did you mean kafka\.partitions\?"),
        ('[source]\nprefix = "cdc"\n', r"source\.prefix: there is no such setting; did you mean kafka\.prefix\?"),
        ('[sorce]\nslot = "s"\n', r"sorce: there is no such setting; did you mean source\?"),
        ('slot = "s"\n', r"slot: there is no such setting; did you mean source\.slot\?"),
        ("[http]\nxyzzy = 3\n", r"http\.xyzzy: there is no such setting \(in .*walgate\.toml\)$"),
        (
            '[source]\non_wal_budget = "advanse"\n',
            r"source\.on_wal_budget: Input should be 'warn' or 'advance'; did you mean advance\? \(in .*walgate\.toml\)$",
        ),
        ('[source]\non_wal_budget = "x"\n', r"source\.on_wal_budget: Input should be 'warn' or 'advance' \(in"),
        ("[[kafka.topics]]\npartitions = 3\n", r"kafka\.topics\.0\.pattern is not set"),
        (
            "[kafka.topics.big]\npartitions = 3\n",
            r"an array of tables: \[\[kafka\.topics\]\] instead of \[kafka\.topics\]",
        ),
        ("[source]\nexcluded_tables = 3\n", r"source\.excluded_tables: expected a list \(in"),
    ],
)
def test_a_setting_of_the_file_that_is_none_is_told_with_the_nearest(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "walgate.toml").write_text(content)
    with pytest.raises(StopForOperator) as caught:
        load_settings(tmp_path / "walgate.toml")
    assert re.search(says, caught.value.message, re.M), caught.value.message


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("kafka.password", "kafka.sasl_password"),
        ("kafka.password_file", "kafka.sasl_password"),
        ("kafka.username", "kafka.sasl_username"),
        ("kafka.user", "kafka.sasl_username"),
        ("kafka.ca_file", "kafka.ssl_ca_file"),
        ("registry.ssl_ca_file", "registry.ca_file"),
        ("registry.sasl_password", "registry.password"),
        ("source.ssl_ca_file", "source.dsn"),
        ("kafka.cert_file", "kafka.ssl_cert_file"),
        ("kafka.key_file", "kafka.ssl_key_file"),
        ("kafka.url", "kafka.bootstrap_servers"),
        ("source.password", "source.password_file"),
        *((f"source.{name}", "source.dsn") for name in ("host", "port", "user", "username", "database", "dbname")),
        ("source.tables", "source.publications"),
        ("source.partitions", "kafka.partitions"),
        ("registry.host", "registry.url"),
        ("registry.user", "registry.username"),
        ("snapshot.tables", None),
        ("http.password", None),
        ("http.username", None),
        ("password", None),
    ],
)
def test_a_name_of_another_section_is_not_suggested_for_a_password_or_an_address(
    setting: str, meant: str | None, tmp_path: Path
) -> None:
    section, _, name = setting.rpartition(".")
    (tmp_path / "walgate.toml").write_text(f'[{section}]\n{name} = "x"\n' if section else f'{name} = "x"\n')
    with pytest.raises(StopForOperator) as caught:
        load_settings(tmp_path / "walgate.toml")
    assert f"{setting}: there is no such setting" in caught.value.message
    assert re.findall(r"did you mean (\S+)\?", caught.value.message) == ([meant] if meant else [])


def test_kafkas_login_in_the_environment_is_not_taken_for_the_registrys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__PASSWORD", "geheim")
    monkeypatch.setenv("WALGATE_KAFKA__USERNAME", "u")
    with pytest.raises(StopForOperator) as caught:
        load_settings()
    found = re.findall(r"did you mean (\S+)\?", caught.value.message)
    assert sorted(found) == ["kafka.sasl_password", "kafka.sasl_username"] and "geheim" not in str(caught.value)


@pytest.mark.parametrize("content", ["", '[source]\nslot = "s"\n'])
def test_a_setting_that_is_missing_is_a_sentence(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_SOURCE__DSN")
    (tmp_path / "walgate.toml").write_text(content)
    with pytest.raises(StopForOperator) as caught:
        load_settings(tmp_path / "walgate.toml")
    assert "(libpq connection URI of the database" in caught.value.message
    assert (
        "source.dsn is not set: set WALGATE_SOURCE__DSN, or dsn = ... under [source] in the file"
        in caught.value.message
    )


def test_the_file_of_a_password_is_a_setting_and_not_a_secret_that_is_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__PASSWORD_FILE", str(tmp_path / "later"))
    assert load_settings().source.password_file == tmp_path / "later"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"PASSWORD_COMMAND": "echo 'x"}, "source.password_command: not a command line"),
        ({"PASSWORD_COMMAND": "echo pw | cat"}, r"\| would be an argument, since the command is not run by a shell"),
        ({"PASSWORD_COMMAND": "get-token 2>/dev/null"}, "2>/dev/null would be an argument"),
        ({"PASSWORD_COMMAND": "cd /opt && get-token"}, "Write sh -c '...', or quote the argument"),
        ({"PASSWORD_COMMAND": "echo", "PASSWORD_FILE": "/x"}, "password_file or password_command, not both"),
        ({"ON_WAL_BUDGET": "advance"}, "on_wal_budget = advance needs wal_budget_bytes"),
    ],
)
def test_settings_of_the_source_that_do_not_fit_together_are_refused(
    values: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"WALGATE_SOURCE__{name}", value)
    with pytest.raises(StopForOperator, match=says):
        load_settings()


@pytest.mark.parametrize("command", ["sh -c 'a | b'", "cut -d '|' f", 'sh -c "echo \\"a\\" | cat"', "a --x=1;2 b&c"])
def test_a_command_may_have_a_shell_or_arguments_that_look_like_one(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALGATE_SOURCE__PASSWORD_COMMAND", command)
    assert load_settings().source.password_command == command


def test_overrides_of_topics_are_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__TOPICS", '[{"pattern": ".*big", "partitions": 12}]')
    (override,) = load_settings().kafka.topics
    assert (override.pattern, override.partitions) == (".*big", 12)


def test_topic_names_are_known_by_the_table_however_it_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = """{"sales.\\"order_items\\"": "cdc.order-items", "\\"a.b\\".c": "cdc.a-2eb.c"}"""
    monkeypatch.setenv("WALGATE_KAFKA__TOPIC_NAMES", names)
    assert load_settings().kafka.topic_names == {"sales.order_items": "cdc.order-items", '"a.b".c': "cdc.a-2eb.c"}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ('{"orders": "cdc.orders"}', "orders is not a table name"),
        ('{"a.b": "cdc.a.c"}', "cdc.a.c cannot be used"),
        ('{"a.b": "other.b"}', "other.b cannot be used"),
        ('{"a.b": "cdc.transaction"}', "cdc.transaction cannot be used"),
        ('{"a.b": "cdc.x.y.z.w", "a.c": "cdc.x_y.z.w"}', "two tables have the same topic"),
        ('["cdc.x"]', "kafka.topic_names"),
        ("{", "kafka.topic_names"),
    ],
)
def test_topic_names_that_could_be_mistaken_are_refused(monkeypatch: pytest.MonkeyPatch, names: str, says: str) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__TOPIC_NAMES", names)
    with pytest.raises(StopForOperator, match=says):
        load_settings()


def test_a_secret_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_SOURCE__DSN")
    (tmp_path / "dsn").write_text(DSN + "\n")
    monkeypatch.setenv("WALGATE_SOURCE__DSN_FILE", str(tmp_path / "dsn"))
    assert load_settings().source.dsn.get_secret_value() == DSN


@pytest.mark.parametrize(
    ("content", "reason"), [(b"geheim\xff", "is not text in UTF-8"), (b"ge\0heim", "contains a zero byte")]
)
def test_a_secret_that_is_not_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    (tmp_path / "key").write_bytes(content)
    monkeypatch.setenv("WALGATE_COLUMNS__HASH_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(StopForOperator, match="HASH_KEY_FILE names cannot be read") as refused:
        load_settings()
    assert reason in refused.value.message and "heim" not in str(refused.value)
    assert refused.value.__cause__ is None  # it would have the content


def test_a_variable_and_the_variable_of_its_file_are_not_both_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsn").write_text("postgresql://other@h/d")
    monkeypatch.setenv("WALGATE_SOURCE__DSN_FILE", str(tmp_path / "dsn"))
    with pytest.raises(StopForOperator, match="WALGATE_SOURCE__DSN and WALGATE_SOURCE__DSN_FILE are both set"):
        load_settings()
    monkeypatch.setenv("WALGATE_SOURCE__DSN", "")  # as Compose sets it for a variable that does not exist
    assert load_settings().source.dsn.get_secret_value() == "postgresql://other@h/d"


@pytest.mark.parametrize(
    "name",
    [
        "SOURCE__DSN",
        "SOURCE__PASSWORD_FILE",
        "KAFKA__SSL_CA_FILE",
        "KAFKA__TOKEN_FILE",
        "REGISTRY__CA_FILE",
        "COLUMNS__HASH_KEY_FILE",
    ],
)
def test_an_empty_variable_is_no_address_and_no_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "walgate.toml").write_text(f'[source]\ndsn = "{DSN}"\n')
    monkeypatch.setenv(f"WALGATE_{name}", "")
    with pytest.raises(StopForOperator, match="value is empty") as caught:
        load_settings(tmp_path / "walgate.toml")
    assert name.lower().replace("__", ".") in caught.value.message or f"WALGATE_{name}" in caught.value.message


def test_secrets_are_not_printed() -> None:
    assert "geheim" not in repr(load_settings())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WALGATE_SOURCE__SLOT", "No Slot", "source.slot"),
        ("WALGATE_KAFKA__PARTITIONS", "0", "kafka.partitions"),
        ("WALGATE_KAFKA__REPLICATION_FACTOR", "0", "kafka.replication_factor"),
        ("WALGATE_KAFKA__DELIVERY", "sometimes", "kafka.delivery"),
        ("WALGATE_KAFKA__PREFIX", "a b", "kafka.prefix"),
        ("WALGATE_KAFKA__PREFIX", "shop/cdc", "kafka.prefix: a prefix must consist of 1 to 60 characters"),
        ("WALGATE_KAFKA__PARTITION", "3", "kafka.partition: .*did you mean kafka.partitions"),
        ("WALGATE_KAFKA__TOPICS", "[", "kafka.topics"),
        ("WALGATE_KAFKA__RETENTION_MS", "-7", "kafka.retention_ms"),
        ("WALGATE_KAFKA__BOOTSTRAP_SERVERS", "localhost:abc", "kafka.bootstrap_servers"),
        (
            "WALGATE_KAFKA__BOOTSTRAP_SERVERS",
            "a:9092,",
            "kafka.bootstrap_servers: an address is empty: remove the comma",
        ),
        (
            "WALGATE_KAFKA__BOOTSTRAP_SERVERS",
            "SSL://a:9092",
            "without SSL://; the protocol is set by kafka.security_protocol",
        ),
        ("WALGATE_KAFKA__BOOTSTRAP_SERVERS", '"a:9092"', "kafka.bootstrap_servers: remove the quotation marks"),
        ("WALGATE_REGISTRY__URL", "'http://geheim:8081'", "registry.url: remove the quotation marks"),
        ("WALGATE_KAFKA__BOOTSTRAP_SERVERS", "", "kafka.bootstrap_servers"),
        ("WALGATE_REGISTRY__URL", "http://me:geheim@registry:8081", "registry.url"),
        ("WALGATE_SOURCE", "text", "source"),
        ("WALGATE_SOURCES__SLOT", "s", "did you mean WALGATE_SOURCE__SLOT"),
        ("WALGATE_SCHEMA__ON_INCOMPATIBLE", "register", "did you mean WALGATE_SCHEMAS__ON_INCOMPATIBLE"),
        ("WALGATE_KAFKA_PREFIX", "x", "did you mean WALGATE_KAFKA__PREFIX"),
        ("WALGATE_HTTP_PORT", "8088", "did you mean WALGATE_HTTP__PORT"),
        ("walgate_kafka_prefix", "x", "did you mean WALGATE_KAFKA__PREFIX"),
        ("WALGATE_NONSENSE", "geheim", "WALGATE_NONSENSE"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StopForOperator, match=says) as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("walgate_kafka__prefix", "cdc"),
        ("WALGATE_KAFKA__BOOTSTRAP_SERVERS", "a, b.example:9092, [::1]:9093"),
        ("WALGATE_FAILPOINTS", "decoded:kill"),
        ("WALGATE_SERVICE_HOST", "10.0.0.1"),
        ("WALGATE_KAFKA_SERVICE_PORT_CLIENTS", "9092"),
        ("WALGATE_PORT", "tcp://10.0.0.1:8088"),
        ("WALGATE_PORT_8088_TCP", "tcp://10.0.0.1:8088"),
        ("WALGATE_PORT_8088_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_what_is_a_setting_or_means_something_else_is_accepted(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    load_settings()


def test_every_variable_of_the_project_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that its own files read or set beside the settings."""
    root = Path(__file__).parents[2]
    files = [path for room in ("gateway", "spark_consumer", "tests", "bench") for path in (root / room).rglob("*.py")]
    files += [root / name for name in ("docker-compose.yml", "Dockerfile", "Makefile", "hatch_build.py", ".ci/run")]
    used = re.compile(r"""(?:environ(?:\.get\(|\[)|VARIABLE = |\$\{?|RUN )["']?(WALGATE_[A-Z_]+)""")
    names = {name for path in files for name in used.findall(path.read_text())}
    assert names > {"WALGATE_FAILPOINTS", "WALGATE_CACHE", "WALGATE_TEST_SEED", "WALGATE_COMPILE"}
    for name in names:
        monkeypatch.setenv(name, "1")
    load_settings()


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password": "geheim"}


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        (
            "kafka",
            {"sasl_username": "u", "sasl_password": "geheim"},
            "sasl_username, sasl_password would have no effect",
        ),
        ("kafka", {**SASL, "security_protocol": "SSL"}, "sasl_username, sasl_password would have no effect"),
        ("kafka", {**SASL, "ssl_ca_file": "/ca.pem"}, "ssl_ca_file would have no effect"),
        ("kafka", {"security_protocol": "SASL_SSL"}, "SASL_SSL needs sasl_username and sasl_password"),
        ("kafka", {"security_protocol": "SASL_SSL", "sasl_username": "u"}, "SASL_SSL needs"),
        ("kafka", {"security_protocol": "SSL", "ssl_key_file": "/key.pem"}, "without ssl_cert_file"),
        (
            "kafka",
            {"security_protocol": "SSL", "ssl_ca_file": "/no/ca.pem"},
            r"kafka\.ssl_ca_file .*/no/ca\.pem: No such",
        ),
        ("kafka", {"security_protocol": "SSL", "ssl_ca_file": __file__}, r"kafka\.ssl_ca_file .*test_settings\.py"),
        (
            "kafka",
            {"security_protocol": "SSL", "ssl_cert_file": "/no/it.pem"},
            r"kafka\.ssl_cert_file.* .*it\.pem: No such",
        ),
        ("registry", {"password": "geheim"}, "password would have no effect: registry.username"),
        ("registry", {"ca_file": "/ca.pem"}, "ca_file would have no effect"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    section: str, values: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"WALGATE_{section}__{name}".upper(), value)
    with pytest.raises(StopForOperator, match=says) as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


def test_both_dialects_have_snapshots_unless_the_mode_is_never(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().takes_snapshots
    monkeypatch.setenv("WALGATE_KAFKA__DIALECT", "debezium")
    assert load_settings().takes_snapshots
    monkeypatch.setenv("WALGATE_SNAPSHOT__MODE", "never")
    assert not load_settings().takes_snapshots


def test_compacted_topics_refuse_what_has_no_key_or_would_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__DIALECT", "debezium")
    monkeypatch.setenv("WALGATE_DEBEZIUM__COMPACTED_TOPICS", "true")
    assert load_settings().debezium.compacted_topics
    for name, value in (("SKIPPED_OPERATIONS", "none"), ("TOMBSTONES_ON_DELETE", "false")):
        with monkeypatch.context() as context:
            context.setenv(f"WALGATE_DEBEZIUM__{name}", value)
            with pytest.raises(StopForOperator, match="compacted_topics"):
                load_settings()


def test_a_placeholder_may_be_given_in_hexadecimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__DIALECT", "debezium")
    for given, meant in (("hex:00C3bc", "\0\u00fc"), ("hex:", ""), ("0x00", "0x00")):
        monkeypatch.setenv("WALGATE_DEBEZIUM__UNAVAILABLE_VALUE_PLACEHOLDER", given)
        assert load_settings().debezium.unavailable_value_placeholder == meant
    for given in ("hex:0", "hex:zz", "hex:ff"):
        monkeypatch.setenv("WALGATE_DEBEZIUM__UNAVAILABLE_VALUE_PLACEHOLDER", given)
        with pytest.raises(StopForOperator, match="unavailable_value_placeholder.*after hex: .* digits"):
            load_settings()


def test_values_are_read_again_only_where_tables_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALGATE_KAFKA__DIALECT", "debezium")
    monkeypatch.setenv("WALGATE_DEBEZIUM__RESELECT_UNAVAILABLE_VALUES", "true")
    assert load_settings().debezium.reselect_unavailable_values
    monkeypatch.setenv("WALGATE_SNAPSHOT__MODE", "never")
    with pytest.raises(StopForOperator, match="reselect_unavailable_values needs snapshot.mode"):
        load_settings()


def test_a_login_reaches_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SASL.items():
        monkeypatch.setenv(f"WALGATE_KAFKA__{name.upper()}", value)
    options = load_settings().kafka.client_options()
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "geheim")


def test_the_address_for_health_needs_no_other_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_SOURCE__DSN")
    monkeypatch.setenv("WALGATE_SOURCE__DSN_FILE", "/not/for/us")
    file = tmp_path / "walgate.toml"
    file.write_text('[kafka]\nprefix = "cdc"\n[http]\nport = 8080\n')
    assert load_http_settings(file).port == 8080


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (b"[kafka", "is not valid: Expected", "text needs quotes"),
        (b"[nothing]\nx = 1\n", "nothing: there is no such setting", "correct these settings"),
        (b"[http]\nport = 1\nport = 2\n", "Cannot overwrite a value", "only once"),
        (b"[http]\nport = 1\n[http]\nhost = 'h'\n", "Cannot declare .* twice", "only once"),
        ("[source]\nslot = 's'\n".encode("utf-16"), "is not in UTF-8", "save the file as UTF-8"),
    ],
)
def test_a_wrong_file_is_refused(content: bytes, says: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "walgate.toml"
    file.write_bytes(content)
    with pytest.raises(StopForOperator, match=says) as caught:
        load_settings(file)
    assert hint in caught.value.hint and "configuration" in caught.value.message


def test_a_byte_order_mark_is_not_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notepad and PowerShell write one."""
    (tmp_path / "walgate.toml").write_text('[source]\nslot = "of_file"\n', "utf-8-sig")
    (tmp_path / "dsn").write_text(DSN, "utf-8-sig")
    monkeypatch.delenv("WALGATE_SOURCE__DSN")
    monkeypatch.setenv("WALGATE_SOURCE__DSN_FILE", str(tmp_path / "dsn"))
    source = load_settings(tmp_path / "walgate.toml").source
    assert (source.slot, source.dsn.get_secret_value()) == ("of_file", DSN)


def test_the_sample_on_the_page_is_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALGATE_SOURCE__DSN")
    sample = settings_page().partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "walgate.toml"
    file.write_text(sample)
    settings = load_settings(file)
    (override,) = settings.kafka.topics
    assert re.fullmatch(override.pattern, "cdc.public.orders")
    assert settings.http.port == 8088


def test_every_setting_is_described() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_page_of_settings_is_that_of_the_settings() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text().strip() == settings_page().strip()


LOGIN = {"sasl_username": "u", "sasl_password": "p"}


@pytest.mark.parametrize(
    ("protocol", "addresses", "login", "sent"),
    [
        ("SASL_PLAINTEXT", "localhost:9092,k1:9092", {"sasl_mechanism": "PLAIN", **LOGIN}, "password"),
        ("SASL_PLAINTEXT", "10.0.0.1:9092", {"sasl_mechanism": "PLAIN", **LOGIN}, "password"),
        ("SASL_PLAINTEXT", "[fd00::1]:9092", {"sasl_mechanism": "OAUTHBEARER", "token_file": "/t"}, "token"),
        ("SASL_PLAINTEXT", "localhost, 127.0.0.2:9092,[::1]:9092", {"sasl_mechanism": "PLAIN", **LOGIN}, ""),
        ("SASL_PLAINTEXT", "k1:9092", LOGIN, ""),
        ("SASL_SSL", "k1:9092", {"sasl_mechanism": "PLAIN", **LOGIN}, ""),
        ("PLAINTEXT", "k1:9092", {"sasl_mechanism": "PLAIN"}, ""),
    ],
)
def test_what_others_on_the_network_can_read_at_a_login(
    protocol: str, addresses: str, login: dict[str, str], sent: str
) -> None:
    values = {"security_protocol": protocol, "bootstrap_servers": addresses, **login}
    assert KafkaSettings.model_validate(values).sent_in_cleartext == sent
