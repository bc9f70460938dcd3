"""The HTTP port: what it answers, while the gateway's event loop does not, and to those who do not
behave."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.errors import StopForOperator
from gateway.observe import http_server
from gateway.observe.http_routes import start_http
from gateway.observe.http_server import HEADER_BYTES, MOST_CONNECTIONS, max_connections, start_server
from gateway.observe.metrics import show
from gateway.observe.status_board import StatusBoard

HALF = b"GET /livez HTTP/1.1\r\nHost: here\r\nX-Half: "
TIMEOUT_S = 10.0
REQUEST_S = 1.0
LARGE_BYTES = 64 << 20


async def live(request: Request) -> Response:
    request.state.is_stream = True

    async def events() -> AsyncIterator[bytes]:
        while True:
            yield b"data: tick\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


async def large(_: Request) -> Response:
    return PlainTextResponse(b"x" * LARGE_BYTES)


async def short(_: Request) -> Response:
    return PlainTextResponse("ok")


@pytest.fixture(scope="module")
def port() -> int:
    return start_http("127.0.0.1", 0, StatusBoard())


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> int:
    """A server with a second for a request."""
    monkeypatch.setattr(http_server, "REQUEST_S", REQUEST_S)
    routes = [Route("/live", live), Route("/large", large), Route("/short", short)]
    return start_server("127.0.0.1", 0, Starlette(routes=routes))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(port: int, stack: ExitStack, sent: bytes) -> socket.socket:
    made = stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
    made.sendall(sent)
    return made


def get(port: int, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def drip(client: socket.socket) -> None:
    """A byte now and then, for TIMEOUT_S."""
    begun = time.monotonic()
    while time.monotonic() - begun < TIMEOUT_S:
        client.sendall(b"x")
        time.sleep(0.05)


def is_ended(client: socket.socket) -> bool:
    """Waits for the server's end of the connection; what it still says is read."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_each_path_answers() -> None:
    board = StatusBoard()
    show(board)
    port = start_http("127.0.0.1", 0, board)
    assert get(port, "/livez")[::2] == (200, "ok\n")
    assert get(port, "/readyz")[::2] == (503, "the first start\n")
    board.wait_for("")
    assert get(port, "/readyz")[::2] == (200, "ok\n")
    assert json.loads(get(port, "/status")[2])["state"] == "streaming"
    assert get(port, "/nothing")[::2] == (404, "/ /livez /readyz /status /metrics\n")


def test_metrics_come_in_the_format_that_is_asked_for(port: int) -> None:
    show(StatusBoard())
    status, headers, text = get(port, "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain") and "\nwalgate_connected 0.0\n" in text
    openmetrics = get(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics[1]["Content-Type"].startswith("application/openmetrics-text") and openmetrics[2].endswith(
        "# EOF\n"
    )


async def test_it_answers_while_the_event_loop_computes(port: int) -> None:
    answers: list[float] = []

    def ask() -> None:
        for _ in range(5):
            begun = time.monotonic()
            get(port, "/livez")
            answers.append(time.monotonic() - begun)

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():  # never gives the loop back
        sum(range(1000))
    assert len(answers) == 5


def test_a_port_that_is_taken_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(StopForOperator, match=r"127\.0\.0\.1:\d+: Address already in use"),
    ):
        start_http("127.0.0.1", taken.getsockname()[1], StatusBoard())


def test_a_thousand_half_sent_requests_keep_nobody_from_an_answer(port: int, opened: ExitStack) -> None:
    threads = threading.active_count()
    clients = [connect(port, opened, HALF) for _ in range(1000)]
    begun = time.monotonic()
    assert get(port, "/livez")[0] == 200
    assert time.monotonic() - begun < http_server.REQUEST_S, "it waited until they were given up"
    assert threading.active_count() == threads
    assert all(is_ended(client) for client in clients[:-MOST_CONNECTIONS])


def test_a_request_that_drips_in_is_given_up(hurried: int, opened: ExitStack) -> None:
    client = connect(hurried, opened, HALF)
    begun = time.monotonic()
    with pytest.raises(ConnectionError):
        drip(client)
    assert REQUEST_S * 0.9 < time.monotonic() - begun < TIMEOUT_S


def test_an_answer_that_nobody_takes_is_given_up(hurried: int, opened: ExitStack) -> None:
    client = connect(hurried, opened, b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
    time.sleep(2 * REQUEST_S)  # that nothing is read is the point
    taken = 0
    with contextlib.suppress(ConnectionError):
        while data := client.recv(1 << 20):
            taken += len(data)
    assert taken < LARGE_BYTES


def test_a_connection_has_one_request(hurried: int, opened: ExitStack) -> None:
    client = connect(hurried, opened, b"GET /short HTTP/1.1\r\nHost: here\r\n\r\n")
    assert is_ended(client)


def test_headers_that_are_too_long_are_refused(port: int, opened: ExitStack) -> None:
    client = connect(port, opened, HALF + b"x" * (HEADER_BYTES + 1))
    assert client.recv(100).startswith(b"HTTP/1.1 400")
    assert is_ended(client)


def test_events_go_on_beyond_the_time_of_a_request_and_give_way_last(hurried: int, opened: ExitStack) -> None:
    stream = connect(hurried, opened, b"GET /live HTTP/1.1\r\nHost: here\r\n\r\n")
    begun = time.monotonic()
    while time.monotonic() - begun < 2 * REQUEST_S:
        assert stream.recv(1 << 16)
    for _ in range(2 * MOST_CONNECTIONS):
        connect(hurried, opened, HALF)
    assert get(hurried, "/short")[0] == 200
    stream.settimeout(0)
    with contextlib.suppress(BlockingIOError):  # all that came before
        while stream.recv(1 << 16):
            pass
    stream.settimeout(TIMEOUT_S)
    assert stream.recv(1 << 16)


def test_streams_alone_do_not_keep_a_probe_out(hurried: int, opened: ExitStack) -> None:
    for _ in range(MOST_CONNECTIONS):
        assert connect(hurried, opened, b"GET /live HTTP/1.1\r\nHost: here\r\n\r\n").recv(1)
    assert get(hurried, "/short")[0] == 200


@pytest.mark.parametrize(("limit", "connections"), [(1 << 20, 64), (1024, 64), (400, 16), (64, 4)])
def test_where_few_files_may_be_open_most_are_kept_for_the_stream(
    monkeypatch: pytest.MonkeyPatch, limit: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert max_connections() == connections
