"""Query the HTTP port of a running gateway or mirror from another process. This module does not
import the server, because that import is slow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import OpenerDirector, ProxyHandler, build_opener

PROBE_TIMEOUT_S = 3.0
_LARGEST_BYTES = 1 << 16
"""The maximum number of bytes that are read of a mirror's response."""


def authority(host: str, port: int) -> str:
    """Return host and port of the URL at which a gateway with this http.host can be reached from
    its own host."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@cache
def _direct() -> OpenerDirector:
    """Return what opens URLs without a proxy. urllib would use one that the environment sets even
    for 127.0.0.1."""
    return build_opener(ProxyHandler({}))


def probe(host: str, port: int) -> str:
    """Return "" if the gateway is ready. Otherwise, return the answer of its /readyz, or the reason
    why it cannot be reached."""
    try:
        try:
            with _direct().open(f"http://{authority(host, port)}/readyz", timeout=PROBE_TIMEOUT_S):
                return ""
        except HTTPError as error:
            with error:
                return str(error.read().decode("utf-8", "replace").strip() or error)
    except (OSError, HTTPException) as error:
        return f"{host}:{port}: {getattr(error, 'reason', error) or type(error).__name__}"


@contextmanager
def _opened(url: str) -> Iterator[HTTPResponse]:
    """Open a URL. The response is closed even if it is an error, because Python 3.14 warns
    otherwise."""
    try:
        with _direct().open(url, timeout=PROBE_TIMEOUT_S) as answer:
            yield answer
    except HTTPError as error:
        error.close()
        raise


def ask_json(url: str) -> Any:
    """Return the JSON document at a URL. Raises OSError, HTTPException, ValueError or
    RecursionError."""
    with _opened(url) as answer:
        return json.loads(answer.read(_LARGEST_BYTES))


def ask_status(host: str, port: int) -> dict[str, Any] | None:
    """Return the /status of a running gateway, or None if there is no valid answer."""
    try:
        with _opened(f"http://{authority(host, port)}/status") as answer:
            found = json.load(answer)
            return found if isinstance(found, dict) else None
    except (OSError, HTTPException, ValueError, RecursionError):
        return None
