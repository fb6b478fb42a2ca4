"""Schedulers who see their own cell now and the others late, and how they choose one for a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled import cells as kernel
from agents.cluster.compiled.cells import SENT_WIDTH, SUMMARY_WIDTH, Cells
from agents.cluster.shipped import scheduler_folder
from envs.bounds import Count, NonNegative, bounded
from models.export.cells import read_cells
from models.layout import CONTEXTS, FEATURES, cell_shapes

ALL = 2**31  # candidates
Sends = Literal["none", "own", "all"]
COUNTED: Mapping[Sends, float] = MappingProxyType({"none": 0.0, "own": 1.0, "all": -1.0})


@runtime_checkable
class CellChoice(Protocol):
    """How a scheduler chooses a cell for a job."""

    def compiled(self) -> kernel.Choice:
        """For compiled code."""


@bounded
@dataclass(frozen=True)
class BySize:
    """At random, a cell in proportion to its GPUs.

    Args:
        speed: a GPU counts by its speed for the job.
    """

    speed: bool = True

    def compiled(self) -> kernel.Choice:
        return _choice(kernel.BY_SIZE, speed=self.speed)


@bounded
@dataclass(frozen=True)
class ShortestQueue:
    """The cell with the fewest jobs per GPU, of some that are drawn: JSQ(d).

    Source:
        Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12, 2001;
        with late views "How useful is old information?", IEEE TPDS 11, 2000.

    Args:
        candidates: how many cells are drawn for a job; None: all are.
        speed: a GPU counts by its speed for the job.
        sends: whose jobs that were sent there since the broadcast count: "none", the scheduler's
            "own", or "all", for which it takes as many of each as its own.
    """

    candidates: Count | None = 2
    speed: bool = False
    sends: Sends = "none"

    def compiled(self) -> kernel.Choice:
        return _choice(kernel.SHORTEST_QUEUE, self.candidates, self.speed, self.sends)


@bounded
@dataclass(frozen=True)
class LeastWork:
    """The cell with the fewest predicted GPU-seconds, waiting and left, per GPU.

    Args:
        candidates: how many cells are drawn for a job; None: all are.
        speed: a GPU counts by its speed for the job.
        sends: see `ShortestQueue`.
    """

    candidates: Count | None = None
    speed: bool = True
    sends: Sends = "own"

    def compiled(self) -> kernel.Choice:
        return _choice(kernel.LEAST_WORK, self.candidates, self.speed, self.sends)


@bounded
class LearnedCells:
    """A cell is drawn by the softmax of scores of 18 features: linear ones, or a network's beside.

    Args:
        path: a folder that `experiments.train task=cells` wrote, or a shipped scheduler's name.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = scheduler_folder(str(path))
        self.weights = read_cells(self.folder)

    def compiled(self) -> kernel.Choice:
        return of_weights(self.weights)


def of_weights(weights: Mapping[str, NDArray[np.floating]]) -> kernel.Choice:
    """For compiled code, of weights by name."""
    return _choice(kernel.LEARNED, weights=weights)


def _choice(
    rule: int,
    candidates: int | None = None,
    speed: bool = False,
    sends: Sends = "none",
    weights: Mapping[str, NDArray[np.floating]] = MappingProxyType({}),
) -> kernel.Choice:
    shapes = cell_shapes(0)
    found = {
        name: np.ascontiguousarray(weights.get(name, np.zeros(shape)), np.float64)
        for name, shape in shapes.items()
    }
    return kernel.Choice(
        rule, ALL if candidates is None else candidates, speed, COUNTED[sends], **found
    )


@bounded
@dataclass(frozen=True)
class LateViews:
    """Schedulers who see their own cell as it is, and all others as they were at a broadcast.

    A job comes to one of them, as `Partitioned.routing` says, who keeps it or sends it to another
    cell; there it stays, or may be sent on once after `Partitioned.forward_s`. Schedulers know of
    what is on its way to a cell only what they have sent there themselves. All broadcast at the
    first decision after `delay_s` have passed since the last broadcast.

    Source:
        Shared state that is late: Schwarzkopf, Konwinski, Abd-El-Malek, Wilkes, "Omega", EuroSys
        2013. Late views in load balancing: Tahir, Cui, Koeppl, "Learning Mean-Field Control for
        Delayed Information Load Balancing in Large Queuing Systems", ICPP 2022 (arXiv:2208.04777).

    Args:
        choice: how a cell is chosen.
        delay_s: seconds between broadcasts; 0: everybody sees everything as it is.
        seed: of what is drawn.
        delay_jobs: added to the delay: mean times between two submissions of the trace.
    """

    choice: CellChoice = LeastWork()
    delay_s: NonNegative = 0.0
    seed: int = 0
    delay_jobs: NonNegative = 0.0

    def cells(self, arrives: NDArray[np.integer], schedulers: int, span_s: float) -> Cells:
        """At the start of a simulation.

        Args:
            arrives: (J,) scheduler to whom every job comes.
            schedulers: how many there are.
            span_s: seconds between the first and the last submission.
        """
        jobs = len(arrives)
        draws = np.random.default_rng(self.seed).random((2, jobs, schedulers))
        return Cells(
            delay=self.delay_s + self.delay_jobs * span_s / max(jobs, 1),
            choice=self.choice.compiled(),
            arrives=arrives.astype(np.int64),
            draws=draws.clip(1e-12),
            drawn=np.zeros(schedulers),
            time=np.full(1, -np.inf),
            me=np.zeros(1, np.int64),
            now=np.zeros((schedulers, SUMMARY_WIDTH)),
            seen=np.zeros((schedulers, SUMMARY_WIDTH)),
            sent=np.zeros((schedulers, schedulers, SENT_WIDTH)),
            features=np.zeros((schedulers, FEATURES)),
            context=np.zeros(CONTEXTS),
            score=np.zeros(schedulers),
            allowed=np.zeros(schedulers, np.int8),
        )
