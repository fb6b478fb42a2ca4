"""Sums inside the network: the published figures of SwitchML and OmniReduce, computed again.

meshwright evaluate env=aggregation
meshwright evaluate env=aggregation layers=layers.csv workers=8

`layers` is a file of measured layers, found below MESHWRIGHT_DATA where it is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, MinLen

from agents.synchronisation.classical import ParameterServer, Ring
from agents.synchronisation.ways import Synchroniser, latency_of
from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive
from envs.synchronisation.layerwise import (
    Collective,
    LayeredModel,
    read_layered_models,
    training_seconds,
)
from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of
from envs.synchronisation.playing import seconds_of
from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.sparsity import Pattern, blocks_of, drawn_blocks
from experiments.papers.in_network_sums.planners import OmniReduce
from experiments.papers.in_network_sums.switchml import (
    Faults,
    SlotPool,
    SwitchTree,
    error_bound,
    sum_vectors,
    time_sum,
)
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run

Models = Mapping[str, LayeredModel]
Row = dict[str, Any]
SHOWN = ("largest_difference", "over_ring", "over_server", "largest_difference_ms")
GBPS, LATENCY, POOL = 1.25e8, 1e-6, SlotPool()  # bytes/s; seconds of a link
PUBLISHED_GBPS, PUBLISHED_ITERATIONS, PUBLISHED_WORKERS = 10.0, (1, 10), 2
MACHINES, SPARSE_GBPS, SPARSE_BYTES, BLOCK = 8, 100.0, 104_857_600, 1024


@dataclass(kw_only=True)
class AggregationConfig:
    """`conf/aggregation.yaml`."""

    layers: str
    gpu: str = "a100_match_v100_bs"  # of that file
    gbps: Annotated[Sequence[Positive], MinLen(1)] = (
        10.0,
        100.0,
    )  # links of the workers, 1 us each
    # of training, from the first forward pass to the last update
    iterations: Annotated[Sequence[Count], MinLen(1)] = (1, 10)
    workers: Count = 2  # of the dedicated job
    many_workers: Annotated[int, Ge(2)] = 8  # for speed-ups over rings and parameter servers
    jitter: NonNegative = 0.02  # standard deviation of every layer's times over their mean
    runs: Count = 50  # with seeds seed, seed + 1, ...; seconds are their mean
    # SwitchML's simulator: seconds at 10 Gb/s of 1 and 10 iterations, two workers
    published: dict[str, Sequence[float]] = field(
        default_factory=lambda: {
            "alexnet": (0.278793, 2.78306),
            "bert": (1.108804, 11.08742),
            "googlenet": (0.140753, 1.399713),
            "inception": (0.261208, 2.57072),
            "resnet101": (0.193343, 1.925655),
            "resnet152": (0.260554, 2.609034),
            "resnet50": (0.150168, 1.517912),
            "vgg11": (0.466931, 4.669722),
            "vgg16": (0.517781, 5.165279),
            "vgg19": (0.546684, 5.471998),
        }
    )
    sparse: Annotated[Sequence[Sequence[float]], MinLen(1)] = (
        (0.0, 15.5),
        (20.0, 14.3),
        (60.0, 12.2),
        (80.0, 10.5),
        (90.0, 7.8),
        (92.0, 7.1),
        (96.0, 5.1),
        (98.0, 3.9),
        (99.0, 3.1),
    )
    seed: int
    json: bool

    def mean_seconds(
        self, model: LayeredModel, collective: Collective, iterations: int, workers: int
    ) -> float:
        """Of training, over all seeds."""
        seeds = range(self.seed, self.seed + self.runs)
        found = training_seconds(model, collective, iterations, workers, self.jitter, seeds)
        return float(found.mean())


def aggregation(config: AggregationConfig, run: Run) -> Result:
    """All tables; differences from what is published where the conditions are those."""
    models = read_layered_models(Path(config.layers), config.gpu)
    rows = {
        "dedicated": [*dedicated(models, config)],
        "speed_ups": [*speed_ups(models, config)],
        "sparse": [*sparse_sums(config)],
        "losses": [*losses(config)],
        "integers": [*integers(config)],
    }
    provenance = run.provenance.with_files(config.layers)
    tables = [Table.plain(title, own, 6) for title, own in rows.items()]
    write_tables(run, "Sums inside the network", tables, provenance)
    values: dict[str, object] = {**rows}
    for key in SHOWN:
        name = key.removeprefix("largest_")
        known = [abs(row[name]) for own in rows.values() for row in own if name in row]
        values[key] = max(known, default=None)
    return Result(values, provenance, SHOWN)


def machines(workers: int, servers: int, gbps: float) -> LinkGraph:
    """Workers, and machines that sum beside them, around one switch."""
    names = [f"w{i}" for i in range(workers)] + [f"s{i}" for i in range(servers)]
    vertices = [VertexSpec(name, name[0] == "w", True, False) for name in names]
    vertices.append(VertexSpec("switch", False, False, True))
    ends = [way for name in names for way in ((name, "switch"), ("switch", name))]
    return graph_of("machines", vertices, [(*way, gbps * GBPS, LATENCY) for way in ends])


def switches(gbps: float) -> Collective:
    """Sums in the slots of one switch."""
    return lambda sizes: POOL.seconds(sizes, gbps * GBPS, LATENCY)


def through_links(agent: Synchroniser, network: LinkGraph) -> Collective:
    """The busiest link's seconds at any size, in the packets of SwitchML, and the latency."""
    problem = SynchronisationProblem(network, 1e8)
    plan = agent.solve(problem).solution
    assert plan is not None
    per_byte = plan.busiest_seconds(problem) / problem.size * (POOL.packet / POOL.payload)
    latency = latency_of(network, plan.trees)
    return lambda sizes: latency + sizes * per_byte


def dedicated(models: Models, config: AggregationConfig) -> Iterator[Row]:
    """Seconds of training alone with SwitchML, by rate, model and iterations."""
    for gbps, (name, model), count in product(config.gbps, models.items(), config.iterations):
        seconds = config.mean_seconds(model, switches(gbps), count, config.workers)
        row: Row = {"model": name, "gbps": gbps, "iterations": count, "seconds": seconds}
        same = (gbps, config.workers) == (PUBLISHED_GBPS, PUBLISHED_WORKERS)
        if same and count in PUBLISHED_ITERATIONS and name in config.published:
            known = config.published[name][PUBLISHED_ITERATIONS.index(count)]
            row |= {"published": known, "difference": seconds / known - 1.0}
        yield row


def speed_ups(models: Models, config: AggregationConfig) -> Iterator[Row]:
    """Ten iterations with a ring, a parameter server or one on every worker over SwitchML's."""
    for gbps in config.gbps:
        network = machines(config.many_workers, 1, gbps)
        others = {
            "over_ring": through_links(Ring(), network),
            "over_server": through_links(ParameterServer(dedicated=True), network),
            "over_sharded": through_links(ParameterServer(dedicated=False), network),
        }
        for name, model in models.items():
            own, *slower = (
                config.mean_seconds(model, collective, 10, config.many_workers)
                for collective in (switches(gbps), *others.values())
            )
            ratios = {key: seconds / own for key, seconds in zip(others, slower, strict=True)}
            yield {"model": name, "gbps": gbps, "seconds": own, **ratios}


def sparse_sums(config: AggregationConfig) -> Iterator[Row]:
    """Milliseconds of OmniReduce by sparsity, and for gradients of a small model."""
    count, cases = SPARSE_BYTES // BLOCK, []
    for percent, known in config.sparse:
        density = 1.0 - percent / 100.0
        for pattern in Pattern:
            if pattern is not Pattern.DISJOINT or density * MACHINES <= 1.0:
                drawn = drawn_blocks(pattern, MACHINES, count, density, config.seed)
                published = {"published_ms": known} if pattern is Pattern.RANDOM else {}
                cases.append((pattern.value, drawn, published))
    found = embedding_gradients(MACHINES, config.seed)
    for name, values in (("embedding", found), ("top 1 %", largest_entries(found, 0.01))):
        cases.append((name, blocks_of(values, BLOCK // 4), {}))
    network = machines(MACHINES, MACHINES, SPARSE_GBPS)
    for name, blocks, published in cases:
        problem = SynchronisationProblem(network, float(blocks.shape[1] * BLOCK), blocks=blocks)
        result = OmniReduce(dedicated=True).solve(problem)
        assert result.solution is not None
        ms = 1e3 * seconds_of(problem, result.solution)
        row: Row = {
            "blocks": name,
            "sparsity": 100.0 * (1.0 - blocks.mean()),
            "union": blocks.any(axis=0).mean(),
            "ms": ms,
            "sent_bytes": result.figures["sent_bytes"],
            **published,
        }
        if published:
            row["difference_ms"] = ms - published["published_ms"]
        yield row


def losses(config: AggregationConfig) -> Iterator[Row]:
    """A sum of 10 MB packet by packet at the first rate, in one rack and in two."""
    rate, size, half = config.gbps[0] * GBPS, 1e7, config.many_workers // 2
    for racks, loss in product(
        ([config.many_workers], [half, config.many_workers - half]), (0.0, 1e-4, 1e-3, 1e-2)
    ):
        faults = Faults(loss, seed=config.seed)
        found = time_sum(POOL, SwitchTree(racks, rate, LATENCY), size, faults)
        closed = float(POOL.seconds(size, rate, LATENCY, len(racks)))
        yield {
            "racks": len(racks), "loss": loss, "ms": 1e3 * found.seconds,
            "closed_form_ms": 1e3 * closed, "sent_again": found.again,
        }  # fmt: skip


def integers(config: AggregationConfig) -> Iterator[Row]:
    """Gradients of a small model summed in block floating point: the error, and its bound."""
    values = embedding_gradients(config.many_workers, config.seed, 500)
    tree, exact = SwitchTree([config.many_workers], GBPS, LATENCY), values.sum(axis=0)
    norm = np.linalg.norm(exact)
    for bits in (8, 16, 32):
        pool = SlotPool(bits=bits, exponents=True)
        found, bound = sum_vectors(pool, tree, values), error_bound(values, pool.elements, bits)
        yield {
            "bits": bits, "largest_sum": found.largest,
            "relative_error": np.linalg.norm(found.result[0] - exact) / norm,
            "bound": np.linalg.norm(bound) / norm,
        }  # fmt: skip


def embedding_gradients(
    workers: int, seed: int, vocabulary: int = 5000, width: int = 64
) -> FloatArray:
    """(W, E) of a table of words, of which few stand in a batch, and of two layers after it."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    embedding = nn.Embedding(vocabulary, width)
    head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))
    parameters = [*embedding.parameters(), *head.parameters()]
    rows = []
    for _ in range(workers):
        words = (torch.rand(16, 8) ** 4 * vocabulary).long()  # some words are in most batches
        loss = nn.functional.cross_entropy(
            head(embedding(words).mean(dim=1)), torch.randint(10, (16,))
        )
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).numpy())
    return np.stack(rows).astype(np.float64)


def largest_entries(values: FloatArray, share: float) -> FloatArray:
    """(W, E) each worker's largest `share` of its entries; zero elsewhere."""
    kept = max(1, round(share * values.shape[1]))
    least = np.sort(np.abs(values), axis=1)[:, -kept]
    return np.where(np.abs(values) >= least[:, None], values, 0.0)
