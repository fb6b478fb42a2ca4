"""Checkpoint folders of untrained policies of clusters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from agents.cluster.checkpoint_adviser import described
from agents.cluster.migrating.adviser import MigrationAdviser
from agents.cluster.migrating.priorities import AttainedServiceClasses
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalConfig, HierarchicalPolicy
from models.export.checkpoint import CONFIG_FILE, SPEC_FILE, AdviserSpec, ModelCard
from models.export.exporter import export_scheduler

MODEL = HierarchicalConfig(
    hidden=8,
    rounds=1,
    heads=2,
    hierarchy=True,
    use_interference=True,
    initial_scale=1.0,
    initial_index_weight=0.0,
    initial_speed_weight=0.0,
    initial_advice_weight=0.0,
)


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
    adviser: AdviserSpec | None = None,
) -> HierarchicalPolicy:
    """Write the folder of a fresh policy for the schedulers of `env`."""
    torch.manual_seed(0)
    agent = env.possible_agents[0]
    policy = model.policy(env.observation_space(agent), env.action_space(agent)).eval()
    card = ModelCard("untrained", "", yaml.safe_dump(config), {})
    export_scheduler(policy, folder, card, adviser)
    return policy


def advised(folder: Path) -> Path:
    """Write the folder of a fresh policy that is shown an adviser's action."""
    cluster = Cluster.uniform(4, 2, nodes_per_rack=1, gpu_types=("V100", "P100"))
    trace, config = Trace.of("two", [0, 0], [600, 600], [1, 2]), trained_config()
    adviser = MigrationAdviser(partial(AttainedServiceClasses, 600.0), 1.33, 120.0)
    env = environment(cluster, trace, config, adviser)
    exported(folder, env, config, adviser=described(adviser))
    return folder


def as_if_trained(source: Path, folder: Path, config: dict[str, Any]) -> Path:
    """A copy of a checkpoint folder with another configuration."""
    shutil.copytree(source, folder)
    (folder / CONFIG_FILE).write_text(yaml.safe_dump(config))
    spec = json.loads((folder / SPEC_FILE).read_text())
    spec["sha256"][CONFIG_FILE] = sha256_of(folder / CONFIG_FILE)
    (folder / SPEC_FILE).write_text(json.dumps(spec))
    return folder


def environment(
    cluster: Any, trace: Any, config: dict[str, Any], adviser: Adviser | None = None, **more: Any
) -> ClusterParallelEnv:
    """The environment of `config` about one trace, everything shown."""
    node = config["env"]["observation"]

    def observation(bounds: Any, peers: int) -> ClusterObservation:
        return ClusterObservation(
            bounds, peers, window=16, running=16, shares=32,
            known_durations=node["known_durations"], history=node["history"],
            adviser=adviser,
        )  # fmt: skip

    actions = {k: v for k, v in config["env"]["actions"].items() if k != "_target_"}
    return ClusterParallelEnv.of_trace(
        cluster, trace, observation=observation, actions=ClusterActions(**actions), **more
    )


def played(env: ClusterParallelEnv, decide: Callable[[Any], int]) -> Schedule:
    """Every scheduler does what `decide` says until the end."""
    seen, _ = env.reset(seed=0)
    while env.agents:
        seen, _, _, truncated, _ = env.step({agent: decide(seen[agent]) for agent in env.agents})
    assert not any(truncated.values())
    return env.schedule()


def eager(policy: HierarchicalPolicy) -> Callable[[Any], int]:
    """To wait where that is as likely as all else together, or else the likeliest action."""

    def decide(graph: Any) -> int:
        batch = {name: torch.from_numpy(array[None]) for name, array in graph.items()}
        with torch.inference_mode():
            shares = policy.decide(batch)[0][0].double().softmax(0)
        return len(shares) - 1 if shares[-1] >= 0.5 else int(shares[:-1].argmax())

    return decide
