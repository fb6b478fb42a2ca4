"""The process around the service: its address, its token, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from threadpoolctl import threadpool_limits

from envs.errors import InputError
from envs.files import read_content
from experiments.serving.connections import ConnectionLimits, protocol_within
from experiments.serving.service import Service

SHORTEST_TOKEN = 16  # characters
SWITCH_S = 0.001  # after which a decision lets the thread that talks to clients go on
SHUTDOWN_S = 1  # for requests that are being answered
ACCEPTED_AT_ONCE = 128  # connections, before any is looked at


def read_token(file: str | None, host: str) -> str | None:
    """The token in the first line of a file.

    Raises:
        InputError: there is none although others than this machine can reach `host`, the file
            cannot be read or its token is too short.
    """
    if file is None:
        if is_loopback(host):
            return None
        told = f"{host} can be reached from outside: name a file that holds a token"
        raise InputError(told, file="config key 'token_file'")
    try:
        token = read_content(file).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise InputError(f"cannot be read ({error})", file=file) from error
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise InputError(f"is no token of {SHORTEST_TOKEN} characters or more", file=file)
    return token


def read_hosts(names: Sequence[str], host: str) -> frozenset[str]:
    """Names of the service in requests: those told, and where it listens.

    Raises:
        InputError: one is no name or address of a host.
    """
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name) and _address(name) is None:
            told = f"{name!r} is no name of a host (no scheme, no port)"
            raise InputError(told, file="config key 'hosts'")
    return frozenset(name.lower() for name in (*names, host))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    found = _address(host)
    return host == "localhost" if found is None else found.is_loopback


def listening(host: str, port: int) -> socket.socket:
    """A socket at the address.

    Raises:
        InputError: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=512)
        # Connections inherit it; without, an answer's last part waits 40 ms for the client's word.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(
            f"{host}:{port} cannot be listened at, give another port=... ({error})"
        ) from error


class _Server(uvicorn.Server):
    """Ends on a signal and then goes on behind `run`, in place of raising the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


def server_of(service: Service, limits: ConnectionLimits) -> uvicorn.Server:
    """What talks to clients; `should_exit` ends it."""
    config = uvicorn.Config(
        service.app,
        http=protocol_within(limits),
        ws="none",
        access_log=False,
        log_level="warning",
        lifespan="off",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )
    return _Server(config)


def serve(
    service: Service, limits: ConnectionLimits, at: socket.socket, ready: Callable[[str], None]
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; those that are being answered still are.

    Args:
        service: already warm.
        limits: of its connections.
        at: where it listens.
        ready: told the address.
    """
    server = server_of(service, limits)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what is there now stays: collections need not look at it
    host, port = at.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    before = signal.getsignal(signal.SIGINT)
    try:
        with threadpool_limits(1, "blas"):  # further threads spin between decisions, on a core each
            asyncio.run(server.serve(sockets=[at]))
    finally:
        signal.signal(signal.SIGINT, before)
        service.close()
        at.close()
