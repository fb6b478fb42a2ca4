"""Rollout of a base scheduler over drawn futures, and a search for the best order in hindsight."""

from __future__ import annotations

import copy
from typing import Protocol, runtime_checkable

import numpy as np

from agents.cluster.backfilling import start
from agents.cluster.compiled.joint_choice import SHORTEST
from agents.cluster.hidden_durations import simulator_for
from agents.cluster.joint_choice import JointChoice
from agents.cluster.policy import Option, PartialGpuShares, PlacementRule, Scheduler, same_start
from agents.cluster.work_left import WorkLeft, futures_of
from agents.solver import Knowledge
from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError

HOLD = None  # an alternative: the base starts nothing before the next event


@runtime_checkable
class Continuing(Protocol):
    """A policy that says what it does next and might do else, and plays on in compiled code."""

    def choice(self, simulator: ClusterSimulator) -> Option | None:
        """What it starts next; None: nothing before the next event."""

    def options(self, simulator: ClusterSimulator, first: int) -> list[Option]:
        """Starts worth a thought, of about the `first` pending jobs."""

    def play_on(self, simulator: ClusterSimulator, *, hold: bool) -> None:
        """Decide from now, or with `hold` from the next event, to the end, on a copy of itself."""


@bounded
class Rollout(Scheduler):
    """Plays the alternatives of a decision on, under its base, over the same futures.

    A future is a draw, for every job that waits or runs, of the work that it has left; no job
    comes any more. Alternatives to what the base starts next are to start another of the first
    pending jobs, or the same elsewhere, and to hold: nothing starts before the next event. What an
    alternative saves in a future is the sum over the jobs of the seconds by which they finish
    earlier; a job that is not over after `horizon_s` counts as over then. The alternative with the
    greatest mean, less `sure` standard errors, is taken where that is above 0.

    A base that is `Continuing` is played on in compiled code. Any other is played on event by
    event, on copies of itself; its alternatives, the first pending jobs where its placement rule
    sends them, come before all that it decides at an event.

    Guarantees:
        None; on average over the futures drawn every decision is at least the base's.

    Source:
        Tesauro, Galperin, "On-line Policy Improvement using Monte-Carlo Search", NIPS 1996;
        Bertsekas, Castanon, "Rollout Algorithms for Stochastic Scheduling Problems", Journal of
        Heuristics 5, 1999.

    Raises:
        InputError: the base has neither options nor a placement rule.

    Args:
        base: the policy.
        posterior: what futures are drawn from; None: the future as it will be, for a bound on what
            looking ahead can bring; it knows durations then.
        first: pending jobs, of every scheduler, that alternatives start.
        futures: for each decision.
        sure: standard errors.
        horizon_s: seconds.
        seed: of the draws.
    """

    name = "rollout"
    memoryless = False

    def __init__(
        self,
        base: Scheduler,
        posterior: WorkLeft | None,
        first: Count = 6,
        futures: Count = 32,
        sure: NonNegative = 1.0,
        horizon_s: Positive = 400000.0,
        seed: int = 0,
    ) -> None:
        placement: PlacementRule | None = getattr(base, "placement", None)
        if placement is None and not isinstance(base, Continuing):
            message = f"{base.name} has no placement rule, nor other options"
            raise InputError(message, field="base")
        self.base, self.posterior, self.first = base, posterior, first
        self._placement = placement
        self.futures = 1 if posterior is None else futures
        self.sure, self.horizon_s, self.seed = sure, horizon_s, seed
        self.knows: Knowledge = "durations" if posterior is None else "predictions"

    def reset(self, simulator: ClusterSimulator) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._seen = simulator_for(self.base, simulator)
        self.base.reset(self._seen)
        if self.posterior is not None:
            self.posterior.reset(simulator)
        self.asked = self.changed = 0

    def wake(self, simulator: ClusterSimulator) -> float:
        return self.base.wake(self._seen)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Starts what the base would start next, or what pays more, one after the other."""
        simulator.settle()
        while len(simulator.pending()):
            usual = self.base.choice(self._seen) if isinstance(self.base, Continuing) else None
            options, chosen = self._options(simulator, usual), usual
            if options:
                self.asked += 1
                saved = self._saved(simulator, options)
                error = saved.std(axis=0, ddof=1) / np.sqrt(len(saved)) if len(saved) > 1 else 0.0
                worth = saved.mean(axis=0) - self.sure * error
                best = int(np.argmax(worth))
                if worth[best] > 0.0:
                    self.changed += 1
                    chosen = options[best]
                    if chosen is HOLD:
                        return
            if chosen is None:
                break
            start(simulator, *chosen)
        self.base.decide(self._seen)

    def _options(self, simulator: ClusterSimulator, usual: Option | None) -> list[Option | None]:
        """The alternatives to what the base starts next, if that is known."""
        found: list[Option | None] = []
        if isinstance(self.base, Continuing):
            for option in self.base.options(self._seen, self.first):
                if usual is None or not same_start(option, usual):
                    found.append(option)
            may_hold = usual is not None
        else:
            assert self._placement is not None
            for job in simulator.pending()[: self.first].tolist():
                shares = self._placement.place(self._seen, job, copy.deepcopy(self._rng))
                if shares is not None:
                    if not isinstance(shares, PartialGpuShares):
                        shares = PartialGpuShares(shares, [None] * len(shares))
                    found.append((job, shares))
            may_hold = bool(found)
        return [*found, HOLD] if may_hold and len(simulator.running()) else found

    def _saved(self, simulator: ClusterSimulator, options: list[Option | None]) -> FloatArray:
        """(F, A) seconds that each alternative saves in each future."""
        futures = futures_of(self.posterior, simulator, self.futures, self._rng)
        saved = np.empty((len(futures), len(options)))
        for row, future in zip(saved, futures, strict=True):
            usual = self._cost(future.copy(), hold=False)
            for column, option in enumerate(options):
                twin = future.copy()
                if option is not HOLD:
                    start(twin, *option)
                row[column] = usual - self._cost(twin, hold=option is HOLD)
        return saved

    def _cost(self, simulator: ClusterSimulator, *, hold: bool) -> float:
        """Seconds at which jobs finish, added up, when the base plays on."""
        until = simulator.now + self.horizon_s
        if isinstance(self.base, Continuing):
            self.base.play_on(simulator, hold=hold)
        else:
            base, seen = copy.deepcopy(self.base), simulator_for(self.base, simulator)
            if not hold:
                base.decide(seen)
            while not simulator.done and simulator.advance(base.wake(seen)):
                base.decide(seen)
        finish = simulator.state.jobs["finish"]
        over = np.where(finish >= 0.0, finish, until)
        return float(np.minimum(over, until).sum())


CHANGED = 0.1  # of the jobs whose keys change in a step, at most
STEPS = (0.1, 0.5, 2.0)  # standard deviations of the changes, in natural logarithms


@bounded
class Hindsight(Scheduler):
    """Knows what will come: it replays all of it under its base in many orders, and takes the best.

    A local search over a key for every job, by which the base orders them. It begins with the
    shortest job, that of the least GPU time, or the first to come, changes a few keys at a time,
    and keeps what is no worse. No policy, but a mark of what a better order could bring.

    Guarantees:
        On the base's places, its mean completion time is at most that of the three orders.

    Source:
        Own work.

    Args:
        base: the rule.
        replays: of the search.
        seed: of its changes.

    Raises:
        InputError: the base has a posterior of durations, or a priority.
    """

    name = "hindsight"
    memoryless = False
    knows: Knowledge = "durations"

    def __init__(self, base: JointChoice, replays: Count = 300, seed: int = 0) -> None:
        for field in ("posterior", "priority"):
            if getattr(base, field) is not None:
                raise InputError("is not asked: durations are known", field=f"base.{field}")
        base.rule = base.rule._replace(order=SHORTEST)
        self.base, self.replays, self.seed = base, replays, seed

    def reset(self, simulator: ClusterSimulator) -> None:
        self.base.reset(simulator)
        self.base.order_by(self._best_key(simulator))

    def decide(self, simulator: ClusterSimulator) -> None:
        self.base.decide(simulator)

    def run(self, simulator: ClusterSimulator) -> bool:
        self.reset(simulator)
        self.base.play_on(simulator, hold=True)
        return True

    def _best_key(self, simulator: ClusterSimulator) -> FloatArray:
        rng, trace = np.random.default_rng(self.seed), simulator.trace

        def cost(key: FloatArray) -> float:
            twin = simulator.copy()
            self.base.order_by(key)
            self.base.play_on(twin, hold=True)
            return float(twin.state.jobs["finish"].sum())

        work: FloatArray = np.maximum(trace.duration_s.astype(np.float64), 1.0)
        gpus, submit = np.maximum(trace.num_gpus, 1), 1.0 + trace.submit_s.astype(np.float64)
        starts: list[FloatArray] = [work, work * gpus, submit]
        least, best = min(((cost(key), key) for key in starts), key=lambda one: one[0])
        for _ in range(self.replays):
            count = int(rng.integers(1, max(int(CHANGED * len(best)), 1) + 1))
            jobs = rng.choice(len(best), count, replace=False)
            key: FloatArray = best.copy()
            key[jobs] *= np.exp(rng.choice(STEPS) * rng.normal(size=count))
            found = cost(key)
            if found <= least:
                least, best = found, key
        return best
