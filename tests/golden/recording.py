"""The recorded streams of this folder, message by message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from schemas.lsn import Lsn

FOLDER = Path(__file__).parent
STREAM_START, STREAM_STOP = b"S", b"E"


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """`change_lsn` and `xid` are what the server said beside the message; `in_stream` is what a
    reader must know."""

    change_lsn: Lsn
    xid: int
    payload: bytes
    in_stream: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """One file. `name` is for example `postgresql-18/stream_commit.text`."""

    name: str
    major: int
    scenario: str
    options: dict[str, str]
    messages: tuple[RecordedMessage, ...]

    @property
    def protocol_version(self) -> int:
        return int(self.options["proto_version"])


@cache
def recordings() -> tuple[Recording, ...]:
    return tuple(_load(path) for path in sorted(FOLDER.glob("postgresql-*/*.json")))


def recording(name: str) -> Recording:
    (found,) = [one for one in recordings() if one.name == name]
    return found


def _load(path: Path) -> Recording:
    facts = json.loads(path.read_text())
    major = int(path.parent.name.removeprefix("postgresql-"))
    assert facts["server_version"].startswith(f"{major}."), path
    name = f"{path.parent.name}/{path.stem}"
    messages = tuple(_messages(facts["messages"]))
    return Recording(name, major, path.name.split(".")[0], facts["capture"]["options"], messages)


def _messages(entries: list[dict[str, str]]) -> Iterator[RecordedMessage]:
    in_stream = False
    for entry in entries:
        payload = bytes.fromhex(entry["hex"])
        yield RecordedMessage(Lsn.parse(entry["lsn"]), int(entry["xid"]), payload, in_stream)
        if payload[:1] in (STREAM_START, STREAM_STOP):
            in_stream = payload[:1] == STREAM_START
