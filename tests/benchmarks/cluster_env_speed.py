"""Decisions per second of `meshwright/Cluster-v0` under a random policy that obeys the mask.

    python tests/benchmarks/cluster_env_speed.py

Random jobs on 64 servers of eight GPUs in eight racks, at loads of 0.7 to 1.3, one thread, through
`gymnasium.make` without its checker. The policy draws uniformly from the allowed actions: its cost
is measured by itself, with the masks of the same episode, and reported beside.
"""

from __future__ import annotations

import time
from functools import partial

import gymnasium as gym
import numpy as np

import envs  # noqa: F401  registers the environments
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.nodes import Cluster

SERVERS, GPUS, PER_RACK, JOBS = 64, 8, 8, 2_000
DECISIONS, ROUNDS = 10_000, 7


def choose(mask: np.ndarray, rng: np.random.Generator) -> int:
    """An allowed action."""
    allowed = mask.nonzero()[0]
    return int(allowed[int(rng.random() * len(allowed))])


def measure(name: str, **arguments: object) -> None:
    """Print a row."""
    generator = RandomJobs(
        Cluster.uniform(SERVERS, GPUS, nodes_per_rack=PER_RACK),
        jobs=(JOBS, JOBS),
        load=(0.7, 1.3),
        max_gpus=64,
        duration_s=(60, 36_000),
    )
    env = gym.make(
        "meshwright/Cluster-v0", generator=generator, disable_env_checker=True, **arguments
    )
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    rates, shares, running, pending = [], [], [], []
    for _ in range(ROUNDS + 1):  # the first compiles
        masks = []
        spent = 0.0
        start = time.process_time()
        for _ in range(DECISIONS):
            mask = observation["action_mask"]
            masks.append(mask)
            observation, _, terminated, truncated, info = env.step(choose(mask, rng))
            running.append(info["running"])
            pending.append(info["pending"])
            if terminated or truncated:
                before = time.process_time()
                observation, _ = env.reset()
                spent += time.process_time() - before
        seconds = time.process_time() - start - spent
        start = time.process_time()
        for mask in masks:
            choose(mask, rng)
        choosing = time.process_time() - start
        rates.append(DECISIONS / seconds)
        shares.append((seconds - choosing) / DECISIONS * 1e6)
    print(
        f"{name:34}{np.median(rates[1:]):>13,.0f}{np.median(shares[1:]):>15.1f}"
        f"{np.mean(running):>10.0f}{np.mean(pending):>10.0f}{env.action_space.n:>9}"
    )


def main() -> None:
    """Print one row per variant."""
    print(f"{SERVERS} servers of {GPUS} GPUs")
    print(
        f"{'':34}{'decisions/s':>13}{'env us/step':>15}{'running':>10}{'pending':>10}{'actions':>9}"
    )
    measure("window 16, 128 running jobs shown")
    measure(
        "window 16, 512 running jobs shown",
        observation=partial(ClusterObservation, running=512, shares=512),
    )
    measure("racks only", actions=ClusterActions(servers=False))
    preemptive = ClusterActions(preempt_after_s=600.0, longest_wait_s=3600.0)
    measure("preemptive", actions=preemptive)
    large = partial(ClusterObservation, window=64, running=256, shares=256, known_durations=False)
    for history in (0, 4):
        measure(
            f"window 64, 256 running, history {history}",
            actions=preemptive,
            observation=partial(large, history=history),
        )


if __name__ == "__main__":
    main()
