"""What the backends have in common: a queue for each destination and NIC, and one for the rest."""

from __future__ import annotations

from dataclasses import dataclass

from agents.bandwidth.enforcement.routing import PolicyRouting
from envs.errors import InputError


@dataclass(frozen=True)
class Queues:
    """Settings of the queues.

    Args:
        routing: chooses the NIC of each connection.
        rest_share: of a NIC's capacity, the rate of what the plan does not name; it comes on top.
        burst_s: seconds; a queue may catch up on as much of its rate after a late timer.
        least_burst: bytes; and on as much at least: one segment as large as they get.

    Raises:
        InputError: naming the config key that is out of range.
    """

    routing: PolicyRouting
    rest_share: float
    burst_s: float
    least_burst: int

    def __post_init__(self) -> None:
        self.check("rest_share", self.rest_share, 0.0001, 1.0)
        self.check("burst_s", self.burst_s, 0.0, 1.0)
        self.check("least_burst", self.least_burst, 1600, 2**24)

    def burst(self, bits: int) -> int:
        """Bytes that a queue of `bits` bit/s may send at once."""
        return max(self.least_burst, int(bits / 8 * self.burst_s))

    @staticmethod
    def check(key: str, value: float, least: float, most: float) -> None:
        """Refuse a setting that no queue can have.

        Raises:
            InputError: `value` is outside of `least`..`most`.
        """
        if not least <= value <= most:
            raise InputError(f"config key '{key}': {value} is not in {least:g}..{most:g}")
