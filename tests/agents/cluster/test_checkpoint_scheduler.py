"""An exported policy replays a trace as the policy in memory plays the environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_schedulers import (
    as_if_trained,
    eager,
    environment,
    exported,
    played,
    trained_config,
)
from numpy.random import default_rng
from small_clusters import Speeds, check_schedule

from agents.cluster.checkpoint import (
    CheckpointScheduler,
    Trimmed,
    most_probable_action,
    most_probable_job,
)
from envs.cluster.environment.routing import MixedRacks
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.workload.trace import Trace
from envs.files import read_json
from experiments.evaluate import main
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalPolicy
from tests.refusal import refusal

pytestmark = pytest.mark.slow

TYPES = ("V100", "P100", "K80")
CLUSTER = Cluster.uniform(6, 2, nodes_per_rack=1, gpu_types=TYPES)
OVERHEADS = Overheads(5.0, 0.0)


class FirstQueue:
    """Odd jobs come to the last scheduler."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> Any:
        return (np.arange(len(trace)) % 2 * (schedulers - 1)).astype(np.int32)


def jobs(seed: int = 0, number: int = 14) -> Trace:
    rng = default_rng(seed)
    submit = np.sort(rng.integers(0, 900, number))
    return Trace.of("drawn", submit, rng.integers(100, 900, number), rng.integers(1, 4, number))


def speeds(trace: Trace) -> Speeds:
    return Speeds(default_rng(1).uniform(0.2, 1.0, (len(trace), 3)))


def scheduler(folder: Path, schedulers: int = 1, **more: Any) -> CheckpointScheduler:
    arguments: dict[str, Any] = {
        "window": 512, "partition": MixedRacks(), "routing": FirstQueue(), "forwards": 1,
        "forward_s": 0.0, "seed": 0, **more,
    }  # fmt: skip
    found = CheckpointScheduler(str(folder), schedulers=schedulers, **arguments)
    found.greedy = most_probable_action  # as the policies are played here
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HierarchicalPolicy]:
    """The folder of an untrained policy for one scheduler or several, and the policy."""
    folder = tmp_path_factory.mktemp("made") / "checkpoint"
    config = trained_config()
    env = environment(CLUSTER, jobs(), config, schedulers=2, partition=MixedRacks())
    return folder, exported(folder, env, config)


@pytest.mark.parametrize("schedulers", [1, 2])
def test_replays_what_the_policy_plays(
    made: tuple[Path, HierarchicalPolicy], schedulers: int
) -> None:
    folder, policy = made
    trace = jobs()
    rates = speeds(trace)
    env = environment(
        CLUSTER, trace, trained_config(), schedulers=schedulers, partition=MixedRacks(),
        routing=FirstQueue(), rates=rates, overheads=OVERHEADS,
    )  # fmt: skip
    expected = played(env, eager(policy))
    agent = scheduler(folder, schedulers)
    found = agent.play(CLUSTER, trace, rates=rates, overheads=OVERHEADS)
    np.testing.assert_array_equal(found.finish, expected.finish)
    np.testing.assert_array_equal(found.preemptions, expected.preemptions)


@pytest.mark.parametrize(("known", "knows"), [(False, "predictions"), (True, "durations")])
def test_is_a_schedule_and_says_what_it_knows(
    made: tuple[Path, HierarchicalPolicy], tmp_path: Path, known: bool, knows: str
) -> None:
    trace = jobs(3)
    folder = as_if_trained(made[0], tmp_path / "c", trained_config(known=known))
    agent = scheduler(folder)
    assert agent.knows == knows
    found = agent.play(
        CLUSTER, trace, rates=NoInterference(), overheads=Overheads(0.0, 0.0), keep_runs=True
    )
    check_schedule(CLUSTER, trace, found)


def test_other_sizes_than_in_training(made: tuple[Path, HierarchicalPolicy]) -> None:
    larger = Cluster.uniform(9, 4, nodes_per_rack=3, gpu_types=TYPES)
    trace = jobs(4, 40)
    agent = scheduler(made[0], window=8)
    assert agent.play(larger, trace, rates=speeds(trace), overheads=OVERHEADS).finished.all()
    four = Cluster.uniform(4, 4, gpu_types=(*TYPES, "A100"))
    with refusal("4 GPU types, the policy was made for 3"):
        agent.play(four, trace, rates=NoInterference(), overheads=OVERHEADS)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("env", "observation", "known_durations"), "maybe", "known_durations"),
        (("env", "observation", "order"), {"_target_": "os.system"}, "'system' is none of"),
        (("env", "actions", "preempt_after_s"), 0.0, "for ever"),
        (("env", "actions"), None, "actions"),
    ],
)
def test_a_config_that_does_not_say(
    made: tuple[Path, HierarchicalPolicy],
    tmp_path: Path,
    path: tuple[str, ...],
    value: Any,
    told: str,
) -> None:
    config = trained_config()
    node = config
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with refusal(told) as raised:
        scheduler(as_if_trained(made[0], tmp_path / "c", config))
    assert "config.yaml" in str(raised.value)


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
    assert found["agent"] == "checkpoint"
    assert found["knows"] == "predictions"
    assert found["finished"] == len(trace)
    assert found["placement"] is None
    spec = found["provenance"]["inputs_sha256"]["checkpoint"]
    assert spec == sha256_of(made[0] / "spec.json")


def test_a_checkpoint_of_placement_is_refused(
    made: tuple[Path, HierarchicalPolicy], tmp_path: Path
) -> None:
    folder = as_if_trained(made[0], tmp_path / "c", trained_config())
    spec = read_json(folder / "spec.json")
    spec["observation_kind"] = "placement"
    (folder / "spec.json").write_text(json.dumps(spec))
    with refusal("of kind 'placement', not 'cluster'"):
        scheduler(folder)


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
    env = environment(CLUSTER, jobs(), trained_config(), schedulers=2, partition=MixedRacks())
    rng = default_rng(0)
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
