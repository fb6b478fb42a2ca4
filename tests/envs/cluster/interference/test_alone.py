"""How fast jobs run alone, against steps worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import link, named_trace, network, profiles, step_model

from envs.cluster.interference.analytic import NodeNetwork, StepModel
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.rates import NIC, PCIE, RING, RateTables
from envs.cluster.nodes import Cluster
from envs.errors import InputError


def tables(step: StepModel, gangs: list[int], cluster: Cluster, model: str) -> RateTables:
    trace = named_trace([model] * len(gangs), gangs)
    table = profiles()
    return step.tables(Cases.of(trace, table.assign(trace, 0)), table.all, cluster)


def test_a_ring_runs_at_the_pace_of_its_widest_level() -> None:
    seconds = network(latency=0.5).all_reduce_seconds(4, 100.0)
    for found, bandwidth in zip(seconds, (1000.0, 100.0, 50.0), strict=True):
        assert found == pytest.approx(2 * 3 * 0.5 + 2 * 3 / 4 * 100 / bandwidth)
    assert network(latency=0.5).all_reduce_seconds(1, 100.0) == (0.0, 0.0, 0.0)


def test_a_wider_level_must_not_be_faster() -> None:
    with pytest.raises(InputError, match=r"network.core': is faster than rack"):
        NodeNetwork(link(10.0), link(5.0), link(6.0), link(10.0), False)


def test_steps_of_two_gpus() -> None:
    """All-reduces of 100 bytes take 0.1, 1 and 2 s beside 1 s of computation."""
    result = tables(step_model(), [2], Cluster.uniform(4, 2, nodes_per_rack=2), "chatty")
    assert result.speed.tolist() == [[1.0]]
    assert result.locality[0, 0, :, 0] == pytest.approx([1.0, 1.1 / 2.0, 1.1 / 3.0])
    assert result.communication[0, 0, :, 0] == pytest.approx([0.1 / 1.1, 1 / 2, 2 / 3])
    assert result.demand[0, NIC] == pytest.approx(1 / 2)
    assert result.demand[0, RING] == 0.0
    on_pcie = tables(
        step_model(inside_is_pcie=True), [2], Cluster.uniform(4, 2, nodes_per_rack=2), "chatty"
    )
    assert on_pcie.demand[0, RING] == pytest.approx(0.1 / 1.1)


def test_overlap_hides_communication() -> None:
    """0.5 s of the computation hides 0.1 s whole, and 0.5 s of 1 s and of 2 s."""
    result = tables(step_model(0.5), [2], Cluster.uniform(4, 2, nodes_per_rack=2), "chatty")
    assert result.locality[0, 0, :, 0] == pytest.approx([1.0, 1 / 1.5, 1 / 2.5])
    assert result.communication[0, 0, :, 0] == pytest.approx([0.0, 0.5 / 1.5, 1.5 / 2.5])


def test_the_reference_is_the_tightest_spread_that_the_cluster_allows() -> None:
    result = tables(step_model(), [2, 4, 8], Cluster.uniform(4, 2, nodes_per_rack=2), "chatty")
    one_node, one_rack, several = result.locality[:, 0, :, 0]
    assert one_node[0] == 1.0
    assert one_node[1] < 1.0
    assert one_rack[1] == 1.0
    assert one_rack[2] < 1.0
    assert several[2] == 1.0


def test_speed_times_locality_is_the_ratio_of_steps_on_every_type() -> None:
    cluster = Cluster.uniform(4, 2, nodes_per_rack=2, gpu_types=("V100", "T4"))
    result = tables(step_model(0.3), [2], cluster, "chatty")
    model, profile = step_model(0.3), profiles().all[1]
    reference = model.seconds(profile, 2, "V100-16GB")[0][0]
    for kind, device in enumerate(("V100-16GB", "T4")):
        steps = model.seconds(profile, 2, device)[0]
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


def test_a_gpu_type_without_device_is_named() -> None:
    cluster = Cluster.uniform(2, 2, gpu_types=("K80",))
    with pytest.raises(InputError, match=r"'devices': GPU type 'K80' has no device here"):
        tables(step_model(), [1], cluster, "mute")


def test_overlap_is_a_share() -> None:
    with pytest.raises(InputError, match=r"'overlap': 1.5 is above 1"):
        step_model(1.5)


def test_fewest_nodes_and_tightest_spread() -> None:
    sizes = np.array([4, 2, 2, 1], np.int32)
    uniform = Cluster.uniform(4, 1, nodes_per_rack=2)
    cluster = Cluster("c", sizes, uniform.rack.copy(), uniform.gpu_type.copy(), ("V100",),
                      uniform.cpu_milli.copy(), uniform.memory_mib.copy())  # fmt: skip
    trace = named_trace(["mute"] * 7, [0, 1, 4, 5, 6, 7, 9])
    cases = Cases.of(trace, np.zeros(7, np.int64))
    assert cases.fewest_nodes(cluster).tolist() == [1, 1, 1, 2, 2, 3, 4]
    assert cases.tightest_spread(cluster).tolist() == [0, 0, 0, 1, 1, 2, 2]
