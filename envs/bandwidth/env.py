"""`meshwright/Bandwidth-v0`: share the links of a placed training step, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray
from envs.bandwidth.generator import FixedStep, PlacedStepGenerator, default_generator, toy_sends
from envs.bandwidth.types import (
    BandwidthInstance,
    BandwidthObservation,
    ChannelGraph,
    ContinuousWeights,
    PassBoundaries,
    PhaseCut,
    WeightActions,
    WeightLevels,
)
from envs.bandwidth.viewer import pipes_frame
from envs.errors import InputError
from envs.reward import WeightedTerms, memory_overflow, memory_violation
from envs.spaces import begun
from envs.step.allocated import weighted_allocation
from envs.step.phased import PhasedSimulator, PhasedStep
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType({"time_saved": 1.0, "memory_violation": 1.0})


class BandwidthReward(WeightedTerms):
    """A weighted sum of named terms.

    | term             | value |
    |------------------|-------|
    | time_saved       | (uniform seconds of the phase - its seconds) / reference |
    | memory_violation | -(1 + overflow) when the step ends above a capacity, else 0 |

    `time_saved` adds up to (reference - step time) / reference over the phases of a step.

    Args:
        weights: weight of each term; terms left out have weight 0.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float] = TERMS) -> None:
        super().__init__(weights, TERMS)

    def terms(
        self, phase_s: float, uniform_phase_s: float, reference_s: float, overflow: float | None
    ) -> dict[str, float]:
        """The weighted terms of a phase; the reward is their sum.

        Args:
            phase_s: seconds the phase took.
            uniform_phase_s: seconds it takes where all phases have uniform static shares.
            reference_s: step time with uniform static shares.
            overflow: sum over devices of bytes above capacity / capacity; None: all fits.
        """
        return self.weighted(
            {
                "time_saved": (uniform_phase_s - phase_s) / reference_s,
                "memory_violation": memory_violation(overflow),
            }
        )


METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}


class BandwidthEnv(gym.Env[ChannelGraph, Any]):
    """Give every channel of a network its rate, anew in each phase of a placed training step.

    ## Description
    A training step is placed and ordered, and its order is cut into P phases: phase p begins when
    all operators at positions before `begins[p]` of the order have ended. The environment plays the
    step (`envs.step.phased`) to the begin of each phase and asks for the weights of the
    channels (`envs.hardware.network`). The rates of the phase are the weighted max-min shares of
    the physical links (`weighted_allocation`): the rates of all channels grow
    in proportion to their weights until a link is full, its channels keep what they have, the
    others grow on. Every action is feasible by this construction. Within a phase rates are static
    and not borrowed. All channels from one server to another are one *pipe*, which has the sum of
    their rates and serves its transfers one after another; a transfer under way when a phase begins
    goes on at the new rate.

    A channel is *active* when its pipe has bytes left to carry, in this phase or a later one. The
    weight of a channel that is not is 0 whatever the action says: it gets nothing.

    ## Observation Space
    `Dict`: keys, dtypes, shapes and features stand in
    `envs.bandwidth.types.BandwidthObservation`; C is the largest number of channels of an
    instance. With discrete actions `action_mask` is added (int8 (C, L), also in `info`): all levels
    for an active channel, level 0 alone for the others and for padding, so that one level of each
    is always allowed.

    ## Action Space
    `meshwright/Bandwidth-v0`: `MultiDiscrete([L] * C)`; level l of a channel is the weight
    2^(B (2 l / (L - 1) - 1)), by default L = 21 and B = 5: from 1/32 to 32 by factors of sqrt(2).
    Level 0 is as little as an active channel can be given. Where the mask forbids a level, the
    channel is not active and its action without effect.

    `meshwright/BandwidthContinuous-v0`: `Box(-1, 1, (C,), float32)`; a is the weight 2^(B a).

    Rates do not depend on a common factor of all weights.

    ## Reward
    The sum of the named, weighted terms of `envs.bandwidth.env.BandwidthReward`; each is in
    `info` as `reward_<term>`. In `meshwright/BandwidthToy-v0` uniform shares need 42 s for the
    first phase and 12 s for the second, 54 s in all. With rates in proportion to 1, 2 and 3 the
    first phase takes 1/(1/6) + 4/(2/6) + 9/(3/6) = 36 s; `time_saved` is (42 - 36) / 54 = 0.111.
    With equal weights the second takes 12 s, its reward is 0, and the episode collects
    (54 - 48) / 54 = 0.111: what the step became shorter by.

    ## Starting State
    A new instance from the generator (`self.np_random` is its only source of randomness), before
    anything has run. The rates until then are called uniform in the observation.

    ## Episode End
    `terminated` after the last phase. There is no horizon: `truncated` is always False.

    ## Information
    Flat, after `reset` and every step: `step_time_s` (seconds until now, at the end the step time),
    `reference_step_time_s` (with uniform static shares), `phase` (number of decided phases),
    `phases` (P), `feasible` (bool: the step has ended and its simulated peak memory fits),
    `peak_memory_bytes` (the most on any device; 0 before the end), with discrete actions
    `action_mask`, and after a step `phase_s` (seconds of the phase) and `reward_<term>`.

    ## Arguments
    * `generator`: yields the instance of each episode; default: random pipelines on four servers
      with two links each (`envs.bandwidth.generator.default_generator`).
    * `actions`: reads actions and owns their space: `WeightLevels` or `ContinuousWeights`.
    * `observation`: builds the observation and owns its space.
    * `reward`: the terms and their weights.
    * `render_mode`: `"rgb_array"` draws devices and pipes; phases to come have uniform shares.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; `check_env` has nothing
    to say. The toy's optimum is proved in closed form.

    ## Source
    Own environment. Weighted max-min shares are those of Bertsekas, Gallager, "Data Networks",
    1992, section 6.5.2. The interface is Gymnasium's.

    ## Version History
    * v0: first version.
    """

    metadata = METADATA

    def __init__(
        self,
        generator: PlacedStepGenerator | None = None,
        *,
        actions: WeightActions = WeightLevels(),
        observation: BandwidthObservation | None = None,
        reward: BandwidthReward = BandwidthReward(),
        render_mode: str | None = None,
    ) -> None:
        self.generator = generator if generator is not None else default_generator()
        self.actions, self.reward = actions, reward
        bounds = self.generator.bounds
        self.observation = observation if observation is not None else BandwidthObservation(bounds)
        self.render_mode = render_mode
        self._channels = self.observation.bounds.channels  # padded
        masks = self.actions.masks(np.zeros(self._channels, dtype=np.bool_))
        self.observation_space: spaces.Dict = spaces.Dict(
            {
                **self.observation.space.spaces,
                **{key: spaces.Box(0, 1, mask.shape, np.int8) for key, mask in masks.items()},
            }
        )
        self.action_space: spaces.Space[Any] = self.actions.space(self._channels)
        self._instance: BandwidthInstance | None = None
        self._step: PhasedStep | None = None

    @classmethod
    def of_plan(
        cls,
        problem: StepProblem,  # the graph, its topology and its costs
        # a plan file, whose bandwidth is decided anew; null: the placer plans under
        # single_port
        plan: Plan,
        *,
        # at the first backward operator, the last forward one, the update
        phases: PhaseCut = PassBoundaries(),
        **arguments: Any,
    ) -> BandwidthEnv:
        """An environment about one placed step; `arguments` as for the constructor."""
        return cls(FixedStep(problem, plan, phases), **arguments)

    @property
    def instance(self) -> BandwidthInstance:
        """The instance of this episode."""
        return begun(self._instance)

    @property
    def allocations(self) -> list[BandwidthAllocation]:
        """The allocation of every phase decided so far."""
        return [BandwidthAllocation(rate.copy()) for rate in self._rates]

    def plan_outcome(self) -> tuple[float, bool]:
        """The step so far, completed with uniform shares.

        Returns:
            The step time in seconds, and whether the simulated peak memory fits every device.
        """
        timeline = self._completed()
        fits = timeline.peak_memory <= self.instance.problem.capacity
        return timeline.step_time, bool(fits.all())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ChannelGraph, dict[str, Any]]:
        """Start an episode.

        Raises:
            InputError: the instance exceeds the bounds of the observation.
        """
        super().reset(seed=seed)
        known, self._instance = self._instance, self.generator(self.np_random)
        if known is not self._instance:
            self._simulator = PhasedSimulator(self._instance.problem)
        plan = self._instance.plan
        self._step = self._simulator.begin(plan.placement.device, plan.order, self._instance.begins)
        self._rates: list[FloatArray] = []
        self._begun: list[float] = []  # of the phases decided and of the next
        self._peak, self._feasible = 0.0, False
        return self._look()

    def step(self, action: Any) -> tuple[ChannelGraph, float, bool, bool, dict[str, Any]]:
        """Play the next phase with the weights of `action`."""
        if self._step is None or self._step.done:
            raise gym.error.ResetNeeded("the episode has ended: reset() comes first")
        if np.shape(action) != (self._channels,):
            raise InputError(
                f"has shape {np.shape(action)}, there are {self._channels} channels",
                field="action",
            )
        step, instance, overflow = self._step, self.instance, None
        phase = step.phase
        network = instance.problem.topology.network
        weights = self.actions.weights(np.asarray(action))[: network.num_channels]
        allocation = weighted_allocation(network, np.where(self._active, weights, 0.0))
        seconds = step.advance(allocation.pipes(network))
        self._rates.append(allocation.rate)
        if step.done:
            peak = step.timeline().peak_memory
            overflow = memory_overflow(peak, instance.problem.capacity)
            self._peak, self._feasible = float(peak.max()), overflow is None
        terms = self.reward.terms(
            seconds, float(instance.uniform_phase_s[phase]), instance.uniform.step_time, overflow
        )
        seen, info = self._look()
        info["phase_s"] = seconds
        info.update({f"reward_{name}": value for name, value in terms.items()})
        return seen, float(sum(terms.values())), step.done, False, info

    def action_masks(self) -> BoolArray:
        """(C * L,) the levels of every channel allowed now, as sb3-contrib asks for them.

        Raises:
            InputError: the actions are continuous, and so are not masked.
        """
        masks = self._masks()
        if "action_mask" not in masks:
            raise InputError("continuous weights have no masks", field="action_masks")
        return masks["action_mask"].astype(np.bool_).ravel()

    def render(self) -> Any:
        """(H, W, 3) uint8 timeline of the step so far; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        return pipes_frame(self.instance, self._completed(), np.array(self._begun))

    def _completed(self) -> Timeline:
        """Of the step, played to its end with uniform shares."""
        step, network = begun(self._step).copy(), self.instance.problem.topology.network
        uniform = BandwidthAllocation(self.instance.uniform_rate).pipes(network)
        while not step.done:
            step.advance(uniform)
        return step.timeline()

    def _look(self) -> tuple[ChannelGraph, dict[str, Any]]:
        """Find the traffic that is left; the observation and the information."""
        step, instance = begun(self._step), self.instance
        self._begun.append(step.now)
        left = step.backlog.ravel() + instance.traffic.volume[step.phase :].sum(axis=0)
        self._active = left[instance.problem.topology.network.channel_pipe] > 0.0
        rate = self._rates[-1] if self._rates else instance.uniform_rate
        seen = self.observation(instance, step, rate, left, self._active)
        info = {
            "step_time_s": step.now,
            "reference_step_time_s": instance.uniform.step_time,
            "phase": step.phase,
            "phases": step.num_phases,
            "feasible": self._feasible,
            "peak_memory_bytes": self._peak,
            **self._masks(),
        }
        return {**seen, **self._masks()}, info

    def _masks(self) -> dict[str, NDArray[np.int8]]:
        padded = np.zeros(self._channels, dtype=np.bool_)
        padded[: len(self._active)] = self._active
        return self.actions.masks(padded)


def continuous_environment(**arguments: Any) -> BandwidthEnv:
    """`meshwright/BandwidthContinuous-v0`: `BandwidthEnv` with `ContinuousWeights`."""
    return BandwidthEnv(**{"actions": ContinuousWeights(), **arguments})


def toy_environment(
    # at the first backward operator, the last forward one, the update
    phases: PhaseCut | None = None,
    actions: WeightActions = WeightLevels(),  # how an action gives the weights
    **arguments: Any,
) -> BandwidthEnv:
    """`meshwright/BandwidthToy-v0`: `BandwidthEnv` about `toy_sends`, whose optimum is known."""
    problem, plan, cut = toy_sends()
    return BandwidthEnv.of_plan(
        problem, plan, phases=cut if phases is None else phases, actions=actions, **arguments
    )


def continuous_toy_environment(**arguments: Any) -> BandwidthEnv:
    """`meshwright/BandwidthToyContinuous-v0`: the toy with `ContinuousWeights`."""
    return toy_environment(**{"actions": ContinuousWeights(), **arguments})
