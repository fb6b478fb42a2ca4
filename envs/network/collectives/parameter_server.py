"""All-reduce over parameter servers: gradients pushed to servers, sums pulled from them.

Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.errors import InputError
from envs.network.collectives.collective import AlphaBeta, checked_participants
from envs.network.collectives.schedule import Message, Operation, Schedule, freeze


@dataclass(frozen=True)
class ParameterServer:
    """Two rounds: every participant pushes shard j of k to server j, then pulls its sum.

    Server j is rank n + j. Whether a server has a machine of its own is a matter of where its rank
    is put: a rank on a participant's device exchanges with that participant for nothing.

    Args:
        servers: k, the number of equal shards.

    Raises:
        InputError: `servers` is not positive.
    """

    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise InputError(f"{self.servers} is not positive", field="servers")

    @property
    def name(self) -> str:
        """`parameter server`, and the number of servers."""
        return f"parameter server x{self.servers}"

    @property
    def operation(self) -> Operation:
        """All-reduce."""
        return Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        """k chunks, ranks 0 to n + k - 1; nothing for one participant."""
        n, k = checked_participants(participants), self.servers
        if n == 1:
            return Schedule(1, 1 + k, k, ())
        push = [Message(w, n + j, j, j + 1, True) for w in range(n) for j in range(k)]
        pull = [Message(n + j, w, j, j + 1, False) for w in range(n) for j in range(k)]
        return Schedule(n, n + k, k, freeze([push, pull]))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """2 (latency + max(n / k, 1) S / B), each server with a port of its own."""
        n = checked_participants(participants)
        if n == 1:
            return 0.0
        return 2 * link.seconds(max(n / self.servers, 1.0) * size)
