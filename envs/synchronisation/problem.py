"""`SynchronisationProblem`: whose vectors of how many bytes end where, over which links."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from envs.arrays import BoolArray
from envs.errors import InputError
from envs.synchronisation.link_graph import LinkGraph

if TYPE_CHECKING:
    from envs.synchronisation.plan import SynchronisationPlan


class Primitive(Enum):
    """What is promised to the n participants, ranks 0 to n - 1."""

    ALL_REDUCE = "all_reduce"  # every rank holds the sum of all vectors
    REDUCE_SCATTER = "reduce_scatter"  # rank i holds block i of n of the sum
    ALL_GATHER = "all_gather"  # every rank holds block i of rank i, for all i

    @property
    def reduces(self) -> bool:
        """Whether vectors are added."""
        return self is not Primitive.ALL_GATHER

    @property
    def broadcasts(self) -> bool:
        """Whether results go to all."""
        return self is not Primitive.REDUCE_SCATTER


@dataclass(frozen=True, eq=False)
class SynchronisationProblem:
    """Vectors of `size` bytes, one for each participant of `network`.

    `size` is that of the whole vector: of all-gather what every rank holds at the end, of
    reduce-scatter what it holds at the beginning. *Algorithm bandwidth* is `size` over the seconds.

    Knows:
        Every link's capacity and latency, who takes part, who forwards, and who can add. It decides
        the trees, what share of the vector each carries, and the size of chunks.

    Args:
        blocks: which blocks of its vector each rank has that are not all zero; None: all.

    Raises:
        InputError: `size` is not positive and finite; `blocks` has not one row for each
            participant.
    """

    objective: ClassVar[str] = "time_s"
    sense: ClassVar[Literal["min"]] = "min"

    network: LinkGraph
    size: float  # bytes
    primitive: Primitive = Primitive.ALL_REDUCE
    blocks: BoolArray | None = None  # (n, B)

    def __post_init__(self) -> None:
        if not 0.0 < self.size < np.inf:
            raise InputError(f"a vector of {self.size} bytes", field="size")
        if self.blocks is not None and (
            self.blocks.ndim != 2 or len(self.blocks) != len(self.network.participants)
        ):
            raise InputError("has not one row for each participant", field="blocks")

    def price(self, plan: SynchronisationPlan) -> dict[str, float]:
        """What a plan takes by its own model where it has one, else as it is played."""
        from envs.synchronisation.playing import seconds_of

        return {self.objective: seconds_of(self, plan)}

    def violations(self, plan: SynchronisationPlan) -> list[str]:
        """What is wrong with a plan, a sentence each."""
        return plan.violations(self)

    def bound(self) -> None:
        """Solvers bring their own."""

    def block_of(self, rank: int) -> tuple[Fraction, Fraction]:
        """First and end, as shares of the vector, of the block that is `rank`'s own."""
        n = len(self.network.participants)
        return Fraction(rank, n), Fraction(rank + 1, n)
