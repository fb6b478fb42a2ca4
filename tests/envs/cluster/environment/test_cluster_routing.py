"""Racks are dealt out evenly, of all GPU types where that is asked for."""

from __future__ import annotations

import numpy as np
from cluster_instances import clusters
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.environment.instance import ClusterBounds
from envs.cluster.environment.routing import ConsecutiveRacks, MixedRacks, RackOwners
from envs.cluster.nodes import Cluster
from tests.envs.cluster.environment.racks import cluster_of_racks
from tests.refusal import refusal

PARTITIONS: tuple[RackOwners, ...] = (ConsecutiveRacks(), MixedRacks())


def test_consecutive_racks() -> None:
    cluster = Cluster.uniform(10, 2, nodes_per_rack=2)
    consecutive = ConsecutiveRacks()
    assert consecutive(cluster, 2).tolist() == [0] * 6 + [1] * 4
    assert consecutive(cluster, 5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not consecutive(cluster, 1).any()


def test_racks_of_each_type_are_dealt_out_in_turn() -> None:
    cluster = cluster_of_racks({"A": 3, "B": 1, "C": 2}, nodes_per_rack=2, gpus_per_node=4)
    assert MixedRacks()(cluster, 2)[::2].tolist() == [0, 1, 0, 1, 0, 1]
    assert MixedRacks()(cluster, 3)[::2].tolist() == [0, 1, 2, 0, 1, 2]
    shuffled = Cluster(
        name="shuffled",
        gpus=np.array([4, 1, 4, 4, 4], np.int32),
        rack=np.array([7, 7, 2, 5, 9], np.int32),
        gpu_type=np.array([1, 0, 0, 1, 0], np.int32),
        gpu_types=("A", "B"),
        cpu_milli=np.ones(5, np.int64),
        memory_mib=np.ones(5, np.int64),
    )
    assert MixedRacks()(shuffled, 2).tolist() == [1, 1, 0, 0, 1]  # A: racks 2, 9; B: 5, 7


@given(
    racks=st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any),
    schedulers=st.integers(1, 4),
)
def test_of_each_type_nobody_has_two_racks_more(racks: list[int], schedulers: int) -> None:
    named = dict(zip("ABC", racks, strict=False))
    cluster = cluster_of_racks(named, nodes_per_rack=1, gpus_per_node=2)
    if sum(racks) < schedulers:
        with refusal(f"{sum(racks)} racks for {schedulers} schedulers"):
            MixedRacks()(cluster, schedulers)
        return
    owner = MixedRacks()(cluster, schedulers)
    for kind in (cluster.gpu_type == t for t in range(len(racks))):
        assert np.ptp(np.bincount(owner[kind], minlength=schedulers)) <= 1
    assert np.ptp(np.bincount(owner, minlength=schedulers)) <= 1


@given(cluster=clusters(), schedulers=st.integers(1, 4), number=st.integers(0, 1))
def test_every_part_is_within_the_bounds(cluster: Cluster, schedulers: int, number: int) -> None:
    partition = PARTITIONS[number]
    racks = len(np.unique(cluster.rack))
    if racks < schedulers:
        with refusal(f"{racks} racks for {schedulers} schedulers"):
            partition(cluster, schedulers)
        return
    owner = partition(cluster, schedulers)
    bounds = ClusterBounds.of(cluster).part(schedulers)
    assert set(owner.tolist()) == set(range(schedulers))
    for scheduler in range(schedulers):
        bounds.check_fits(cluster, np.flatnonzero(owner == scheduler))
    for rack in np.unique(cluster.rack):
        assert len(set(owner[cluster.rack == rack].tolist())) == 1
