"""Plans of synchronisation executed by processes, on real links or loopback, beside gloo's ring."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import Primitive, SynchronisationProblem
from experiments.execution.namespaces import RealLinks, fewest_links, real_links
from experiments.execution.processes import run_processes

LOOPBACK = "127.0.0.1"
ELEMENT = 4  # bytes: float32
Document = dict[str, Any]


def run_plan(
    folder: Path,
    problem: SynchronisationProblem,
    plan: SynchronisationPlan,
    settings: Document,
    *,
    on_links: bool,
) -> list[Document]:
    """What every process saw of the plan, and of gloo's all-reduce where its ring has ways.

    On links every vertex of the network is a namespace; without, all processes meet on loopback.
    """
    ways = sorted({way for tree in plan.trees for way in (*tree.reduce, *tree.broadcast)})
    ring = problem.primitive is Primitive.ALL_REDUCE and gloo_ring(problem) is not None
    links = real_links(problem.network, ways) if on_links else nullcontext(None)
    with links as made:
        task = {"ring": ring, **_task(problem, plan, ways, made), **settings}
        return run_processes(folder, task, "tree_worker")


def gloo_ring(problem: SynchronisationProblem) -> SynchronisationPlan | None:
    """gloo's all-reduce as a plan: rank i sends to rank i - 1, over the fewest links.

    A rank's block goes in segments of 1 MiB at most, two at least (gloo, `allreduce.cc`: `ring`).
    None: some ranks have no way to others.
    """
    network = problem.network
    ranks, ways = network.participants, fewest_links(network)
    n = len(ranks)
    if any((a, b) not in ways for a in ranks for b in ranks if a != b):
        return None
    trees = []
    for i, root in enumerate(ranks):
        order = [ranks[(i - k) % n] for k in range(n)]  # the root, and who comes after it
        onward = tuple(ways[pair] for pair in pairwise(order))
        inward = tuple(ways[pair] for pair in zip(order[1:], [*order[2:], root], strict=True))
        trees.append(Tree(root, Fraction(1, n), inward, onward))
    segments = max(2, ceil(problem.size / n / 2**20))
    return SynchronisationPlan("gloo", tuple(trees), problem.size / n / segments)


def slowed(network: LinkGraph, fastest: float | None) -> LinkGraph:
    """The network with all rates in proportion and the fastest link at `fastest` bytes/s."""
    if fastest is None:
        return network
    return replace(network, capacity=network.capacity * (fastest / network.capacity.max()))


def _task(
    problem: SynchronisationProblem,
    plan: SynchronisationPlan,
    ways: list[Way],
    links: RealLinks | None,
) -> Document:
    """What the processes read: a programme for every vertex where a way begins or ends."""
    network, primitive = problem.network, problem.primitive
    number = {way: k for k, way in enumerate(ways)}
    elements = max(1, round(problem.size / ELEMENT))
    rank = {vertex: i for i, vertex in enumerate(network.participants)}
    everything = [0, elements]
    blocks = [[ceil(x * elements) for x in problem.block_of(i)] for i in range(len(rank))]
    vertices = sorted({end for way in ways for end in (way[0], way[-1])} | set(rank))
    programmes: list[Document] = []
    for vertex in vertices:
        owned = everything if primitive.broadcasts else blocks[rank.get(vertex, 0)]
        programmes.append(
            {
                "namespace": links and links.names[vertex],
                "control": links.control_address(vertex) if links else LOOPBACK,
                "address": links.address(vertex) if links else LOOPBACK,
                "rank": rank.get(vertex),
                "owned": [owned] if vertex in rank else [],
                "connections": [
                    {
                        "way": number[way],
                        "end": way.index(vertex) and 1,
                        "address": links.way_address(number[way], way.index(vertex) and 1)
                        if links
                        else LOOPBACK,
                    }
                    for way in ways
                    if vertex in (way[0], way[-1])
                ],
                "trees": [],
            }
        )
    tag = 0
    for tree, span in zip(plan.trees, plan.spans(problem), strict=True):
        first, end = (ceil(share * elements) for share in span)
        if first == end:
            continue
        chunk = max(1, round(min(plan.chunk / ELEMENT, end - first)))
        for vertex, programme in zip(vertices, programmes, strict=True):
            root = vertex == tree.root
            programme["trees"].append(
                {
                    "first": first,
                    "end": end,
                    "chunk": chunk,
                    "tag": tag,
                    "root": root,
                    "own": vertex in rank if primitive.reduces else root,
                    "reduce_from": [number[x] for x in tree.reduce if x[-1] == vertex],
                    "reduce_to": [number[x] for x in tree.reduce if x[0] == vertex],
                    "broadcast_from": [number[x] for x in tree.broadcast if x[-1] == vertex],
                    "broadcast_to": [number[x] for x in tree.broadcast if x[0] == vertex],
                }
            )
        tag += 2 * ceil((end - first) / chunk)
    return {
        "processes": len(vertices),
        "participants": len(rank),
        "elements": elements,
        "blocks": [everything] * len(rank) if primitive.reduces else blocks,
        "programmes": programmes,
    }
