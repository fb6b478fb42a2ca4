"""The problem of synchronisation: the fastest plan that sums a vector over a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from envs.synchronisation.plan import SynchronisationPlan, VectorSum
from envs.synchronisation.playing import seconds_of


@dataclass(frozen=True, eq=False)
class SynchronisationProblem(VectorSum):
    """Vectors of `size` bytes, one for each participant of `network`.

    `size` is that of the whole vector: of all-gather what every rank holds at the end, of
    reduce-scatter what it holds at the beginning. *Algorithm bandwidth* is `size` over the seconds.

    Knows:
        Every link's capacity and latency, who takes part, who forwards, and who can add. It decides
        the trees, what share of the vector each carries, and the size of chunks.

    Args:
        blocks: which blocks of its vector each rank has that are not all zero; None: all.

    Raises:
        InputError: `size` is not positive and finite.
    """

    objective: ClassVar[str] = "time_s"
    sense: ClassVar[Literal["min"]] = "min"

    def price(self, plan: SynchronisationPlan) -> dict[str, float]:
        """What a plan takes by its own model where it has one, else as it is played."""
        return {self.objective: seconds_of(self, plan)}

    def violations(self, plan: SynchronisationPlan) -> list[str]:
        """What is wrong with a plan, a sentence each."""
        return plan.violations(self)

    def bound(self) -> None:
        """Solvers bring their own."""
