"""A problem of synchronisation from a config; its plan checked, executed and played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from envs.errors import InputError, require_one_of
from envs.hardware.topology import Topology
from envs.synchronisation.link_graph import (
    FloatArray,
    LinkGraph,
    links_of_topology,
    residual,
)
from envs.synchronisation.plan import SynchronisationPlan
from envs.synchronisation.playing import Played, play
from envs.synchronisation.problem import SynchronisationProblem
from envs.units import parse_bytes, parse_seconds, read_quantity
from experiments.config.targets import build, no_such_thing
from experiments.network.gradients import sparse_blocks
from experiments.network.plan_file import primitive_of, read_plan
from experiments.pictures.gantt import Event, happened, process, thread
from experiments.pictures.studies import draw_trees
from experiments.run.artifacts import write_figure, write_json
from experiments.run.provenance import Provenance, stamp

TRACE_FILE, PICTURE_FILE = "trace.json", "trees.png"
MOST_TRACED = 200_000  # messages of a trace
_ELEMENTS = 1 << 22  # of all vectors on which a plan is executed


@dataclass
class Asked:
    """The keys of `conf/synchronise.yaml` that make the problem."""

    topology: Any
    primitive: str
    bytes: Any
    media: list[str] | None
    aggregation: bool
    relay: bool
    participants: list[str] | None
    beside: list[str]
    period: Any
    sparsity: dict[str, Any] | None
    seed: int

    def problem(self) -> SynchronisationProblem:
        """What is to be synchronised.

        Raises:
            InputError: naming the key at fault.
        """
        size = read_quantity(parse_bytes, self.bytes, key="bytes")
        primitive, blocks = primitive_of(self.primitive), None
        graph, names = self._network(), self.participants
        if names is not None:
            for name in names:
                require_one_of(name, graph.vertices, field="participants")
            graph = replace(graph, participant=np.isin(graph.vertices, names))
        for path in self.beside:
            graph = residual(graph, self._taken(graph, path))
        if self.sparsity is not None:
            workers = len(graph.participants)
            size, blocks = sparse_blocks(self.sparsity, workers, size, self.seed)
        return SynchronisationProblem(graph, size, primitive, blocks)

    def _taken(self, graph: LinkGraph, path: str) -> FloatArray:
        """(K,) bytes/s that the job of a plan file takes of every link."""
        other, plan = read_plan(path)
        period = read_quantity(parse_seconds, self.period, key="period", at_least=1e-9)
        used = np.zeros(graph.num_links)
        number = {graph.link_name(link): link for link in range(graph.num_links)}
        for link, sent in enumerate(plan.link_bytes(other).tolist()):
            name = other.network.link_name(link)
            if sent > 0.0 and name not in number:
                raise InputError(f"sends over {name}, no link of {graph.name}", file=path)
            if sent > 0.0:
                used[number[name]] = sent / period
        return used

    def _network(self) -> LinkGraph:
        made = build(self.topology, "topology")
        if isinstance(made, Topology):
            return links_of_topology(made, None, self.media, self.aggregation, self.relay)
        if not isinstance(made, LinkGraph):
            raise no_such_thing("topology", self.topology, "topology")
        if self.media is not None:
            raise InputError(f"the links of {made.name} have no media", field="media")
        switch, takes = made.forwards & ~made.participant, made.participant
        return replace(
            made,
            sums=made.sums | (switch & self.aggregation),
            forwards=made.forwards | (takes & self.relay),
        )


def largest_error(problem: SynchronisationProblem, plan: SynchronisationPlan) -> float:
    """Of the plan executed on random vectors, over the largest element of the result.

    Vectors have an element for every tree, unless all together would have more than 4,194,304.
    """
    n, primitive = len(problem.network.participants), problem.primitive
    least = min(tree.share for tree in plan.trees)
    elements = max(n, min(ceil(1 / least), _ELEMENTS // n))
    vectors = np.random.default_rng(0).normal(size=(n, elements))
    block = [ceil(problem.block_of(i)[0] * elements) for i in range(n)] + [elements]
    wanted = np.tile(vectors.sum(axis=0), (n, 1))
    for i in range(n):
        own = slice(block[i], block[i + 1])
        if not primitive.reduces:
            wanted[:, own] = vectors[i, own]
        if not primitive.broadcasts:
            wanted[:i, own] = wanted[i + 1 :, own] = np.nan
    found = plan.perform(problem, vectors)
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return float("inf")
    return float(np.nanmax(np.abs(found - wanted)) / np.nanmax(np.abs(wanted)))


@dataclass(frozen=True, eq=False)
class Judged:
    """A plan that was checked, executed and played."""

    problem: SynchronisationProblem
    plan: SynchronisationPlan
    seconds: float
    played: Played | None  # None: the plan says itself how long it takes
    error: float  # of the result, relative

    def values(self, optimum: Fraction | None) -> dict[str, object]:
        """The figures, bandwidths in bytes/s; `optimum` is the highest algorithm bandwidth."""
        size, seconds = self.problem.size, self.seconds
        bound = self.plan.busiest_seconds(self.problem)
        return {
            "time_s": seconds,
            "algorithm_bandwidth": size / seconds,
            "busiest_link_s": bound,
            "busiest_link_bandwidth": size / bound,
            "optimum": None if optimum is None else float(optimum),
            "of_optimum": size / seconds / float(optimum) if optimum else None,
            "trees": len(self.plan.trees),
            "chunk": self.plan.chunk,
            "messages": None if self.played is None else len(self.played.start),
            "largest_error": self.error,
        }

    def write(self, folder: Path, provenance: Provenance) -> dict[str, object]:
        """The picture, and where there are not too many messages the trace; returns the files."""
        title = (
            f"{self.plan.name} on {self.problem.network.name}: "
            f"{self.problem.size / self.seconds / 1e9:.4g} GB/s"
        )
        picture = folder / PICTURE_FILE
        write_figure(picture, draw_trees(self.problem, self.plan, title), provenance)
        if self.played is None or len(self.played.start) > MOST_TRACED:
            return {"picture": str(picture), "trace": None}
        path = folder / TRACE_FILE
        write_json(path, stamp(trace_document(self.problem, self.played), provenance, kind="trace"))
        return {"picture": str(picture), "trace": str(path)}


def judge(
    problem: SynchronisationProblem, plan: SynchronisationPlan, settings: Mapping[str, Any]
) -> Judged:
    """Check, execute and play the plan of an agent.

    Args:
        settings: `chunk` (null: the planner's), `summing`, `overhead` of the config.

    Raises:
        InputError: the plan breaks a rule or sums wrongly, which is the planner's fault.
    """
    if settings["chunk"] is not None:
        plan = replace(plan, chunk=read_quantity(parse_bytes, settings["chunk"], key="chunk"))
    for violation in problem.violations(plan):
        raise InputError(f"the plan of the agent: {violation}", field="agent")
    error = largest_error(problem, plan)
    if not error < 1e-9:
        raise InputError(f"the plan of the agent sums wrongly, by {error:g}", field="agent")
    times = {key: read_quantity(parse_seconds, settings[key], key=key) for key in settings
             if key != "chunk"}  # fmt: skip
    own = plan.own_seconds(problem)
    played = play(problem, plan, **times) if own is None else None
    seconds = played.seconds if played is not None else own
    assert seconds is not None
    return Judged(problem, plan, seconds, played, error)


def trace_document(problem: SynchronisationProblem, played: Played) -> dict[str, object]:
    """Vertices as processes, their connections as threads, chunks as slices; for Perfetto."""
    names, events = problem.network.vertices, list[Event]()
    for vertex in sorted({way[0] for way in played.ways}):
        events.append(process(vertex, names[vertex]))
    for c, (tree, way) in enumerate(zip(played.tree, played.ways, strict=True)):
        what = "sum" if played.reduces[c] else "result"
        events.append(thread(way[0], c, f"tree {tree}: {what} to {names[way[-1]]}"))
        for chunk, m in enumerate(range(played.first[c], played.first[c + 1])):
            start, end, arrived = (a[m] for a in (played.start, played.drained, played.arrived))
            name, place = f"chunk {chunk}", (way[0], c)
            events.append(happened(name, what, place, start, end, arrived_s=arrived))
    return {"traceEvents": events, "displayTimeUnit": "ms"}
