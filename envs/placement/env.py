"""`meshwright/Placement-v0`: decide group by group where a training step runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.placement.generator import (
    FixedInstance,
    InstanceGenerator,
    default_generator,
    toy_pipeline,
)
from envs.placement.types import (
    CompletionRule,
    FastestDevice,
    GroupPlacement,
    PlacementInstance,
    PlacementObservation,
)
from envs.placement.viewer import timeline_frame
from envs.reward import WeightedTerms, memory_overflow, memory_violation
from envs.spaces import PaddedGraph, begun
from envs.step.plans import Placement
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

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

    def terms(
        self,
        before_s: float,
        after_s: float,
        reference_s: float,
        overflow: float | None,
        *,
        supported: bool,
    ) -> dict[str, float]:
        """The weighted terms of a decision; the reward is their sum.

        Args:
            before_s: step time before the decision, seconds.
            after_s: after it.
            reference_s: at the start of the episode.
            overflow: sum over devices of bytes above capacity / capacity; None: all fits.
            supported: whether the device can run the group.
        """
        return self.weighted(
            {
                "step_time_improvement": (before_s - after_s) / reference_s,
                "memory_violation": memory_violation(overflow),
                "unsupported_device": -1.0 if not supported else 0.0,
            }
        )


class PlacingGroups:
    """An episode in which groups are placed: what is common to all that a placer takes part in.

    The groups stand somewhere, a step takes some time then and at the start, the step time with
    the current run on each device is known before it is decided, and the simulated peak memory
    decides at the end.
    """

    reward: PlacementReward
    groups: GroupPlacement
    simulator: StepSimulator  # of the pieces of the groups
    step_time: float  # seconds now
    reference_s: float  # at the start
    candidate_s: FloatArray  # (D,) seconds with the current run on each device; inf: unable
    _instance: PlacementInstance | None = None

    @property
    def instance(self) -> PlacementInstance:
        """The instance of this episode."""
        return begun(self._instance)

    @property
    def group_device(self) -> IntArray:
        """(G,) device of every group now, completion included."""
        return self.groups.device.copy()

    @property
    def placement(self) -> Placement:
        """The present placement of every operator of the original problem."""
        return Placement(self.instance.fusion.expand(self.groups.device))

    def start_from(self, step_time: float) -> None:
        """Nothing is decided, and a step takes `step_time` seconds.

        Raises:
            InputError: it takes no time.
        """
        self.step_time = self.reference_s = step_time
        self._feasible, self._held = False, self.groups.used  # (D,) bytes: of what is placed
        if not step_time > 0.0:
            raise InputError("a step takes no time", file=f"graph {self.groups.fused.graph.name}")

    def look_ahead(self) -> None:
        """The step time with the current run on each device, all others where they are."""
        devices, variants = self.groups.variants()
        moved = (variants != self.groups.pieces).any(axis=1)
        self.candidate_s = np.full(self.groups.able.shape[1], np.inf)
        self.candidate_s[devices] = self.step_time
        self.candidate_s[devices[moved]] = self.simulator.step_times(variants[moved])

    def terms(
        self, before_s: float, peak: FloatArray | None, *, supported: bool
    ) -> dict[str, float]:
        """Of the reward of a decision; `peak` (D,) bytes of the whole step: it was the last."""
        overflow = None
        if peak is not None:
            self._held, overflow = peak, memory_overflow(peak, self.groups.capacity)
            self._feasible = overflow is None and bool(self.groups.placed.all())
        return self.reward.terms(
            before_s, self.step_time, self.reference_s, overflow, supported=supported
        )

    def facts(self) -> dict[str, Any]:
        """Where the episode stands."""
        return {
            "step_time_s": self.step_time,
            "reference_step_time_s": self.reference_s,
            "feasible": self._feasible,
            "peak_memory_bytes": float(self._held.max()),
            "placed": int(self.groups.placed.sum()),
        }


METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}


@bounded
class PlacementEnv(PlacingGroups, gym.Env[PaddedGraph, np.int64]):
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
    `envs.placement.types.PlacementObservation`.

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
            reason = 'is none; one that is: meshwright.one_problem("bert_large", ...)'
            raise InputError(reason, field="generator")
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

    def plan_outcome(self) -> tuple[float, bool]:
        """The present placement played on every operator of the original problem.

        Returns:
            The step time in seconds, and whether the simulated peak memory fits every device.
        """
        problem = self.instance.problem
        if self._full_simulator is None:
            self._full_simulator = self._make_simulator(problem)
        timeline = self._full_simulator.run(self.placement.device)
        return timeline.step_time, bool((timeline.peak_memory <= problem.capacity).all())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PaddedGraph, dict[str, Any]]:
        """Start an episode; `options["start"]` (G,) says where the undecided groups stand.

        Raises:
            InputError: the instance does not fit the observation, its step takes no time, or the
                start is not one device for each group that can run it.
        """
        super().reset(seed=seed)
        instance, known = self.generator(self.np_random), self._instance
        if known is None or instance.fused is not known.fused:
            self.groups = GroupPlacement(instance.fused, instance.fusion)
            self.simulator = self._make_simulator(instance.fused)
            self._full_simulator = None
        self._instance = instance
        self.groups.start((options or {}).get("start", instance.start))
        self._decisions, self._ended = 0, False
        self.start_from(self.simulator.step_time(self.groups.pieces))
        self.look_ahead()
        return self._observe(), self._info()

    def step(self, action: np.int64 | int) -> tuple[PaddedGraph, float, bool, bool, dict[str, Any]]:
        """Put the current group on device `action`."""
        if self._ended:
            raise gym.error.ResetNeeded("the episode has ended: reset() comes first")
        groups, device = self.groups, int(action)
        if device != action or not self.action_space.contains(np.int64(device)):
            raise InputError(
                f"{action} is not one of {self.action_space.n} devices", field="action"
            )
        before, peak = self.step_time, None
        supported, fits = bool(groups.able_now[device]), bool(groups.fits[device])
        if supported:
            groups.place(device)
            self.step_time = float(self.candidate_s[device])
        self._decisions += 1
        self._ended = not fits or self._decisions == len(groups.device) * self.passes
        if self._ended:
            peak = self.simulator.run(groups.pieces).peak_memory
        else:
            groups.look(self._decisions % len(groups.device))
            self.look_ahead()
        terms = self.terms(before, peak, supported=supported)
        info = self._info() | {f"reward_{name}": value for name, value in terms.items()}
        return self._observe(), float(sum(terms.values())), self._ended, False, info

    def action_masks(self) -> BoolArray:
        """(D,) the devices allowed now: `action_mask` in the form that sb3-contrib asks for."""
        return self.groups.mask.astype(np.bool_)

    def render(self) -> Any:
        """(H, W, 3) uint8 timeline of the present placement; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        return timeline_frame(self.instance.fused, self.simulator.run(self.groups.pieces))

    def _observe(self) -> PaddedGraph:
        return self.observation(self.groups, self.candidate_s, self.reference_s)

    def _info(self) -> dict[str, Any]:
        return {**self.facts(), "action_mask": self.groups.mask.astype(np.int8)}


def toy_environment(**arguments: Any) -> PlacementEnv:
    """`meshwright/PlacementToy-v0`: `PlacementEnv` about `toy_pipeline`, whose optimum is known."""
    return PlacementEnv(FixedInstance(toy_pipeline(), max_groups=6), **arguments)
