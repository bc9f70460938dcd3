"""Every error this package raises on purpose. A message says where in the stream it stood; never
row values or secrets."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_TOLD = re.compile(r"spark_consumer\.errors\.(\w+: .*?)(?=\n *SQLSTATE|\n\tat |\n===|\n\n|\Z)", re.DOTALL)


def told_by(text: str) -> str | None:
    """`TransactionIncomplete: ...` with its hint, out of what Spark makes of an error of ours;
    None: it is none of ours."""
    found = _TOLD.findall(text)
    return found[-1].strip() if found else None


# Of Spark, about the Python processes of streaming sources: 10 s are all it gives them to start,
# which nothing can change.
_SLOW_STARTS = ("Python worker failed to connect back", "Timed out while waiting for the Python worker to connect back")


def slow_start_in(text: str) -> str | None:
    """What Spark says where a Python process of its did not start in time: a busy machine, which
    passes."""
    return next((words for words in _SLOW_STARTS if words in text), None)


class ConsumerError(Exception):
    """Root of the errors of spark_consumer.

    `hint` says what a person can do about it; it is part of the text, because Spark shows only the
    text of a task's error.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.hint = hint


P = ParamSpec("P")
T = TypeVar("T")


def briefly(method: Callable[P, T]) -> Callable[P, T]:
    """Errors of ours leave the method without the lines of code within: Spark shows a person every
    one of them."""

    @wraps(method)
    def call(*words: P.args, **named: P.kwargs) -> T:
        try:
            return method(*words, **named)
        except ConsumerError as problem:
            raise problem.with_traceback(None) from None

    return call


class OptionError(ConsumerError):
    """An option that is unknown, missing, malformed or in contradiction to another one."""


class MarkerError(ConsumerError):
    """The transaction topic breaks its own rules: a marker that does not decode, a commit LSN that
    does not rise, no manifest."""


class TransactionIncomplete(ConsumerError):
    """The records found do not add up to what the manifest says. Nothing of the read may be
    used."""


class RangeExpired(ConsumerError):
    """Records that a manifest names are no longer in Kafka (retention) or never were (another
    cluster, a recreated topic)."""


class SourceUnavailable(ConsumerError):
    """The broker or the schema registry does not answer, or lacks a topic or schema. Trying again
    may help."""


class SourceRefused(ConsumerError):
    """The broker or the schema registry does not let us in: a password, a certificate, a
    permission. It stays so."""


class MalformedRecord(ConsumerError):
    """A record's bytes are not what its schema says: too short, too long, impossible lengths or
    branches.

        `record`: its place among those that were decoded together, where that is known.
    """

    record: int | None = None


class UnsupportedSchema(ConsumerError):
    """An Avro schema outside of what the columnar decoder reads, or one that the frame's schema
    cannot take in."""


class MirrorError(ConsumerError):
    """The mirror's target is not what the mirror left there, or cannot take a change."""


class JavaUnusable(ConsumerError):
    """Spark cannot start with this Java, or there is none."""


class BatchInterrupted(ConsumerError):
    """The query was stopped during this batch, which the next query repeats.

    Spark recognizes a stop by these words (StreamExecution.PROXY_ERROR). The regular expression by
    which it looks for them overflows the stack of the JVM on an error as long as those of Java
    usually are.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch: java.lang.InterruptedException"
        )
