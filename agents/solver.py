"""Problems, solvers and policies: what is to be decided, and every way of deciding it.

Heuristic, exact, learned and exported solvers have one form, and so have all results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)  # fmt: skip

from envs.compilation import clock

Status = Literal["optimal", "feasible", "infeasible", "limit"]
Sense = Literal["min", "max"]
Knowledge = Literal["nothing", "predictions", "durations"]

Asked_contra = TypeVar("Asked_contra", contravariant=True)
Found_co = TypeVar("Found_co", covariant=True)
State_contra = TypeVar("State_contra", contravariant=True)


class Problem(Protocol):
    """What is to be decided, judged by simulators and checkers that no solver has made."""

    objective: ClassVar[str]  # the metric of `price` that counts
    sense: ClassVar[Sense]

    def price(self, solution: Any) -> Mapping[str, float]:
        """The metrics of a solution by name."""

    def violations(self, solution: Any) -> Sequence[str]:
        """What is wrong with a solution, a sentence each; empty: feasible."""

    def bound(self) -> float | None:
        """That no solution beats, known before any search; None: nothing is known."""


@dataclass(frozen=True)
class Budget:
    """What a search may use."""

    seconds: float = inf  # of wall time
    evaluations: int | None = None  # in a solver's own units, so that runs agree on all machines
    seed: int | None = None  # of what is drawn; None: the solver's own

    def spent(self, seconds: float, evaluations: int) -> bool:
        """Whether a search that has used this much is at its end."""
        most = inf if self.evaluations is None else self.evaluations
        return seconds >= self.seconds or evaluations >= most


UNLIMITED = Budget()


@dataclass(frozen=True)
class Result(Generic[Found_co]):
    """What a solver found.

    `bound` is proved for every solution of the problem: no objective is less, or more where the
    most is sought; 0 claims nothing (inf, where the most is sought), and inf proves that there is
    no solution of least objective.
    """

    solution: Found_co | None
    status: Status
    value: float = nan  # the objective of the solution, as the problem prices it; nan: not asked
    seconds: float = 0.0  # wall time of the search
    bound: float = 0.0
    evaluations: int = 0  # simulations made
    reason: str = ""  # why, when infeasible or stopped by a limit
    history: Sequence[tuple[float, float]] = ()  # seconds since the start, best value so far
    figures: Mapping[str, float] = field(default_factory=dict)  # what the solver says, by name


@runtime_checkable
class Solver(Protocol[Asked_contra, Found_co]):
    """Finds solutions of the kinds of problem that it `solves`."""

    @property
    def solves(self) -> tuple[type, ...]:
        """Classes of problems; an attribute of the class."""

    def solve(
        self, problem: Asked_contra, budget: Budget, start: Sequence[Any] = ()
    ) -> Result[Found_co]:
        """The best solution found within `budget`, where it can from the solutions in `start`."""


class Policy(Protocol[State_contra]):
    """The online form: decides again and again.

    `knows` says what it may look at of a job that has not finished. "nothing": who submitted it,
    its gang, its profile and what it has executed, never `work`, `remaining` or `end`;
    "predictions": the same, and it predicts durations from jobs that have finished; "durations":
    everything.
    """

    knows: Knowledge

    def decide(self, state: State_contra) -> Any:
        """What is to be done now."""


class DirectSolver(ABC, Generic[Asked_contra, Found_co]):
    """A solver that makes its solution from the problem alone, in one go."""

    solves: ClassVar[tuple[type, ...]]

    @abstractmethod
    def _solve(self, problem: Asked_contra, budget: Budget) -> Result[Found_co]:
        """The result but for its seconds."""

    def solve(
        self, problem: Asked_contra, budget: Budget = UNLIMITED, start: Sequence[Any] = ()
    ) -> Result[Found_co]:
        """As `Solver.solve`."""
        begin = clock()
        found = self._solve(problem, budget)
        return replace(found, seconds=clock() - begin)
