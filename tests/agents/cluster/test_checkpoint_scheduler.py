"""An exported policy replays a trace as the policy in memory plays the environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from exported_schedulers import (
    CLUSTER,
    MODEL,
    OVERHEADS,
    assert_plays,
    eager,
    edited,
    exported,
    jobs,
    logits,
    played,
    scheduler,
    settings,
    shared,
    trained_config,
)
from small_clusters import check_schedule

from agents.cluster.checkpoint import Trimmed
from agents.cluster.greedy_action import greedy_action
from agents.cluster.teachers import FirstFit
from agents.rllib.cluster.scheduling import SchedulingRLTask
from agents.rllib.module import modules_of
from agents.rllib.vector import Evaluation
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads
from envs.files import read_json
from experiments.evaluate import main
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalPolicy
from models.export.checkpoint import CONFIG_FILE, SPEC_FILE
from tests.refusal import refusal

pytestmark = pytest.mark.slow


class Made(NamedTuple):
    """The folder of an untrained policy for one scheduler or several, and the policy."""

    folder: Path
    policy: HierarchicalPolicy


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made") / "checkpoint"
    return Made(folder, exported(folder, shared(jobs(), 2), trained_config()))


@pytest.mark.parametrize("schedulers", [1, 2])
def test_replays_what_the_policy_plays(made: Made, schedulers: int) -> None:
    agent = scheduler(made.folder, schedulers)
    env, first = shared(jobs(), schedulers), FirstFit()
    expected = played(env, eager(made.policy, env))
    assert expected.finish.tolist() != played(env, eager(made.policy)).finish.tolist()
    assert_plays(agent, jobs(), expected)
    task = SchedulingRLTask(
        lambda: env, lambda _: env, parameters="shared", per_gpu=True, teacher=first,
        reference=first,
    )  # fmt: skip
    module = modules_of(task, MODEL)["scheduler"]
    module.policy = made.policy
    (evaluated,) = Evaluation(task, 1).of({"scheduler": module})
    assert evaluated.objective == expected.jct.mean()


@pytest.mark.parametrize(("known", "knows"), [(False, "predictions"), (True, "durations")])
def test_is_a_schedule_and_says_what_it_knows(
    made: Made, tmp_path: Path, known: bool, knows: str
) -> None:
    path = ("env", "observation", "known_durations")
    agent = scheduler(edited(made.folder, tmp_path / "c", CONFIG_FILE, path, known))
    assert agent.knows == knows
    trace, free = jobs(3), Overheads(0.0, 0.0)
    found = agent.play(CLUSTER, trace, rates=NoInterference(), overheads=free, keep_runs=True)
    check_schedule(CLUSTER, trace, found)


def test_other_sizes_than_in_training(made: Made) -> None:
    larger = Cluster.uniform(9, 4, nodes_per_rack=3, gpu_types=CLUSTER.gpu_types)
    trace = jobs(4, 40)
    agent = scheduler(made.folder, window=8)
    assert agent.play(larger, trace, **settings(trace)).finished.all()
    four = Cluster.uniform(4, 4, gpu_types=(*CLUSTER.gpu_types, "A100"))
    with refusal("4 GPU types, the policy was made for 3"):
        agent.play(four, trace, rates=NoInterference(), overheads=OVERHEADS)


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        (CONFIG_FILE, "env.observation.known_durations", "maybe", "known_durations"),
        (CONFIG_FILE, "env.observation.order", {"_target_": "os.system"}, "'system' is not one of"),
        (CONFIG_FILE, "env.actions.preempt_after_s", 0.0, "for ever"),
        (CONFIG_FILE, "env.actions", None, "actions"),
        (CONFIG_FILE, "overheads", {}, "overheads"),
        (SPEC_FILE, "observation_kind", "placement", "of kind 'placement', not 'cluster'"),
    ],
)
def test_a_folder_that_does_not_say_what_is_needed(
    made: Made,
    tmp_path: Path,
    file: str,
    path: str,
    value: Any,
    message: str,
) -> None:
    with refusal(message) as raised:
        scheduler(edited(made.folder, tmp_path / "c", file, path.split("."), value))
    assert file in str(raised.value)


def test_evaluate_by_its_name(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["evaluate"])
    trace = jobs(5)
    rows = zip(trace.job_id, trace.submit_s, trace.duration_s, trace.num_gpus, strict=True)
    lines = ["job_id,submit_s,duration_s,num_gpus", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "jobs.csv").write_text("\n".join(lines))
    asked = [
        "env=cluster", "agent=checkpoint", f"agent.checkpoint={made.folder}", "trace.path=jobs.csv",
        "cluster.nodes=6", "cluster.gpus_per_node=2", "cluster.nodes_per_rack=1",
        "cluster.gpu_types=[V100,P100,K80]", "hydra.run.dir=run",
    ]  # fmt: skip
    assert main(asked) == 0
    found = read_json(tmp_path / "run/result.json")
    assert found["provenance"]["inputs_sha256"]["checkpoint"] == sha256_of(made.folder / SPEC_FILE)
    names = ("agent", "knows", "finished", "placement")
    assert [found[name] for name in names] == ["checkpoint", "predictions", len(trace), None]


def test_greedy_choices() -> None:
    """Two jobs on two groups each: the second job's share is split; half or more is to wait."""
    for shares, action, job in (([30, 1, 19, 15, 35], 0, 2), ([20, 10, 10, 10, 50], 4, 4)):
        logits = np.log(np.array(shares, np.float32))
        assert greedy_action(logits, 2, 2, by_job=False) == action
        assert greedy_action(logits, 2, 2, by_job=True) == job
    forbidden = np.array([-np.inf, -np.inf, -np.inf, -np.inf, 0.0], np.float32)
    with np.errstate(all="raise"):
        assert greedy_action(forbidden, 2, 2, by_job=True) == 4


def test_trimming_changes_no_decision(made: Made) -> None:
    env, rng = shared(jobs(), 2), np.random.default_rng(0)
    seen, _ = env.reset(seed=0)
    for _ in range(25):
        actions = {}
        for agent, graph in seen.items():
            short = Trimmed(graph, graph["action_mask"], env.episode.action_table)
            allowed = np.flatnonzero(graph["action_mask"])
            assert len(allowed) == short.observation["action_mask"].sum()
            whole = logits(made.policy, graph).numpy()[short.actions]
            trimmed = logits(made.policy, short.observation).numpy()
            np.testing.assert_allclose(trimmed, whole, atol=1e-5)
            actions[agent] = int(rng.choice(allowed))
        if not env.agents:
            break
        seen, *_ = env.step(actions)
