"""Checkpoint folders of untrained policies of clusters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from agents.cluster.checkpoint import CheckpointScheduler
from agents.cluster.checkpoint_expert import described
from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.migrating.priorities import AttainedServiceClasses
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.observation import ClusterObservation, ExpertPolicy
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.routing import MixedRacks
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads, Schedule
from envs.cluster.workload.trace import Trace
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalConfig, HierarchicalPolicy
from models.export.checkpoint import CONFIG_FILE, SPEC_FILE, ExpertSpec, ModelCard
from models.export.exporter import export_scheduler
from tests.agents.cluster.small_clusters import Speeds

MODEL = HierarchicalConfig(
    hidden=8,
    rounds=1,
    heads=2,
    hierarchy=True,
    use_interference=True,
    initial_scale=1.0,
    initial_index_weight=0.0,
    initial_speed_weight=0.0,
    initial_expert_weight=0.0,
)


CLUSTER = Cluster.uniform(6, 2, nodes_per_rack=1, gpu_types=("V100", "P100", "K80"))
OVERHEADS = Overheads(5.0, 0.0)


class OddToTheLast:
    """Odd jobs come to the last scheduler."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> Any:
        return (np.arange(len(trace)) % 2 * (schedulers - 1)).astype(np.int32)


def jobs(
    seed: int = 0, number: int = 14, within_s: int = 900, seconds: tuple[int, int] = (100, 900)
) -> Trace:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, within_s, number))
    return Trace.of("drawn", submit, rng.integers(*seconds, number), rng.integers(1, 4, number))


def settings(trace: Trace) -> dict[str, Any]:
    """Every job has speeds of its own, and stopping costs."""
    speed = np.random.default_rng(1).uniform(0.2, 1.0, (len(trace), 3))
    return {"rates": Speeds(speed), "overheads": OVERHEADS}


def scheduler(folder: Path, schedulers: int = 1, **more: Any) -> CheckpointScheduler:
    return CheckpointScheduler(str(folder), schedulers=schedulers, routing=OddToTheLast(), **more)


def assert_plays(agent: CheckpointScheduler, trace: Trace, expected: Schedule) -> None:
    found = agent.play(CLUSTER, trace, **settings(trace))
    np.testing.assert_array_equal(found.finish, expected.finish)
    np.testing.assert_array_equal(found.preemptions, expected.preemptions)


def trained_config(*, known: bool = False) -> dict[str, Any]:
    """What a training run writes of its environment."""
    actions = {
        "_target_": "envs.cluster.environment.actions.ClusterActions",
        "servers": True, "racks": True,
        "all_servers": True, "preempt_after_s": 60.0, "longest_wait_s": 600.0,
    }  # fmt: skip
    observation = {
        "known_durations": known,
        "history": 2,
        "order": {"_target_": "envs.cluster.environment.actions.QueueOrder"},
    }
    return {"env": {"actions": actions, "observation": observation}}


def exported(
    folder: Path,
    env: ClusterParallelEnv,
    config: dict[str, Any],
    model: HierarchicalConfig = MODEL,
    expert: ExpertSpec | None = None,
) -> HierarchicalPolicy:
    """Write the folder of a fresh policy for the schedulers of `env`."""
    torch.manual_seed(0)
    agent = env.possible_agents[0]
    policy = model.policy(env.observation_space(agent), env.action_space(agent)).eval()
    card = ModelCard("untrained", "", yaml.safe_dump(config), {})
    export_scheduler(policy, folder, card, expert)
    return policy


def advised(folder: Path) -> Path:
    """Write the folder of a fresh policy that is shown an expert's action."""
    cluster = Cluster.uniform(4, 2, nodes_per_rack=1, gpu_types=("V100", "P100"))
    trace, config = Trace.of("two", [0, 0], [600, 600], [1, 2]), trained_config()
    expert = MigrationExpert(partial(AttainedServiceClasses, 600.0), 1.33, 120.0)
    env = environment(cluster, trace, config, expert)
    exported(folder, env, config, expert=described(expert))
    return folder


def edited(source: Path, folder: Path, file: str, path: Sequence[str], value: Any) -> Path:
    """A copy of a checkpoint folder with another value in its configuration or its spec."""
    if folder != source:
        shutil.copytree(source, folder)
    document = node = yaml.safe_load((folder / file).read_text())
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    (folder / file).write_text(json.dumps(document))
    if file == CONFIG_FILE:
        edited(folder, folder, SPEC_FILE, ("sha256", file), sha256_of(folder / file))
    return folder


def environment(
    cluster: Any,
    trace: Any,
    config: dict[str, Any],
    expert: ExpertPolicy | None = None,
    **more: Any,
) -> ClusterParallelEnv:
    """The environment of `config` about one trace, everything shown."""
    node = config["env"]["observation"]

    def observation(bounds: Any, peers: int) -> ClusterObservation:
        return ClusterObservation(
            bounds, peers, window=16, running=16, shares=32,
            known_durations=node["known_durations"], history=node["history"],
            expert=expert,
        )  # fmt: skip

    actions = {k: v for k, v in config["env"]["actions"].items() if k != "_target_"}
    return ClusterParallelEnv.of_trace(
        cluster, trace, observation=observation, actions=ClusterActions(**actions), **more
    )


def shared(trace: Trace, schedulers: int, expert: ExpertPolicy | None = None) -> ClusterParallelEnv:
    """The environment about `trace` on `CLUSTER`, with its settings."""
    return environment(
        CLUSTER, trace, trained_config(), expert, schedulers=schedulers, partition=MixedRacks(),
        routing=OddToTheLast(), **settings(trace),
    )  # fmt: skip


def played(env: ClusterParallelEnv, decide: Callable[[Any], int]) -> Schedule:
    """Every scheduler does what `decide` says until the end."""
    seen, _ = env.reset(seed=0)
    while env.agents:
        seen, _, _, truncated, _ = env.step({agent: decide(seen[agent]) for agent in env.agents})
    assert not any(truncated.values())
    return env.schedule()


def logits(policy: HierarchicalPolicy, graph: Any) -> torch.Tensor:
    batch = {name: torch.from_numpy(array[None]) for name, array in graph.items()}
    with torch.inference_mode():
        return policy.decide(batch)[0][0]


def eager(
    policy: HierarchicalPolicy, counted: ClusterParallelEnv | None = None
) -> Callable[[Any], int]:
    """To wait where that is as likely as all else together, or else the likeliest action.

    Args:
        policy: whose choice it is.
        counted: of this environment jobs are counted over the groups they could start on, and the
            likeliest group is taken; None: a job and a group are one action.
    """
    table = None if counted is None else counted.observation.table

    def decide(graph: Any) -> int:
        shares = logits(policy, graph).double().softmax(0)
        waits = len(shares) - 1
        if shares[waits] >= 0.5:
            return waits
        action = {a: float(shares[a]) for a in range(waits)}
        if table is not None:
            of_job = {
                job: [action.pop(job * table.groups + group) for group in range(table.groups)]
                for job in range(table.window)
            }
            action |= {
                job * table.groups + int(np.argmax(parts)): sum(parts)
                for job, parts in of_job.items()
            }
        return max(sorted(action), key=lambda a: action[a])

    return decide
