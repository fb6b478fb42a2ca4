"""Profiles and networks with round numbers, and traces that name their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hydra import compose
from omegaconf import OmegaConf

from envs.cluster.interference.analytic import NodeNetwork, StepModel
from envs.cluster.interference.profiles import Profiles
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import Labels, Trace
from envs.hardware.fabric import LinkSpec
from experiments.config.composing import hydra_over_configs
from experiments.config.targets import build


def configured(name: str, *overrides: str) -> RateModel:
    """An interference model as in `conf/interference`."""
    with hydra_over_configs():
        config = compose(f"interference/{name}", overrides=list(overrides)).interference
    model: RateModel = build(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    return model


def link(bandwidth: float, latency: float = 0.0) -> LinkSpec:
    return LinkSpec("made up", bandwidth, latency)


def network(*, inside_is_pcie: bool = False, latency: float = 0.0) -> NodeNetwork:
    """1000 bytes/s on a node and its PCIe, 100 in a rack, 50 between racks."""
    far = link(100.0, latency), link(50.0, latency)
    return NodeNetwork(link(1000.0, latency), *far, link(1000.0), inside_is_pcie)


def profiles() -> Profiles:
    jobs = {
        "mute": {"gradients": 0, "input": 0, "busy": 0.6},
        "chatty": {"gradients": 100, "input": 0, "busy": 0.9},
        "hungry": {"gradients": 0, "input": 400, "busy": 0.3},
    }
    step = {"T4": 2.0, "V100-16GB": 1.0}
    return Profiles(
        {n: {**j, "least_gpus": 1, "most_gpus": 99, "step": step} for n, j in jobs.items()}
    )


def step_model(overlap: float = 0.0, **of_network: object) -> StepModel:
    devices = {"T4": "T4", "V100": "V100-16GB"}
    return StepModel(network(**of_network), devices, "V100-16GB", overlap)  # type: ignore[arg-type]


def named_trace(
    models: Sequence[str], gangs: Sequence[int], milli: Sequence[int] | None = None
) -> Trace:
    count = len(models)
    trace = Trace.of("named", [0] * count, [100] * count, gangs)
    parts = np.full(count, 1000, np.int32) if milli is None else np.array(milli, np.int32)
    return replace(trace, model=Labels.of(models), gpu_milli=parts)


def arrived(model: RateModel, cluster: Cluster, trace: Trace) -> ClusterSimulator:
    """All jobs of the trace wait."""
    simulator = ClusterSimulator(cluster, trace, rates=model)
    simulator.advance()
    return simulator


def play(
    simulator: ClusterSimulator, jobs: Mapping[int, Sequence[tuple[int, int]] | None]
) -> list[float]:
    """Start jobs on (node, GPUs), or stop them; the rates of all jobs, 0 where they wait.

    A fractional job joins the partial GPUs of its node, if there are any.
    """
    state = simulator.state
    for job, shares in jobs.items():
        if shares is None:
            simulator.preempt(job)
            continue
        partial = int(state.nodes[shares[0][0]]["partial"])
        joins = partial != NONE and state.jobs[job]["milli"] < 1000
        simulator.start(job, shares, partial if joins else None)
    rates: list[float] = state.jobs["rate"].tolist()
    return rates


def check_story(
    simulator: ClusterSimulator,
    *steps: tuple[Mapping[int, Sequence[tuple[int, int]] | None], list[float]],
) -> None:
    """What is played, and the rates after it; 1 is exact."""
    for jobs, expected in steps:
        found = play(simulator, jobs)
        assert found == pytest.approx(expected, rel=1e-12)
        assert [rate == 1.0 for rate in found] == [rate == 1.0 for rate in expected]
