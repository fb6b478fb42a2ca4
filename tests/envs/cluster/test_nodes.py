"""Clusters of GPU nodes as columns."""

from __future__ import annotations

from envs.cluster.nodes import MAX_GPU_TYPES, Cluster
from tests.refusal import refusal

NAMES = tuple(f"G{number}" for number in range(MAX_GPU_TYPES + 1))


def test_type_masks_know_whole_names_alone() -> None:
    cluster = Cluster.uniform(4, 2, gpu_types=("V100", "P100"))
    assert cluster.type_masks(()).tolist() == [3]
    texts = ("V100", "P100|A10", "A10", "P100|V100", "P10")
    assert cluster.type_masks(texts).tolist() == [1, 2, 0, 3, 0, 3]


def test_there_are_no_more_gpu_types_than_bits_of_a_mask() -> None:
    most = Cluster.uniform(MAX_GPU_TYPES, 1, gpu_types=NAMES[:-1])
    masks = most.type_masks(NAMES[:-1]).tolist()
    assert masks[:-1] == [1 << bit for bit in range(MAX_GPU_TYPES)]
    assert masks[-1] == (1 << MAX_GPU_TYPES) - 1
    with refusal("gpu_types"):
        Cluster.uniform(len(NAMES), 1, gpu_types=NAMES)


def test_uniform_nodes_have_equal_shares_of_racks_and_types() -> None:
    cluster = Cluster.uniform(6, 4, nodes_per_rack=2, gpu_types=("A", "B", "C"))
    assert (cluster.num_nodes, cluster.num_gpus, cluster.num_racks) == (6, 24, 3)
    assert cluster.rack.tolist() == cluster.gpu_type.tolist() == [0, 0, 1, 1, 2, 2]
