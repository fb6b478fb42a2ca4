"""An exported policy replays a trace as the policy in memory plays the environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_schedulers import (
    CLUSTER,
    OVERHEADS,
    assert_plays,
    eager,
    edited,
    exported,
    jobs,
    played,
    scheduler,
    settings,
    shared,
    trained_config,
)
from small_clusters import check_schedule

from agents.cluster.checkpoint import Trimmed, most_probable_action, most_probable_job
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HierarchicalPolicy]:
    """The folder of an untrained policy for one scheduler or several, and the policy."""
    folder = tmp_path_factory.mktemp("made") / "checkpoint"
    return folder, exported(folder, shared(jobs(), 2), trained_config())


@pytest.mark.parametrize("schedulers", [1, 2])
def test_replays_what_the_policy_plays(
    made: tuple[Path, HierarchicalPolicy], schedulers: int
) -> None:
    folder, policy = made
    trace, agent = jobs(), scheduler(folder, schedulers)
    agent.greedy = most_probable_action  # as `eager`
    expected = played(shared(trace, schedulers), eager(policy))
    assert_plays(agent, trace, expected)


@pytest.mark.parametrize(("known", "knows"), [(False, "predictions"), (True, "durations")])
def test_is_a_schedule_and_says_what_it_knows(
    made: tuple[Path, HierarchicalPolicy], tmp_path: Path, known: bool, knows: str
) -> None:
    path = ("env", "observation", "known_durations")
    agent = scheduler(edited(made[0], tmp_path / "c", CONFIG_FILE, path, known))
    assert agent.knows == knows
    trace, free = jobs(3), Overheads(0.0, 0.0)
    found = agent.play(CLUSTER, trace, rates=NoInterference(), overheads=free, keep_runs=True)
    check_schedule(CLUSTER, trace, found)


def test_other_sizes_than_in_training(made: tuple[Path, HierarchicalPolicy]) -> None:
    larger = Cluster.uniform(9, 4, nodes_per_rack=3, gpu_types=CLUSTER.gpu_types)
    trace = jobs(4, 40)
    agent = scheduler(made[0], window=8)
    assert agent.play(larger, trace, **settings(trace)).finished.all()
    four = Cluster.uniform(4, 4, gpu_types=(*CLUSTER.gpu_types, "A100"))
    with refusal("4 GPU types, the policy was made for 3"):
        agent.play(four, trace, rates=NoInterference(), overheads=OVERHEADS)


@pytest.mark.parametrize(
    ("file", "path", "value", "told"),
    [
        (CONFIG_FILE, "env.observation.known_durations", "maybe", "known_durations"),
        (CONFIG_FILE, "env.observation.order", {"_target_": "os.system"}, "'system' is none of"),
        (CONFIG_FILE, "env.actions.preempt_after_s", 0.0, "for ever"),
        (CONFIG_FILE, "env.actions", None, "actions"),
        (CONFIG_FILE, "overheads", {}, "overheads"),
        (SPEC_FILE, "observation_kind", "placement", "of kind 'placement', not 'cluster'"),
    ],
)
def test_a_folder_that_does_not_say_what_is_needed(
    made: tuple[Path, HierarchicalPolicy],
    tmp_path: Path,
    file: str,
    path: str,
    value: Any,
    told: str,
) -> None:
    with refusal(told) as raised:
        scheduler(edited(made[0], tmp_path / "c", file, path.split("."), value))
    assert file in str(raised.value)


def test_evaluate_by_its_name(
    made: tuple[Path, HierarchicalPolicy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["evaluate"])
    trace = jobs(5)
    rows = zip(trace.submit_s, trace.duration_s, trace.num_gpus, strict=True)
    lines = [f"{job},{s},{d},{g}" for job, (s, d, g) in enumerate(rows)]
    (tmp_path / "jobs.csv").write_text("\n".join(["job_id,submit_s,duration_s,num_gpus", *lines]))
    asked = [
        "env=cluster", "agent=checkpoint", f"agent.checkpoint={made[0]}", "trace.path=jobs.csv",
        "cluster.nodes=6", "cluster.gpus_per_node=2", "cluster.nodes_per_rack=1",
        "cluster.gpu_types=[V100,P100,K80]", "hydra.run.dir=run",
    ]  # fmt: skip
    assert main(asked) == 0
    found = read_json(tmp_path / "run/result.json")
    assert found["provenance"]["inputs_sha256"]["checkpoint"] == sha256_of(made[0] / SPEC_FILE)
    expected = {
        "agent": "checkpoint", "knows": "predictions", "finished": len(trace), "placement": None,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected


def test_greedy_choices() -> None:
    """Two jobs on two groups each: the second job's share is split; half or more is to wait."""
    for shares, action, job in (([30, 1, 19, 15, 35], 0, 2), ([20, 10, 10, 10, 50], 4, 4)):
        logits = np.log(np.array(shares, np.float32))
        assert most_probable_action(logits, 2, 2) == action
        assert most_probable_job(logits, 2, 2) == job
    forbidden = np.array([-np.inf, -np.inf, -np.inf, -np.inf, 0.0], np.float32)
    with np.errstate(all="raise"):
        assert most_probable_job(forbidden, 2, 2) == 4


def test_trimming_changes_no_decision(made: tuple[Path, HierarchicalPolicy]) -> None:
    policy = made[1]
    env, rng = shared(jobs(), 2), np.random.default_rng(0)
    seen, _ = env.reset(seed=0)

    def logits(graph: Mapping[str, Any]) -> Any:
        batch = {name: torch.from_numpy(array[None]) for name, array in graph.items()}
        with torch.inference_mode():
            return policy.decide(batch)[0][0].numpy()

    for _ in range(25):
        if not env.agents:
            break
        for graph in seen.values():
            short = Trimmed(graph, graph["action_mask"], env.episode.action_table)
            whole = logits(graph)
            assert graph["action_mask"].sum() == short.observation["action_mask"].sum()
            np.testing.assert_allclose(logits(short.observation), whole[short.actions], atol=1e-5)
        allowed = [np.flatnonzero(graph["action_mask"]) for graph in seen.values()]
        seen, *_ = env.step(
            {agent: int(rng.choice(a)) for agent, a in zip(env.agents, allowed, strict=True)}
        )
