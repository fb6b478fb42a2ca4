"""Sum gradients over a network by trees: plan, check, execute, time and draw.

python -m experiments.synchronise agent=ring topology=dgx1 bytes=100MB json=true
python -m experiments.synchronise study=200 bytes=1GB

With `study=<networks>` all planners stand beside each other on so many random networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from agents.synchronisation.classical import DoubleTree, Hierarchical, Ring
from agents.synchronisation.forest import Forest
from agents.synchronisation.optimum import optimum
from agents.synchronisation.ways import Synchroniser
from envs.arrays import BoolArray, FloatArray
from envs.errors import InputError, require_one_of
from envs.files import check_file
from envs.hardware.topology import Topology
from envs.synchronisation.link_graph import LinkGraph, links_of_topology, residual
from envs.synchronisation.plan import ELEMENT, SynchronisationPlan
from envs.synchronisation.playing import Played, play
from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.published import uneven
from envs.synchronisation.sparsity import Pattern, blocks_of, drawn_blocks
from envs.units import parse_bytes, parse_seconds, read_quantity
from experiments.config.config_source import SHIPPED, options_in
from experiments.config.targets import build, build_as, no_such_thing
from experiments.network.plan_file import primitive_of, read_plan, write_plan
from experiments.pictures.gantt import Event, happened, process, thread
from experiments.pictures.trees import draw_trees
from experiments.run.artifacts import to_json, write_figure, write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, stamp, text_hash


def sparse_blocks(
    asked: Mapping[str, Any], workers: int, size: float, seed: int
) -> tuple[float, BoolArray]:
    """Bytes of the vector, and which of its blocks each worker has.

    Args:
        asked: `block` in bytes, and `density` and `pattern`, or `gradients`: the file of a numpy
            array (n, E) that says the bytes too.

    Raises:
        InputError: naming the key at fault.
    """
    known = [{"block", "density", "pattern"}, {"block", "gradients"}]
    if set(asked) not in known:
        raise InputError(
            "config key 'sparsity': give block, density and pattern, or block and gradients"
        )
    block = asked["block"]
    if not isinstance(block, int) or block < ELEMENT or block % ELEMENT:
        raise InputError(f"config key 'sparsity.block': {block} is no multiple of {ELEMENT} bytes")
    if "gradients" in asked:
        values = _array(asked["gradients"], workers)
        return float(values.shape[1] * ELEMENT), blocks_of(values, block // ELEMENT)
    density, pattern = asked["density"], asked["pattern"]
    if not isinstance(density, int | float) or not 0.0 <= density <= 1.0:
        raise InputError(f"config key 'sparsity.density': {density} is no share from 0 to 1")
    patterns = [each.value for each in Pattern]
    require_one_of(pattern, patterns, file="config key 'sparsity.pattern'")
    return size, drawn_blocks(Pattern(pattern), workers, ceil(size / block), density, seed)


def _array(path: str, workers: int) -> FloatArray:
    check_file(path)
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"is no array of numpy ({error})", file=path) from error
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError("is no array of numbers of two dimensions", file=path)
    if len(values) != workers or values.shape[1] < 1:
        raise InputError(f"holds {values.shape}, and {workers} take part", file=path)
    return values.astype(np.float64)


OTHERS: dict[str, Synchroniser] = {
    "ring": Ring(), "double_tree": DoubleTree(), "hierarchical": Hierarchical(),
}  # fmt: skip


def published_networks() -> list[LinkGraph]:
    """Those of `conf/topology/published`."""
    rows = sorted(options_in(SHIPPED, "topology/published").items())
    return [
        build_as(LinkGraph, row, name, "network of links")
        for name, row in rows
        if "seed" not in row
    ]


def row_of(network: LinkGraph, size: float) -> dict[str, Any]:
    """An all-reduce of `size` bytes by every planner that has a plan, in seconds.

    `gain` is the time of the best of the others over that of the forest.
    """
    problem = SynchronisationProblem(network, size)
    seconds, busiest = {}, {}
    for name, planner in {"forest": Forest(), **OTHERS}.items():
        plan = planner.solve(problem).solution
        if plan is not None:
            seconds[name] = play(problem, plan).seconds
            busiest[name] = plan.busiest_seconds(problem)
    others = [x for name, x in seconds.items() if name != "forest"]
    return {
        "network": network.name, "participants": len(network.participants),
        "gain": min(others) / seconds["forest"], "time_s": seconds, "busiest_link_s": busiest,
    }  # fmt: skip


def study(random: int, size: float) -> dict[str, object]:
    """The published networks, and random uneven ones with seeds 0, 1, ...: gains of the forest."""
    drawn = [row_of(uneven(seed, f"uneven_{seed}"), size) for seed in range(random)]
    rows = [*(row_of(network, size) for network in published_networks()), *drawn]
    best, found = max(rows, key=lambda row: row["gain"]), []
    if drawn:
        found = np.quantile([row["gain"] for row in drawn], (0.0, 0.1, 0.5, 0.9, 1.0)).tolist()
    quantiles = zip(("least", "p10", "median", "p90", "largest"), found, strict=False)
    return {
        "networks": len(rows),
        "slower": sum(row["gain"] < 1.0 for row in rows),
        **{f"{name}_gain": value for name, value in quantiles},
        "gain": best["gain"],
        "gain_on": best["network"],
        "rows": rows,
    }


PLAN_FILE, TRACE_FILE, PICTURE_FILE = "plan.json", "trace.json", "trees.png"
SHOWN = (
    "agent", "topology", "participants", "status", "reason", "time_s", "algorithm_bandwidth",
    "busiest_link_bandwidth", "optimum", "of_optimum", "trees", "chunk", "largest_error", "seconds",
    "plan", "picture", "trace",
)  # fmt: skip
STUDY = ("networks", "slower", "least_gain", "median_gain", "largest_gain", "gain", "gain_on")
MOST_TRACED = 200_000  # messages of a trace
_ELEMENTS = 1 << 22  # of all vectors on which a plan is executed


@dataclass(kw_only=True)
class SynchroniseConfig:
    """`conf/synchronise.yaml`; groups are objects by `_target_`."""

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
    agent: Any
    chunk: Any = None  # bytes sent in one piece; null: the planner's choice
    summing: Any = 0  # seconds to add one byte: 3 passes at 1.6e12 bytes/s are 1.875e-12
    overhead: Any = 0  # seconds that a connection spends on each chunk before it sends
    optimum: bool = True  # the exact highest algorithm bandwidth beside that of the plan
    # instead: forests against ring, double_tree and hierarchical, on the published networks
    # and on so many random uneven ones
    study: int | None = None
    json: bool

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
            if sent > 0.0:
                name = other.network.link_name(link)
                if name not in number:
                    raise InputError(f"sends over {name}, no link of {graph.name}", file=path)
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


def synchronise(config: SynchroniseConfig, run: Run) -> Result:
    """Ask the planner, execute and time its plan, put the exact optimum beside it."""
    if config.study is not None:
        size = read_quantity(parse_bytes, config.bytes, key="bytes")
        return Result(study(config.study, size), run.provenance, STUDY)
    agent = build_as(Synchroniser, config.agent, "agent", "planner of synchronisation")
    problem = config.problem()
    topology = problem.network.name
    provenance = run.provenance.with_inputs(**{topology: text_hash(to_json(config.topology))})
    found = agent.solve(problem)
    values: dict[str, object] = {
        "agent": run.choice("agent", config.agent),
        "topology": topology,
        "participants": len(problem.network.participants),
        "primitive": config.primitive,
        "bytes": problem.size,
        "status": found.status,
        "reason": found.reason,
        "seconds": found.seconds,
        "figures": dict(found.figures),
    }
    warnings: list[str] = []
    if found.solution is not None:
        values |= _judged(problem, found.solution, config, run.folder, provenance, warnings)
    return Result(values, provenance, [key for key in SHOWN if key in values], warnings)


def _judged(
    problem: SynchronisationProblem, plan: SynchronisationPlan, config: SynchroniseConfig,
    folder: Path, provenance: Provenance, warnings: list[str],
) -> dict[str, object]:  # fmt: skip
    """Check, execute and play the plan of an agent; write it, its picture, and its trace where
    there are not too many messages. Bandwidths are in bytes/s.

    Raises:
        InputError: the plan breaks a rule or sums wrongly, which is the planner's fault.
    """
    if config.chunk is not None:
        plan = replace(plan, chunk=read_quantity(parse_bytes, config.chunk, key="chunk"))
    for violation in problem.violations(plan):
        raise InputError(f"the plan of the agent: {violation}", field="agent")
    error = largest_error(problem, plan)
    if not error < 1e-9:
        raise InputError(f"the plan of the agent sums wrongly, by {error:g}", field="agent")
    times = {key: read_quantity(parse_seconds, getattr(config, key), key=key)
             for key in ("summing", "overhead")}  # fmt: skip
    seconds = plan.own_seconds(problem)
    played: Played | None = None
    if seconds is None:
        played = play(problem, plan, **times)
        seconds = played.seconds
    size, bound = problem.size, plan.busiest_seconds(problem)
    best: float | None = None
    if config.optimum:
        best = float(optimum(problem))
        if played is None and seconds > (dense := size / best):  # a plan that leaves out zeros
            compared = (
                f"{seconds * 1e3:.4g} ms, where the best dense plan needs {dense * 1e3:.4g} ms"
            )
            warnings.append(f"the plan takes {compared}: leaving out zeros loses")
    write_plan(folder / PLAN_FILE, problem, plan, provenance)
    title = f"{plan.name} on {problem.network.name}: {size / seconds / 1e9:.4g} GB/s"
    write_figure(folder / PICTURE_FILE, draw_trees(problem, plan, title), provenance)
    trace = None
    if played is not None and len(played.start) <= MOST_TRACED:
        trace = str(folder / TRACE_FILE)
        document = stamp(trace_document(problem, played), provenance, kind="trace")
        write_json(folder / TRACE_FILE, document)
    return {
        "time_s": seconds,
        "algorithm_bandwidth": size / seconds,
        "busiest_link_s": bound,
        "busiest_link_bandwidth": size / bound,
        "optimum": best,
        "of_optimum": size / seconds / best if best else None,
        "trees": len(plan.trees),
        "chunk": plan.chunk,
        "messages": None if played is None else len(played.start),
        "largest_error": error,
        "plan": str(folder / PLAN_FILE),
        "picture": str(folder / PICTURE_FILE),
        "trace": trace,
    }


def trace_document(problem: SynchronisationProblem, played: Played) -> dict[str, object]:
    """Vertices as processes, their connections as threads, chunks as slices; for Perfetto."""
    names, events = problem.network.vertices, list[Event]()
    for vertex in sorted({way[0] for _, way, _ in played.connections}):
        events.append(process(vertex, names[vertex]))
    for c, (tree, way, reduces) in enumerate(played.connections):
        what = "sum" if reduces else "result"
        events.append(thread(way[0], c, f"tree {tree}: {what} to {names[way[-1]]}"))
        for chunk, m in enumerate(range(played.first[c], played.first[c + 1])):
            start, end, arrived = (a[m] for a in (played.start, played.drained, played.arrived))
            name, place = f"chunk {chunk}", (way[0], c)
            events.append(happened(name, what, place, start, end, arrived_s=arrived))
    return {"traceEvents": events, "displayTimeUnit": "ms"}
