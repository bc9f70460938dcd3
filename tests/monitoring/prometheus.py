"""What Prometheus does with alerting rules, as far as ours need it: instant vectors, comparison,
`and or unless`, arithmetic, a few functions, and `for`. The grammar is Prometheus's own
(promql-parser); the meaning follows its manual (Querying, Alerting rules).

promtool is no package of PyPI or Maven. Where it is installed, test_alerts.py lets it judge the
same situations.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import promql_parser

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = list[tuple[float, float]]
"""Seconds and value, in their order."""

LOOKBACK_S: Final = 300.0
STALE: Final = float("nan")
"""This very object as the value of a sample: the series was missing from that scrape, and is gone
until it comes again."""
NAME: Final = "__name__"
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_CALCULATE: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "^": operator.pow, "/": operator.truediv,
}  # fmt: skip


class Series:
    """All samples, by labels with the name."""

    def __init__(self, samples: Mapping[Labels, Samples]) -> None:
        self.samples = dict(samples)

    def select(self, selector: Any, now: float, window_s: float) -> dict[Labels, Samples]:
        matchers = [(one.name, str(one.op), one.value) for one in selector.matchers.matchers]
        found = {}
        for labels, samples in self.samples.items():
            named = dict(labels)
            if named[NAME] == selector.name and all(
                _matches(named.get(name, ""), op, text) for name, op, text in matchers
            ):
                recent = [(at, value) for at, value in samples if now - window_s < at <= now]
                if recent:
                    found[labels] = recent
        return found


def _matches(value: str, op: str, text: str) -> bool:
    if op == "MatchOp.Equal":
        return value == text
    if op == "MatchOp.NotEqual":
        return value != text
    assert op == "MatchOp.Re", op
    return re.fullmatch(text, value) is not None


def evaluate(expression: Any, series: Series, now: float) -> Vector | float:
    kind = type(expression).__name__
    if kind == "NumberLiteral":
        return float(expression.val)
    if kind == "ParenExpr":
        return evaluate(expression.expr, series, now)
    if kind == "VectorSelector":
        found = series.select(expression, now, LOOKBACK_S)
        return {labels: samples[-1][1] for labels, samples in found.items() if samples[-1][1] is not STALE}
    if kind == "Call":
        return _call(expression, series, now)
    if kind == "AggregateExpr":
        return _sum_without(expression, series, now)
    assert kind == "BinaryExpr", kind
    left, right = evaluate(expression.lhs, series, now), evaluate(expression.rhs, series, now)
    return _binary(str(expression.op), left, right, _matched_on(expression))


def _matched_on(binary: Any) -> frozenset[str] | None:
    """The labels of `on (...)`; None: all."""
    matching = binary.modifier.matching if binary.modifier is not None else None
    return None if matching is None else frozenset(matching.labels)


def _call(call: Any, series: Series, now: float) -> Vector | float:
    name = call.func.name
    if name == "time":
        return float(now)
    (argument,) = call.args
    if name == "absent":
        found = evaluate(argument, series, now)
        assert isinstance(found, dict)
        return {} if found else {frozenset((one.name, one.value) for one in argument.matchers.matchers): 1.0}
    assert name == "increase", name
    window_s = argument.range.total_seconds()
    selected = series.select(argument.vector_selector, now, window_s)
    return {
        _nameless(labels): _increase(samples, now, window_s) for labels, samples in selected.items() if len(samples) > 1
    }


def _increase(samples: Samples, now: float, window_s: float) -> float:
    """With Prometheus's extrapolation to the ends of the window (`extrapolatedRate` in
    functions.go)."""
    values = [value for _, value in samples]
    grown = values[-1] - values[0] + sum(a for a, b in itertools.pairwise(values) if b < a)
    first, last = samples[0][0], samples[-1][0]
    spacing_s = (last - first) / (len(samples) - 1)
    to_start, to_end = first - (now - window_s), now - last
    if to_start >= spacing_s * 1.1:
        to_start = spacing_s / 2
    if grown > 0 and values[0] >= 0:
        to_start = min(to_start, (last - first) * values[0] / grown)  # a counter does not begin below zero
    if to_end >= spacing_s * 1.1:
        to_end = spacing_s / 2
    return grown * (last - first + to_start + to_end) / (last - first)


def _sum_without(aggregate: Any, series: Series, now: float) -> Vector:
    assert str(aggregate.op) == "sum"
    left_out = set(aggregate.modifier.labels)
    sums: Vector = {}
    inner = evaluate(aggregate.expr, series, now)
    assert isinstance(inner, dict)
    for labels, value in inner.items():
        group = frozenset((name, text) for name, text in labels if name not in left_out and name != NAME)
        sums[group] = sums.get(group, 0.0) + value
    return sums


def _binary(op: str, left: Vector | float, right: Vector | float, on: frozenset[str] | None) -> Vector | float:
    if op in ("or", "unless", "and"):
        assert isinstance(left, dict) and isinstance(right, dict)
        return _set_operation(op, left, right, on)
    assert on is None
    if isinstance(left, float) and isinstance(right, float):
        return _CALCULATE[op](left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        others = {_nameless(labels): value for labels, value in right.items()}
        pairs = {
            labels: (value, others[_nameless(labels)]) for labels, value in left.items() if _nameless(labels) in others
        }
    elif isinstance(left, dict):
        assert isinstance(right, float)
        pairs = {labels: (value, right) for labels, value in left.items()}
    else:
        assert isinstance(right, dict)
        pairs = {labels: (left, value) for labels, value in right.items()}
    if op in _COMPARE:
        kept = left if isinstance(left, dict) else right
        assert isinstance(kept, dict)
        return {labels: kept[labels] for labels, pair in pairs.items() if _COMPARE[op](*pair)}
    return {_nameless(labels): _CALCULATE[op](*pair) for labels, pair in pairs.items()}


def _set_operation(op: str, left: Vector, right: Vector, on: frozenset[str] | None) -> Vector:
    def key(labels: Labels) -> Labels:
        return frozenset(pair for pair in _nameless(labels) if on is None or pair[0] in on)

    here, there = ({key(labels) for labels in side} for side in (left, right))
    if op == "or":
        return left | {labels: value for labels, value in right.items() if key(labels) not in here}
    return {labels: value for labels, value in left.items() if (key(labels) in there) is (op == "and")}


def _nameless(labels: Iterable[tuple[str, str]]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] != NAME)


def firing(rules: list[dict[str, Any]], series: Series, until_s: float, step_s: float) -> set[Labels]:
    """The alerts that fire at the end, each with its labels and `alertname`, when rules are
    evaluated every `step_s`."""
    raised: set[Labels] = set()
    for rule in rules:
        expression, wait_s = promql_parser.parse(rule["expr"]), seconds(rule.get("for", "0s"))
        since: dict[Labels, float] = {}
        for step in range(math.floor(until_s / step_s) + 1):
            now = step * step_s
            found = evaluate(expression, series, now)
            assert isinstance(found, dict)
            since = {labels: since.get(labels, now) for labels in map(_nameless, found)}
        own = frozenset({("alertname", rule["alert"]), *rule["labels"].items()})
        raised |= {labels | own for labels, begun in since.items() if until_s - begun >= wait_s}
    return raised


def seconds(text: str) -> float:
    """`1m15s`"""
    return sum(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def read_series(entries: list[dict[str, str]], interval_s: float) -> Series:
    """promtool's `input_series`: `1x3` is 1 and three more of it, `0+5x2` is 0 5 10, `_x2` is
    nothing twice."""
    samples: dict[Labels, Samples] = {}
    for entry in entries:
        labels = labels_of(entry["series"])
        values = [value for part in entry["values"].split() for value in _expanded(part)]
        samples[labels] = [(number * interval_s, value) for number, value in enumerate(values) if value is not None]
    return Series(samples)


def labels_of(text: str) -> Labels:
    """Of `name{label="value"}`."""
    selector: Any = promql_parser.parse(text)
    return frozenset({(NAME, selector.name), *((one.name, one.value) for one in selector.matchers.matchers)})


def _expanded(part: str) -> list[float | None]:
    text, _, times = part.partition("x")
    if text == "_":
        return [None] * int(times or 1)
    first, _, step = text.partition("+")
    return [float(first) + float(step or 0) * number for number in range(int(times or 0) + 1)]
