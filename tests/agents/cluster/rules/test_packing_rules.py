"""Every rule: what it allocates is there; and what each of them prefers."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import pytest
from fractional_cases import KINDS, Row, cluster_of, clusters, requests_of, rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from slow_fragmentation import Job, Node, expected_fragments, popularity

from agents.cluster.rules.bins import NOWHERE, Bins, requests_by_job, take
from agents.cluster.rules.fractional import (
    BestFit,
    DotProduct,
    FirstFit,
    FractionalRule,
    GpuPacking,
    RandomFit,
    choose,
)
from agents.cluster.rules.fragmentation import FragmentationGradientDescent
from envs.cluster.nodes import Cluster
from tests.strength import examples

FGD, FGD_EXACT = FragmentationGradientDescent(0.95, 100), FragmentationGradientDescent(1.0, 0)
RULES: tuple[FractionalRule, ...] = (
    FGD, FGD_EXACT, BestFit(), RandomFit(), FirstFit(), DotProduct(), GpuPacking(),
)  # fmt: skip


def packed(
    rule: FractionalRule, cluster: Cluster, workload: list[Row], seed: int = 0
) -> list[tuple[int, int]]:
    """Node and GPU of each request, which come one after the other and stay where they fit."""
    asked, bins, rng = requests_of(workload), Bins.empty(cluster), default_rng(seed)
    requests, spots = requests_by_job(asked, cluster), list[tuple[int, int]]()
    costs = rule.costs(cluster, bins, len(set(requests)), asked)
    for request in requests:
        spot = choose(rule, costs, bins, request, rng)
        if spot is not None:
            take(bins, *spot, request)
        spots.append(spot or (NOWHERE, NOWHERE))
    return spots


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
    nodes = Nodes(cluster)
    for row, (node, gpu) in zip(workload, packed(rule, cluster, workload), strict=True):
        if node == NOWHERE:
            assert not any(nodes.fits(n, row) for n in range(cluster.num_nodes))
        else:
            nodes.take(node, gpu, row)


@examples(40)
@given(st.sampled_from([0, 100]), clusters, rows)
def test_fgd_goes_where_the_definition_says(
    levels: int, cluster: Cluster, workload: list[Row]
) -> None:
    """Every placement is the first of the least increases, or of the best whole scores."""
    spots = packed(FragmentationGradientDescent(1.0, levels), cluster, workload)
    names = [tuple(row[4].split("|")) if row[4] in KINDS else () for row in workload]
    jobs = [
        Job(row[0], row[3] if row[2] else 0, row[2], kinds)
        for row, kinds in zip(workload, names, strict=True)
    ]
    typical = popularity(jobs, Fraction(1))
    nodes = Nodes(cluster)
    for row, spot in zip(workload, spots, strict=True):
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
            assert min(costs)[1:] == spot
            nodes.take(*spot, row)


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
        spots = tuple(packed(rule, cluster, [half, job])[1] for job in (fraction, whole))
        assert spots == expected[rule.name], rule.name


def test_gpu_packing_wakes_the_smallest_idle_node() -> None:
    cluster = cluster_of([(8000, 8192, gpus, "A") for gpus in (4, 2, 3)])
    assert packed(GpuPacking(), cluster, [(0, 0, 1, 500, "")])[0][0] == 1


def test_best_fit_weighs_cores_and_gpus_alike() -> None:
    """Of 8 cores and 4 GPUs at most: node 0 keeps 1/2 + 1/2, node 1 keeps 3/4 + 0."""
    cluster = cluster_of([(4000, 0, 2, "A"), (6000, 0, 0, "A"), (8000, 0, 4, "A")])
    assert packed(BestFit(), cluster, [(0, 0, 0, 1000, "")])[0][0] == 1


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
        assert packed(rule, cluster, [job])[0][0] == 0


def test_random_fit_chooses_every_spot() -> None:
    cluster = cluster_of([(8000, 8192, 2, "A")] * 2)
    half = [(0, 0, 1, 500, "")]
    spots = {packed(RandomFit(), cluster, half, seed)[0] for seed in range(60)}
    assert spots == {(0, 0), (0, 1), (1, 0), (1, 1)}
