"""docs/stops.md, generated from the code: every place where the gateway raises the errors that end
it with exit code 78.

`python -m tests.stops > docs/stops.md`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gateway.errors import StopForOperator
from gateway.startup.reaction_by_sqlstate import TABLE

ROOT: Final = Path(__file__).parents[1]
_OF_COMMANDS: Final = {"main.py", "positions.py", "snapshots.py", "exit_codes.py"}
_FIRST: Final = "StopForOperator"
_GAP: Final = "exactly_once/test_repairs.py::test_a_gap_is_accepted_and_marked_and_the_stream_goes_on"
_ADOPTED: Final = (
    "exactly_once/test_repairs.py::test_a_position_is_adopted_after_pg_upgrade_and_nothing_is_lost_or_doubled"
)
_SKIPPED: Final = (
    "exactly_once/test_quarantine.py::test_a_stop_names_the_transaction_and_skip_leaves_out_exactly_that_one"
)
_STATE: Final = "exactly_once/test_ways_on.py::test_a_state_that_stops_the_gateway_is_left_as_the_message_says"
_OLDER: Final = "exactly_once/test_ways_on.py::test_what_an_older_server_does_not_know_is_set_back"
_COMMAND: Final = "exactly_once/test_ways_on.py::test_a_command_that_is_refused_leaves_everything_as_it_was"
_CHECK: Final = "exactly_once/test_ways_on.py::test_what_the_check_says_lets_the_gateway_stream"
_ENCODING: Final = "exactly_once/test_ways_on.py::test_a_database_of_unknown_encoding_is_moved_to_one_of_utf8"
_LOST: Final = "exactly_once/test_ways_on.py::test_a_lost_slot_of_an_older_server_is_left_behind"
_BEFORE: Final = "exactly_once/test_ways_on.py::test_a_slot_that_is_older_than_its_publication_is_made_again"
_SET_BACK: Final = "exactly_once/test_ways_on.py::test_a_server_that_was_set_back_is_read_on"
_KAFKA: Final = "exactly_once/test_kafka_faults.py::"
_MENDED: Final = (
    "exactly_once/test_ways_on_settings.py::test_a_configuration_that_stops_the_gateway_is_mended_as_the_message_says"
)
_POOLER: Final = "exactly_once/test_ways_on_settings.py::test_a_pooler_is_left_for_the_server_itself"
_TLS: Final = (
    "exactly_once/test_ways_on_listeners.py::test_a_server_that_cannot_be_verified_is_when_the_certificate_is_there"
)
_LISTENER: Final = "exactly_once/test_ways_on_listeners.py::test_a_listener_is_met_as_the_check_says"
_PROMOTED: Final = "exactly_once/test_ways_on_promotion.py::test_a_standby_is_promoted"
_REMOVED: Final = "exactly_once/test_ways_on.py::test_a_server_whose_wal_was_removed_is_read_on_behind_it"
_SHARED: Final = "exactly_once/test_ways_on.py::test_what_all_gateways_share_is_mended_as_the_message_says"
_VERIFY: Final = "exactly_once/test_ways_on.py::test_a_verification_that_is_refused_is_asked_for_as_the_message_says"
_TOO_OLD: Final = "exactly_once/test_ways_on_settings.py::test_a_server_that_is_too_old_is_left_for_a_newer_one"
_COPY: Final = "exactly_once/test_ways_on_promotion.py::test_another_copy_of_the_server_is_left_for_the_primary"
_LIBRARY: Final = "exactly_once/test_ways_on_listeners.py::test_a_library_that_is_missing_is_installed"
_SERVICE: Final = "exactly_once/test_ways_on_settings.py::test_what_is_no_server_is_left_for_postgresql"
_UNREPLICATED: Final = "exactly_once/test_ways_on_settings.py::test_a_pooler_that_drops_the_parameter_is_left"
_REFUSED: Final = "exactly_once/test_ways_on_settings.py::test_what_the_server_cannot_send_is_got_past"
_UNPRINTABLE: Final = "exactly_once/test_ways_on.py::test_what_postgresql_14_cannot_print_is_sent_in_binary"
_SPLIT: Final = (
    "exactly_once/test_ways_on_instead.py::test_a_topic_of_the_gateway_that_was_given_partitions_is_made_again"
)
_UNTRANSLATABLE: Final = "exactly_once/test_ways_on.py::test_text_that_cannot_be_sent_is_given_up"
_DIALECT: Final = "exactly_once/test_ways_on_debezium.py::test_a_stop_of_the_dialect_is_left_as_the_message_says"
_NO_USE: Final = "exactly_once/test_ways_on_debezium.py::test_an_offset_that_is_no_use_leaves_everything_as_it_was"
_ADVANCED: Final = "exactly_once/test_ways_on_debezium.py::test_a_slot_that_the_driver_has_advanced_is_adopted_as_it_is"
_PLACES: Final = "exactly_once/test_ways_on_places.py::"
_FILTER: Final = _PLACES + "test_a_row_filter_that_failed_for_a_row_stops_with_the_way_on"
_DISAGREED: Final = _PLACES + "test_publications_that_disagreed_for_a_row_stop_with_the_way_on"
_CRASHES: Final = _PLACES + "test_a_server_that_crashes_at_one_place_stops_with_the_way_on"
WALKED: Final[dict[tuple[str, str], str]] = {
    ("gateway/startup/listener_checks.py check_listener", "but kafka.security_protocol"): _CHECK,
    ("gateway/startup/listener_checks.py _login", "does not use SASL"): _CHECK,
    ("gateway/startup/kafka_checks.py check_brokers", "allows a transaction timeout of"): _CHECK,
    ("gateway/startup/kafka_checks.py check_brokers", "accept requests of at most"): _CHECK,
    ("gateway/startup/kafka_checks.py check_single_partition", "commit order"): _STATE,
    ("gateway/startup/kafka_checks.py check_single_partition", ""): _SPLIT,
    ("gateway/startup/kafka_checks.py check_compacted", ""): _SHARED,
    ("gateway/startup/kafka_checks.py _topic", ""): _CHECK,
    ("gateway/startup/server_notices.py _judge_left_out", "the server cannot send changes"): _GAP,
    ("gateway/startup/server_notices.py _judge_left_out", "was created before its publication"): _BEFORE,
    ("gateway/startup/position_checks.py check_first_start", ""): _STATE,
    ("gateway/startup/position_checks.py check_progress", "no longer exists"): _GAP,
    ("gateway/startup/position_checks.py check_progress", "is empty, but changes of slot"): _STATE,
    ("gateway/startup/position_checks.py check_progress", "another process advanced the slot by"): _GAP,
    ("gateway/startup/position_checks.py check_progress", "lost the newest markers"): "exactly_once/test_repairs.py::"
    "test_markers_that_kafka_has_lost_are_a_gap",
    ("gateway/startup/position_checks.py check_progress", "lost the newest records"): "exactly_once/test_repairs.py::"
    "test_positions_that_kafka_has_lost_are_told_from_a_slot_that_was_advanced",
    ("gateway/startup/publication_checks.py _keys_sent_in_part", ""): _STATE,
    ("gateway/startup/position_changes.py _skipping", ""): _COMMAND,
    ("gateway/startup/position_changes.py _readmitting", ""): _COMMAND,
    ("gateway/startup/position_changes.py accept_gap", ""): _COMMAND,
    ("gateway/startup/position_changes.py adopt", ""): _COMMAND,
    ("gateway/startup/position_changes.py _find", ""): _COMMAND,
    ("gateway/startup/position_changes.py _unacceptable", "is empty"): _STATE,
    ("gateway/startup/position_changes.py _unacceptable", "a second time"): _STATE,
    ("gateway/startup/position_changes.py _unacceptable", "WAL ends at"): _SET_BACK,
    ("gateway/startup/position_checks.py check_set_back", "the server is in an earlier state"): _SET_BACK,
    ("gateway/startup/server_checks.py check_server", "SQL_ASCII"): _ENCODING,
    ("gateway/startup/server_checks.py check_server", "or newer; this server is"): _OLDER,
    ("gateway/startup/slot_checks.py _kind", "not logical"): _STATE,
    ("gateway/startup/slot_checks.py _kind", "has the output plugin"): _STATE,
    ("gateway/startup/slot_checks.py _kind", "belongs to database"): _STATE,
    ("gateway/startup/slot_checks.py _lost", "{invalidation_reason}"): _GAP,
    ("gateway/startup/slot_checks.py _lost", "{reason}"): _LOST,
    ("gateway/kafka/classify_errors.py classify", "raise the topic's max.message.bytes"): _KAFKA
    + "test_a_row_that_is_too_large_stops_the_gateway_and_is_not_skipped",
    ("gateway/kafka/batches.py too_large", ""): _KAFKA
    + "test_a_row_that_is_too_large_stops_the_gateway_and_is_not_skipped",
    ("gateway/kafka/topics.py deleted_topics", ""): _KAFKA
    + "test_a_topic_that_is_deleted_while_nobody_looks_is_not_created_again_silently",
    ("gateway/kafka/topics.py topic_of_another", ""): _STATE,
    ("gateway/kafka/topics.py refused_topic", "change the setting that the broker rejects"): _STATE,
    ("gateway/postgres/credentials.py take_system_roots", ""): _MENDED,
    ("gateway/postgres/credentials.py without_authority", ""): _MENDED,
    ("gateway/postgres/start_replication.py pgoutput_options", ""): _OLDER,
    ("gateway/postgres/authentication.py not_postgresql", ""): _SERVICE,
    ("gateway/runtime/assign_column_rules.py _unfit_for_key", ""): _STATE,
    ("gateway/runtime/assign_column_rules.py _renamed", ""): "runtime/test_assign_column_rules.py::"
    "test_a_column_that_leaves_its_rule_by_a_new_name_stops_the_gateway_until_the_rule_follows",
    ("gateway/schema_errors.py classified_schema_errors", "UnwritableRelation"): _SKIPPED,
    ("gateway/schema_errors.py classified_schema_errors", "StopForOperator"): "exactly_once/test_registry_faults.py::"
    "test_a_registry_from_an_old_backup_gives_no_id_twice",
    ("gateway/runtime/session.py _stop_if_again", ""): _KAFKA
    + "test_a_transaction_that_outlives_its_kafka_transaction_stops_with_the_way_out",
    ("gateway/runtime/stored_positions.py own_position", ""): "exactly_once/test_registry_faults.py::"
    "test_another_registry_behind_the_url_is_refused",
    ("gateway/events/errors.py unreadable_value", ""): _SKIPPED,
    ("gateway/startup/listener_checks.py check_listener", "cannot be verified"): _LISTENER,
    ("gateway/startup/listener_checks.py check_listener", "client certificate"): _LISTENER,
    ("gateway/startup/listener_checks.py check_listener", "not with Kafka's protocol"): _LISTENER,
    ("gateway/startup/listener_checks.py check_listener", "a KRaft controller"): _LISTENER,
    ("gateway/startup/listener_checks.py _login", "requires SASL"): _LISTENER,
    ("gateway/startup/listener_checks.py _login", "does not support"): _LISTENER,
    ("gateway/startup/kafka_checks.py check_refusals", ""): _CHECK,
    ("gateway/startup/kafka_checks.py unknown_replication_factor", ""): "kafka/test_topics.py::"
    "test_a_kafka_that_refuses_settings_and_shows_no_default_still_takes_the_gateways_topics",
    ("gateway/startup/connect_offset.py load_offset", ""): _COMMAND,
    ("gateway/startup/connect_offset.py read_offset", ""): _COMMAND,
    ("gateway/startup/position_checks.py check_prefix", "belongs to slot"): _STATE,
    ("gateway/startup/position_checks.py check_own_prefix", "are written with the topic prefix"): _MENDED,
    ("gateway/debezium/find_written.py event", ""): "exactly_once/test_ways_on_debezium.py::"
    "test_a_record_that_the_connector_did_not_write_leaves_everything_as_it_was",
    ("gateway/debezium/key_checks.py check_keys", ""): "exactly_once/test_ways_on_debezium.py::"
    "test_keys_that_would_change_leave_everything_as_it_was",
    ("gateway/debezium/row_encoder.py _without", ""): _DIALECT,
    ("gateway/startup/position_changes.py adopt_from_debezium", ""): _NO_USE,
    ("gateway/startup/position_checks.py check_offset", ""): _NO_USE,
    ("gateway/startup/position_checks.py check_not_ahead", ""): _ADVANCED,
    ("gateway/startup/role_checks.py check_role", ""): _POOLER,
    ("gateway/startup/timeline_checks.py check_promotion", "the new primary forked off timeline"): _PROMOTED,
    ("gateway/kafka/classify_errors.py classify", "lower kafka.transaction_timeout_s"): _MENDED,
    ("gateway/kafka/topics.py compacted_without_key", ""): _DIALECT,
    ("gateway/kafka/topics.py refused_topic", "{hint}"): _STATE,
    ("gateway/kafka/topics.py topic_of_two", ""): _DIALECT,
    ("gateway/failpoints.py _parse_action", ""): _MENDED,
    ("gateway/failpoints.py parse_failpoints", ""): _MENDED,
    ("gateway/observe/http_socket.py listen", ""): _MENDED,
    ("gateway/config/section.py unusable", ""): _LISTENER,
    ("gateway/config/settings.py _merge", ""): _MENDED,
    ("gateway/config/settings.py _read_file", ""): _MENDED,
    ("gateway/config/settings.py _read_secret_files", ""): _MENDED,
    ("gateway/config/settings.py _unreadable", ""): _MENDED,
    ("gateway/config/settings.py _refuse_unknown_variables", ""): _MENDED,
    ("gateway/postgres/authentication.py _next_message", ""): _SERVICE,
    ("gateway/startup/reaction_by_sqlstate.py 08P01", ""): _SERVICE,
    ("gateway/startup/reaction_by_sqlstate.py 42601", ""): _UNREPLICATED,
    ("gateway/startup/reaction_by_sqlstate.py 22023", ""): _MENDED,
    ("gateway/startup/reaction_by_sqlstate.py 22008", ""): _UNPRINTABLE,
    ("gateway/startup/reaction_by_sqlstate.py 22P05", ""): _UNTRANSLATABLE,
    ("gateway/startup/reaction_by_sqlstate.py 22021", ""): _UNTRANSLATABLE,
    ("gateway/postgres/classify_errors.py classify_in_stream", "is now unusable"): _REFUSED,
    ("gateway/postgres/classify_errors.py classify", "is too large for the server to send"): _REFUSED,
    ("gateway/postgres/credentials.py check_dsn", ""): _MENDED,
    ("gateway/postgres/credentials.py check_form", ""): _MENDED,
    ("gateway/postgres/login.py _classified", ""): _MENDED,
    ("gateway/postgres/credentials.py unreadable_file", ""): _TLS,
    ("gateway/postgres/credentials.py unusable_dsn", ""): _MENDED,
    ("gateway/postgres/replication_stream.py check_report", ""): _MENDED,
    ("gateway/debezium/registrar.py _unconvertible", ""): _DIALECT,
    ("gateway/debezium/registrar.py relation", ""): _DIALECT,
    ("gateway/runtime/stored_positions.py refuse_other_dialect", ""): _MENDED,
    ("gateway/debezium/record_writer.py accept_prepared", ""): _DIALECT,
    ("gateway/startup/server_notices.py judge_reported", ""): _REMOVED,
    ("gateway/startup/server_checks.py check_server", "is too old"): _TOO_OLD,
    ("gateway/startup/timeline_checks.py check_promotion", "is not a child of"): _COPY,
    ("gateway/cli/verify_mirror_folder.py _file_system", ""): _VERIFY,
    ("gateway/cli/verify_mirror_folder.py __init__", ""): _VERIFY,
    ("gateway/cli/verify.py choose_tables", ""): _VERIFY,
    ("gateway/kafka/aiokafka_internals/version.py check_version", ""): _MENDED,
    ("gateway/transactions/machine.py _commit_prepared", ""): _STATE,
    ("gateway/transactions/position.py _not_a_position", ""): _SHARED,
    ("gateway/startup/repeated_failure.py judge_repeated_failure", "the server has crashed"): _CRASHES,
    ("gateway/startup/repeated_failure.py judge_repeated_failure", "disagreed about the columns"): _DISAGREED,
    ("gateway/startup/repeated_failure.py judge_repeated_failure", "the server evaluates row filters"): _FILTER,
    ("gateway/startup/repeated_failure.py judge_repeated_failure", "a newer minor release of PostgreSQL"): _PLACES
    + "test_an_internal_error_at_one_place_stops_with_the_way_on",
    ("gateway/snapshot/stored_state.py _decode", ""): _SHARED,
    ("gateway/config/msk_iam.py __init__", ""): _LIBRARY,
}
"""Tests that lead from a stop to a gateway that streams again, on real servers. Key: the place, and
a part of its class, message or hint."""

_OTHER: Final = "exactly_once/test_ways_on_instead.py::test_the_other_way_that_a_message_names_leads_on_too"
_NEWER: Final = "exactly_once/test_ways_on_instead.py::test_a_record_of_a_newer_version_is_read_by_that_version"
_WITHOUT: Final = (
    "exactly_once/test_ways_on_instead.py::test_a_row_that_is_too_large_in_binary_is_got_past_without_its_columns"
)
_ALLOWED: Final = "exactly_once/test_ways_on_instead.py::test_brokers_are_made_to_allow_what_the_settings_ask_for"
_MEANT: Final = "exactly_once/test_ways_on_instead.py::test_a_wrong_server_is_left_for_the_one_that_was_meant"
INSTEAD: Final[tuple[tuple[tuple[str, str], str], ...]] = (
    (("gateway/events/errors.py unreadable_value", ""), _DIALECT),
    (("gateway/startup/kafka_checks.py check_brokers", ""), _ALLOWED),
    (("gateway/startup/listener_checks.py check_listener", "but kafka.security_protocol"), _LISTENER),
    (("gateway/startup/listener_checks.py _login", "does not use SASL"), _LISTENER),
    (("gateway/startup/kafka_checks.py check_single_partition", "commit order"), _OTHER),
    (("gateway/startup/server_notices.py _judge_left_out", "the server cannot send changes"), _OTHER),
    (("gateway/startup/position_checks.py check_own_prefix", "are written with the topic prefix"), _OTHER),
    (("gateway/startup/position_checks.py check_prefix", "belongs to slot"), _MEANT),
    (("gateway/startup/position_checks.py check_first_start", "has been used before"), _OTHER),
    (("gateway/startup/position_checks.py check_progress", "no longer exists"), _OTHER),
    (("gateway/startup/position_checks.py check_progress", "another process advanced the slot by"), _OTHER),
    (("gateway/startup/publication_checks.py _keys_sent_in_part", ""), _OTHER),
    (("gateway/kafka/classify_errors.py classify", "raise the topic's max.message.bytes"), _ALLOWED),
    (("gateway/kafka/classify_errors.py classify", "lower kafka.transaction_timeout_s"), _ALLOWED),
    (("gateway/kafka/topics.py deleted_topics", ""), _OTHER),
    (("gateway/kafka/topics.py refused_topic", ""), _OTHER),
    (("gateway/postgres/classify_errors.py classify", "is too large for the server to send"), _WITHOUT),
    (("gateway/runtime/assign_column_rules.py _unfit_for_key", ""), _OTHER),
    (("gateway/runtime/stored_positions.py refuse_other_dialect", ""), _DIALECT),
    (
        ("gateway/runtime/stored_positions.py own_position", ""),
        "exactly_once/test_registry_faults.py::test_a_registry_that_was_emptied_is_restored",
    ),
    (("gateway/snapshot/stored_state.py _decode", ""), _NEWER),
    (("gateway/transactions/position.py _not_a_position", ""), _NEWER),
)
"""Where a message names several ways to proceed: the tests of the other ways, if they are not in
the same test."""

DEFECTS: Final = frozenset(
    {"InternalError", "FrameError", "KeyNotSent", "OutOfOrder", "PgOutputError", "UnreadableSnapshot"}
)
"""Errors that should never be raised: defects of the gateway, or of the servers. Only a corrected
version resolves them."""

_HEAD: Final = """# Errors with exit code 78

This page lists every error that makes the gateway, or a command, exit with code 78, because an operator must make a decision.
Search it for words of the message. The hint says what to do; [Troubleshooting](symptoms.md) leads from the most frequent messages
to the page that explains more. Conditions that may pass without intervention are not listed: the gateway waits for them
([faults.md](faults.md)).

`{...}` is a placeholder. The message of a FrameError or PgOutputError continues with the position of the byte and what was
expected there. Some errors are detected only by the checks at startup: if the cause arises while the gateway is streaming, it
first restarts replication, and then exits.

The page is generated from the code by `python -m tests.stops`, and a test verifies that both match. The columns *place* and
*class* name the function that raises the error, or the SQLSTATE of PostgreSQL's error, and its Python class. The last column
names the tests in which the hint is followed and the gateway then streams again. Errors that should never occur, because they
indicate a bug in the gateway or in a service that it is connected to, have no test. Invalid arguments of a command, and errors
of `walgate tail` and `walgate demo`, are not listed.
"""


@dataclass(frozen=True, slots=True)
class Stop:
    place: str
    kind: str
    message: str
    hint: str


def _is_of_command(path: Path) -> bool:
    """Return whether an error raised there ends a command typed by the operator, instead of the
    gateway."""
    return path.parts[0] in ("demo", "local") or path.parts[:2] == ("cli", "tail") or path.name in _OF_COMMANDS


@cache
def stops() -> list[Stop]:
    gateway = ROOT / "gateway"
    files = [path for path in sorted(gateway.rglob("*.py")) if not _is_of_command(path.relative_to(gateway))]
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files}
    kinds = _kinds(list(trees.values()))
    return [*_by_sqlstate(), *(stop for path, tree in trees.items() for stop in _of_file(path, tree, kinds))]


def _by_sqlstate() -> Iterator[Stop]:
    for sqlstate, (kind, hint) in TABLE.items():
        if issubclass(kind, StopForOperator) and len(sqlstate) == 5:
            yield Stop(f"gateway/startup/reaction_by_sqlstate.py {sqlstate}", kind.__name__, "{doing}: {said}", hint)


def _kinds(trees: list[ast.Module]) -> set[str]:
    """Return the names of StopForOperator and its subclasses."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    kinds = {_FIRST}
    while more := {name for name, of in bases.items() if of & kinds} - kinds:
        kinds |= more
    return kinds


def _of_file(path: Path, tree: ast.Module, kinds: set[str]) -> Iterator[Stop]:
    name = path.relative_to(ROOT)
    module = import_module(".".join(name.with_suffix("").parts))
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds:
                message = _text(call.args[0], module) if call.args else ""
                hint = next((_text(word.value, module) for word in call.keywords if word.arg == "hint"), "")
                yield Stop(f"{name} {function.name}", call.func.id, message, hint)


def _text(node: ast.expr, module: Any) -> str:
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.JoinedStr(values):
            return "".join(_text(value, module) for value in values)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name):
            known = getattr(module, name, None)
            return known if isinstance(known, str) else f"{{{name}}}"
        case ast.FormattedValue(value=ast.Attribute(attr=name)) | ast.Attribute(attr=name):
            return f"{{{name}}}"
        case ast.BinOp(left, ast.Add(), right):
            return _text(left, module) + _text(right, module)
    return "{...}"


def is_of(stop: Stop, key: tuple[str, str]) -> bool:
    place, said = key
    return stop.place == place and said in f"{stop.kind}: {stop.message} {stop.hint}"


def walked(stop: Stop) -> str:
    if stop.kind in DEFECTS:
        return "a bug: report the error, and do not drop the slot"
    first = next((test for key, test in WALKED.items() if is_of(stop, key)), "")
    others = [test for key, test in INSTEAD if is_of(stop, key)]
    return ", ".join([first, *others] if first else others)


def page() -> str:
    parts = [_HEAD, "| place | class | message | hint | test |\n|---|---|---|---|---|"]
    for stop in stops():
        cells = (stop.place, stop.kind, stop.message, stop.hint, walked(stop))
        parts.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
