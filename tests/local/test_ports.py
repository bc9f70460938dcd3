"""Ports that a part can have for itself, also after a restart."""

from __future__ import annotations

import socket

from gateway.local.ports import FIRST_PORT, answers, free_port


def test_ports_are_free_different_and_below_those_of_outgoing_connections() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    with socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", 0))
        assert all(FIRST_PORT <= port < outgoing.getsockname()[1] for port in ports)
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


async def test_answers_tells_a_listener_from_none() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not await answers(port)
        listener.listen()
        assert await answers(port)
