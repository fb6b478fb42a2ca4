"""What a service is given: address, limits, who may ask."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from envs.files import read_content

SHORTEST_TOKEN = 16  # characters


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


@bounded
@dataclass(kw_only=True)
class ServeConfig:
    """`conf/serve.yaml`."""

    # a shipped policy, or the folder of an exported policy of clusters or of placement
    checkpoint: str = "unknown_durations"
    # address it listens at; others than those of this machine need token_file
    host: str = "127.0.0.1"
    port: Annotated[int, Gt(-1), Le(65_535)] = 8000  # 0: any that is free
    # file with the token that every request must bear (Authorization: Bearer ...); null:
    # none, on this machine alone
    token_file: str | None = None
    # further names of this service in requests (Host), such as that of a proxy; others are
    # refused with 421
    hosts: Sequence[str] = ()
    # open at once; of more, the one that waits for its client longest is closed
    connections: Count = 768
    connections_per_peer: Count = 384  # of them, from one address
    # seconds for the headers of a request to arrive; then the connection is closed
    headers_s: Positive = 5.0
    max_body_bytes: Count = 1048576  # of a request; more is refused with 413
    # requests that wait for a decision at once; more are refused with 503 and Retry-After
    concurrency: Count = 256
    timeout_s: Positive = 10.0  # seconds for a body to arrive (408), and for its decision (503)
    limits: DecisionLimits
    seed: int
    json: bool


def read_token(file: str | None, host: str) -> str | None:
    """The token in the first line of a file.

    Raises:
        InputError: there is none although others than this machine can reach `host`, the file
            cannot be read or its token is too short.
    """
    if file is None:
        if is_loopback(host):
            return None
        reason = f"{host} can be reached from outside: name a file that holds a token"
        raise InputError(reason, file="config key 'token_file'")
    token = read_content(file).decode("latin-1").strip()
    if not re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},}}", token):
        raise InputError(f"is no token of {SHORTEST_TOKEN} ASCII characters or more", file=file)
    return token


def require_hosts(names: Sequence[str]) -> None:
    """Raise InputError where one is no name or address of a host."""
    for name in names:
        if not re.fullmatch(r"[\w.-]+|[\da-fA-F.]*(:[\da-fA-F.]*){2,}", name):  # or IPv6
            reason = f"{name!r} is no name of a host (no scheme, no port)"
            raise InputError(reason, file="config key 'hosts'")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
