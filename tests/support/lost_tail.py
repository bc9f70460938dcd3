"""A partition without its newest records, as an unclean leader election or a power failure leaves
it."""

from __future__ import annotations

from pathlib import Path

from gateway.local import Kafka

_FRAME_BYTES = 12
"""Of each batch: its base offset (8 bytes), and the size of what follows (4 bytes)."""


def lose_tail(broker: Kafka, topic: str, offset: int) -> None:
    """Remove the batches from `offset` on from partition 0 of a topic. The broker must be stopped:
    it builds the indexes again when it starts."""
    data = broker.folder / "data"
    folder = data / f"{topic}-0"
    newest = max(folder.glob("*.log"))
    size = _size_before(newest, offset)
    with newest.open("r+b") as log:
        log.truncate(size)
    for path in folder.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        lines = (data / name).read_text().splitlines()
        known = [f"{topic} 0 0" if line.startswith(f"{topic} 0 ") else line for line in lines]
        (data / name).write_text("\n".join(known) + "\n")
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)


def _size_before(log: Path, offset: int) -> int:
    content = log.read_bytes()
    size = 0
    while size + _FRAME_BYTES <= len(content) and int.from_bytes(content[size : size + 8]) < offset:
        size += _FRAME_BYTES + int.from_bytes(content[size + 8 : size + 12])
    assert 0 < size < len(content), "nothing, or everything, would be lost"
    return size
