"""The process around the service: its address, its connections, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.h11_impl import H11Protocol

from envs.errors import InputError
from experiments.serving.service import Service
from experiments.serving.settings import ServeConfig

SWITCH_S = 0.001  # after which a decision lets the thread of the event loop go on
SHUTDOWN_S = 1  # for requests that are being answered
ACCEPTED_AT_ONCE = 128  # connections, before any is looked at


def listening(host: str, port: int) -> socket.socket:
    """A socket at the address.

    Raises:
        InputError: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = f"{host}:{port} cannot be listened at, give another port=... ({error})"
        raise InputError(reason) from error
    # Connections inherit it; without, an answer's last part waits 40 ms for an acknowledgement.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def protocol_within(config: ServeConfig) -> type[H11Protocol]:
    """Uvicorn's protocol of one connection, within limits that all its connections share."""
    opened: dict[Limited, None] = {}  # the one that waits for its client longest first

    class Limited(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Above a limit, the connection that has waited longest for its client is ended."""
            super().connection_made(transport)
            self._await_headers()
            self.peer = self.client and self.client[0]
            opened[self] = None
            of_peer = [one for one in opened if one.peer == self.peer]
            for most, those in (config.connections_per_peer, of_peer), (config.connections, opened):
                if len(those) > most:
                    ended = next(filter(Limited.waits_for_client, those), self)
                    del opened[ended]
                    ended.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._has_request():
                self._deadline.cancel()
            elif self._deadline.cancelled():
                self._await_headers()

        def on_response_complete(self) -> None:
            if self in opened:
                opened[self] = opened.pop(self)  # behind all others
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            opened.pop(self, None)
            super().connection_lost(exc)

        def waits_for_client(self) -> bool:
            return not self._has_request() or self.cycle.more_body

        def _has_request(self) -> bool:
            """Whether the headers of a request are complete, and its answer is not."""
            return self.cycle is not None and not self.cycle.response_complete

        def _await_headers(self) -> None:
            self._deadline = self.loop.call_later(config.headers_s, self.transport.abort)

    return Limited


class _Server(uvicorn.Server):
    """Ends on a signal and then goes on behind `run`, in place of raising the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


def server_of(service: Service) -> uvicorn.Server:
    """What talks to clients; `should_exit` ends it."""
    config = uvicorn.Config(
        service.app,
        http=protocol_within(service.config),
        ws="none",
        access_log=False,
        log_level="warning",
        lifespan="off",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )
    return _Server(config)


def serve(service: Service, at: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or Ctrl-C; those that are being answered still are.

    Args:
        service: of a decider that is warm.
        at: where it listens.
        ready: is given the URL.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what is there now stays: collections need not look at it
    host, port = at.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    try:
        with threadpool_limits(1, "blas"):  # further threads spin between decisions, on a core each
            asyncio.run(server_of(service).serve(sockets=[at]))
    finally:
        service.close()
