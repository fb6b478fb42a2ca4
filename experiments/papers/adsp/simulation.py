"""Training in virtual time: workers step and commit, a server applies commits as they come."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive, bounded

Heterogeneity = Annotated[float, Ge(1.0), Lt(1e6)]


@bounded
@dataclass(frozen=True)
class Workers:
    """Seconds of each of n workers; policies know all but how long the next step takes.

    Attributes:
        step_s: (n,) mean time of a local step, a gradient of one batch.
        push_s, pull_s: (n,) delay of an update to the server, of parameters from it.
        jitter: standard deviation of a step's time over its mean; times have a gamma distribution.
    """

    step_s: Annotated[FloatArray, Gt(0.0)]
    push_s: Annotated[FloatArray, Ge(0.0)]
    pull_s: Annotated[FloatArray, Ge(0.0)]
    jitter: NonNegative = 0.0


@bounded
def spread_workers(
    count: Count, heterogeneity: Heterogeneity, step_s: Positive, push_s: NonNegative,
    pull_s: NonNegative, jitter: NonNegative = 0.0,
) -> Workers:  # fmt: skip
    """Speeds evenly spaced, the fastest `heterogeneity` times the slowest; equal delays.

    Their mean is 1 / `step_s`: at every heterogeneity all workers together make as many steps in a
    second, if none of them waits.
    """
    speed = np.linspace(1.0, heterogeneity if count > 1 else 1.0, count)
    same = np.ones(count)
    return Workers(step_s * speed.mean() / speed, push_s * same, pull_s * same, jitter)


Parameters = NDArray[np.float32]
_STEP, _COMMIT, _EVALUATE = range(3)
DIVERGED = 4.0  # times the first loss


class Trainable(Protocol):
    """What is trained: real steps of stochastic gradient descent, and the loss."""

    def start(self) -> Parameters:
        """The first parameters (P,)."""

    def step(self, rows: Parameters, worker: IntArray, count: IntArray, rate: float) -> None:
        """One step of each row (k, P) in place; row i takes batch `count[i]` of `worker[i]`."""

    def loss(self, parameters: Parameters) -> float:
        """The loss of parameters (P,), on what all policies are judged by."""


class Policy(Protocol):
    """When workers commit, and who waits for whom; `begin` forgets the last run.

    A worker steps on when it has made at most `ahead` commits more than the slowest.
    """

    ahead: float

    def begin(self, workers: Workers, target: float) -> None: ...

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        """Whether a worker commits after `steps` local ones; `made` (n,) commits by all so far."""

    def observe(self, now: float, loss: float, made: IntArray) -> None:
        """The server's loss at an evaluation, the first at 0; costs no virtual time."""


class Event(NamedTuple):
    """A pull, or a commit of `steps` (> 0) local steps, `staleness` others after its pull."""

    time: float
    worker: int
    steps: int = 0
    staleness: int = 0


@dataclass
class Training:
    """One run: evaluations, events as the server saw them, and when it reached the target.

    `parameters` (P,) are the server's at the end, `reached` is inf if the target was not.
    """

    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reached: float = math.inf
    parameters: Parameters = field(default_factory=lambda: np.zeros(0, np.float32))


def train(
    model: Trainable, workers: Workers, policy: Policy, *, rate: float, target: float,
    evaluate_s: float, smooth: int, horizon_s: float, seed: int,
) -> Training:  # fmt: skip
    """Train until the loss is at most `target`, or time is up.

    The loss is evaluated every `evaluate_s`; the mean of the last `smooth` values is what counts,
    so that no policy is there because its loss jumps about. A run also ends when its loss is
    `DIVERGED` times the first, or not a number.

    A worker pulls, makes local steps at learning rate `rate`, and commits the difference; the
    server adds 1/n of it. What happens at the same time happens by worker, evaluations last.
    """
    clock = _Clock(model, workers, policy, rate, seed)
    run, n = clock.run, len(workers.step_s)
    policy.begin(workers, target)
    clock.heap.append((0.0, n, _EVALUATE))
    while True:
        now, worker, kind = heapq.heappop(clock.heap)
        if kind != _EVALUATE:
            (clock.step if kind == _STEP else clock.commit)(now, worker)
            continue
        loss = model.loss(clock.server)
        run.times.append(now)
        run.losses.append(loss)
        if len(run.losses) >= smooth and sum(run.losses[-smooth:]) <= smooth * target:
            run.reached = now
        if run.reached <= now or now >= horizon_s or not loss < DIVERGED * run.losses[0]:
            run.parameters = clock.server
            return run
        policy.observe(now, loss, clock.made)
        heapq.heappush(clock.heap, (len(run.times) * evaluate_s, n, _EVALUATE))
        if now == 0.0:
            clock.release(now)


class _Clock:
    """Workers and server of one run.

    Steps are computed late, all that have begun at once: they depend on nothing that comes between.
    """

    def __init__(
        self, model: Trainable, workers: Workers, policy: Policy, rate: float, seed: int
    ) -> None:
        n = len(workers.step_s)
        self._model, self._workers, self._policy, self._rate = model, workers, policy, rate
        self.run = Training()
        self.heap: list[tuple[float, int, int]] = []
        self.server = model.start()
        self._base, self._local = np.tile(self.server, (n, 1)), np.tile(self.server, (n, 1))
        self.made, self._pulled, self._since, self._taken = np.zeros((4, n), np.int64)
        self._pending, self._waiting = np.zeros(n, bool), np.ones(n, bool)
        self._share = np.float32(1.0 / n)
        self._rngs = [np.random.default_rng([seed, w]) for w in range(n)]

    def step(self, now: float, w: int) -> None:
        if self._pending[w]:
            ready = np.flatnonzero(self._pending)
            rows = self._local[ready]
            self._model.step(rows, ready, self._taken[ready], self._rate)
            self._local[ready] = rows
            self._taken[ready] += 1
            self._pending[:] = False
        self._since[w] += 1
        if self._policy.commits(w, int(self._since[w]), now, self.made):
            heapq.heappush(self.heap, (now + float(self._workers.push_s[w]), w, _COMMIT))
        else:
            self._begin(now, w)

    def commit(self, now: float, w: int) -> None:
        # in this order one worker's commit leaves exactly its own parameters
        rest = self.server - self._share * self._base[w]
        self.server = rest + self._share * self._local[w]
        late = int(self.made.sum() - self._pulled[w])
        self.run.events.append(Event(now, w, int(self._since[w]), late))
        self.made[w] += 1
        self._waiting[w] = True
        self.release(now)

    def release(self, now: float) -> None:
        """Whoever waits and may step on pulls, by worker; the first parameters are there at 0."""
        allowed = self._waiting & (self.made - self.made.min() <= self._policy.ahead)
        self._waiting &= ~allowed
        total = int(self.made.sum())
        for w in np.flatnonzero(allowed).tolist():
            self._base[w], self._local[w] = self.server, self.server
            self._pulled[w], self._since[w] = total, 0
            self.run.events.append(Event(now, w))
            self._begin(now + (float(self._workers.pull_s[w]) if total else 0.0), w)

    def _begin(self, now: float, w: int) -> None:
        self._pending[w] = True
        seconds, jitter = float(self._workers.step_s[w]), self._workers.jitter
        if jitter > 0.0:
            shape = jitter**-2
            seconds = float(seconds * self._rngs[w].gamma(shape, 1.0 / shape))
        heapq.heappush(self.heap, (now + seconds, w, _STEP))


def violations(run: Training, workers: Workers, ahead: float) -> list[str]:
    """What is wrong with the events of a run: their order, their delays, or who was ahead."""
    found = []
    made = np.zeros(len(workers.step_s), np.int64)
    pulled, last = [(0.0, 0)] * len(made), 0.0
    for time, w, steps, staleness in run.events:
        if time < last:
            found.append(f"time runs back to {time}")
        if steps:
            since, seen = pulled[w]
            if staleness != made.sum() - seen:
                found.append(f"worker {w} at {time}: {staleness} is not its staleness")
            least = workers.push_s[w] + (workers.pull_s[w] if seen else 0.0)
            least += 0.0 if workers.jitter else steps * workers.step_s[w]
            if time < since + least - 1e-9 * time:
                found.append(f"worker {w} at {time}: {steps} steps took less than {least} s")
            made[w] += 1
        else:
            if made[w] - made.min() > ahead:
                found.append(f"worker {w} at {time}: more than {ahead} commits ahead")
            pulled[w] = (time, int(made.sum()))
        last = time
    return found


def staleness(run: Training) -> IntArray:
    """How many commits came 0, 1, 2, ... others after their worker's pull."""
    return np.bincount([event.staleness for event in run.events if event.steps])
