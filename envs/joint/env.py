"""`Joint-v0`: a placer and the bandwidth allocators of all servers, one step time for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, MinLen
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.joint.generator import LAYERS, default_generator, toy_stages
from envs.joint.piped import MakeSimulator, WeightedStep
from envs.joint.types import AllocatorObservation, PlacerObservation
from envs.joint.viewer import joint_frame
from envs.parallel_env import Begun, DecisionsEnv, Terms
from envs.placement.env import PlacementReward, PlacingGroups
from envs.placement.generator import FixedInstance, InstanceGenerator
from envs.placement.types import (
    CompletionRule,
    FastestDevice,
    GroupPlacement,
    PlacementInstance,
)
from envs.step.allocated import allocated_problem
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

Observation = dict[str, NDArray[Any]]

PLACER = "placer"
OCTAVES, LEVELS_PER_OCTAVE = 5, 2

METADATA: dict[str, Any] = {
    "name": "meshwright/Joint-v0",
    "render_modes": ["rgb_array"],
    "render_fps": 4,
    "is_parallelizable": True,
}


@bounded
class JointEnv(PlacingGroups, DecisionsEnv[Observation]):
    """Place the groups of a training step, and share the links between its servers meanwhile.

    ## Description
    A PettingZoo `ParallelEnv` with 1 + S agents that all act in every step and all end together.
    The `placer` decides the groups of a fused training step one after another, as the agent of
    `meshwright/Placement-v0` does, in several sweeps, and in each of them as many consecutive
    groups together as `sweeps` says: from coarse to fine, so that a boundary between two devices
    can move by more than a group. `allocator_s`, one for each server s, changes the weights of its
    *pipes*, the ways from its server to each other one: the pipe (s, e) at level l has the weight
    2^(l / levels per octave). The rates of the channels (`envs.hardware.network`) are their
    weighted max-min shares (`weighted_allocation`), each channel with the
    weight of its pipe; a pipe has the sum of its channels' rates. They hold for the whole step and
    are not borrowed: the simulated step is that of `envs.step.allocated.allocated_problem`.

    All actions of a step are carried out together; then one step is simulated. Before, every agent
    is shown what its own action would do if no other agent acted: the step time with the current
    run on each device, and with each pipe one level up or down. Allocators may act all at once or
    take turns.

    ## Observation Space
    `observation_space(agent)`. Placer: a `PaddedGraph`,
    `envs.joint.types.PlacerObservation`. Allocators: `Dict` of `pipe_features`,
    `server_features` and `action_mask`, `envs.joint.types.AllocatorObservation`.

    The `action_mask` of the placer is that of `meshwright/Placement-v0`: where no device has room,
    of those that can run the groups the one with the most free memory is allowed, and the episode
    ends with that decision. `current` and the candidates' features but mask and look-ahead are
    those of the run's first group. An allocator may always keep its weights.

    ## Action Space
    `action_space(agent)`. Placer: `Discrete(D)`, the device of the current run. An action outside
    the mask is carried out as far as it can be and ends the episode. Allocators:
    `Discrete(1 + 2 (S - 1))`: 0 keeps all weights, 1 + i raises the pipe to the i-th other server
    by one level, S + i lowers it. An action outside the mask changes nothing.

    ## Reward
    The same for all agents: the sum of the named, weighted terms of
    `envs.placement.env.PlacementReward`; each is in every agent's `info` as `reward_<term>`.
    With step times of 0.8 s at the start (the reference), 0.6 s before and 0.5 s after a step of
    all agents, `step_time_improvement` = (0.6 - 0.5) / 0.8 = 0.125 and the others are 0, so every
    agent gets 0.125. An episode that ends at 0.4 s and fits collects (0.8 - 0.4) / 0.8 = 0.5 in
    all. If one device of 16 GB ends at a peak of 20 GB, the last reward has `memory_violation` =
    -(1 + 4 / 16) = -1.25 added.

    ## Starting State
    A new instance from the generator (the environment's only source of randomness, seeded by
    `reset`), nothing placed, every group where the instance's `start` has it, all levels 0, which
    on servers that are all alike is `envs.step.allocated.uniform_allocation`.
    `reset(options={"start": (G,) devices, "levels": (S, S) levels})` says otherwise.

    ## Episode End
    All agents are terminated after the last sweep, or after the placer's first decision that does
    not fit. A sweep of runs of L groups takes G / L steps, more where no device can run L groups.
    There is no horizon: truncations are always False.

    ## Information
    Flat and, but for `action_mask`, the same for all agents, after `reset` and every step:
    `step_time_s` (seconds now), `reference_step_time_s`, `feasible` (bool: the plan is complete and
    the simulated peak memory fits; False before the end), `peak_memory_bytes` (the most on any
    device: the simulated peak at the end; before it the parameters, gradients and optimizer state
    of placed groups), `placed` (number of placed groups), `action_mask`, and after a step
    `reward_<term>`.

    ## Arguments
    * `generator`: yields the instance of each episode; default: random training graphs on four
      servers with two links each (`envs.joint.generator.default_generator`).
    * `servers`: S, of every instance.
    * `reward`: the terms and their weights.
    * `order_rule`: the order of a placement; 1F1B by default.
    * `simulator`: makes what plays a problem by the rule: `StepSimulator` by default;
      `envs.step.ready.FasterOrder` also tries the order of a dynamic runtime. What the
      allocators see is played in the present order, what the placer sees in that of each device.
    * `sweeps`: groups decided together in each sweep over the groups.
    * `turns`: whether allocators take turns: in the k-th step only that of server k mod S may
      change weights and sees what that would do; the others keep.
    * `octaves`: weights go from 2^-octaves to 2^octaves.
    * `levels_per_octave`: levels from a weight to its double.
    * `render_mode`: `"rgb_array"` draws the timeline of the present plan and the rates.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; PettingZoo's API tests
    pass. The toy's optimum is proved over all placements that fit with all weights of 1/2, 1 and 2.

    ## Source
    Own environment. The interface is that of Terry et al.,
    "PettingZoo: Gym for Multi-Agent Reinforcement Learning", NeurIPS 2021.

    ## Version History
    * v0: first version.
    """

    metadata = METADATA
    piped: WeightedStep  # of this episode
    _given: StepProblem  # the fused problem of its instance, at the topology's own rates

    def __init__(
        self,
        generator: InstanceGenerator | None = None,
        *,
        servers: Annotated[int, Ge(2)] = 4,
        reward: PlacementReward = PlacementReward(),
        order_rule: OrderRule | None = None,
        simulator: MakeSimulator = StepSimulator,
        sweeps: Annotated[Sequence[Count], MinLen(1)] = (1,),
        turns: bool = False,
        octaves: Count = OCTAVES,
        levels_per_octave: Count = LEVELS_PER_OCTAVE,
        render_mode: str | None = None,
    ) -> None:
        self.generator = generator if generator is not None else default_generator()
        self.servers, self.sweeps, self.turns = servers, tuple(sweeps), turns
        self.top, self._step_octaves = octaves * levels_per_octave, 1.0 / levels_per_octave
        self.reward, self.render_mode = reward, render_mode
        self._order_rule, self._make_simulator = order_rule, simulator
        self.placer_observation = self._new_placer_observation()
        self.allocator_observation = AllocatorObservation(servers)
        self._allocators = [f"allocator_{server}" for server in range(servers)]
        self.possible_agents: list[str] = [PLACER, *self._allocators]
        self.agents: list[str] = []
        changes = 1 + 2 * (servers - 1)
        self.observation_spaces = {
            PLACER: self.placer_observation.space,
            **dict.fromkeys(self._allocators, self.allocator_observation.space),
        }
        self.action_spaces = {
            PLACER: spaces.Discrete(self.generator.num_devices),
            **dict.fromkeys(self._allocators, spaces.Discrete(changes)),
        }

    @classmethod
    def of_problem(
        cls,
        problem: StepProblem,
        *,
        max_groups: int = 64,  # groups the graph is fused into, at most; the padded number of nodes
        max_edges: int | None = None,  # padded number of edges; null: as many as the instance has
        completion: CompletionRule = FastestDevice(),  # where groups stand that are not placed yet
        # of an episode: the undecided groups on random devices
        starts: Callable[[FixedInstance], InstanceGenerator] | None = None,
        **arguments: Any,
    ) -> JointEnv:
        """An environment about one problem, as `PlacementEnv.of_problem`."""
        fixed = FixedInstance(problem, max_groups, completion, max_edges)
        generator = fixed if starts is None else starts(fixed)
        return cls(generator, servers=problem.topology.num_servers, **arguments)

    @property
    def levels(self) -> IntArray:
        """(S, S) level of every pipe now."""
        return self.piped.level.copy()

    @property
    def allocation(self) -> BandwidthAllocation:
        """The rates of the channels now."""
        return self.piped.allocation

    def plan(self) -> Plan:
        """The present placement of every operator, in the order it is played in."""
        return Plan(self.placement, self._played()[0])

    def plan_outcome(self) -> tuple[float, bool]:
        """The present plan and allocation played on every operator of the original problem.

        Returns:
            The step time in seconds, and whether the simulated peak memory fits every device.
        """
        _, step_time, fits = self._played()
        return step_time, fits

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Begun[Observation]:
        """Start an episode; `options["start"]` (G,) and `options["levels"]` (S, S) say from where.

        Raises:
            InputError: the instance has another number of servers or does not fit the observation,
                its step takes no time, or an option is not what it should be.
        """
        return self.begin(self.randomness(seed), options)

    def begin(
        self, rng: np.random.Generator, options: dict[str, Any] | None = None
    ) -> Begun[Observation]:
        """`reset` with a source of randomness of the caller's."""
        options = options or {}
        self._use(self.generator(rng))
        groups, level = self.groups, np.zeros((self.servers, self.servers), dtype=np.int64)
        groups.start(options.get("start", self.instance.start))
        groups.look(0, self.sweeps[0])
        given = np.array(options.get("levels", level), dtype=np.int64)
        if given.shape != level.shape or (np.abs(given) > self.top).any():
            reason = f"is not {level.shape} levels from {-self.top} to {self.top}"
            raise InputError(reason, field="options.levels")
        self._decided = self._sweep = 0
        self.agents = self.possible_agents.copy()
        self.start_from(self._played_at(given))
        self._look()
        return self.observe(), self.infos([{}] * len(self.possible_agents))

    def play(self, chosen: Sequence[int]) -> tuple[Sequence[Terms], bool, bool]:
        """Place the current run and change the weights, all at once."""
        self.require_running()
        groups, (device, *changes) = self.groups, chosen
        before, stood = self.step_time, groups.device.copy()
        supported, fits = bool(groups.able_now[device]), bool(groups.fits[device])
        groups.place(device)
        level = self._changed(changes)
        if (groups.device != stood).any() or (level != self.piped.level).any():
            self.step_time = self._played_at(level)
        following = groups.run.stop % len(groups.device)
        self._sweep += following == 0
        self._decided += 1
        ended = not fits or self._sweep == len(self.sweeps)
        if ended:
            self.agents = []
        else:
            groups.look(following, self.sweeps[self._sweep])
        self._look()
        peak = self.simulator.run(groups.pieces, self._order).peak_memory if ended else None
        terms = self.terms(before, peak, supported=supported)
        return [terms] * len(chosen), ended, False

    def _changed(self, changes: Sequence[int]) -> IntArray:
        """(S, S) the levels after the allocators' actions; a level at its end stays.

        Action 0 keeps, 1 + i raises the pipe to the i-th other server, S + i lowers it.
        """
        level, others = self.levels, self.servers - 1
        for server, action in enumerate(changes):
            if action:
                lower, index = divmod(action - 1, others)
                other = index + (index >= server)
                changed = level[server, other] + (-1 if lower else 1)
                if abs(changed) <= self.top:
                    level[server, other] = changed
        return level

    def _played_at(self, level: IntArray) -> float:
        """Seconds of the present placement at `level` (S, S) of the pipes, in its order there."""
        if (level != self.piped.level).any():
            self.piped.set_levels(level)
        self._order = self.simulator.order(self.groups.pieces)
        return self.simulator.step_time(self.groups.pieces, self._order)

    def _look(self) -> None:
        """What the agents' actions would do."""
        self.look_ahead()
        turn = self._decided % self.servers if self.turns else None  # who may act next; None: all
        self.changed_s = self.piped.look(self.groups.pieces, self._order, turn)

    def render(self) -> Any:
        """(H, W, 3) uint8 timeline of the present plan and rates; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        timeline = self.simulator.run(self.groups.pieces)
        return joint_frame(self.instance.fused, timeline, self.piped.rate)

    def _played(self) -> tuple[IntArray, float, bool]:
        """Order, step time and whether it fits, on every operator.

        An order of the simulator that does not fit gives way to the rule's own.
        """
        problem = allocated_problem(self.instance.problem, self.allocation)
        simulator = self._make_simulator(problem, order_rule=self._order_rule)
        device = self.placement.device
        by_rule = partial(simulator.order_rule, problem.graph)
        for order_of in (simulator.order, by_rule):
            order = order_of(device)
            timeline = simulator.run(device, order)
            fits = bool((timeline.peak_memory <= problem.capacity).all())
            if fits:
                break
        return order, timeline.step_time, fits

    def _use(self, instance: PlacementInstance) -> None:
        """Prepare for `instance`; little to do when its problem is the last episode's."""
        if self._instance is None or instance.fused is not self._given:
            servers = instance.problem.topology.num_servers
            if servers != self.servers:
                raise InputError(
                    f"{servers} servers, the environment has {self.servers}",
                    file=f"graph {instance.problem.graph.name}",
                    field="servers",
                )
            self.piped = WeightedStep(
                instance.problem, instance.fusion, self.top, self._step_octaves,
                self._make_simulator, self._order_rule,
            )  # fmt: skip
            self.simulator = self.piped.simulator
            self.groups = GroupPlacement(self.piped.problem, instance.fusion)
            # it remembers the fused problem, which copies of this environment do not share
            self.placer_observation = self._new_placer_observation()
        self._given = instance.fused
        self._instance = replace(instance, fused=self.piped.problem)

    def _new_placer_observation(self) -> PlacerObservation:
        generator = self.generator
        return PlacerObservation(generator.max_groups, generator.max_edges, generator.num_devices)

    def observe(self) -> dict[str, Observation]:
        """What every agent sees."""
        piped, groups, start_s = self.piped, self.groups, self.reference_s
        within = groups.current / len(groups.device) if self.agents else 0.0
        decided = (self._sweep + within) / len(self.sweeps)
        every = [
            self.placer_observation.observe(piped, groups, self.candidate_s, start_s),
            *self.allocator_observation(
                piped, groups, self.step_time, start_s, self.changed_s, decided
            ),
        ]
        self._masks = [one["action_mask"] for one in every]
        return dict(zip(self.possible_agents, every, strict=True))


def toy_environment(**arguments: Any) -> JointEnv:
    """`meshwright/JointToy-v0`: `JointEnv` about `toy_stages`, whose optimum is known."""
    return JointEnv.of_problem(toy_stages(), **{"max_groups": LAYERS, **arguments})
