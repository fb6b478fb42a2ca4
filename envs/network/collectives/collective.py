"""`Collective`: one algorithm for one operation; `AlphaBeta`: the network of its closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from envs.errors import InputError
from envs.network.collectives.schedule import Operation, Schedule


@dataclass(frozen=True)
class AlphaBeta:
    """A homogeneous network: every rank has one full-duplex port to all others.

    A message of V bytes takes `latency + V / bandwidth` seconds (Hockney, The communication
    challenge for MPP: Intel Paragon and Meiko CS-2, Parallel Computing 20(3), 1994). Messages that
    leave or enter one rank at the same time share its port equally.
    """

    latency: float  # seconds
    bandwidth: float  # bytes/s, each way

    def seconds(self, size: float) -> float:
        """Seconds of one message of `size` bytes."""
        return self.latency + size / self.bandwidth


@runtime_checkable
class Collective(Protocol):
    """One algorithm for one operation."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def operation(self) -> Operation:
        """What it promises."""

    def schedule(self, participants: int) -> Schedule:
        """Its messages for n participants.

        Raises:
            InputError: n is not positive, or not a number the algorithm can serve.
        """

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """Seconds for vectors of `size` bytes on a homogeneous network: its closed form.

        Raises:
            InputError: as `schedule`.
        """


def checked_participants(participants: int) -> int:
    """The number itself.

    Raises:
        InputError: it is not positive.
    """
    if participants < 1:
        raise InputError(f"{participants} participants; there must be at least one")
    return participants
