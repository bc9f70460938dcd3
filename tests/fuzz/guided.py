"""Coverage-guided search, for who has atheris:  python -m tests.fuzz.guided FOLDER -max_total_time=600

FOLDER keeps the inputs that reached something new; it starts with the recorded messages. The first
byte of an input says whether it is in a stream and which protocol version it is, the rest is the
message.
"""

from __future__ import annotations

import importlib
import sys
from hashlib import sha256
from pathlib import Path

from tests.golden.recording import recordings


def write_seeds(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for recorded in recordings():
        for message in recorded.messages:
            circumstances = (recorded.protocol_version - 1) << 1 | message.in_stream
            seed = bytes([circumstances]) + message.payload
            (folder / sha256(seed).hexdigest()[:16]).write_bytes(seed)


def main() -> None:
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["gateway.pgoutput"]):
        from tests.pgoutput.test_reference_decoder import check_agreement  # only now is it instrumented

    def one_input(data: bytes) -> None:
        if data:
            check_agreement(data[1:], in_stream=bool(data[0] & 1), protocol_version=1 + (data[0] >> 1) % 4)

    write_seeds(Path(sys.argv[1]))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
