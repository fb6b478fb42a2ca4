"""Every rule: what it allocates is there; and what each of them prefers."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import numpy as np
import pytest
from fractional_cases import KINDS, Row, cluster_of, clusters, requests_of, rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from slow_fragmentation import Job, Node, expected_fragments, popularity

from agents.cluster.rules.bins import NOWHERE
from agents.cluster.rules.fractional import (
    BestFit,
    DotProduct,
    FirstFit,
    FractionalRule,
    GpuPacking,
    RandomFit,
)
from agents.cluster.rules.fragmentation import FragmentationGradientDescent
from agents.cluster.rules.packing import Packed, draw_arrivals, pack
from envs.cluster.nodes import Cluster, ResourceRequests
from tests.refusal import refusal
from tests.strength import SEEDS, examples

FGD, FGD_EXACT = FragmentationGradientDescent(0.95, 100), FragmentationGradientDescent(1.0, 0)
RULES: tuple[FractionalRule, ...] = (
    FGD, FGD_EXACT, BestFit(), RandomFit(), FirstFit(), DotProduct(), GpuPacking(),
)  # fmt: skip


def packed(rule: FractionalRule, cluster: Cluster, workload: list[Row]) -> Packed:
    return pack(rule, cluster, requests_of(workload), np.arange(len(workload)), default_rng(0))


class Nodes:
    """What is left, counted by hand."""

    def __init__(self, cluster: Cluster) -> None:
        self.cpu, self.memory = cluster.cpu_milli.tolist(), cluster.memory_mib.tolist()
        self.left = [[1000] * int(gpus) for gpus in cluster.gpus]
        self.kind = [cluster.gpu_types[kind] for kind in cluster.gpu_type]

    def fits(self, node: int, row: Row) -> bool:
        cpu, memory, gpus, milli, types = row
        return (
            self.cpu[node] >= cpu
            and self.memory[node] >= memory
            and (not types or self.kind[node] in types.split("|"))
            and sum(left >= milli for left in self.left[node]) >= gpus
        )

    def take(self, node: int, gpu: int, row: Row) -> None:
        assert self.fits(node, row)
        cpu, memory, gpus, milli, _ = row
        self.cpu[node] -= cpu
        self.memory[node] -= memory
        free = [slot for slot, left in enumerate(self.left[node]) if left == 1000]
        for slot in [gpu] if gpus == 1 else free[:gpus]:
            assert self.left[node][slot] >= milli
            self.left[node][slot] -= milli


@examples(60)
@given(st.sampled_from(RULES), clusters, rows)
def test_nothing_is_allocated_twice_and_nothing_that_fits_is_refused(
    rule: FractionalRule, cluster: Cluster, workload: list[Row]
) -> None:
    result, nodes = packed(rule, cluster, workload), Nodes(cluster)
    capacity = cluster.num_gpus * 1000
    for row, node, gpu, allocated in zip(
        workload, result.node, result.gpu, result.allocated_milli, strict=True
    ):
        if node == NOWHERE:
            assert not any(nodes.fits(n, row) for n in range(cluster.num_nodes))
        else:
            nodes.take(int(node), int(gpu), row)
        assert allocated == capacity - sum(map(sum, nodes.left))
    assert result.failed == (result.node == NOWHERE).sum()
    assert (result.arrived_milli == np.cumsum([row[2] * row[3] for row in workload])).all()


@examples(40)
@given(st.sampled_from([0, 100]), clusters, rows)
def test_fgd_goes_where_the_definition_says(
    levels: int, cluster: Cluster, workload: list[Row]
) -> None:
    """Every placement is the first of the least increases, or of the best whole scores."""
    result = packed(FragmentationGradientDescent(1.0, levels), cluster, workload)
    names = [tuple(row[4].split("|")) if row[4] in KINDS else () for row in workload]
    jobs = [
        Job(row[0], row[3] if row[2] else 0, row[2], kinds)
        for row, kinds in zip(workload, names, strict=True)
    ]
    typical = popularity(jobs, Fraction(1))
    nodes = Nodes(cluster)
    for row, node, gpu in zip(workload, result.node, result.gpu, strict=True):
        costs: list[tuple[Fraction | int, int, int]] = []
        for n in range(cluster.num_nodes):
            if not nodes.fits(n, row):
                continue
            slots = range(len(nodes.left[n])) if row[2] == 1 else [NOWHERE]
            for slot in slots:
                if slot != NOWHERE and nodes.left[n][slot] < row[3]:
                    continue
                rise = increase(nodes, n, slot, row, typical)
                cost = -int(levels / (1 + exp(float(rise) / 1000))) if levels else rise
                costs.append((cost, n, slot))
        if costs:
            assert min(costs)[1:] == (node, gpu)
            nodes.take(int(node), int(gpu), row)


def increase(nodes: Nodes, n: int, slot: int, row: Row, typical: dict[Job, Fraction]) -> Fraction:
    left = list(nodes.left[n])
    before = expected_fragments(Node(nodes.cpu[n], tuple(left), nodes.kind[n]), typical)
    free = [place for place, here in enumerate(left) if here == 1000]
    for place in [slot] if row[2] == 1 else free[: row[2]]:
        left[place] -= row[3]
    cpu = nodes.cpu[n] - row[0]
    return expected_fragments(Node(cpu, tuple(left), nodes.kind[n]), typical) - before


def test_what_each_rule_prefers() -> None:
    """Node 0 has 4 GPUs, node 1 has 2; half a GPU of node 1 is in use, all have cores to spare."""
    cluster = cluster_of([(8000, 8192, 4, "A"), (8000, 8192, 2, "B")])
    half, whole = (0, 0, 1, 500, "B"), (0, 0, 1, 1000, "")
    fraction = (0, 0, 1, 250, "")
    expected = {
        "first_fit": ((0, 0), (0, 0)),  # the lowest node
        "best_fit": ((1, 0), (1, 1)),  # 1.5 GPUs are less than 4; the tightest GPU
        "dot_product": ((1, 0), (1, 1)),
        "gpu_packing": ((1, 0), (1, 1)),  # a GPU in use; then a free GPU of a node in use
    }
    for rule in (FirstFit(), BestFit(), DotProduct(), GpuPacking()):
        found = [packed(rule, cluster, [half, job]) for job in (fraction, whole)]
        spots = tuple((int(result.node[1]), int(result.gpu[1])) for result in found)
        assert spots == expected[rule.name], rule.name


def test_gpu_packing_wakes_the_smallest_idle_node() -> None:
    cluster = cluster_of([(8000, 8192, gpus, "A") for gpus in (4, 2, 3)])
    assert packed(GpuPacking(), cluster, [(0, 0, 1, 500, "")]).node.tolist() == [1]


def test_best_fit_weighs_cores_and_gpus_alike() -> None:
    """Of 8 cores and 4 GPUs at most: node 0 keeps 1/2 + 1/2, node 1 keeps 3/4 + 0."""
    cluster = cluster_of([(4000, 0, 2, "A"), (6000, 0, 0, "A"), (8000, 0, 4, "A")])
    assert packed(BestFit(), cluster, [(0, 0, 0, 1000, "")]).node.tolist() == [1]


@pytest.mark.parametrize(
    ("rule", "a", "b", "job"),
    [
        (BestFit(), (64_000, 2), (32_000, 4), (24_200, 0, 1, 1000, "")),
        (DotProduct(), (80_000, 1), (16_000, 8), (7000, 0, 1, 250, "")),
    ],
    ids=["best_fit", "dot_product"],
)
def test_equal_scores_are_not_told_apart_by_rounding(
    rule: FractionalRule, a: tuple[int, int], b: tuple[int, int], job: Row
) -> None:
    """Beside a node of 128 cores and 8 GPUs, cores and GPUs of a and b add up to the same score."""
    for few, many in ((a, b), (b, a)):
        sizes = (few, many, (128_000, 8))
        cluster = cluster_of([(cores, 0, gpus, "A") for cores, gpus in sizes])
        assert packed(rule, cluster, [job]).node.tolist() == [0]


def test_random_fit_chooses_every_spot() -> None:
    cluster = cluster_of([(8000, 8192, 2, "A")] * 2)
    workload = requests_of([(0, 0, 1, 500, "")])
    spots = set()
    for seed in range(60):
        result = pack(RandomFit(), cluster, workload, np.array([0]), default_rng(seed))
        spots.add((int(result.node[0]), int(result.gpu[0])))
    assert spots == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_score_has_no_negative_number_of_levels() -> None:
    with refusal("score_levels"):
        FragmentationGradientDescent(0.95, -1)


@given(SEEDS, st.sampled_from([0.01, 0.9, 1.3]))
def test_arrivals_ask_for_the_load_and_not_for_a_job_more(seed: int, load: float) -> None:
    cluster = cluster_of([(8000, 8192, 4, "A")] * 3)
    workload = requests_of([(0, 0, 0, 1000, ""), (0, 0, 1, 330, ""), (0, 0, 4, 1000, "")])
    arrivals = draw_arrivals(workload, cluster, load, default_rng(seed))
    asked = workload.demand_milli[arrivals].sum()
    assert load * 12_000 <= asked < load * 12_000 + 4000


@pytest.mark.parametrize("load", [0.0, -1.0, float("inf"), float("nan")])
def test_a_load_is_positive_and_finite(load: float) -> None:
    with refusal("load"):
        draw_arrivals(
            requests_of([(0, 0, 1, 500, "")]),
            cluster_of([(0, 0, 1, "A")]),
            load,
            default_rng(0),
        )


def test_jobs_without_gpus_never_ask_for_a_load() -> None:
    workload: ResourceRequests = requests_of([(1000, 0, 0, 1000, "")])
    with refusal("no GPUs"):
        draw_arrivals(workload, cluster_of([(0, 0, 1, "A")]), 1.3, default_rng(0))
