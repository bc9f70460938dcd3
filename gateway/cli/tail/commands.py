"""`walgate tail` and `walgate decode`, called with their options. Both raise WalgateError."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from gateway.cli.tail.decode_input import DecodeInput, read_given
from gateway.cli.tail.filters import MessageFilter
from gateway.cli.tail.from_slot import tail_slot
from gateway.cli.tail.from_topics import tail_topics
from gateway.cli.tail.message_json import MessageRenderer, Shown
from gateway.cli.tail.output import Output, ended_by_signals
from gateway.cli.tail.record_json import RecordRenderer
from gateway.config.kafka import KafkaSettings
from gateway.config.settings import RegistrySettings, Settings
from gateway.errors import WalgateError
from gateway.pgoutput.errors import PgOutputError
from gateway.schema_errors import open_registry


async def tail_messages(
    settings: Settings,
    publications: Sequence[str],
    chosen: MessageFilter,
    *,
    as_json: bool,
    in_progress: bool,
    limit: int | None,
    seconds: float | None,
) -> None:
    output = Output(as_json_lines=as_json, limit=limit)
    async with ended_by_signals(output, seconds):
        names = publications or settings.source.publications
        await tail_slot(settings.source, names, chosen, output, in_progress=in_progress)


async def tail_records(
    kafka: KafkaSettings,
    registry: RegistrySettings,
    chosen: MessageFilter,
    *,
    as_json: bool,
    from_beginning: bool,
    limit: int | None,
    seconds: float | None,
) -> None:
    output = Output(as_json_lines=as_json, limit=limit)
    async with open_registry(registry, registry.timeout_s) as client, ended_by_signals(output, seconds):
        await tail_topics(kafka, RecordRenderer(client), chosen, output, from_beginning=from_beginning)


async def decode_given(
    sources: Sequence[str], registry: RegistrySettings, *, as_json: bool, protocol_version: int, in_stream: bool
) -> None:
    """Decode and print `sources`: files, `-` for stdin, or hexadecimal text itself. The messages of
    one source are decoded as one stream."""
    output = Output(as_json_lines=as_json)
    records: RecordRenderer | None = None
    async with AsyncExitStack() as stack:
        for source in sources:
            shower = MessageRenderer(protocol_version, in_stream=in_stream)
            for given in read_given(_load(source)):
                if given.is_framed and records is None:
                    client = await stack.enter_async_context(open_registry(registry, registry.timeout_s))
                    records = RecordRenderer(client)
                shown = await records.show(given.payload) if given.is_framed and records else _show(given, shower)
                await output.write([shown])


def _show(given: DecodeInput, shower: MessageRenderer) -> Shown:
    try:
        return shower.show(given.payload, given.change_lsn)
    except PgOutputError as error:
        raise WalgateError(
            f"{given.place}: {error.message}",
            hint="between Stream Start and Stream Stop, messages have an additional xid: use --in-stream. --protocol-version "
            "must be that of the stream",
        ) from error


def _load(source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    path = Path(source)
    try:
        if path.exists():
            return path.read_bytes()
    except OSError as error:
        if error.strerror != "File name too long":
            raise WalgateError(f"{source}: {error.strerror}") from error
    try:
        bytes.fromhex(source.removeprefix("\\x"))
    except ValueError:
        raise WalgateError(f"{source[:80]}: no such file, and not hexadecimal text") from None
    return source.encode()
