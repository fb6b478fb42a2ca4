"""Connections of a service: who says nothing for long, or holds too many, makes room for others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass
class ClusterLimits:
    """Of a cluster's scheduler: `agents.cluster.live.ClusterDecider`."""

    window: int
    most_actions: int
    most_nodes: int
    most_jobs: int


@dataclass
class PlacementLimits:
    """Of a placement policy: `agents.placement.live.PlacementDecider`."""

    most_operators: int
    most_devices: int


@dataclass
class DecisionLimits:
    """By what the policy decides on."""

    cluster: ClusterLimits
    placement: PlacementLimits


@dataclass(frozen=True)
class ConnectionLimits:
    """What a service bears.

    Attributes:
        most: connections that are open at once.
        most_of_peer: of them, from one address.
        headers_s: until the headers of a request are complete, from its first byte or, of the
            first request, from the connection's begin.
    """

    most: int
    most_of_peer: int
    headers_s: float


def protocol_within(limits: ConnectionLimits) -> type[H11Protocol]:
    """Uvicorn's protocol of one connection, within limits that all its connections share."""
    there: dict[H11Protocol, None] = {}  # the one that waits for its client longest first

    class Limited(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_headers()
            _make_room(there, self, limits)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._await_headers()
            else:
                self._end_deadline()

        def on_response_complete(self) -> None:
            if self in there:
                there[self] = there.pop(self)  # behind all others
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_deadline()
            there.pop(self, None)
            super().connection_lost(exc)

        def _await_headers(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(limits.headers_s, self.transport.abort)

        def _end_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Limited


def _make_room(there: dict[H11Protocol, None], new: H11Protocol, limits: ConnectionLimits) -> None:
    """Add a connection; above a limit the one that has waited longest for its client is ended."""
    peer = _peer(new)
    there[new] = None
    for those, most in (
        ([one for one in there if _peer(one) == peer], limits.most_of_peer),
        (list(there), limits.most),
    ):
        if len(those) > most:
            ended = next((one for one in those if _waits_for_client(one)), new)
            there.pop(ended, None)
            ended.transport.abort()


def _peer(connection: H11Protocol) -> Any:
    return connection.client and connection.client[0]


def _waits_for_client(connection: H11Protocol) -> bool:
    """Whether a connection has no request, or one that is not complete yet."""
    cycle = connection.cycle
    return cycle is None or cycle.response_complete or cycle.more_body
