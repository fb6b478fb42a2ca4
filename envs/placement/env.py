"""`meshwright/Placement-v0`: decide group by group where a training step runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.graphs.contraction import Fusion
from envs.placement.generator import (
    FixedInstance,
    InstanceGenerator,
    PlacementInstance,
    default_generator,
    toy_pipeline,
)
from envs.placement.groups import CompletionRule, FastestDevice, GroupPlacement
from envs.placement.observation import PlacementObservation
from envs.placement.render import timeline_frame
from envs.reward import WeightedTerms, memory_overflow, memory_violation
from envs.spaces import PaddedGraph, begun
from envs.step.order import Rule
from envs.step.plans import Placement
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator


@dataclass(frozen=True)
class Outcome:
    """What one decision did."""

    before_s: float  # step time before the decision, seconds
    after_s: float  # step time after it, seconds
    reference_s: float  # step time at the start of the episode, seconds
    overflow: float | None  # sum over devices of bytes above capacity / capacity; None: all fits
    unsupported: bool  # the device cannot run the group


# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType(
    {"step_time_improvement": 1.0, "memory_violation": 1.0, "unsupported_device": 1.0}
)


class PlacementReward(WeightedTerms):
    """A weighted sum of named terms.

    | term                  | value |
    |-----------------------|-------|
    | step_time_improvement | (before - after) / reference; adds up to (start - end) / start |
    | memory_violation      | -(1 + overflow) when the episode ends above a capacity, else 0 |
    | unsupported_device    | -1 when the chosen device cannot run the group, else 0 |

    The 1 in `memory_violation` puts every plan that does not fit below every plan that does and is
    no worse than the start, since improvements stay below 1.

    Args:
        weights: weight of each term; terms left out have weight 0.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float] = TERMS) -> None:
        super().__init__(weights, TERMS)

    def terms(self, outcome: Outcome) -> dict[str, float]:
        """The weighted terms; the reward is their sum."""
        return self.weighted(
            {
                "step_time_improvement": (outcome.before_s - outcome.after_s) / outcome.reference_s,
                "memory_violation": memory_violation(outcome.overflow),
                "unsupported_device": -1.0 if outcome.unsupported else 0.0,
            }
        )


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


METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}


@bounded
class PlacementEnv(gym.Env[PaddedGraph, np.int64]):
    """Place the groups of a fused training step one by one on the devices of a cluster.

    ## Description
    A training step (forward, backward and optimizer operators of all micro-batches) has been fused
    into G groups (`envs.step.fusion`). The environment asks for the device of each group in the
    order of the groups, which is the order of the forward pass. After every decision it simulates
    one step (`envs.step.step`) with decided groups where they were put and all others where
    the completion rule of the instance puts them. Before every decision it does so for each device
    the current group could go to: the look-ahead among the candidate features.

    ## Observation Space
    `Dict`, a `PaddedGraph` of at most N groups and E edges on D devices: keys, dtypes and shapes
    stand in `envs.spaces.PaddedGraphLayout`, the features in
    `envs.placement.observation.PlacementObservation`.

    `action_mask` (int8 (D,), also in `info`) allows a device when it can run the group and the
    parameters, gradients and optimizer state of the groups placed there (the current group left
    out) and of the current group fit into its capacity. When no device is allowed by that rule, of
    the devices that can run the group the one with the most free memory is, and the episode ends
    with that decision.

    ## Action Space
    `Discrete(D)`: the device of the current group. An action outside the mask is carried out as far
    as it can be and ends the episode; a group whose chosen device cannot run it stays where it is.

    ## Reward
    The sum of the named, weighted terms of `envs.placement.env.PlacementReward`; each is in
    `info` as `reward_<term>`. With step times of 0.8 s at the start (the reference), 0.6 s before
    and 0.5 s after a decision, `step_time_improvement` = (0.6 - 0.5) / 0.8 = 0.125 and the others
    are 0, so the reward is 0.125. An episode that ends at 0.4 s and fits collects
    (0.8 - 0.4) / 0.8 = 0.5 in all. If one device of 16 GB ends at a peak of 20 GB, the last reward
    has `memory_violation` = -(1 + 4 / 16) = -1.25 added.

    ## Starting State
    A new instance from the generator (`self.np_random` is its only source of randomness), nothing
    placed, every group where the instance's `start` has it: where the completion rule puts it,
    unless the generator or `reset(options={"start": (G,) devices})` says otherwise.

    ## Episode End
    `terminated` after G x `passes` decisions, or after the first decision that does not fit. There
    is no horizon: `truncated` is always False.

    ## Information
    Flat, after `reset` and every step: `step_time_s` (seconds now), `reference_step_time_s`,
    `feasible` (bool: the plan is complete and the simulated peak memory fits; False before the
    end), `peak_memory_bytes` (the most on any device: the simulated peak at the end; before it the
    parameters, gradients and optimizer state of placed groups), `placed` (number of placed groups),
    `action_mask`, and after a step `reward_<term>`.

    ## Arguments
    * `generator`: yields the instance of each episode; default: random training graphs on two V100
      and two P100 (`envs.placement.generator.default_generator`).
    * `observation`: builds the observation and owns its space.
    * `reward`: the terms and their weights.
    * `simulator`: makes the simulator of a problem; bind other communication models or order rules
      with `functools.partial`.
    * `passes`: sweeps over the groups. From the second on every group stands where it was placed,
      and is decided again with all others in place.
    * `render_mode`: `"rgb_array"` draws the timeline of the present placement.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; `check_env` has nothing
    to say. The toy's optimum is proved over all placements that fit, each in the order of 1F1B.

    ## Source
    Own environment; the question is that of Mirhoseini et al., "Device Placement Optimization with
    Reinforcement Learning", ICML 2017. The interface is Gymnasium's.

    ## Version History
    * v0: first version.

    Raises:
        InputError: the observation's number of devices is not the generator's.
    """

    metadata = METADATA

    def __init__(
        self,
        generator: InstanceGenerator | None = None,
        *,
        observation: PlacementObservation | None = None,
        reward: PlacementReward = PlacementReward(),
        simulator: Callable[[StepProblem], StepSimulator] = StepSimulator,
        passes: Count = 1,
        render_mode: str | None = None,
    ) -> None:
        self.generator = generator if generator is not None else default_generator()
        if not hasattr(self.generator, "max_groups"):
            told = 'is none; one that is: meshwright.one_problem("bert_large", ...)'
            raise InputError(told, field="generator")
        bounds = (self.generator.max_groups, self.generator.max_edges, self.generator.num_devices)
        self.observation = observation if observation is not None else PlacementObservation(*bounds)
        self.reward, self.passes = reward, passes
        self.render_mode = render_mode
        devices = self.observation.layout.num_devices
        if devices != self.generator.num_devices:
            raise InputError(
                f"the observation has {devices}, the generator {self.generator.num_devices}",
                field="num_devices",
            )
        self.observation_space: spaces.Dict = self.observation.space
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(devices)
        self._make_simulator = simulator
        self._instance: PlacementInstance | None = None
        self._full_simulator: StepSimulator | None = None  # made when a plan is first played
        self._ended = True

    @classmethod
    def of_problem(
        cls,
        problem: StepProblem,
        *,
        max_groups: int = 48,  # groups the graph is fused into, at most; the padded number of nodes
        max_edges: int | None = None,  # padded number of edges; null: as many as the instance has
        completion: CompletionRule = FastestDevice(),  # where groups stand that are not placed yet
        # of an episode: the undecided groups on random devices
        starts: Callable[[FixedInstance], InstanceGenerator] | None = None,
        **arguments: Any,
    ) -> PlacementEnv:
        """An environment about one problem.

        `starts` makes the generator from the fixed instance, such as `RandomStarts`; without it
        every episode starts from the completion rule. `arguments` as for the constructor.
        """
        fixed = FixedInstance(problem, max_groups, completion, max_edges)
        return cls(fixed if starts is None else starts(fixed), **arguments)

    @property
    def instance(self) -> PlacementInstance:
        """The instance of this episode."""
        return begun(self._instance)

    @property
    def group_device(self) -> IntArray:
        """(G,) device of every group now, completion included."""
        return self._groups.device.copy()

    @property
    def placement(self) -> Placement:
        """The present placement of every operator of the original problem."""
        return Placement(self.instance.fusion.expand(self._groups.device))

    def plan_outcome(self) -> tuple[float, bool]:
        """The present placement played on every operator of the original problem.

        Returns:
            The step time in seconds, and whether the simulated peak memory fits every device.
        """
        if self._full_simulator is None:
            self._full_simulator = self._make_simulator(self.instance.problem)
        timeline = self._full_simulator.run(self.placement.device)
        return timeline.step_time, bool(
            (timeline.peak_memory <= self.instance.problem.capacity).all()
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PaddedGraph, dict[str, Any]]:
        """Start an episode; `options["start"]` (G,) says where the undecided groups stand.

        Raises:
            InputError: the instance does not fit the observation, its step takes no time, or the
                start is not one device for each group that can run it.
        """
        super().reset(seed=seed)
        self._use(self.generator(self.np_random))
        self._groups.start((options or {}).get("start", self.instance.start))
        self._decisions = 0
        self._ended = False
        self._feasible = False
        self._held = self._groups.used  # (D,) bytes: placed state, at the end the simulated peak
        self._step_time = self._reference = self._simulate()
        if not self._reference > 0.0:
            raise InputError("a step takes no time", file=f"graph {self.instance.fused.graph.name}")
        self._look()
        return self._observe(), self._info()

    def step(self, action: np.int64 | int) -> tuple[PaddedGraph, float, bool, bool, dict[str, Any]]:
        """Put the current group on device `action`."""
        if self._ended:
            raise gym.error.ResetNeeded("the episode has ended: reset() comes first")
        groups, device = self._groups, int(action)
        if device != action or not self.action_space.contains(np.int64(device)):
            raise InputError(
                f"{action} is not one of {self.action_space.n} devices", field="action"
            )
        before = self._step_time
        supported, fits = bool(groups.able[groups.current, device]), bool(groups.fits[device])
        if supported:
            groups.place(device)
            self._step_time = float(self._candidate_s[device])
        self._decisions += 1
        overflow = None
        if not fits or self._decisions == len(groups.device) * self.passes:
            self._ended = True
            overflow = self._finish()
        else:
            groups.look(self._decisions % len(groups.device))
            self._look()
        terms = self.reward.terms(
            Outcome(before, self._step_time, self._reference, overflow, not supported)
        )
        info = self._info()
        info.update({f"reward_{name}": value for name, value in terms.items()})
        return self._observe(), float(sum(terms.values())), self._ended, False, info

    def action_masks(self) -> BoolArray:
        """(D,) the devices allowed now: `action_mask` in the form that sb3-contrib asks for."""
        return self._groups.mask.astype(np.bool_)

    def render(self) -> Any:
        """(H, W, 3) uint8 timeline of the present placement; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        timeline = self._simulator.run(self._groups.pieces)
        return timeline_frame(self.instance.fused, timeline)

    def _use(self, instance: PlacementInstance) -> None:
        """Prepare for `instance`; little to do when its problem is the last episode's."""
        known = self._instance is not None and instance.fused is self._instance.fused
        self._instance = instance
        if known:
            return
        self._simulator = self._make_simulator(instance.fused)
        self._full_simulator = None
        self._groups = GroupPlacement(instance.fused, instance.fusion)

    def _simulate(self) -> float:
        return self._simulator.step_time(self._groups.pieces)

    def _look(self) -> None:
        """The step time with the current group on each device, all others where they are."""
        devices, variants = self._groups.variants()
        self._candidate_s: FloatArray = np.full(self._groups.able.shape[1], np.inf)  # inf: unable
        self._candidate_s[devices] = self._simulator.step_times(variants)

    def _finish(self) -> float | None:
        """Check the peak memory of the whole step; the overflow when it does not fit."""
        self._held = self._simulator.run(self._groups.pieces).peak_memory
        overflow = memory_overflow(self._held, self.instance.fused.capacity)
        self._feasible = overflow is None and bool(self._groups.placed.all())
        return overflow

    def _observe(self) -> PaddedGraph:
        return self.observation(self.instance, self._groups, self._candidate_s, self._reference)

    def _info(self) -> dict[str, Any]:
        return {
            "step_time_s": self._step_time,
            "reference_step_time_s": self._reference,
            "feasible": self._feasible,
            "peak_memory_bytes": float(self._held.max()),
            "placed": int(self._groups.placed.sum()),
            "action_mask": self._groups.mask.astype(np.int8),
        }


def toy_environment(**arguments: Any) -> PlacementEnv:
    """`meshwright/PlacementToy-v0`: `PlacementEnv` about `toy_pipeline`, whose optimum is known."""
    return PlacementEnv(FixedInstance(toy_pipeline(), max_groups=6), **arguments)
