"""How fast a job trains with its workers where they are: three published models.

Scaling is weak: every worker takes `batch` samples an iteration. `bandwidth` is what the job has
between machines, `inside` what it has where all of it is on one. Shapes: (M,) over machines.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from envs.arrays import IntArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.errors import InputError


@runtime_checkable
class SpeedModel(Protocol):
    """What a job's workers and parameter servers, on machines, make of a second."""

    @property
    def needs_servers(self) -> bool:
        """Whether it trains only with at least one parameter server."""

    def samples_per_s(
        self, workers: IntArray, servers: IntArray, bandwidth: float, inside: float
    ) -> float:
        """Samples per second; 0 without a worker, or without a server where one is needed."""

    def ends(self, workers: IntArray, servers: IntArray) -> IntArray:
        """(M,) how many times the job's reserved bandwidth is taken of each machine's NIC."""


def spanned(workers: IntArray, servers: IntArray) -> int:
    """On how many machines a job has something."""
    return int(np.count_nonzero(workers + servers))


@bounded
@dataclass(frozen=True)
class RingSpeed:
    """Ring all-reduce: `w batch / (compute + 2 (w - 1) / w m / b + overhead servers)`.

    A ring enters and leaves each of its machines once, so it takes one end of each NIC. b is
    that of its slowest edge.

    Source:
        Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009; with the overhead of
        GADGET (Yu et al., INFOCOM 2022), as far as its abstract tells.
    """

    batch: Count  # samples of one worker in one iteration
    compute: Positive  # seconds of one worker's forward and backward pass
    gradient: NonNegative  # bytes m
    overhead: NonNegative = 0.0  # seconds an iteration for each machine spanned

    needs_servers = False

    def samples_per_s(
        self, workers: IntArray, servers: IntArray, bandwidth: float, inside: float
    ) -> float:
        w, machines = int(workers.sum()), spanned(workers, servers)
        if w == 0:
            return 0.0
        rate = inside if machines == 1 else min(bandwidth, inside)
        passing = 2.0 * (w - 1) / w * self.gradient / rate
        return w * self.batch / (self.compute + passing + self.overhead * machines)

    def ends(self, workers: IntArray, servers: IntArray) -> IntArray:
        there = workers > 0
        return there.astype(np.int64) if there.sum() > 1 else np.zeros_like(workers)


class _Served(ABC):
    batch: int
    needs_servers = True

    @abstractmethod
    def seconds(self, most: float, rate: float) -> float:
        """Of an iteration: gradients of `most` workers, to a server and back, at bytes/s."""

    def samples_per_s(
        self, workers: IntArray, servers: IntArray, bandwidth: float, inside: float
    ) -> float:
        w, p = int(workers.sum()), int(servers.sum())
        if w == 0 or p == 0:
            return 0.0
        rate = inside if spanned(workers, servers) == 1 else min(bandwidth, inside)
        return w * self.batch / self.seconds(max(1.0, w / p), rate)

    def ends(self, workers: IntArray, servers: IntArray) -> IntArray:
        together = spanned(workers, servers) <= 1
        return np.zeros_like(workers) if together else workers + servers


@bounded
@dataclass(frozen=True)
class ParameterServerSpeed(_Served):
    """Parameter servers with locality: `w batch / (compute + 2 m max(1, w / p) / b)`.

    Each of p servers holds m / p and serves all w workers. b is the inner bandwidth where all
    workers and servers are on one machine (together), else the reserved one (apart): locality is
    all or nothing. Apart, each worker and each server has an end of its machine's NIC.

    Source:
        Reconstructed from the abstract of Yu et al., IEEE TNSE 2021 (arXiv 2108.02917).
    """

    batch: Count
    compute: Positive  # seconds
    gradient: NonNegative  # bytes m

    def seconds(self, most: float, rate: float) -> float:
        return self.compute + 2.0 * self.gradient * most / rate


@dataclass(frozen=True)
class LayeredSpeed(_Served):
    """Parameter servers whose layers are sent as soon as the backward pass has left them.

    Layers are sent one after another, the last first, while earlier ones are still computed; the
    next forward pass begins when the first layer is back. So an iteration takes
    `sum F + max over l of (B_L + ... + B_l + C_l + ... + C_1)`, with
    `C_l = 2 m_l max(1, w / p) / b`.

    Source:
        The wait-free backward pass of Poseidon (Zhang et al., USENIX ATC 2017), for the layered
        model that SMD's abstract names (Yu et al., INFOCOM 2021).
    """

    batch: int
    forward: tuple[float, ...]  # seconds of each layer, the first first
    backward: tuple[float, ...]
    gradient: tuple[float, ...]  # bytes of each layer

    def __post_init__(self) -> None:
        if not len(self.forward) == len(self.backward) == len(self.gradient) > 0:
            raise InputError("has not as many layers as 'gradient'", field="forward")
        if self.batch < 1 or min(*self.forward, *self.backward, *self.gradient, 0.0) < 0.0:
            raise InputError("is negative", field="forward")
        if not sum(self.forward) + sum(self.backward) > 0.0:
            raise InputError("takes no time", field="forward")

    def seconds(self, most: float, rate: float) -> float:
        passed = np.cumsum(self.backward[::-1])[::-1]  # until layer l has its gradient
        sent = np.cumsum(self.gradient) * 2.0 * most / rate  # from layer l to the first
        return sum(self.forward) + float((passed + sent).max())


@runtime_checkable
class Utility(Protocol):
    """Worth of a job. Neither argument makes it worth less by more work or by an earlier end."""

    @property
    def partial(self) -> bool:
        """Whether work counts that ends unfinished: `of` then, else `at`."""

    def at(self, slots: int) -> float:
        """Of a job that ends in the `slots`-th slot after its arrival, counted from 1."""

    def of(self, fraction: float) -> float:
        """Of a job of which a fraction in [0, 1] is done when its time is over; concave."""


class _ByCompletion:
    partial = False

    def of(self, fraction: float) -> float:
        raise NotImplementedError("this utility is of completion: use `at`")


@bounded
@dataclass(frozen=True)
class LinearUtility(_ByCompletion):
    """`weight max(0, 1 - (slots - 1) / patience)`."""

    weight: Positive
    patience: Positive  # slots

    def at(self, slots: int) -> float:
        return self.weight * max(0.0, 1.0 - (slots - 1) / self.patience)


@bounded
@dataclass(frozen=True)
class SigmoidUtility(_ByCompletion):
    """`weight / (1 + exp(steepness (slots - critical)))`.

    Source:
        Bao, Peng, Wu, Li, "Online job scheduling in distributed machine learning clusters",
        INFOCOM 2018: steepness 0 is a job that can wait, 4 to 6 one with a soft deadline.
    """

    weight: Positive
    steepness: NonNegative  # per slot
    critical: Positive  # slots

    def at(self, slots: int) -> float:
        return self.weight / (1.0 + math.exp(min(self.steepness * (slots - self.critical), 700.0)))


@bounded
@dataclass(frozen=True)
class LogUtility:
    """`weight log(1 + fraction / knee) / log(1 + 1 / knee)`: the first samples are worth most."""

    weight: Positive
    knee: Positive = 0.1

    partial = True

    def at(self, slots: int) -> float:
        return self.weight

    def of(self, fraction: float) -> float:
        return self.weight * math.log1p(fraction / self.knee) / math.log1p(1.0 / self.knee)
