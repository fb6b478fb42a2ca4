"""Execute a plan of synchronisation between processes, on real links or loopback, beside gloo.

python -m experiments.execute synchronisation=plan.json
python -m experiments.execute synchronisation=plan.json links=namespaces
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from envs.bounds import Count, Positive
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from envs.units import parse_bandwidth, parse_bytes, read_quantity
from experiments.execution.namespaces import Framing, fewest_links, real_links
from experiments.execution.processes import PLAN, run_processes
from experiments.network.plan_file import read_plan, write_plan
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash

FRAMING = Framing(mtu=1500, line_overhead=0)  # of a veth cable
LATENCY = 1e-4  # seconds over a veth cable, from program to program
COLUMNS = ("", "measured (s)", "fastest", "slowest", "predicted (s)", "ratio", "sums")
Document = dict[str, Any]


@dataclass(kw_only=True)
class ExecuteSynchronisationConfig:
    """`conf/execute_synchronisation.yaml`."""

    # plan.json of experiments.synchronise: trees, and the network they are for
    synchronisation: str
    # loopback: no rates; namespaces: the network's links, which needs root
    links: Literal["loopback", "namespaces"] = "loopback"
    # bytes/s of the fastest link, as 100Mb/s, the others in proportion; null: as planned
    fastest: Any = None
    bytes: Any = None  # of the vector, in as many chunks as planned; null: as planned
    warm_up: Annotated[int, Ge(0)] = 1  # first repetitions, not timed
    repetitions: Count = 5  # that are timed; the median counts
    limit_s: Positive = 300.0  # wall time of all processes; after that they are ended
    seed: int
    json: bool


def execute_synchronisation(config: ExecuteSynchronisationConfig, run: Run) -> Result:
    """Execute a plan, and gloo's all-reduce in turns with it; on real links, predict both.

    Raises:
        InputError: no plan, links that this machine does not permit, or a process that failed.
    """
    problem, plan = read_plan(config.synchronisation)
    provenance = run.provenance.with_inputs(plan=file_hash(config.synchronisation))
    if config.bytes is not None:
        size = read_quantity(parse_bytes, config.bytes, key="bytes")
        plan = replace(plan, chunk=plan.chunk * (size / problem.size))
        problem = replace(problem, size=size)
    network, on_links = problem.network, config.links == "namespaces"
    if on_links:
        rate = network.capacity
        if config.fastest is not None:
            fastest = read_quantity(parse_bandwidth, config.fastest, key="fastest")
            rate = rate * (fastest / rate.max())
        latency = np.full(network.num_links, LATENCY)
        problem = replace(problem, network=replace(network, capacity=rate, latency=latency))
    network, ring = problem.network, gloo_ring(problem)
    write_plan(run.folder / PLAN, problem, plan, provenance)
    links = real_links(network, plan.ways) if on_links else nullcontext(())
    with links as names:
        task = {
            "processes": len(plan.vertices(problem)),
            "namespaces": names,
            "ring": ring is not None,
            "repetitions": config.warm_up + config.repetitions,
            "limit_s": config.limit_s,
            "seed": config.seed,
        }
        seen = run_processes(run.folder, task, "tree_worker")
    paid = replace(network, capacity=network.capacity * FRAMING.payload_rate(1.0))
    found = dict[str, Document]()
    for name, executed in (("plan", plan), ("gloo", ring)):
        if executed is not None:
            one = found[name] = _outcome([x["seconds"][name] for x in seen], config.warm_up)
            one["equal"] = all(x["equal"][name] for x in seen)
            if on_links:
                one["predicted_s"] = play(replace(problem, network=paid), executed).seconds
                one["ratio"] = one["predicted_s"] / one["time_s"]
    mine, gloos = found["plan"], found.get("gloo")
    rows = [
        [plan.name if name == "plan" else name]
        + [f"{x:.4g}" for x in (one["time_s"], min(one["times_s"]), max(one["times_s"]))]
        + [f"{one[key]:.4g}" if on_links else "" for key in ("predicted_s", "ratio")]
        + ["exact" if one["equal"] else "WRONG"]
        for name, one in found.items()
    ]
    write_tables(run, "Executed", [Table("Executed", COLUMNS, rows)], provenance)
    return Result(
        {
            "name": plan.name,
            "network": network.name,
            "primitive": problem.primitive.value,
            "bytes": problem.size,
            "processes": len(seen),
            **mine,
            "equal": all(one["equal"] for one in found.values()),
            "gloo": gloos,
            "speedup_over_gloo": gloos and gloos["time_s"] / mine["time_s"],
        },
        provenance,
        ("equal", "speedup_over_gloo"),
    )


def gloo_ring(problem: SynchronisationProblem) -> SynchronisationPlan | None:
    """gloo's all-reduce as a plan: rank i sends to rank i - 1, over the fewest links.

    A rank's block goes in segments of 1 MiB at most, two at least (gloo, `allreduce.cc`: `ring`).
    None: another primitive, or some ranks have no way to others.
    """
    ranks, ways = problem.network.participants, fewest_links(problem.network)
    n, trees = len(ranks), list[Tree]()
    apart = any((a, b) not in ways for a in ranks for b in ranks if a != b)
    if problem.primitive is not Primitive.ALL_REDUCE or apart:
        return None
    for i, root in enumerate(ranks):
        order = [ranks[(i - k) % n] for k in range(n)]  # the root, and who comes after it
        onward = tuple(ways[pair] for pair in pairwise(order))
        inward = tuple(ways[pair] for pair in pairwise([*order[1:], root]))
        trees.append(Tree(root, Fraction(1, n), inward, onward))
    segments = max(2, ceil(problem.size / n / 2**20))
    return SynchronisationPlan("gloo", tuple(trees), problem.size / n / segments)


def _outcome(seconds: Sequence[Sequence[Sequence[float]]], warm_up: int) -> Document:
    """Of a repetition: from the first process that begins it to the last that ends it."""
    rows = list(zip(*seconds, strict=True))[warm_up:]
    times = [max(end for _, end in row) - min(start for start, _ in row) for row in rows]
    return {"time_s": median(times), "times_s": times, "predicted_s": None, "ratio": None}
