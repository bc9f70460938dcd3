"""What a running gateway says of itself over HTTP, asked by another process. Without the server,
which takes long to import."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

PROBE_TIMEOUT_S = 3.0
_LARGEST_BYTES = 1 << 16
"""Of the answer of a mirror."""


def authority(host: str, port: int) -> str:
    """Of the URL under which a gateway with this http.host answers on its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def probe(host: str, port: int) -> str:
    """What /readyz of a running gateway says, or what is wrong with the way there: "" when it is
    ready."""
    try:
        try:
            with urlopen(f"http://{authority(host, port)}/readyz", timeout=PROBE_TIMEOUT_S):
                return ""
        except HTTPError as error:
            with error:
                return str(error.read().decode("utf-8", "replace").strip() or error)
    except (OSError, HTTPException) as error:
        return f"{host}:{port}: {getattr(error, 'reason', error) or type(error).__name__}"


@contextmanager
def _opened(url: str) -> Iterator[HTTPResponse]:
    """Close the response also if it is an error, which Python 3.14 complains of otherwise."""
    try:
        with urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:
            yield answer
    except HTTPError as error:
        error.close()
        raise


def ask_json(url: str) -> Any:
    """What another program serves there. Raises OSError, HTTPException, ValueError."""
    with _opened(url) as answer:
        return json.loads(answer.read(_LARGEST_BYTES))


def ask_status(host: str, port: int) -> dict[str, Any] | None:
    """What /status of a running gateway says; None: nobody answers there."""
    try:
        with _opened(f"http://{authority(host, port)}/status") as answer:
            found = json.load(answer)
            return found if isinstance(found, dict) else None
    except (OSError, HTTPException, ValueError):
        return None
