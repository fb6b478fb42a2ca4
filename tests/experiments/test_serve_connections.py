"""Connections of the service, by sockets of this machine: silent ones are in nobody's way."""

from __future__ import annotations

import asyncio
import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from experiments.serving.connections import ConnectionLimits
from experiments.serving.server import listening, server_of
from experiments.serving.service import Limits, Service
from tests.experiments.test_serve import JSON, Slow

PATIENT_S = 900.0  # longer than a test takes
GIVEN_UP_S = 600.0  # a test that waits as long has failed
ONE, OTHER = "127.0.0.1", "127.0.0.2"  # addresses of clients
HEAD = b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASKED = HEAD + b"Content-Length: 2\r\n\r\n{}"


@pytest.fixture
def decider() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may.set()


@contextmanager
def serving(decider: Slow, limits: ConnectionLimits, concurrency: int = 512) -> Iterator[int]:
    """The port of a service in a thread."""
    service = Service(decider, Limits(1000, concurrency, PATIENT_S), "tested", "0")
    with listening("127.0.0.1", 0) as at:
        server = server_of(service, limits)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([at])))
        thread.start()
        try:
            yield at.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            service.close()


def connected(port: int, peer: str = ONE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), GIVEN_UP_S, (peer, 0))


def answered(port: int, peer: str = ONE) -> int:
    """Status of a decision."""
    asked = http.client.HTTPConnection("127.0.0.1", port, GIVEN_UP_S, (peer, 0))
    asked.request("POST", "/v1/decide", b"{}", JSON)
    status = asked.getresponse().status
    asked.close()
    return status


def ended(silent: socket.socket) -> bool:
    """Wait until the service has closed a connection; it says nothing before."""
    try:
        return silent.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(silent: socket.socket) -> bool:
    silent.setblocking(False)
    try:
        silent.recv(1)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_silent_connections_keep_nobody_out(decider: Slow) -> None:
    limits = ConnectionLimits(most=300, most_of_peer=200, headers_s=PATIENT_S)
    with serving(decider, limits) as port, ExitStack() as opened:
        other = opened.enter_context(connected(port, OTHER))
        silent = [opened.enter_context(connected(port)) for _ in range(260)]
        assert answered(port) == answered(port, OTHER) == 200
        for one in silent[:61]:  # the first have made room for the last, and for who asked
            assert ended(one)
        assert all(is_open(one) for one in (other, *silent[61:]))


def test_who_waits_for_a_decision_makes_room_for_nobody(decider: Slow) -> None:
    decider.may.clear()
    limits = ConnectionLimits(most=3, most_of_peer=3, headers_s=PATIENT_S)
    with serving(decider, limits) as port, ExitStack() as opened:
        waits = opened.enter_context(connected(port))
        waits.sendall(ASKED)
        assert decider.asked.acquire(timeout=GIVEN_UP_S)
        half = opened.enter_context(connected(port))
        half.sendall(ASKED[:-1])
        silent = [opened.enter_context(connected(port)) for _ in range(4)]
        assert ended(half)
        assert all(ended(one) for one in silent[:2])
        decider.may.set()
        assert waits.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("sent", [b"", b"POST", HEAD])
def test_headers_that_do_not_come_end_a_connection_that_asks_nothing(
    decider: Slow, sent: bytes
) -> None:
    decider.may.clear()
    limits = ConnectionLimits(most=100, most_of_peer=100, headers_s=0.2)
    with serving(decider, limits) as port, connected(port) as waits, connected(port) as one:
        waits.sendall(ASKED)
        assert decider.asked.acquire(timeout=GIVEN_UP_S)
        one.sendall(sent)
        assert ended(one)
        decider.may.set()
        assert waits.recv(15) == b"HTTP/1.1 200 OK"


def test_headers_have_their_time_after_an_answer_too(decider: Slow) -> None:
    limits = ConnectionLimits(most=100, most_of_peer=100, headers_s=0.5)
    with serving(decider, limits) as port, connected(port) as one:
        one.sendall(ASKED + HEAD[:9])
        said = b""
        while not said.endswith(b"{}}"):
            said += one.recv(1)
        one.sendall(HEAD[9:])
        assert ended(one)


def test_as_many_as_may_wait_are_answered_and_one_more_is_to_come_again(decider: Slow) -> None:
    decider.may.clear()
    limits = ConnectionLimits(most=200, most_of_peer=200, headers_s=PATIENT_S)
    with serving(decider, limits, concurrency=64) as port, ExitStack() as opened:
        clients = [opened.enter_context(connected(port)) for _ in range(65)]
        for one in clients:
            one.sendall(ASKED)
        refused = select.select(clients, [], [], GIVEN_UP_S)[0][0]
        head = refused.recv(4096).lower()
        assert head.startswith(b"http/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in head
        decider.may.set()
        statuses = [one.recv(12) for one in clients if one is not refused]
        assert statuses == [b"HTTP/1.1 200"] * 64
