"""The learner's episodes of cells, the folder of what it learns, and the compiled replay of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.testing import assert_array_equal

from agents.cluster.cells import LateViews, LearnedCells
from agents.cluster.replay import replay
from agents.rllib.cluster.cells import CellsRLTask, CellWorld
from agents.rllib.vector import VectorEnv
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from models.cluster.cells import CellsConfig, CellsPolicy
from models.export.cells import export_cells
from models.export.checkpoint import ModelCard
from tests.agents.cluster.further_policies import joint_choice, several
from tests.strength import SEEDS, examples

SCHEDULERS = 3
CARD = ModelCard("cells", "", "", {})


def jobs_of(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 200, 14))
    return Trace.of("drawn", submit, rng.integers(1, 90, 14), rng.integers(1, 4, 14))


def policy_of(seed: int, hidden: int) -> CellsPolicy:
    torch.manual_seed(seed)
    policy = CellsConfig(hidden=hidden, sharpness=1.0).fresh()
    with torch.no_grad():
        for weights in policy.actor.values():
            weights.add_(0.3 * torch.randn(weights.shape))
    return policy


@pytest.mark.parametrize("hidden", [0, 5])
@examples(40, 8)
@given(seed=SEEDS)
def test_the_compiled_replay_sends_jobs_where_the_policy_would(
    hidden: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster, trace = Cluster.uniform(6, 4, nodes_per_rack=1), jobs_of(seed)
    policy = policy_of(seed, hidden)
    folder = export_cells(policy, tmp_path_factory.mktemp("cells") / "it", CARD)
    delay_s = float(np.random.default_rng(seed).choice([0.0, 30.0, 100.0]))
    views = LateViews(LearnedCells(folder), delay_s, seed)
    scheduler = joint_choice(several(SCHEDULERS, forward_s=20.0, seed=seed, views=views))
    expected = replay(scheduler, cluster, trace)

    def world(number: int) -> CellWorld:
        own = joint_choice(replace(scheduler.partitioned))
        return CellWorld(own, ClusterSimulator(cluster, trace))

    task = CellsRLTask(SCHEDULERS, world, world)
    env = task.make_evaluation_env(0)
    vector = VectorEnv(task, [env], 1)
    env.reset(0)
    waited, ended = 0.0, False
    while not ended:
        env.observe(0)
        (buffer,) = vector.buffers.values()
        seen = buffer.at(0, np.arange(SCHEDULERS))
        with torch.inference_mode():
            chosen = policy.decide(seen)[0].argmax(dim=1).tolist()
        assert sum(int(mask.sum()) > 1 for mask in seen["action_mask"]) <= 1  # one has a choice
        step = env.step(chosen)
        waited -= step.rewards[0]
        ended = step.terminated
    found = env.world.simulator.schedule()
    assert_array_equal(found.finish, expected.finish)
    assert env.objective() == pytest.approx(expected.jct.mean())
    # rewards: the mean JCT in mean durations
    assert waited == pytest.approx(expected.jct.mean() / trace.duration_s.mean())


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    folder = export_cells(policy_of(0, 3), tmp_path / "it", CARD)
    (folder / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        LearnedCells(folder)
    with pytest.raises(InputError, match="nowhere"):
        LearnedCells(tmp_path / "nowhere")
