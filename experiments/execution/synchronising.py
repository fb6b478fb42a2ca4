"""Plans of synchronisation executed by processes, on real links or loopback, beside gloo's ring."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from agents.bandwidth.enforcement.hosts import Framing
from envs.bounds import Count, Positive
from envs.errors import InputError
from envs.synchronisation.link_graph import FloatArray, LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way
from envs.synchronisation.playing import play
from envs.synchronisation.problem import Primitive, SynchronisationProblem
from envs.units import MILLISECOND, parse_bandwidth, parse_bytes, parse_seconds, read_quantity
from experiments.execution.namespaces import RealLinks, fewest_links, real_links
from experiments.execution.processes import run_processes
from experiments.network.plan_file import read_plan
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.run.tables import Table, write_tables

LOOPBACK = "127.0.0.1"
ELEMENT = 4  # bytes: float32
FRAMING = Framing(mtu=1500, line_overhead=0)  # of a veth cable
PLACES = {"loopback": False, "namespaces": True}
COLUMNS = ("", "measured (ms)", "fastest", "slowest", "predicted (ms)", "ratio", "sums")
Document = dict[str, Any]


@dataclass
class ExecuteSynchronisationConfig:
    """`conf/execute_synchronisation.yaml`."""

    synchronisation: str
    links: str
    fastest: Any
    bytes: Any
    latency: Any
    overhead: Any
    warm_up: Annotated[int, Ge(0)]
    repetitions: Count
    limit_s: Positive
    seed: int
    json: bool


def execute_synchronisation(config: ExecuteSynchronisationConfig, run: Run) -> Result:
    """Execute a plan, and gloo's all-reduce in turns with it; on real links, predict both.

    Raises:
        InputError: no plan, links that this machine does not permit, or a process that failed.
    """
    if config.links not in PLACES:
        told = f"{config.links!r} is none of {', '.join(PLACES)}"
        raise InputError(f"config key 'links': {told}")
    on_links = PLACES[config.links]
    problem, plan = read_plan(config.synchronisation)
    provenance = run.provenance.with_inputs(plan=file_hash(config.synchronisation))
    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    size = problem.size
    if config.bytes is not None:
        size = read_quantity(parse_bytes, config.bytes, key="bytes")
        plan = replace(plan, chunk=plan.chunk * (size / problem.size))
    network, overhead = problem.network, 0.0
    if on_links:
        network = _slowed(network, config.fastest)
        latency = read_quantity(parse_seconds, config.latency, key="latency")
        network = replace(network, latency=np.full(network.num_links, latency))
        overhead = read_quantity(parse_seconds, config.overhead, key="overhead")
    problem = SynchronisationProblem(network, size, problem.primitive)
    settings = {key: getattr(config, key) for key in ("warm_up", "repetitions", "limit_s", "seed")}
    seen = run_plan(run.folder, problem, plan, settings, on_links=on_links)
    paid = replace(problem, network=replace(network, capacity=_payload(network.capacity)))
    plans, found = {"plan": plan, "gloo": gloo_ring(problem)}, dict[str, Document]()
    for name in seen[0]["seconds"]:
        executed = plans[name]
        assert executed is not None
        predicted = play(paid, executed, overhead=overhead).seconds if on_links else None
        found[name] = _outcome(name, seen, config.warm_up, predicted)
    rows = [_row(plan.name if name == "plan" else name, one) for name, one in found.items()]
    write_tables(run, "Executed", [Table("Executed", COLUMNS, rows)], provenance)
    times = [one["time_s"] for one in found.values()]
    values: Document = {
        "name": plan.name,
        "network": network.name,
        "primitive": problem.primitive.value,
        "bytes": size,
        "processes": len(seen),
        "equal": all(one["equal"] for one in found.values()),
        **{key: value for key, value in found["plan"].items() if key != "equal"},
        "busiest_link_s": plan.busiest_seconds(paid) if on_links else None,
        "gloo": found.get("gloo"),
        "speedup_over_gloo": times[1] / times[0] if len(times) > 1 else None,
    }
    return Result(values, provenance, ("equal", "time_s", "predicted_s", "speedup_over_gloo"))


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


def _slowed(network: LinkGraph, fastest: Any) -> LinkGraph:
    """The network with all rates in proportion and the fastest link at `fastest` bytes/s."""
    if fastest is None:
        return network
    rate = read_quantity(parse_bandwidth, fastest, key="fastest")
    return replace(network, capacity=network.capacity * (rate / network.capacity.max()))


def _payload(rate: FloatArray) -> FloatArray:
    """Bytes/s that programs exchange over links of these rates."""
    return rate * FRAMING.payload_rate(1.0)


def _outcome(
    name: str, seen: Sequence[Document], warm_up: int, predicted: float | None
) -> Document:
    """From the first process that begins a repetition to the last that ends it; the median."""
    rows = list(zip(*(one["seconds"][name] for one in seen), strict=True))[warm_up:]
    times = [max(end for _, end in row) - min(start for start, _ in row) for row in rows]
    middle = median(times)
    return {
        "equal": all(one["equal"][name] for one in seen),
        "time_s": middle,
        "times_s": times,
        "predicted_s": predicted,
        "ratio": None if predicted is None else predicted / middle,
    }


def _row(name: str, one: Document) -> list[str]:
    times = (one["time_s"], min(one["times_s"]), max(one["times_s"]))
    predicted, ratio = "", ""
    if one["predicted_s"] is not None:
        predicted = f"{one['predicted_s'] / MILLISECOND:.1f}"
        ratio = f"{one['ratio']:.3f}"
    measured = [f"{seconds / MILLISECOND:.1f}" for seconds in times]
    return [name, *measured, predicted, ratio, "exact" if one["equal"] else "WRONG"]


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
