"""Fusion + MILP for hybrid plans: stages by a program over fused layers, then a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated

import numpy as np
from annotated_types import Ge

from agents.hybrid.alpa import Alpa
from agents.hybrid.dapple import Dapple
from agents.hybrid.machines import planned
from agents.hybrid.pipedream import PipeDream
from agents.hybrid.sharding import SBP
from agents.hybrid.spp import SPP
from agents.hybrid.stage_program import StageProgram, fused
from agents.pipeline.published import PUBLISHED
from agents.pipeline.zero_bubble import Memory, zero_bubble
from agents.solver import Budget, Result, Status
from agents.step.problems import HybridPlanner
from envs.arrays import sums_before
from envs.bounds import Count, bounded
from envs.compilation import clock
from envs.errors import InputError
from envs.hybrid.plan import HybridPlan, Stage, ordered, stage_bytes
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import pipeline_of, simulate
from envs.hybrid.timing import stage_seconds

_SEARCH = 0.5  # share of the budget by whose end the programs are solved
_START = 0.1  # share of the budget for each start
_SAME = 1e-9  # relative
_VAIN = 100  # neighbours in a row that are known, after which the search ends
_KEPT = 4  # plans from which the search goes on
_ZERO_BUBBLE_TASKS = 4096  # actions of an order, at most, that a search for less idle time is given
_TRIES = 200  # of that search


# Planners whose plans are offered first, by name.
STARTS: Mapping[str, HybridPlanner] = MappingProxyType({
    "pipedream": PipeDream(), "dapple": Dapple(), "alpa": Alpa(), "spp": SPP(), "sbp": SBP(),
})  # fmt: skip


@bounded
class FusedStages:
    """Divides fused layers into stages by MILP (HiGHS), then improves the plan in the simulator.

    0. *Starts.* Plans of other planners are offered first: the result is never slower than theirs.
    1. *Programs.* `StageProgram` over at most `groups` fused layers, for one stage at most, two,
       four, and so on: the number of stages decides how many micro-batches are held at once.
    2. *Orders.* Each plan is simulated in several orders: 1F1B, with twice its warm-up (early
       backward, Fan et al., PPoPP 2021), GPipe, interleaved, and with gradients of weights apart
       ZB-H1 and a search for less idle time within the memory.
    3. *Search.* The best plans are changed: a boundary moves, a stage is recomputed or not, divided
       or joined to the next, replicas become shards, devices come, go, or move to a neighbour. What
       is faster in simulation stays; where no change helps, a few random ones lead away, until the
       budget ends.

    The plan returned is the fastest in simulation that fits.

    Guarantees:
        Never slower than the plans of `starts`. Each program's stages are the best of its model,
        within `gap`, where its time was enough.

    Source:
        Own work.

    Args:
        groups: fused layers of the programs, at most.
        starts: planners whose plans are offered first, by name.
        gap: relative, at which HiGHS ends.
        seed: of HiGHS and of the search.
    """

    solves = (HybridProblem,)

    def __init__(
        self,
        *,
        groups: Count = 12,
        starts: Mapping[str, HybridPlanner] | None = STARTS,
        gap: Annotated[float, Ge(0.0)] = 0.01,
        seed: int = 0,
    ) -> None:
        self.groups = groups
        self.starts = dict(starts or {})
        self.gap = gap
        self.seed = seed

    def solve(
        self, problem: HybridProblem, budget: Budget, start: Sequence[HybridPlan] = ()
    ) -> Result[HybridPlan]:
        """As `agents.solver.Solver.solve`; `Budget.evaluations` counts simulations."""
        budget_s = budget.seconds
        search = _Search(problem, budget)
        quick = replace(budget, seconds=_START * budget_s)
        quick_plans = (planner.solve(problem, quick).solution for planner in self.starts.values())
        for found in (*start, *quick_plans):
            if found is not None:
                search.offer(found)
                search.reorder(found.stages)
        program = StageProgram(problem, fused(problem, self.groups))
        counts = [2**k for k in range(min(problem.num_devices, self.groups).bit_length())]
        for number, most in enumerate(counts):
            share = _SEARCH * (number + 1) / len(counts)
            left = share * budget_s - search.seconds
            if left <= 0:
                continue
            columns = program.solve(most, max(left, 0.1), self.seed, self.gap)
            if columns:
                search.reorder(program.placed(columns))
        search.improve(np.random.default_rng(self.seed))
        return search.result()


class _Search:
    """The plans found so far, the fastest first."""

    def __init__(self, problem: HybridProblem, budget: Budget) -> None:
        self.problem = problem
        self.best: list[tuple[float, HybridPlan]] = []
        self.simulations = 0
        self._done = sums_before(problem.work())  # (L + 1, D) seconds
        self._begin, self._budget = clock(), budget
        self._seen: dict[tuple[tuple[Stage, ...], str], float] = {}
        self._orders = ["1f1b", "early_backward", "gpipe", *["zb_h1"] * problem.splits_backward]

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return clock() - self._begin

    def over(self) -> bool:
        """Whether the budget is used."""
        return self._budget.spent(self.seconds, self.simulations)

    def offer(self, plan: HybridPlan) -> float:
        """Seconds of a plan, inf where it does not fit; it is kept where it is good."""
        if plan.violations(self.problem):
            return np.inf
        self.simulations += 1
        seconds = simulate(self.problem, plan).step_time
        self.best.append((seconds, plan))
        self.best.sort(key=lambda one: one[0])
        del self.best[_KEPT:]
        return seconds

    def reorder(
        self, stages: Sequence[Stage], only: str | None = None, below: float = np.inf
    ) -> tuple[float, str]:
        """Offer these stages in every order, or in `only` one; the least seconds, by which.

        In every order they are divided among their devices in turns, too. What cannot come below
        `below` is not simulated: inf.
        """
        if np.isfinite(below) and self._least(stages) >= below:
            return np.inf, only or ""
        groups = len({stage.devices for stage in stages})
        variants = [tuple(stages)]
        if only is None and groups == len(stages) and groups > 1:
            variants += [t for t in (self._turns(tuple(stages), v) for v in (2, 3)) if t]
        least, by = np.inf, only or ""
        for divided in variants:
            chunks = len(divided) // groups
            for name in self._orders if chunks == 1 else ["interleaved"]:
                if only not in {None, name} or (self.over() and self.best):
                    continue
                if (divided, name) not in self._seen:
                    self._seen[divided, name] = self._ordered(divided, name)
                known = self._seen[divided, name]
                if chunks == 1 and known < least:
                    least, by = known, name
        return least, by

    def improve(self, rng: np.random.Generator) -> None:
        """Descend from the plans that are kept, then from random neighbours of the best."""
        for _, plan in list(self.best):
            self._descend(plan.stages, rng)
        vain = 0
        while self.best and vain < _VAIN and not self.over() and not self._optimal:
            stages, known = self.best[0][1].stages, len(self._seen)
            for _ in range(int(rng.integers(2, 4))):
                changes = list(self._changes(stages))
                if not changes:
                    return
                stages = changes[int(rng.integers(len(changes)))]
            self._descend(stages, rng)
            vain = 0 if len(self._seen) > known else vain + 1

    def _descend(self, stages: tuple[Stage, ...], rng: np.random.Generator) -> None:
        """Change stages, in random order, as long as that makes them faster."""
        seconds, order = self.reorder(stages)
        better = np.isfinite(seconds)
        while better and not self.over() and not self._optimal:
            better = False
            changes = list(self._changes(stages))
            for number in rng.permutation(len(changes)).tolist():
                found, _ = self.reorder(changes[number], order, seconds)
                if found < seconds:
                    stages, better = changes[number], True
                    seconds, order = self.reorder(stages)
                    break

    def _least(self, stages: Sequence[Stage]) -> float:
        """Seconds no order can beat: a stage's work, and a micro-batch's way there and back."""
        filling = longest = 0.0
        for stage in stages:
            own = stage_seconds(self.problem, stage)
            longest = max(longest, filling + self.problem.micro_batches * float(own.passes.max()))
            filling += float((own.forward + own.input_gradient).min())
        return longest

    def _ordered(self, stages: tuple[Stage, ...], name: str) -> float:
        """Seconds of stages in an order; inf: not in this one."""
        try:
            plan = ordered(stages, self.problem.micro_batches, PUBLISHED[name])
        except InputError:  # micro-batches that do not go into rounds
            return np.inf
        seconds = self.offer(plan)
        if name == "zb_h1" and plan in [one for _, one in self.best]:
            self._fill(plan)
        return seconds

    @property
    def _optimal(self) -> bool:
        """Whether nothing can be faster."""
        return bool(self.best) and self.best[0][0] <= self.problem.bound() * (1.0 + _SAME)

    def result(self) -> Result[HybridPlan]:
        """The fastest plan."""
        bound, count = self.problem.bound(), self.simulations
        if not self.best:
            reason = "no plan that was tried fits the memory of the devices"
            return Result(None, "limit", np.inf, self.seconds, bound, count, reason)
        seconds, plan = self.best[0]
        status: Status = "optimal" if self._optimal else "feasible"
        found = planned(plan, seconds, count)
        return replace(found, status=status, value=seconds, seconds=self.seconds, bound=bound)

    def _fill(self, plan: HybridPlan) -> None:
        """Search for less idle time, where every rank may hold what its devices have room for."""
        actions = sum(len(order) for order in plan.orders)
        if actions > _ZERO_BUBBLE_TASKS or len(set(plan.rank)) < len(plan.rank):
            return
        problem, kept = self.problem, []
        for stage in plan.stages:
            state, saved = stage_bytes(problem, stage)
            room = problem.capacity[list(stage.devices)].min() - state
            if stage.recompute or room <= 0:
                return
            kept.append(saved * float(stage.share.max()) / room)
        nothing = (0.0,) * len(kept)
        memory = Memory(tuple(kept), nothing, tuple(-k for k in kept), 1.0)
        found = zero_bubble(pipeline_of(problem, plan), memory, plan.orders, _TRIES, 0, 1.0)
        self.offer(replace(plan, orders=found))

    def _turns(self, stages: tuple[Stage, ...], chunks: int) -> tuple[Stage, ...] | None:
        """The layers in `chunks` times as many stages, groups of devices taking turns."""
        if self.problem.num_layers < chunks * len(stages):
            return None
        even = {(len(s.devices), s.shards, s.recompute) for s in stages}
        if len(even) > 1 or any(stage.shares is not None for stage in stages):
            return None
        work, count = self._done[1:, stages[0].devices[0]], chunks * len(stages)
        ends = np.searchsorted(work, work[-1] * np.arange(1, count) / count) + 1
        ends = np.minimum(ends, len(work) - np.arange(count - 1, 0, -1))
        borders = [0, *ends.tolist(), len(work)]
        if any(b <= a for a, b in pairwise(borders)):
            return None
        return tuple(
            replace(stages[k % len(stages)], first=a, end=b)
            for k, (a, b) in enumerate(pairwise(borders))
        )

    def _changes(self, stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
        """Plans one change away."""
        used = {device for stage in stages for device in stage.devices}
        free = [d for d in range(self.problem.num_devices) if d not in used]
        for k, stage in enumerate(stages):
            before, after, group = stages[:k], stages[k + 1 :], stage.devices
            changed = [replace(stage, recompute=not stage.recompute)]
            if stage.shares is not None:
                changed.append(replace(stage, shares=None))
            changed += [
                self._balanced(replace(stage, shards=shards))
                for shards in self.problem.sharding
                if shards != stage.shards and len(group) % shards == 0
            ]
            changed += [self._with_devices(stage, (*group, d)) for d in free if stage.shards == 1]
            if stage.replicas > 1:
                changed.append(self._with_devices(stage, group[: -stage.shards]))
            yield from ((*before, one, *after) for one in changed)
            half = len(group) // 2 // stage.shards * stage.shards
            done = self._done[:, group[0]]  # half of the stage's work when layer `middle` begins
            middle = int(np.searchsorted(done, (done[stage.first] + done[stage.end]) / 2))
            if half and stage.first < middle < stage.end:
                first = self._with_devices(replace(stage, end=middle), group[:half])
                second = self._with_devices(replace(stage, first=middle), group[half:])
                yield (*before, first, second, *after)
        for k, (a, b) in enumerate(pairwise(stages)):
            before, after = stages[:k], stages[k + 2 :]
            for step in (-4, -2, -1, 1, 2, 4):
                if a.first < a.end + step < b.end:
                    yield (*before, replace(a, end=a.end + step),
                           replace(b, first=b.first + step), *after)  # fmt: skip
            joined = replace(a, end=b.end)
            yield (*before, self._with_devices(joined, a.devices + b.devices), *after)
            yield (*before, replace(b, first=a.first, end=a.end),
                   replace(a, first=b.first, end=b.end), *after)  # fmt: skip
            if a.shards == b.shards:
                for own, other in ((a, b), (b, a)):
                    cut = len(own.devices) - own.shards
                    if cut == 0:
                        continue
                    less = self._with_devices(own, own.devices[:cut])
                    more = self._with_devices(other, other.devices + own.devices[cut:])
                    yield (*before, *((less, more) if own is a else (more, less)), *after)

    def _with_devices(self, stage: Stage, devices: tuple[int, ...]) -> Stage:
        """The stage on other devices, of which each gets what it can do."""
        shards = stage.shards if len(devices) % stage.shards == 0 else 1
        return self._balanced(replace(stage, devices=devices, shards=shards))

    def _balanced(self, stage: Stage) -> Stage:
        """With shares for which all replicas compute equally long; None where equal ones do."""
        seconds = (self._done[stage.end] - self._done[stage.first])[list(stage.devices)]
        if seconds.max() - seconds.min() <= _SAME * seconds.max():
            return replace(stage, shares=None)
        speed = 1.0 / seconds.reshape(stage.replicas, stage.shards).max(axis=1)
        share = speed / speed.sum()
        share[-1] = 1.0 - share[:-1].sum()
        return replace(stage, shares=tuple(share.tolist()))
