"""What `experiments.aggregation` computes: rows of figures by name, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agents.base import SynchronisationPlanner
from agents.synchronisation.classical import ParameterServer, Ring
from agents.synchronisation.in_network import OmniReduce
from agents.synchronisation.ways import latency_of
from envs.synchronisation.layerwise import Collective, LayeredModel, training_seconds
from envs.synchronisation.link_graph import BoolArray, LinkGraph, VertexSpec, graph_of
from envs.synchronisation.plan import SynchronisationPlan
from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.sparse_aggregation import Pattern, blocks_of, drawn_blocks
from envs.synchronisation.switch_aggregation import SlotPool
from experiments.network.gradients import embedding_gradients, largest_entries
from experiments.run.tables import Table

Row = dict[str, float | str]
GBPS, LATENCY = 1.25e8, 1e-6  # bytes/s, seconds of a link
PUBLISHED_GBPS, PUBLISHED_ITERATIONS, PUBLISHED_WORKERS = 10.0, (1, 10), 2
MACHINES, SPARSE_GBPS, SPARSE_BYTES, BLOCK = 8, 100.0, 104_857_600.0, 1024


class Conditions(Protocol):
    """Those of the dedicated jobs: keys of `conf/aggregation.yaml`."""

    gbps: list[float]
    iterations: list[int]
    workers: int
    many_workers: int
    jitter: float
    published: dict[str, list[float]]


def machines(workers: int, servers: int, gbps: float) -> LinkGraph:
    """Workers, and machines that sum beside them, around one switch."""
    names = [f"w{i}" for i in range(workers)] + [f"s{i}" for i in range(servers)]
    vertices = [VertexSpec(name, name[0] == "w", True, False) for name in names]
    vertices.append(VertexSpec("switch", False, False, True))
    ends = [(a, b) for name in names for a, b in ((name, "switch"), ("switch", name))]
    return graph_of("machines", vertices, [(a, b, gbps * GBPS, LATENCY) for a, b in ends])


def plan_of(agent: SynchronisationPlanner, problem: SynchronisationProblem) -> SynchronisationPlan:
    plan = agent.synchronise(problem).plan
    assert plan is not None
    return plan


def through_links(agent: SynchronisationPlanner, network: LinkGraph, pool: SlotPool) -> Collective:
    """The busiest link's seconds at any size, in the packets of SwitchML, and the latency."""
    problem = SynchronisationProblem(network, 1e8)
    plan = plan_of(agent, problem)
    per_byte = plan.busiest_seconds(problem) / problem.size * pool.packet / (4 * pool.elements)
    latency = latency_of(network, plan.trees)
    return lambda sizes: latency + sizes * per_byte


def dedicated(
    models: Mapping[str, LayeredModel], asked: Conditions, seeds: Sequence[int]
) -> list[Row]:
    """Seconds of training alone with SwitchML, by model, rate and iterations."""
    rows: list[Row] = []
    for gbps in asked.gbps:
        for name, model in models.items():
            for count in asked.iterations:
                took = training_seconds(
                    model, switches(gbps), count, asked.workers, asked.jitter, seeds
                )
                row: Row = {"model": name, "gbps": gbps, "iterations": count}
                mean = float(took.mean())
                row |= {"seconds": mean, "deviation": float(took.std())}
                same = gbps == PUBLISHED_GBPS and asked.workers == PUBLISHED_WORKERS
                if same and count in PUBLISHED_ITERATIONS and name in asked.published:
                    known = asked.published[name][PUBLISHED_ITERATIONS.index(count)]
                    row |= {"published": known, "difference": mean / known - 1.0}
                rows.append(row)
    return rows


def switches(gbps: float) -> Collective:
    return lambda sizes: SlotPool().seconds(sizes, gbps * GBPS, LATENCY)


def speed_ups(
    models: Mapping[str, LayeredModel], asked: Conditions, seeds: Sequence[int]
) -> list[Row]:
    """Ten iterations with rings and parameter servers over those with SwitchML."""
    rows: list[Row] = []
    for gbps in asked.gbps:
        network = machines(asked.many_workers, 1, gbps)
        others = {
            "over_ring": through_links(Ring(), network, SlotPool()),
            "over_server": through_links(ParameterServer(dedicated=True), network, SlotPool()),
            "over_sharded": through_links(ParameterServer(dedicated=False), network, SlotPool()),
        }
        for name, model in models.items():
            mean = {
                key: float(
                    training_seconds(
                        model, collective, 10, asked.many_workers, asked.jitter, seeds
                    ).mean()
                )
                for key, collective in {"seconds": switches(gbps), **others}.items()
            }
            row: Row = {"model": name, "gbps": gbps, "seconds": mean["seconds"]}
            rows.append(row | {key: mean[key] / mean["seconds"] for key in others})
    return rows


def sparse_sums(published: Sequence[Sequence[float]], seed: int) -> list[Row]:
    """Milliseconds of OmniReduce by sparsity, and for gradients of a small model."""
    count = int(SPARSE_BYTES) // BLOCK
    cases: list[tuple[str, BoolArray, float, float | None]] = []
    for percent, known in published:
        density = 1.0 - percent / 100.0
        for pattern in Pattern:
            if pattern is not Pattern.DISJOINT or density * MACHINES <= 1.0:
                drawn = drawn_blocks(pattern, MACHINES, count, density, seed)
                cases.append(
                    (
                        pattern.value,
                        drawn,
                        SPARSE_BYTES,
                        known if pattern is Pattern.RANDOM else None,
                    )
                )
    found = embedding_gradients(MACHINES, seed)
    for name, values in (("embedding", found), ("top 1 %", largest_entries(found, 0.01))):
        blocks = blocks_of(values, BLOCK // 4)
        cases.append((name, blocks, float(blocks.shape[1] * BLOCK), None))
    network = machines(MACHINES, MACHINES, SPARSE_GBPS)
    rows: list[Row] = []
    for name, blocks, size, known_ms in cases:
        problem = SynchronisationProblem(network, size, blocks=blocks)
        result = OmniReduce(dedicated=True).synchronise(problem)
        assert result.plan is not None
        seconds = result.plan.own_seconds(problem)
        assert seconds is not None
        ring = plan_of(Ring(), problem).busiest_seconds(problem)
        row: Row = {"blocks": name, "sparsity": 100.0 * float(1.0 - blocks.mean())}
        row |= {
            "union": float(blocks.any(axis=0).mean()),
            "ms": 1e3 * seconds,
            "ring_ms": 1e3 * ring,
        }
        row |= {"sent_bytes": result.figures["sent_bytes"]}
        if known_ms is not None:
            row |= {"published_ms": known_ms, "difference_ms": 1e3 * seconds - known_ms}
        rows.append(row)
    return rows


def largest(rows: Sequence[Row], key: str) -> float | None:
    """The largest absolute value; None: no row has one."""
    return max((abs(float(row[key])) for row in rows if key in row), default=None)


def tables_of(rows: Mapping[str, Sequence[Row]]) -> list[Table]:
    found = []
    for title, own in rows.items():
        columns = list(dict.fromkeys(key for row in own for key in row))
        cells = [
            [
                value if isinstance(value := row.get(key, ""), str) else f"{value:.6g}"
                for key in columns
            ]
            for row in own
        ]
        found.append(Table(title, columns, cells))
    return found
