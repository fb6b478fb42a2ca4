"""Training in virtual time: workers step and commit, a server applies commits as they come."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Lt

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive, bounded
from experiments.papers.adsp.characters import CharacterModel, Parameters

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


class Policy:
    """When workers commit, and which wait for which; `begin` forgets the last run.

    A worker steps on when it has made at most `ahead` commits more than the slowest.
    """

    ahead: float = 0.0
    chosen: Sequence[tuple[float, int]] = ()  # time and rate of every change, if any

    def begin(self, workers: Workers, target: float) -> None: ...

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        """Whether a worker commits after `steps` local ones; `made` (n,) commits by all so far."""
        raise NotImplementedError

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

    parameters: Parameters
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reached: float = math.inf


_STEP, _COMMIT, _EVALUATE = range(3)
DIVERGED = 4.0  # times the first loss


def train(  # noqa: PLR0915  the loop over events is one
    model: CharacterModel, workers: Workers, policy: Policy, *, rate: float, target: float,
    evaluate_s: float, smooth: int, horizon_s: float, seed: int,
) -> Training:  # fmt: skip
    """Train until the loss is at most `target`, or time is up.

    The loss is evaluated every `evaluate_s`; the mean of the last `smooth` values counts, so that
    no policy is there because its loss varies much. A run also ends when its loss is `DIVERGED`
    times the first, or not a number.

    A worker pulls, makes local steps at learning rate `rate`, and commits the difference; the
    server adds 1/n of it. What happens at the same time happens by worker, evaluations last.
    Steps are computed late, all that have begun at once: they depend on nothing that comes between.
    """
    n, run = len(workers.step_s), Training(model.start())
    base, local = np.tile(run.parameters, (2, n, 1))
    made, pulled, since, taken = np.zeros((4, n), np.int64)
    pending, waiting = np.zeros(n, bool), np.ones(n, bool)
    share = np.float32(1.0 / n)
    rngs = [np.random.default_rng([seed, w]) for w in range(n)]
    queue = [(0.0, n, _EVALUATE)]

    def begin(now: float, w: int) -> None:
        pending[w] = True
        seconds = float(workers.step_s[w])
        if workers.jitter > 0.0:
            shape = workers.jitter**-2
            seconds *= rngs[w].gamma(shape, 1.0 / shape)
        heapq.heappush(queue, (now + seconds, w, _STEP))

    def release(now: float) -> None:
        """All that wait and may step on pull, by worker; the first parameters are there at 0."""
        allowed = waiting & (made - made.min() <= policy.ahead)
        waiting[allowed] = False
        total = int(made.sum())
        for w in np.flatnonzero(allowed).tolist():
            base[w] = local[w] = run.parameters
            pulled[w], since[w] = total, 0
            run.events.append(Event(now, w))
            begin(now + (float(workers.pull_s[w]) if total else 0.0), w)

    policy.begin(workers, target)
    while True:
        now, w, kind = heapq.heappop(queue)
        if kind == _STEP:
            if pending[w]:
                rows = local[pending]
                model.step(rows, np.flatnonzero(pending), taken[pending], rate)
                local[pending] = rows
                taken[pending] += 1
                pending[:] = False
            since[w] += 1
            if policy.commits(w, int(since[w]), now, made):
                heapq.heappush(queue, (now + float(workers.push_s[w]), w, _COMMIT))
            else:
                begin(now, w)
        elif kind == _COMMIT:
            # in this order one worker's commit leaves exactly its own parameters
            run.parameters = run.parameters - share * base[w] + share * local[w]
            run.events.append(Event(now, w, int(since[w]), int(made.sum() - pulled[w])))
            made[w] += 1
            waiting[w] = True
            release(now)
        else:
            loss = model.loss(run.parameters)
            run.times.append(now)
            run.losses.append(loss)
            if len(run.losses) >= smooth and sum(run.losses[-smooth:]) <= smooth * target:
                run.reached = now
            if run.reached <= now or now >= horizon_s or not loss < DIVERGED * run.losses[0]:
                return run
            policy.observe(now, loss, made)
            heapq.heappush(queue, (len(run.times) * evaluate_s, n, _EVALUATE))
            if now == 0.0:
                release(now)


def violations(run: Training, workers: Workers, ahead: float) -> list[str]:
    """What is wrong with the events of a run: order, delays, or a worker too far ahead."""
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
