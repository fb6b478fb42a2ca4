"""Connections of the service, by sockets of this machine: silent ones are in nobody's way."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from experiments.serving.server import listening, server_of
from tests.experiments.test_serve import Slow, decider, service_of

__all__ = ["decider"]
PATIENT_S = 900.0  # longer than a test takes
GIVEN_UP_S = 600.0  # a test that waits as long has failed
HEAD = b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASKED = HEAD + b"Content-Length: 2\r\n\r\n{}"


class Clients:
    """Connections to a service in a thread."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened: list[socket.socket] = []

    def connect(self, sent: bytes = b"", peer: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), GIVEN_UP_S, (peer, 0))
        self.opened.append(made)
        made.sendall(sent)
        return made


@contextmanager
def serving(
    decider: Slow, most: int = 100, of_peer: int = 100, **config: float
) -> Iterator[Clients]:
    given = {"concurrency": 512, "timeout_s": PATIENT_S, "headers_s": PATIENT_S, **config}
    service = service_of(decider, connections=most, connections_per_peer=of_peer, **given)
    with listening("127.0.0.1", 0) as at:
        server = server_of(service)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([at])))
        thread.start()
        clients = Clients(at.getsockname()[1])
        try:
            yield clients
        finally:
            for one in clients.opened:
                one.close()
            server.should_exit = True
            thread.join()
            service.close()


def status(asked: socket.socket) -> bytes:
    """Of an answer, whose head is received."""
    return asked.recv(12).removeprefix(b"HTTP/1.1 ")


def ended(silent: socket.socket, *, wait: bool = True) -> bool:
    """Whether the service has closed a connection, on which it says nothing before."""
    silent.setblocking(wait)
    with suppress(ConnectionResetError):
        try:
            return silent.recv(1) == b""
        except BlockingIOError:
            return False
    return True


def test_silent_connections_keep_nobody_out(decider: Slow) -> None:
    with serving(decider, most=300, of_peer=200) as clients:
        other = clients.connect(peer="127.0.0.2")
        silent = [clients.connect() for _ in range(260)]
        for asked in (clients.connect(ASKED), clients.connect(ASKED, "127.0.0.2")):
            assert status(asked) == b"200"
        for one in silent[:61]:  # the first have made room for the last, and for who asked
            assert ended(one)
        assert not any(ended(one, wait=False) for one in (other, *silent[61:]))


def test_who_waits_for_a_decision_makes_room_for_nobody(decider: Slow) -> None:
    decider.may.clear()
    with serving(decider, most=3, of_peer=3) as clients:
        waits = clients.connect(ASKED)
        assert decider.asked.acquire(timeout=GIVEN_UP_S)
        half = clients.connect(ASKED[:-1])
        silent = [clients.connect() for _ in range(4)]
        assert all(ended(one) for one in (half, *silent[:2]))
        decider.may.set()
        assert status(waits) == b"200"


@pytest.mark.parametrize("sent", [b"", b"POST", HEAD])
def test_headers_that_do_not_come_end_a_connection_that_asks_nothing(
    decider: Slow, sent: bytes
) -> None:
    decider.may.clear()
    with serving(decider, headers_s=0.2) as clients:
        waits = clients.connect(ASKED)
        assert decider.asked.acquire(timeout=GIVEN_UP_S)
        assert ended(clients.connect(sent))
        decider.may.set()
        assert status(waits) == b"200"


def test_headers_have_their_time_after_an_answer_too(decider: Slow) -> None:
    with serving(decider, headers_s=0.5) as clients:
        one = clients.connect(ASKED + HEAD[:9])
        said = b""
        while not said.endswith(b"{}}"):
            said += one.recv(1)
        one.sendall(HEAD[9:])
        assert ended(one)


def test_a_body_that_does_not_come_is_refused(decider: Slow) -> None:
    with serving(decider, timeout_s=0.2) as clients:
        assert status(clients.connect(ASKED[:-1])) == b"408"


def test_as_many_as_may_wait_are_answered_and_one_more_is_to_come_again(decider: Slow) -> None:
    decider.may.clear()
    with serving(decider, concurrency=64) as clients:
        asked = [clients.connect(ASKED) for _ in range(65)]
        refused = select.select(asked, [], [], GIVEN_UP_S)[0][0]
        head = refused.recv(4096).lower()
        assert head.startswith(b"http/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in head
        url = f"http://localhost:{clients.port}/metrics"
        assert b"meshwright_waiting_requests 64.0" in urllib.request.urlopen(url).read()
        decider.may.set()
        assert [status(one) for one in asked if one is not refused] == [b"200"] * 64
        assert status(clients.connect(ASKED)) == b"200"
