"""Bind the address on which the HTTP server listens, for the gateway and, as a test, for `walgate
check`. This module does not import the server, because that import is slow."""

from __future__ import annotations

import socket

from gateway.errors import StopForOperator


def listen(host: str, port: int, backlog: int = 1) -> socket.socket:
    """Return a listening socket. Raises StopForOperator."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise StopForOperator(
            f"the HTTP server cannot listen on {host}:{port}: {error.strerror}",
            hint="set another http.port or http.host",
        ) from error
