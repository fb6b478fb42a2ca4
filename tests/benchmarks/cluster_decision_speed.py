"""Milliseconds of one decision of a scheduler of 400 servers with 8 GPUs each, on one core.

    python tests/benchmarks/cluster_decision_speed.py

Three GPU types, racks of eight servers, preemption, a history of four jobs to each side. Jobs come
at once and are started, the first of the queue wherever it is offered, until no other fits; then 20
are stopped. About 1,000 run, and 500 of the queue are shown. The network is that of
`conf/model/hierarchical.yaml` with random weights, exported and run by ONNX Runtime with one
thread. The observation, which the environment builds for every decision, is measured beside it.
Processor time of this process; medians of 50.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from models.export.checkpoint import OnnxRuntime, load_checkpoint
from models.export.exporter import ModelCard, export_scheduler

SERVERS, GPUS, PER_RACK, TYPES = 400, 8, 8, ("V100", "P100", "K80")
JOBS, PENDING, RUNNING, SHARES, HISTORY = 1_500, 500, 1_024, 2_048, 4
SIZES, CHANCES = (1, 2, 4, 8, 16), (0.46, 0.23, 0.17, 0.09, 0.05)
STOPPED = 20  # running jobs, for whose GPUs there is then a choice
ROUNDS, WARM_UP, LIMIT_MS = 50, 5, 20.0
CARD = ModelCard("Random weights", "meshwright/Cluster-v0", (-1.0, 4.0), "", "none")


def full_cluster() -> ClusterEnv:
    """An environment whose cluster is nearly full, with 500 jobs or more in the queue."""
    rng = np.random.default_rng(0)
    gpus = rng.choice(SIZES, JOBS, p=CHANCES)
    seconds = np.exp(rng.uniform(np.log(600), np.log(864_000), JOBS)).astype(np.int64)
    cluster = Cluster.uniform(SERVERS, GPUS, nodes_per_rack=PER_RACK, gpu_types=TYPES)
    env = ClusterEnv.of_trace(
        cluster,
        Trace.of("full cluster", np.zeros(JOBS, np.int64), seconds, gpus),
        actions=ClusterActions(preempt_after_s=0.0, longest_wait_s=600.0),
        observation=partial(
            ClusterObservation,
            window=PENDING,
            running=RUNNING,
            shares=SHARES,
            known_durations=False,
            history=HISTORY,
        ),
    )
    observation, info = env.reset(seed=0)
    starts = PENDING * (SERVERS + cluster.num_racks + 1)
    while info["pending"] > PENDING:
        offered = np.flatnonzero(observation["action_mask"][:starts])
        if len(offered) == 0:
            break
        observation, _, _, _, info = env.step(offered[0])
    env.step(len(observation["action_mask"]) - 1)  # time passes: running jobs can be preempted
    for _ in range(STOPPED):
        env.step(starts)  # preempts the first running job shown
    return env


def milliseconds(call: Callable[[], object]) -> float:
    """Median processor time of a call."""
    spent = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return 1e3 * statistics.median(spent[WARM_UP:])


def main() -> None:
    """Print sizes and times."""
    torch.set_num_threads(1)
    env = full_cluster()
    observation, mask = env.episode.observe(0)
    observation["action_mask"] = mask
    shown = {name: int(observation[f"{name}_mask"].sum()) for name in ("pending", "running")}
    shown |= {"shares": int(observation["share_mask"].sum()), "actions": len(mask)}
    print(f"{SERVERS} servers of {GPUS} GPUs, " + ", ".join(f"{n:,} {k}" for k, n in shown.items()))
    print(f"allowed actions: {int(mask.sum()):,}")
    torch.manual_seed(0)
    config = instantiate(
        OmegaConf.load(str(resources.files("conf").joinpath("model/hierarchical.yaml")))
    )
    policy = config.policy(env.observation_space, env.action_space)
    with tempfile.TemporaryDirectory() as folder:
        run = OnnxRuntime(load_checkpoint(export_scheduler(policy, Path(folder) / "policy", CARD)))
    batch = {name: torch.from_numpy(array[None]) for name, array in observation.items()}
    with torch.inference_mode():
        eager = policy.decide(batch)[0][0].numpy()
        distance = float(np.abs(run(observation)[0] - eager).max())
        eager_ms = milliseconds(lambda: policy.decide(batch))
    decision_ms = milliseconds(lambda: run(observation))
    observation_ms = milliseconds(lambda: env.episode.observe(0))
    print(f"{'observation':24}{observation_ms:8.2f} ms")
    print(f"{'decision, exported':24}{decision_ms:8.2f} ms (to be at most {LIMIT_MS:g})")
    print(f"{'decision, eager':24}{eager_ms:8.2f} ms")
    print(f"largest difference of logits: {distance:.1e}")
    if decision_ms > LIMIT_MS:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
