"""The exceptions that this package raises. A message names the position in the stream, but never
row values or secrets."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_TOLD = re.compile(r"spark_consumer\.errors\.(\w+: .*?)(?=\n *SQLSTATE|\n\tat |\n===|\n\n|\Z)", re.DOTALL)


def told_by(text: str) -> str | None:
    """Return the exception of this package that the text of Spark's exception contains, as
    `TransactionIncomplete: ...` with its hint; None if it contains none."""
    found = _TOLD.findall(text)
    return found[-1].strip() if found else None


def told_as(kind: type[ConsumerError], problem: Exception) -> str | None:
    """Return the text of an exception of this class, if `problem` is one, or if the text of Spark's
    exception contains one; otherwise None."""
    if isinstance(problem, kind):
        return str(problem)
    name, _, text = (told_by(str(problem)) or "").partition(": ")
    return text if name == kind.__name__ else None


# Spark's message about Python processes of streaming sources that did not start within 10 s, a
# limit that cannot be configured.
_SLOW_STARTS = ("Python worker failed to connect back", "Timed out while waiting for the Python worker to connect back")


def slow_start_in(text: str) -> str | None:
    """Return Spark's message about a Python process that did not start in time; None if the text
    does not contain it. A busy machine causes this error, which passes."""
    return next((words for words in _SLOW_STARTS if words in text), None)


class ConsumerError(Exception):
    """The base class of spark_consumer's exceptions.

    `hint` tells the operator what to do; it is part of the text, because Spark shows only the text
    of a task's exception.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.hint = hint


P = ParamSpec("P")
T = TypeVar("T")


def briefly(method: Callable[P, T]) -> Callable[P, T]:
    """Strip the traceback from this package's exceptions when they leave the method, since Spark
    would show the whole traceback to the user."""

    @wraps(method)
    def call(*words: P.args, **named: P.kwargs) -> T:
        try:
            return method(*words, **named)
        except ConsumerError as problem:
            raise problem.with_traceback(None) from None

    return call


class OptionError(ConsumerError):
    """An option is unknown, missing, malformed, or contradicts another one."""


class MarkerError(ConsumerError):
    """The transaction topic is inconsistent: a marker that cannot be decoded, a commit LSN that
    does not rise, a missing manifest."""


class TransactionIncomplete(ConsumerError):
    """The number of records differs from the manifest. No record of the read may be used."""


class RangeExpired(ConsumerError):
    """Records that a manifest names are no longer in Kafka (retention), or never were (another
    cluster, a recreated topic)."""


class SourceUnavailable(ConsumerError):
    """The broker or the schema registry does not answer, or lacks a topic or schema. The same
    request may succeed later."""


class SourceRefused(ConsumerError):
    """The broker or the schema registry denies access, because of a password, a certificate or a
    permission. Retrying does not help."""


class MalformedRecord(ConsumerError):
    """A record does not match its schema: it is too short or too long, or has impossible lengths or
    branches.

    `record`: the index of the record among those that were decoded together, or None if it is not
    known.
    """

    record: int | None = None


class UnsupportedSchema(ConsumerError):
    """The columnar decoder does not support the Avro schema, or the frame's columns cannot
    represent it."""


class MirrorError(ConsumerError):
    """The output of a mirror or changelog is not as it was left, or cannot take a change."""


class JavaUnusable(ConsumerError):
    """Spark cannot start with this Java, or there is none."""


class BatchInterrupted(ConsumerError):
    """The query was stopped during this batch, which the next query repeats.

    Spark recognizes a stop by the words of the message (StreamExecution.PROXY_ERROR). They are
    given alone, since Spark's regular expression for them overflows the JVM's stack on messages as
    long as those of Java usually are.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch: java.lang.InterruptedException"
        )
