"""A placement policy as a planner: trained once, it answers for steps and devices of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from agents.placement.integer_program.refinement import Descent, compile_kernels
from agents.placement.list_planners import Heft
from agents.placement.local_search import LocalSearch
from agents.placement.shipped import placer_folder
from agents.solver import Budget
from agents.step.fitting import Fitting
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent, StepSolver
from agents.step.problems import StepPlanning
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Share, bounded
from envs.errors import InputError
from envs.placement import sweeps
from envs.placement.episodes import GroupPricer
from envs.placement.generator import toy_pipeline
from envs.placement.whole import GIVEN, STARTS, PlacementFacts
from envs.step.price import Price
from envs.step.problem import StepProblem
from models.export.placer import OnnxPlacer
from models.step.decoding import Encoded, compose, views_of

_OFFERED = 12  # plans that are played on all operators until one fits
_FITTING_S = 1.0  # seconds that fitting has at least
_HANDED = 4  # plans that the search may start from
_CRAMPED = 1.1  # step time over the least priced, fit or not, from which HEFT may be faster
_CLOSER = 2  # plans that a round goes on from, that are priced in all orders and descend


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class LearnedPlanner(StepSolver):
    """Plans with an exported placement policy, then searches on from what it found.

    The step is fused; the policy reads the groups and the devices and composes several plans
    without a simulation, the first greedily, each from a split of its own. The compiled simulator
    prices plans and splits on the groups. In further rounds the policy goes over the best of them
    again; at the end the likeliest moves away from the best are simulated, and kept where they
    gain. The best plan is played on all operators, in all orders where its own takes longer there
    than on groups. Where none fits, the policy is asked again with less room (`Fitting`). Where
    memory makes the step a tenth longer and no search follows, HEFT plans, too, which may put the
    passes of a group on different devices. A search goes on until the budget is spent: where memory
    does not bind, the best plans first descend through finer groups by moves that are all simulated
    (`Descent`); then local search starts from them.

    Guarantees:
        With a search never slower than the best single device that holds the step; without one,
        none.

    Source:
        Placement by a policy for any graph: Addanki et al., "Placeto: Learning Generalizable
        Device Placement Algorithms for Distributed Machine Learning", NeurIPS 2019; Zhou et al.,
        "GDP: Generalized Device Placement for Dataflow Graphs", 2019. The policy is our own.

    Args:
        checkpoint: the policy's folder, or the name of a shipped one (`agents.placement.shipped`).
            None: no policy; all moves are as likely.
        groups: groups of the fused graph, at most.
        samples: plans composed in a round; the first is greedy.
        starts: where they begin in turn, numbers of `envs.placement.whole.PlacementFacts.starts`.
        rounds: the first from the starts, each further one from the best plans until then.
        moves: of one group each, by the policy's chances, that are simulated at the end.
        temperature: of the last sample; those of the others rise evenly to it.
        search: what goes on from them; None: nothing does.
        levels: groups through which the best plans descend before; empty: they do not.
        descent: share of the budget, at most, for that.
        seed: of the random numbers.

    Raises:
        InputError: the folder is no placement policy's; without one, no split is among `starts`.
    """

    checkpoint: str | None = "any_step"
    groups: Count = 64
    samples: Count = 8
    starts: Sequence[Annotated[int, Ge(0), Lt(STARTS)]] = (4, 1, 5, 6, 7, 0, 2, 3)
    rounds: Count = 4
    moves: Annotated[int, Ge(0)] = 300
    temperature: NonNegative = 4.0
    search: LocalSearch | None = LocalSearch(hot=0.005)
    levels: Sequence[Count] = (16, 24, 32, 48, 64, 128, 256, 512)
    descent: Share = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if self.network is None and not any(self.starts):
            raise InputError("without a policy nothing is planned from nothing", field="starts")

    @cached_property
    def network(self) -> OnnxPlacer | None:
        """The policy."""
        return None if self.checkpoint is None else OnnxPlacer(placer_folder(self.checkpoint))

    def compile(self, problem: StepProblem) -> None:
        if self.search is None:
            Heft().compile(problem)
        elif self.levels:
            _compile()

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """What the policy composes needs no budget.

        `Budget.evaluations` counts the search's proposed moves.
        """
        grouped = GroupedProblem.of(incumbent.problem, self.groups)
        answer = Answer(self, grouped)
        plans, evaluations = answer.best_first()
        answer.fit(incumbent, plans, budget)
        if self.search is not None and (budget.evaluations or incumbent.seconds < budget.seconds):
            placements = [grouped.fusion.expand(device) for device in plans[:_HANDED]]
            if self.levels and not answer.binds:
                share = 1.0 if budget.evaluations else self.descent
                until = incumbent.seconds + share * (budget.seconds - incumbent.seconds)
                descent = Descent(incumbent, levels=tuple(self.levels), seed=self.seed)
                for device in placements[:_CLOSER]:
                    descent.descend(device, until)
                evaluations += descent.simulations
            evaluations += self.search.improve(incumbent, budget, placements)
        elif self.search is None and answer.cramped(incumbent.step_time):
            began = incumbent.seconds
            left = replace(budget, seconds=max(budget.seconds - began, _FITTING_S))
            incumbent.adopt(Heft().solve(StepPlanning(incumbent.problem), left), began)
        incumbent.evaluations += evaluations
        return ""


class Answer:
    """What the policy says of one problem."""

    def __init__(self, planner: LearnedPlanner, grouped: GroupedProblem) -> None:
        self.planner, self.grouped = planner, grouped
        self.facts = PlacementFacts.of(grouped.problem, grouped.fusion)
        self.pricer = GroupPricer(grouped.problem, grouped.fusion)
        self.random = np.random.default_rng(planner.seed)
        self.given = sweeps.boards([self.facts])
        self.encoded: Encoded | None = None
        if planner.network is not None:
            self.encoded = planner.network.encode(views_of([self.facts]))
        able = self.facts.able.astype(np.float64)
        self.chances: FloatArray = able / np.maximum(able.sum(axis=1, keepdims=True), 1.0)  # (G, D)
        self.priced: dict[bytes, Price] = {}  # the best of every plan, by its devices

    @property
    def binds(self) -> bool:
        """Whether memory rules out the fastest of all plans priced."""
        return min(self.priced.values(), key=lambda price: price.seconds).excess > 0.0

    def cramped(self, step_time: float) -> bool:
        """Whether a plan that need not fit is much faster."""
        return step_time > _CRAMPED * min(price.seconds for price in self.priced.values())

    def best_first(self) -> tuple[list[IntArray], int]:
        """Different devices (G,) of the groups: those that fit, the fastest, first.

        All are priced in the order the policy chose for them, the best of them in all orders. And
        how many plans were priced.
        """
        planner = self.planner
        start = np.resize(planner.starts, planner.samples)
        stands = self.facts.starts[start]
        for number in np.unique(start[start > 0]):
            likely = None if self.encoded is None else int(np.argmax(self.encoded.order[0, number]))
            self._price(np.ascontiguousarray(self.facts.starts[number]), likely)
        for _ in range(planner.rounds):
            if self.encoded is not None:
                for device, order in zip(*self._composed(self.given, start, stands), strict=True):
                    self._price(device, int(order))
            best = self._ranked()[:_CLOSER]
            start = np.full(planner.samples, GIVEN)
            stands = np.stack([best[k % len(best)] for k in range(planner.samples)])
        for device in best:
            self._price(device, None)
        judged = len(self.priced) + self._look_ahead(self._ranked()[0])
        return self._ranked(), judged

    def fit(self, incumbent: StepIncumbent, plans: list[IntArray], budget: Budget) -> None:
        """Offer the plans until one fits; where none does, others in less room (`Fitting`)."""
        for device in plans[:_OFFERED]:
            placed, price = self.grouped.fusion.expand(device), self.priced[device.tobytes()]
            order = incumbent.pricer.price(placed, (price.rule,)).order
            fits = not incumbent.offer(placed, order).any()
            if not fits or incumbent.step_time > price.seconds:  # another order may be better
                fits |= not incumbent.offer(placed).any()
            if fits:
                return
        until = max(budget.seconds, incumbent.seconds + _FITTING_S)
        fitting = Fitting(incumbent, replace(budget, seconds=until))
        fitting.run(self.grouped, self.with_less_room)
        fitting.insist()

    def with_less_room(
        self, grouped: GroupedProblem, room: FloatArray
    ) -> tuple[IntArray, None] | None:
        """An `Attempt`: of new samples the one with the least state beyond `room` (D,)."""
        if self.encoded is None:
            return None
        share = np.maximum(room, 0.0) / np.maximum(grouped.problem.capacity, 1.0)
        shrunk = self.given._replace(capacity=np.maximum(self.given.capacity * share, 1e-9))
        start = np.resize(self.planner.starts, self.planner.samples)
        devices, _ = self._composed(shrunk, start, self.facts.starts[start])
        held = [np.bincount(device, grouped.state, len(room)) for device in devices]
        over = [np.maximum(own - room, 0.0).sum() for own in held]
        best = int(np.argmin(over))
        return (devices[best], None) if over[best] <= 0.0 else None

    def _price(self, device: IntArray, order: int | None) -> None:
        price, key = self.pricer.price(device, order), device.tobytes()
        if key not in self.priced or price.rank < self.priced[key].rank:
            self.priced[key] = price

    def _ranked(self) -> list[IntArray]:
        ranked = sorted(self.priced, key=lambda key: self.priced[key].rank)
        return [np.frombuffer(key, dtype=np.int64) for key in ranked]

    def _look_ahead(self, device: IntArray) -> int:
        """Simulate moves of one group each from (G,) devices, and keep those that gain.

        The likeliest by the policy's chances, one after another. Returns how many.
        """
        now, rule = device.copy(), (self.priced[device.tobytes()].rule,)
        least, chance = self.priced[device.tobytes()], self.chances.copy()
        chance[np.arange(len(now)), now] = 0.0
        open_moves = self.random.permutation(np.argwhere(chance > 0.0))
        likely = np.argsort(-chance[tuple(open_moves.T)], kind="stable")[: self.planner.moves]
        for group, where in open_moves[likely]:
            before, now[group] = now[group], where
            price = self.pricer.under(now, rule)
            if price.rank < least.rank:
                least = price
            else:
                now[group] = before
        self.priced.setdefault(now.tobytes(), least)
        return len(likely)

    def _composed(
        self, given: sweeps.Boards, start: IntArray, stands: IntArray
    ) -> tuple[IntArray, IntArray]:
        """(S, G) devices and (S,) order classes, from (S, G) devices that groups stand at."""
        planner, groups = self.planner, self.facts.num_groups
        assert planner.network is not None
        assert self.encoded is not None
        heat = np.linspace(0.0, planner.temperature, planner.samples)
        found = compose(
            planner.network, self.encoded, given, np.zeros(len(heat), np.int64), start, stands,
            planner.network.sweeps, heat, self.random,
        )  # fmt: skip
        self.chances = found.chances.mean(axis=0).astype(np.float64)
        return np.ascontiguousarray(found.actions[:, -1 - groups : -1]), found.actions[:, -1]


@cache
def _compile() -> None:
    """Have the kernels of descents compiled, once on a machine, before the clock starts."""
    compile_kernels(toy_pipeline())
