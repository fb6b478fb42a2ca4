"""`JointEnv` does what its docstring says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hydra.utils import instantiate
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from omegaconf import OmegaConf

from envs.joint.env import PLACER, JointEnv, toy_environment
from envs.joint.generator import (
    OPTIMUM_S,
    SERVERS,
    UNIFORM_OPTIMUM_S,
    default_generator,
    toy_stages,
)
from envs.placement.env import PlacementEnv
from envs.placement.generator import InstanceGenerator, toy_pipeline
from envs.placement.types import PlacementInstance
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.fusion import fused_problem
from envs.step.ready import FasterOrder
from envs.step.step import StepSimulator
from experiments.config.config_source import SHIPPED_CONFIGS
from tests.refusal import refusal

SMALL: Mapping[str, Any] = {"octaves": 1, "levels_per_octave": 1}
KEEP = 0
OPTIMAL = [0, 0, 1, 1, 2]


def joint(device: int, *changes: int) -> dict[str, int]:
    """The actions of the placer and of the allocators, which keep where nothing is said."""
    padded = [*changes, *[KEEP] * (SERVERS - len(changes))]
    return {PLACER: device, **{f"allocator_{s}": action for s, action in enumerate(padded)}}


def play(env: JointEnv, steps: list[dict[str, int]], **options: Any) -> list[dict[str, Any]]:
    """The placer's infos of one episode; the last has the sum of rewards as `return`."""
    _, first = env.reset(seed=0, options=options)
    infos, total = [first[PLACER]], 0.0
    for actions in steps:
        _, rewards, *_, info = env.step(actions)
        assert len(set(rewards.values())) == 1
        total += rewards[PLACER]
        infos.append(info[PLACER])
    infos[-1]["return"] = total
    return infos


def test_the_toys_optimum_is_the_best_of_all_placements_and_weights() -> None:
    env = toy_environment(**SMALL)
    env.reset(seed=0)
    groups = [
        devices
        for devices in itertools.product(range(3), repeat=5)
        if (np.bincount(devices, minlength=3) <= 2).all()
    ]
    pieces = np.array(groups)[:, env.instance.fusion.piece_group]
    apart = ~np.eye(3, dtype=bool)
    best, chosen, uniform = np.inf, ((0,) * 5, np.zeros((3, 3), dtype=np.int64)), np.inf
    for levels in itertools.product((-1, 0, 1), repeat=6):
        matrix = np.zeros((3, 3), dtype=np.int64)
        matrix[apart] = levels
        env.piped.set_levels(matrix)
        seconds = env.piped.simulator.step_times(pieces)
        if not any(levels):
            uniform = seconds.min()
        if seconds.min() < best:
            best, chosen = seconds.min(), (groups[int(seconds.argmin())], matrix)
    assert best == pytest.approx(OPTIMUM_S, rel=1e-12)
    assert uniform == pytest.approx(UNIFORM_OPTIMUM_S, rel=1e-12)
    last = play(env, [joint(device) for device in chosen[0]], levels=chosen[1])[-1]
    assert last["step_time_s"] == pytest.approx(OPTIMUM_S, rel=1e-12)
    assert last["feasible"]
    assert env.plan_outcome() == (pytest.approx(OPTIMUM_S, rel=1e-12), True)


def test_following_the_look_ahead_beats_equal_weights() -> None:
    env = toy_environment(**SMALL)
    observations, _ = env.reset(seed=0)
    for device in OPTIMAL:
        actions = {PLACER: device}
        for server in range(SERVERS):  # each follows its own look-ahead
            seen = observations[f"allocator_{server}"]
            gain = np.concatenate([[0.0], seen["pipe_features"][:, 8], seen["pipe_features"][:, 9]])
            actions[f"allocator_{server}"] = int(np.argmin(gain))
        observations, *_, infos = env.step(actions)
    assert infos[PLACER]["feasible"]
    assert infos[PLACER]["step_time_s"] < UNIFORM_OPTIMUM_S


def test_raising_and_lowering_move_one_level_of_the_own_server_up_to_its_end() -> None:
    env = toy_environment(**SMALL)
    env.reset(seed=0)
    env.step(joint(0, 1, 2, 3))  # 0 raises 1; 1 raises 2; 2 lowers 0
    assert env.levels.tolist() == [[0, 1, 0], [0, 0, 1], [-1, 0, 0]]
    observations, *_ = env.step(joint(0, 1, 4, 4))  # 0 is at the top; 1 lowers 2; 2 lowers 1
    assert env.levels.tolist() == [[0, 1, 0], [0, 0, 0], [-1, -1, 0]]
    masks = [observations[f"allocator_{s}"]["action_mask"].tolist() for s in range(SERVERS)]
    assert masks == [[1, 0, 1, 1, 1], [1] * 5, [1, 1, 1, 0, 0]]
    network = env.instance.problem.topology.network
    rates = env.allocation.pipes(network)
    assert rates[0, 1] / rates[0, 2] == pytest.approx(2.0)
    assert env.allocation.violations(network) == []


def test_actions_of_a_step_are_carried_out_together() -> None:
    env = toy_environment(**SMALL)
    env.reset(seed=0)
    *_, infos = env.step(joint(1, 2, 1, 4))
    _, rewards, *_, after = env.step(joint(0, 3, 0, 1))
    problem = allocated_problem(env.instance.problem, env.allocation)
    fused = fused_problem(problem, env.instance.fusion)
    device = env.instance.fusion.expand_pieces(env.group_device)
    expected = StepSimulator(fused).step_time(device)
    assert after[PLACER]["step_time_s"] == pytest.approx(expected, rel=1e-12)
    reference = after[PLACER]["reference_step_time_s"]
    assert rewards[PLACER] == pytest.approx((infos[PLACER]["step_time_s"] - expected) / reference)


def test_rewards_telescope_to_the_improvement_over_the_start() -> None:
    infos = play(toy_environment(), [joint(d, 1 + d, 4 - d, 2) for d in [1, 0, 0, 1, 2]])
    start, end = infos[0]["step_time_s"], infos[-1]["step_time_s"]
    assert infos[-1]["feasible"]
    assert infos[-1]["return"] == pytest.approx((start - end) / start)
    assert [info["placed"] for info in infos] == list(range(6))


class Uniformly(InstanceGenerator):
    """The instances of another generator on the network with uniform static shares."""

    def __init__(self, generator: InstanceGenerator) -> None:
        self.generator = generator
        self.max_groups, self.max_edges = generator.max_groups, generator.max_edges
        self.num_devices = generator.num_devices

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        instance = self.generator(rng)
        network = instance.problem.topology.network
        problem = allocated_problem(instance.problem, uniform_allocation(network))
        return replace(instance, problem=problem, fused=fused_problem(problem, instance.fusion))


def test_while_allocators_keep_their_weights_the_placer_is_that_of_placement() -> None:
    env, rng = JointEnv(sweeps=(1, 1)), default_rng(0)
    alone = PlacementEnv(Uniformly(env.generator), passes=2)
    for seed in range(3):
        observations, infos = env.reset(seed=seed)
        expected, info = alone.reset(seed=seed)
        assert env.instance.fused.graph.op_names == alone.instance.fused.graph.op_names
        ended = False
        while not ended:
            for key, values in expected.items():
                assert_allclose(
                    observations[PLACER][key], values, rtol=2e-5, atol=2e-5, err_msg=key
                )
            assert infos[PLACER]["step_time_s"] == pytest.approx(info["step_time_s"], rel=1e-9)
            device = int(rng.choice(np.flatnonzero(expected["action_mask"])))
            actions = dict.fromkeys(env.agents, KEEP) | {PLACER: device}
            observations, rewards, terminations, _, infos = env.step(actions)
            expected, reward, ended, _, info = alone.step(device)
            assert rewards[PLACER] == pytest.approx(reward, abs=1e-9)
            assert terminations[PLACER] == ended
        assert infos[PLACER]["feasible"] == info["feasible"]
        assert infos[PLACER]["peak_memory_bytes"] == pytest.approx(info["peak_memory_bytes"])
        outcome, whole = env.plan_outcome(), alone.plan_outcome()
        assert outcome == (pytest.approx(whole[0], rel=1e-9), whole[1])


def test_a_decision_that_does_not_fit_ends_the_episode_for_all() -> None:
    env = toy_environment()
    infos = play(env, [joint(2), joint(2), joint(2)])
    assert env.agents == []
    assert infos[2]["action_mask"].tolist() == [1, 1, 0]
    assert infos[-1]["reward_memory_violation"] == -(1 + 1.0)  # with layer 4: 16 of 8 bytes
    assert not infos[-1]["feasible"]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(joint(0))


def test_a_device_that_cannot_run_a_group_is_masked_and_choosing_it_ends_the_episode() -> None:
    problem = toy_stages()
    seconds = problem.op_seconds.copy()
    seconds[problem.graph.colocation == 1, 2] = np.inf
    env = JointEnv.of_problem(replace(problem, op_seconds=seconds), max_groups=5)
    infos = play(env, [joint(2), joint(2)])
    assert infos[1]["action_mask"].tolist() == [1, 1, 0]
    assert env.agents == []
    assert np.isfinite(infos[-1]["return"])
    assert infos[-1]["reward_unsupported_device"] == -1


def test_an_episode_starts_where_the_options_say() -> None:
    env = toy_environment()
    levels = np.array([[0, 3, -3], [1, 0, 0], [0, -10, 0]])
    _, infos = env.reset(seed=0, options={"start": [2, 2, 1, 1, 0], "levels": levels})
    assert env.group_device.tolist() == [2, 2, 1, 1, 0]
    assert_array_equal(env.levels, levels)
    assert infos[PLACER]["step_time_s"] == pytest.approx(env.plan_outcome()[0], rel=1e-12)
    env.reset(seed=0)
    assert not env.levels.any()


def test_what_agents_see_is_played_by_the_simulator_of_the_environment() -> None:
    env = JointEnv(simulator=FasterOrder, **SMALL)
    env.reset(seed=3)
    start = np.arange(len(env.group_device)) % 4
    observations, infos = env.reset(seed=3, options={"start": start})
    gained = 0
    while env.agents:
        fused = fused_problem(
            allocated_problem(env.instance.problem, env.allocation), env.instance.fusion
        )
        simulator, pieces = FasterOrder(fused), env.groups.pieces
        assert infos[PLACER]["step_time_s"] == pytest.approx(simulator.step_time(pieces))
        gained += simulator.step_time(pieces) < StepSimulator(fused).step_time(pieces)
        devices, variants = env.groups.variants()
        assert_allclose(env.candidate_s[devices], simulator.step_times(variants), rtol=1e-12)
        before, order = env.levels, env.simulator.order(pieces)
        if before[0, 1] < env.top:
            env.piped.set_levels(before + (np.arange(16).reshape(4, 4) == 1))
            expected = env.simulator.step_time(pieces, order)
            assert env.changed_s[0, 1, 0] == pytest.approx(expected)
            env.piped.set_levels(before)
        observations, *_, infos = env.step(
            {
                agent: int(np.flatnonzero(observations[agent]["action_mask"])[-1])
                for agent in env.agents
            }
        )
    assert gained > 0
    step_time, fits = env.plan_outcome()
    problem = allocated_problem(env.instance.problem, env.allocation)
    assert StepSimulator(problem).step_time(env.placement.device, env.plan().order) == step_time
    assert fits == (env.plan().violations(problem) == [])


def test_an_order_that_does_not_fit_gives_way_to_the_rules() -> None:
    class Backwards(StepSimulator):
        """Runs all forward operators before anything else, which takes the most memory."""

        def order(self, device: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Any:
            return np.argsort(self.problem.graph.phase, kind="stable")

    problem = default_generator()(default_rng(1)).problem
    free = JointEnv.of_problem(problem, max_groups=4, simulator=Backwards)
    free.reset(seed=0, options={"start": [0, 1, 2, 3]})
    device = free.placement.device
    simulator = StepSimulator(allocated_problem(problem, free.allocation))
    orders = free.plan().order, simulator.order(device)
    most, least = (simulator.run(device, order).peak_memory for order in orders)
    assert (least < most).any()
    tight = replace(problem, capacity=np.maximum(least, 1.0))
    env = JointEnv.of_problem(tight, max_groups=4, simulator=Backwards)
    env.reset(seed=0, options={"start": free.group_device})
    assert env.plan_outcome()[1]
    assert_array_equal(env.plan().order, orders[1])


def test_allocators_take_turns() -> None:
    env = toy_environment(turns=True, **SMALL)
    everybody = toy_environment(**SMALL)
    observations, _ = env.reset(seed=0)
    for step in range(5):
        expected = everybody.reset(seed=0, options={"start": env.group_device})[0]
        if step == 0:
            turn = observations["allocator_0"]
            assert_array_equal(turn["pipe_features"], expected["allocator_0"]["pipe_features"])
        for server in range(SERVERS):
            mask = observations[f"allocator_{server}"]["action_mask"]
            assert mask.tolist() == [1] * 5 if server == step % SERVERS else [1, 0, 0, 0, 0]
        observations, *_ = env.step(joint(OPTIMAL[step]))
    assert env.agents == []


def test_a_run_of_groups_is_decided_together_and_looked_ahead_together() -> None:
    env = JointEnv(sweeps=(3, 1))
    observations, infos = env.reset(seed=4)
    groups, decisions = len(env.group_device), 0
    rng = default_rng(0)
    while env.agents:
        seen = observations[PLACER]
        first = int(seen["current"][0])
        length = min(3, groups - first) if decisions < -(-groups // 3) else 1
        assert seen["node_features"][:groups, 11].tolist() == [
            float(first <= group < first + length) for group in range(groups)
        ]
        device = int(rng.choice(np.flatnonzero(seen["action_mask"])))
        expected = env.group_device
        expected[first : first + length] = device
        at_once = env.candidate_s[device]
        keep = dict.fromkeys(env.agents, KEEP) | {PLACER: device}
        observations, _, _, _, infos = env.step(keep)
        decisions += 1
        assert env.group_device.tolist() == expected.tolist()
        assert infos[PLACER]["step_time_s"] == pytest.approx(at_once, rel=1e-12)
    assert decisions == -(-groups // 3) + groups
    assert infos[PLACER]["feasible"]


def test_bad_arguments_are_input_errors() -> None:
    for field in ("servers", "octaves", "levels_per_octave"):
        with refusal("below") as refused:
            JointEnv(**{field: 0})
        assert refused.value.field == field
    for sweeps in ((), (2, 0)):
        with refusal("sweeps"):
            JointEnv(sweeps=sweeps)
    with refusal("3 servers"):
        JointEnv(toy_environment().generator, servers=4).reset()
    with refusal("no bandwidth to allocate"):
        JointEnv.of_problem(toy_pipeline(), max_groups=6).reset()
    env = toy_environment(**SMALL)
    for options in ({"levels": np.full((3, 3), 2)}, {"levels": [0]}, {"start": [0]}):
        with refusal("options"):
            env.reset(options=options)
    env.reset()
    for actions in ({PLACER: 0}, joint(3), joint(0, 5), joint(0.5), joint(np.inf)):
        with refusal("actions"):
            env.step(actions)


def test_the_configs_make_the_environments() -> None:
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node("env/joint"))
    env = instantiate(chosen)(toy_stages())
    assert isinstance(env, JointEnv)
    assert env.placer_observation.layout.max_nodes == chosen.max_groups
    assert (list(env.sweeps), env.top) == (chosen.sweeps, chosen.octaves * chosen.levels_per_octave)
    toy = instantiate(SHIPPED_CONFIGS.node("env/joint_toy"))
    assert toy.top == 1
    assert play(toy, [joint(device) for device in OPTIMAL])[-1]["feasible"]
