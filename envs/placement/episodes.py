"""Placement problems as episodes of one action: a plan is a row of tokens, and has a price."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError
from envs.graphs.contraction import Fusion
from envs.placement.whole import GIVEN, STARTS, PlacementFacts, WholeLayout
from envs.step.fusion import fuse, fused_problem
from envs.step.order import Rule
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem

ORDER_CLASSES: dict[str, Rule] = {  # that a policy chooses from
    "one_f_one_b": Rule.ONE_F_ONE_B,
    "interleaved": Rule.INTERLEAVED,
    "zb_h1": Rule.WINDOW_S,
    "zb_h2": Rule.WINDOW_2S,
    "deferred": Rule.DEFERRED,
    "critical": Rule.CRITICAL,
}


def order_class(rule: Rule) -> int:
    """The number of the class that comes closest to `rule`."""
    near = {
        Rule.GPIPE: Rule.INTERLEAVED, Rule.WINDOW_MORE: Rule.WINDOW_S, Rule.READY: Rule.DEFERRED,
        Rule.WINDOW_HALF: Rule.WINDOW_S, Rule.WINDOW_ONE: Rule.ONE_F_ONE_B,
    }  # fmt: skip
    return list(ORDER_CLASSES.values()).index(near.get(rule, rule))


class GroupPricer:
    """Prices devices of the groups of `fusion`, on its pieces `fused`. One per thread."""

    def __init__(self, fused: StepProblem, fusion: Fusion) -> None:
        self.fusion, self.pricer = fusion, Pricer(fused)
        allowed = self.pricer.rules
        self.rules: tuple[tuple[Rule, ...], ...] = tuple(
            (rule,) if rule in allowed else allowed for rule in ORDER_CLASSES.values()
        )
        capacity = fused.capacity[np.isfinite(fused.capacity)]
        self.room = float(capacity.sum()) if len(capacity) else np.inf  # bytes

    def price(self, device: IntArray, order: int | None = None) -> Price:
        """Of (G,) devices in the order of class `order`; by default the best that is allowed.

        That is also what counts where the class is not allowed.
        """
        return self.under(device, () if order is None else self.rules[order])

    def under(self, device: IntArray, rules: tuple[Rule, ...]) -> Price:
        """Of (G,) devices in the best of the orders of `rules`."""
        return self.pricer.price(self.fusion.expand_pieces(device), rules)

    def excess(self, price: Price) -> float:
        """The bytes that do not fit, as a share of all memory."""
        return price.excess / self.room


INF = float("inf")
_EVALUATION = 1 << 40  # numbers of the problems of evaluations, beyond all seeds
_ATTEMPTS = 100  # draws of a problem that fits the layout
_BY_SPEED = 4  # the start that is a split by speed
_AGAIN = 5  # turns from a plan made before, beside one from each of the starts
_WORST = 20.0  # times the reference that a reward tells apart


class Judged(NamedTuple):
    """What a plan came to."""

    reward: float
    outcome: float  # less is better; inf: it failed
    seconds: float  # inf: it does not fit
    ratio: float  # seconds / the problem's reference, whether it fits or not
    device: IntArray | None = None  # (G,) if it is to be kept; None: plans do not compare
    step_time: float = INF  # seconds of what is kept, simulated on every operator


class Tokens(NamedTuple):
    """Of a plan: a device for every group in every sweep, padded, and the order class."""

    sweeps: int
    groups: int  # at most
    devices: int  # at most

    @property
    def space(self) -> spaces.MultiDiscrete:
        """Of all rows of tokens."""
        sizes = [self.devices] * (self.sweeps * self.groups)
        return spaces.MultiDiscrete([*sizes, len(ORDER_CLASSES)])

    def plan(self, row: IntArray, groups: int) -> tuple[IntArray, int]:
        """(G,) devices after the last sweep, and the order class."""
        first = (self.sweeps - 1) * self.groups
        return np.asarray(row[first : first + groups], np.int64), int(row[-1])

    def row(self, device: IntArray, order: int) -> IntArray:
        """(A,) of a plan that every sweep makes the same."""
        sweep = np.zeros(self.groups, np.int64)
        sweep[: len(device)] = device
        return np.append(np.tile(sweep, self.sweeps), order)


@dataclass
class Met:
    """The best of some plans: the least beyond memory, then the fastest."""

    rank: tuple[float, float] = (INF, INF)
    device: IntArray | None = None  # (G,)

    def offer(self, price: Price, device: IntArray) -> None:
        if price.rank < self.rank:
            self.rank, self.device = price.rank, device

    @classmethod
    def of(cls, kept: list[Any]) -> Self:
        """What `kept` was taken of."""
        (excess, seconds), device = kept
        return cls((excess, seconds), None if device is None else np.array(device, np.int64))

    def kept(self) -> list[Any]:
        """As JSON takes it."""
        return [self.rank, None if self.device is None else self.device.tolist()]


class PlanSource:
    """Where whole problems come from: what all of one source have in common.

    Args:
        layout: of observations.
        sweeps: of a plan.
        unfit: nats that a plan costs which does not fit.
    """

    labelled, measured = False, False

    def __init__(self, layout: WholeLayout, sweeps: int, unfit: float) -> None:
        self.layout, self.unfit = layout, unfit
        self.tokens = Tokens(sweeps, layout.groups, layout.devices)
        self.observation_space, self.action_space = layout.space(), self.tokens.space


class WholeProblem:
    """A fused problem whose groups are all placed at once.

    A reward is minus the logarithm of the seconds relative to the reference; a plan that does not
    fit costs `unfit`, and the bytes beyond memory as a share of it, on top. An outcome is the ratio
    that stands for the reward.

    Args:
        number: of the problem; equal problems have equal ones.
        fused: of the pieces of `fusion`.
        fusion: the groups.
        source: where it comes from.
        reference_s: seconds; None: of the better of a split by speed and the fastest device.

    Raises:
        InputError: it does not fit the layout.
    """

    taught: IntArray | None = None  # (A,) tokens of a teacher's plan
    start = 0  # which of `PlacementFacts.starts` its groups stand at, or `GIVEN`
    stands: IntArray | None = None  # (G,) devices of a given start

    def __init__(
        self,
        number: int,
        fused: StepProblem,
        fusion: Fusion,
        source: PlanSource,
        reference_s: float | None = None,
    ) -> None:
        self.number, self.fused, self.fusion, self.source = number, fused, fusion, source
        self.tokens, self._reference_s, self.met = source.tokens, reference_s, Met()
        self.facts = PlacementFacts.of(fused, fusion)
        source.layout.check(self.facts)

    @property
    def observation(self) -> dict[str, NDArray[Any]]:
        """What a policy sees of it: fresh arrays."""
        return self.source.layout.observe(self.facts, self.number, self.start, self.stands)

    def at(self, start: int, stands: IntArray | None = None) -> Self:
        """The same problem at another start; where it is given, at devices `stands` (G,)."""
        _ = self.pricer  # which both share
        other = copy.copy(self)
        other.start, other.stands = start, stands
        return other

    def again(self, turn: int) -> Self:
        """Met anew: at a start in turn, or at the best plan of the last time."""
        turn %= STARTS + _AGAIN
        last, self.met = self.met.device, Met()
        return self.at(turn % STARTS) if turn < STARTS or last is None else self.at(GIVEN, last)

    @cached_property
    def pricer(self) -> GroupPricer:
        """Of its plans."""
        return GroupPricer(self.fused, self.fusion)

    @property
    def reference_s(self) -> float:
        """Seconds that those of plans are divided by."""
        return self._simple[1] if self._reference_s is None else self._reference_s

    @property
    def expert_action(self) -> IntArray:
        """(A,) tokens of the plan that plans are measured by: the expert's, or a simple one."""
        return self._simple[0] if self.taught is None else self.taught

    @cached_property
    def _simple(self) -> tuple[IntArray, float]:
        """Tokens and seconds of a plan without any search."""
        facts = self.facts
        split = np.ascontiguousarray(facts.starts[_BY_SPEED])
        alone = np.full(facts.num_groups, facts.seconds.sum(axis=0).argmin())
        priced = [(self.pricer.price(device), device) for device in (split, alone)]
        price, device = min(priced, key=lambda pair: pair[0].rank)
        seconds = price.seconds if np.isfinite(price.seconds) else facts.ideal_s
        return self.tokens.row(device, order_class(price.rule)), seconds

    def judge(self, action: IntArray) -> Judged:
        """What the plan that (A,) tokens stand for comes to."""
        device, order = self.tokens.plan(action, self.fusion.num_groups)
        price = self.pricer.price(device, order)
        self.met.offer(price, device)
        return self.judged(price)

    def judged(self, price: Price) -> Judged:
        """What a plan of this price comes to."""
        ratio = price.seconds / self.reference_s
        reward, fits = -float(np.log(min(ratio, _WORST))), price.excess <= 0.0 and ratio < np.inf
        if not fits:
            reward -= self.source.unfit + self.pricer.excess(price)
        return Judged(reward, float(np.exp(-reward)), price.seconds if fits else INF, ratio)


@bounded
class DrawnProblems(PlanSource):
    """Problems from a distribution; those of evaluations are drawn apart, without a curriculum.

    Args:
        problems: draws a fused problem by a generator and the stage of the curriculum, 0 to 1.
        layout: of observations; a problem that does not fit is drawn again.
        sweeps: of a plan.
        unfit: nats that a plan costs which does not fit.
        kept: problems that are met again and again; None: every one is met once.
    """

    measured = True

    def __init__(
        self,
        problems: Callable[[np.random.Generator, float], StepProblem],
        *,
        layout: WholeLayout = WholeLayout(),
        sweeps: int,
        unfit: NonNegative = 2.0,
        kept: Count | None = 2500,
    ) -> None:
        super().__init__(layout, sweeps, unfit)
        self.problems, self.kept = problems, kept
        self._known: dict[int, WholeProblem] = {}
        self._left: dict[int, Met] = {}  # of problems that are not known again since `load`
        self._stage = 1.0

    def draw(self, seed: int, stage: float) -> WholeProblem:
        """A problem to train on."""
        if self.kept is None:
            return self._drawn(seed, np.random.default_rng(seed), stage).at(seed % STARTS)
        number, stage = seed % self.kept, round(stage, 1)
        if self._stage != stage:
            self._known, self._left, self._stage = {}, {}, stage
        if number not in self._known:
            known = self._drawn(number, np.random.default_rng(number), stage)
            known.met, self._known[number] = self._left.pop(number, known.met), known
        return self._known[number].again(seed // self.kept)

    def evaluation(self, number: int) -> WholeProblem:
        """The problem of the evaluation's episode with this number."""
        found = self._drawn(_EVALUATION + number, np.random.default_rng([number, _EVALUATION]), 1.0)
        return found.at(number % STARTS)

    def state(self) -> dict[str, Any]:
        """The best plans of problems that are met again, for a checkpoint."""
        met = self._left | {number: one.met for number, one in self._known.items()}
        kept = [[number, *one.kept()] for number, one in met.items() if one.device is not None]
        return {"stage": self._stage, "met": kept}

    def load(self, numbers: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._known, self._stage = {}, numbers["stage"]
        self._left = {number: Met.of(kept) for number, *kept in numbers["met"]}

    def _drawn(self, number: int, random: np.random.Generator, stage: float) -> WholeProblem:
        refused: InputError | None = None
        for _ in range(_ATTEMPTS):
            fused = self.problems(random, stage)
            try:
                return self.whole(number, fused)
            except InputError as error:
                refused = error
        assert refused is not None
        raise refused

    def whole(self, number: int, fused: StepProblem) -> WholeProblem:
        """The problem with this number, of groups.

        Raises:
            InputError: it does not fit.
        """
        return WholeProblem(number, fused, Fusion.of_fused(fused.graph), self)


@bounded
class OneProblem(PlanSource):
    """The same problem again and again; its fastest plans are simulated on every operator.

    Outcomes are seconds.

    Args:
        problem: not fused.
        max_groups: that its operators are fused into.
        sweeps: of a plan.
        unfit: nats that a plan costs which does not fit.
    """

    def __init__(
        self, problem: StepProblem, *, max_groups: int = 64, sweeps: int, unfit: NonNegative = 2.0
    ) -> None:
        self.fusion = fuse(problem, max_groups)
        fused = fused_problem(problem, self.fusion)
        facts = PlacementFacts.of(fused, self.fusion)
        layout = WholeLayout(facts.num_groups, facts.num_devices, *facts.edge_seconds.shape)
        super().__init__(layout, sweeps, unfit)
        self.only = _Simulated(0, fused, self.fusion, self)
        self.only.whole, self.only.fastest = Pricer(problem), [INF]

    def draw(self, seed: int, stage: float) -> WholeProblem:
        """The problem, at any start."""
        return self.only.again(seed)

    def evaluation(self, number: int) -> WholeProblem:
        """The problem."""
        return self.only

    def state(self) -> dict[str, Any]:
        """Its best plan and its fastest, for a checkpoint."""
        return {"met": self.only.met.kept(), "fastest": self.only.fastest[0]}

    def load(self, numbers: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.only.met, self.only.fastest[0] = Met.of(numbers["met"]), numbers["fastest"]


class _Simulated(WholeProblem):
    """Every plan that is the fastest so far is priced on all operators."""

    whole: Pricer
    fastest: list[float]  # one, which all starts share

    def judge(self, action: IntArray) -> Judged:
        judged = super().judge(action)
        judged = judged._replace(outcome=judged.seconds)
        if judged.seconds >= self.fastest[0]:
            return judged
        self.fastest[0] = judged.seconds
        device, _ = self.tokens.plan(action, self.fusion.num_groups)
        price = self.whole.price(self.fusion.expand(device))
        kept = device if price.excess <= 0.0 else None
        return judged._replace(device=kept, step_time=price.seconds)
