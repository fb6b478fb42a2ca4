"""Shared bottlenecks worked out by hand."""

from __future__ import annotations

import pytest
from made_up import named_trace, profiles, step_model

from envs.cluster.interference.analytic import SharedBottleneck
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator


def simulator(
    models: list[str], gangs: list[int], milli: list[int] | None = None, **of_network: object
) -> ClusterSimulator:
    model = SharedBottleneck(profiles(), step_model(**of_network), 0)  # type: ignore[arg-type]
    result = ClusterSimulator(
        Cluster.uniform(4, 4, nodes_per_rack=2), named_trace(models, gangs, milli), rates=model
    )
    result.advance()
    return result


def rate(of: ClusterSimulator, job: int) -> float:
    return float(of.state.jobs[job]["rate"])


def test_pcie_is_shared_by_the_inputs_of_a_node() -> None:
    """Each GPU of `hungry` asks for 0.4 of the PCIe: 3 are 1.2 of it, 4 are 1.6."""
    sim = simulator(["hungry", "hungry", "mute", "hungry"], [1, 1, 1, 1])
    sim.start(0, [(0, 1)])
    sim.start(1, [(0, 1)])
    assert [rate(sim, job) for job in (0, 1)] == [1.0, 1.0]
    sim.start(3, [(0, 1)])
    sim.start(2, [(0, 1)])
    assert [rate(sim, job) for job in (0, 1, 3)] == pytest.approx([1 / 1.2] * 3)
    assert rate(sim, 2) == 1.0  # it has no input
    sim.preempt(1)
    assert rate(sim, 0) == 1.0


def test_what_a_job_asks_for_alone_is_in_its_trace_already() -> None:
    """Three GPUs of one job ask for 1.2, its neighbour for 0.4."""
    sim = simulator(["hungry", "hungry"], [3, 1])
    sim.start(0, [(0, 3)])
    assert rate(sim, 0) == 1.0
    sim.start(1, [(0, 1)])
    assert rate(sim, 0) == pytest.approx(1.2 / 1.6)
    assert rate(sim, 1) == pytest.approx(1 / 1.6)


def test_a_partial_gpu_is_shared_by_its_jobs_alone() -> None:
    """Busy for 0.6 + 0.3 of the time, then 0.6 + 0.3 + 0.9 = 1.8."""
    sim = simulator(["mute", "hungry", "chatty", "chatty"], [1] * 4, [300, 300, 300, 1000])
    sim.start(0, [(0, 1)])
    gpu = int(sim.state.nodes[0]["partial"])
    sim.start(1, [(0, 1)], gpu)
    sim.start(3, [(0, 1)])
    assert [rate(sim, job) for job in (0, 1, 3)] == [1.0, 1.0, 1.0]
    sim.start(2, [(0, 1)], gpu)
    assert [rate(sim, job) for job in (0, 1, 2)] == pytest.approx([1 / 1.8] * 3)
    assert rate(sim, 3) == 1.0


def test_the_network_port_is_shared_by_jobs_on_several_nodes() -> None:
    """Each asks for half of a port: three share node 0, two node 1; a fourth stays on node 0."""
    sim = simulator(["chatty"] * 4, [2, 2, 2, 1])
    for job, other in ((0, 1), (1, 1), (2, 2)):
        sim.start(job, [(0, 1), (other, 1)])
    sim.start(3, [(0, 1)])
    near, far = 1.1 / 2.0, 1.1 / 3.0
    expected = [near / 1.5, near / 1.5, far / 1.5, 1.0]
    assert [rate(sim, job) for job in range(4)] == pytest.approx(expected)
    sim.preempt(2)
    assert [rate(sim, job) for job in range(2)] == pytest.approx([near, near])


def test_rings_share_the_pcie_where_it_joins_the_gpus() -> None:
    """A ring of 2 GPUs asks for 0.1 / 1.1, the inputs of 2 GPUs of `hungry` for 0.8."""
    sim = simulator(["chatty", "hungry"], [2, 2], inside_is_pcie=True)
    sim.start(0, [(0, 2)])
    sim.start(1, [(0, 2)])
    assert rate(sim, 0) == 1.0  # 0.89 in all
    crowd = simulator(["chatty", "hungry"], [2, 3], inside_is_pcie=True)
    crowd.start(0, [(0, 1), (1, 1)])
    crowd.start(1, [(0, 3)])
    ring = 0.1 / 1.1
    assert rate(crowd, 0) == pytest.approx(1.1 / 2.0 / (1.2 + ring))
    assert rate(crowd, 1) == pytest.approx(1.2 / (1.2 + ring))
