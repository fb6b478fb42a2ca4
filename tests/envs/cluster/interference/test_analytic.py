"""Shared bottlenecks worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up import arrived, check_story, link, named_trace, network, profiles, step_model

from agents.synchronisation.classical import Hierarchical, Ring
from envs.cluster.interference.analytic import (
    AllReduceContention,
    NodeNetwork,
    SharedBottleneck,
    StepModel,
)
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.rates import NIC, PCIE, RING, RateModel, RateTables
from envs.cluster.nodes import Cluster
from envs.units import MEBI
from tests.refusal import refusal

NEAR, FAR, RACK_RING = 1.1 / 2.0, 1.1 / 3.0, 0.1 / 1.1  # of `chatty` on two GPUs
PAIRS = Cluster.uniform(4, 2, nodes_per_rack=2)
BETA, ETA = 2.0, 0.5


def slow(k: int) -> float:
    """What k all-reduces on a port make of each."""
    return (k * BETA + (k - 1) * ETA) / BETA


STORIES: dict[str, tuple[dict[str, Any], list[tuple[dict[int, Any], list[float]]]]] = {
    # Each GPU of `hungry` asks for 0.4 of the PCIe: 3 are 1.2 of it, 4 are 1.6; `mute` has no input
    "the inputs of a node share its PCIe": (
        {"models": ["hungry", "hungry", "mute", "hungry"], "gangs": [1] * 4},
        [
            ({0: [(0, 1)], 1: [(0, 1)]}, [1.0, 1.0, 0.0, 0.0]),
            ({3: [(0, 1)], 2: [(0, 1)]}, [1 / 1.2, 1 / 1.2, 1.0, 1 / 1.2]),
            ({1: None}, [1.0, 0.0, 1.0, 1.0]),
        ],
    ),
    # Three GPUs of one job ask for 1.2, its neighbour for 0.4
    "what a job asks for alone is in its trace already": (
        {"models": ["hungry", "hungry"], "gangs": [3, 1]},
        [({0: [(0, 3)]}, [1.0, 0.0]), ({1: [(0, 1)]}, [1.2 / 1.6, 1 / 1.6])],
    ),
    # Busy for 0.6 + 0.3 of the time, then 0.6 + 0.3 + 0.9 = 1.8
    "a partial GPU is shared by its jobs alone": (
        {
            "models": ["mute", "hungry", "chatty", "chatty"],
            "gangs": [1] * 4,
            "milli": [300, 300, 300, 1000],
        },
        [
            ({0: [(0, 1)], 1: [(0, 1)], 3: [(0, 1)]}, [1.0, 1.0, 0.0, 1.0]),
            ({2: [(0, 1)]}, [1 / 1.8, 1 / 1.8, 1 / 1.8, 1.0]),
        ],
    ),
    # Each asks for half of a port: three share node 0, two node 1; a fourth stays on node 0
    "jobs on several nodes share the network port": (
        {"models": ["chatty"] * 4, "gangs": [2, 2, 2, 1]},
        [
            (
                {0: [(0, 1), (1, 1)], 1: [(0, 1), (1, 1)], 2: [(0, 1), (2, 1)], 3: [(0, 1)]},
                [NEAR / 1.5, NEAR / 1.5, FAR / 1.5, 1.0],
            ),
            ({2: None}, [NEAR, NEAR, 0.0, 1.0]),
        ],
    ),
    # On one rack: 1 s of computation, 1 s of communication
    "k all-reduces on a port": (
        {"models": ["chatty"] * 5, "gangs": [2] * 5, "contend": True},
        [
            ({k - 1: [(0, 1), (1, 1)]}, [NEAR / (0.5 + 0.5 * slow(k))] * k + [0.0] * (5 - k))
            for k in range(1, 6)
        ],
    ),
    "the fullest port counts, and only jobs on several nodes that communicate": (
        {
            "models": ["chatty", "chatty", "chatty", "mute", "chatty"],
            "gangs": [2, 2, 2, 2, 4],
            "contend": True,
        },
        [
            (
                {0: [(0, 1), (1, 1)], 3: [(0, 1), (1, 1)], 4: [(0, 4)]},
                [NEAR, 0.0, 0.0, 1.0, 1.0],
            ),
            (
                {1: [(1, 1), (2, 1)], 2: [(1, 1), (3, 1)]},
                [NEAR / (0.5 + 0.5 * slow(3)), *[FAR / (1 / 3 + 2 / 3 * slow(3))] * 2, 1.0, 1.0],
            ),
        ],
    ),
    # A ring of 2 GPUs asks for 0.1 / 1.1, the inputs of 2 GPUs of `hungry` for 0.8: 0.89 in all
    "rings share the PCIe where it joins the GPUs": (
        {"models": ["chatty", "hungry"], "gangs": [2, 2], "inside_is_pcie": True},
        [({0: [(0, 2)], 1: [(0, 2)]}, [1.0, 1.0])],
    ),
    "and are too much beside three GPUs": (
        {"models": ["chatty", "hungry"], "gangs": [2, 3], "inside_is_pcie": True},
        [
            (
                {0: [(0, 1), (1, 1)], 1: [(0, 3)]},
                [NEAR / (1.2 + RACK_RING), 1.2 / (1.2 + RACK_RING)],
            )
        ],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_stories_of_a_few_jobs(story: str) -> None:
    given, steps = STORIES[story]
    jobs = dict(given)
    step = step_model(inside_is_pcie=jobs.pop("inside_is_pcie", False))
    model: RateModel = SharedBottleneck(profiles(), step, 0)
    if jobs.pop("contend", False):
        model = AllReduceContention(profiles(), step, BETA, ETA, 0)
    simulator = arrived(model, Cluster.uniform(4, 8, nodes_per_rack=2), named_trace(**jobs))
    check_story(simulator, *steps)


def tables(
    step: StepModel, gangs: list[int], cluster: Cluster = PAIRS, model: str = "chatty"
) -> RateTables:
    return step.tables(named_trace([model] * len(gangs), gangs), profiles(), 0, cluster)[0]


def test_a_ring_runs_at_the_pace_of_its_widest_level() -> None:
    seconds = network(latency=0.5).all_reduce_seconds(4, 100.0)
    for found, bandwidth in zip(seconds, (1000.0, 100.0, 50.0), strict=True):
        assert found == pytest.approx(2 * 3 * 0.5 + 2 * 3 / 4 * 100 / bandwidth)
    assert network(latency=0.5).all_reduce_seconds(1, 100.0) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("overlap", "locality", "communication"),
    [
        (0.0, [1.0, 1.1 / 2.0, 1.1 / 3.0], [0.1 / 1.1, 1 / 2, 2 / 3]),
        (0.5, [1.0, 1 / 1.5, 1 / 2.5], [0.0, 0.5 / 1.5, 1.5 / 2.5]),
    ],
)
def test_steps_of_two_gpus(
    overlap: float, locality: list[float], communication: list[float]
) -> None:
    """All-reduces of 100 bytes take 0.1, 1 and 2 s beside 1 s of computation.

    Half of it hides 0.1 s whole, and 0.5 s of the others.
    """
    result = tables(step_model(overlap), [2])
    assert result.speed.tolist() == [[1.0]]
    assert result.locality[0, 0, :, 0] == pytest.approx(locality)
    assert result.communication[0, 0, :, 0] == pytest.approx(communication)
    on_pcie = tables(step_model(overlap, inside_is_pcie=True), [2])
    if not overlap:
        assert result.demand[0, [NIC, RING]] == pytest.approx([1 / 2, 0.0])
        assert on_pcie.demand[0, RING] == pytest.approx(0.1 / 1.1)


def test_the_reference_is_the_tightest_spread_that_the_cluster_allows() -> None:
    result = tables(step_model(), [2, 4, 8])
    one_node, one_rack, several = result.locality[:, 0, :, 0]
    assert one_node[0] == 1.0
    assert one_node[1] < 1.0
    assert one_rack[1] == 1.0
    assert one_rack[2] < 1.0
    assert several[2] == 1.0


def test_speed_times_locality_is_the_ratio_of_steps_on_every_type() -> None:
    cluster = Cluster.uniform(4, 2, nodes_per_rack=2, gpu_types=("V100", "T4"))
    result = tables(step_model(0.3), [2], cluster)
    model, profile = step_model(0.3), profiles().all[1]
    reference = model.seconds(profile, model.sums(2, 2), "V100-16GB")[0][0]
    for kind, device in enumerate(("V100-16GB", "T4")):
        steps = model.seconds(profile, model.sums(2, 2), device)[0]
        assert result.speed[0, kind] * result.locality[0, kind, :, 0] == pytest.approx(
            reference / steps
        )
    assert result.speed[0, 1] < 1.0


def test_jobs_without_gpu_and_of_one_gpu() -> None:
    result = tables(step_model(), [0, 1], Cluster.uniform(2, 2), "hungry")
    assert (result.speed == 1.0).all()
    assert (result.locality == 1.0).all()
    assert result.demand[0].tolist() == [0.0] * 4
    assert result.demand[1, PCIE] == pytest.approx(0.4)


def test_bad_input() -> None:
    with refusal(r"'devices': 'K80' is not one of T4, V100"):
        tables(step_model(), [1], Cluster.uniform(2, 2, gpu_types=("K80",)), "mute")
    with refusal(r"network.core': is faster than rack"):
        NodeNetwork(link(10.0), link(5.0), link(6.0), link(10.0), False)


def test_fewest_nodes_and_tightest_spread() -> None:
    sizes = np.array([4, 2, 2, 1], np.int32)
    uniform = Cluster.uniform(4, 1, nodes_per_rack=2)
    cluster = Cluster("c", sizes, uniform.rack.copy(), uniform.gpu_type.copy(), ("V100",),
                      uniform.cpu_milli.copy(), uniform.memory_mib.copy())  # fmt: skip
    trace = named_trace(["mute"] * 7, [0, 1, 4, 5, 6, 7, 9])
    cases = Cases.of(trace, ["mute"], 0)
    assert cases.fewest_nodes(cluster).tolist() == [1, 1, 1, 2, 2, 3, 4]
    assert cases.tightest_spread(cluster).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_a_planned_ring_takes_what_the_closed_form_says() -> None:
    """And sums by trees halve what leaves a node's port, where nodes have several GPUs."""
    links = network(latency=1e-3)
    size = 64 * MEBI
    for gpus in (2, 4, 8):
        closed = links.all_reduce_seconds(gpus, size)
        planned = replace(step_model(latency=1e-3), synchronisation=Ring()).sums(gpus, 2)
        assert planned.seconds(size) == pytest.approx(closed, rel=0.01)
        assert planned.inside == pytest.approx(2 * (gpus - 1) / gpus)
        assert planned.port == pytest.approx(2 * (gpus - 1) / gpus)
    apart = replace(step_model(latency=1e-3), synchronisation=Hierarchical()).sums(4, 2)
    assert apart.port == pytest.approx(1.0)


def test_jobs_synchronise_as_they_are_told() -> None:
    """Four GPUs on two nodes: half of what a ring asks of the port, and a shorter step."""
    ring, apart = (
        tables(replace(step_model(), synchronisation=by), [4]) for by in (None, Hierarchical())
    )
    assert apart.demand[0, NIC] * (1 + 1.0) == pytest.approx(1.0, rel=1e-2)  # in chunks
    assert ring.demand[0, NIC] * (1 + 1.5) == pytest.approx(1.5)
