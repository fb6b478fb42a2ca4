"""What `experiments.data_pipeline` does: every cache, order and partition, apart and together."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le, MinLen

from agents.data_pipeline.isolation import enumerated, integer_program
from agents.data_pipeline.locality import (
    BlockPartition,
    ProximityOrder,
    hash_partition,
    label_bound,
    label_distance,
    metis_partition,
    shifted,
)
from envs.bounds import Count, NonNegative, Share
from envs.data_pipeline.graph import GeneratedGraph, read_graph
from envs.data_pipeline.pipeline import STAGES, Demand, Machines, demand, equal_shares
from envs.data_pipeline.requests import POLICIES, hits, sample
from envs.errors import InputError
from experiments.config.targets import build_as
from experiments.pictures.style import draw_bars
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.study.tables import Table, write_tables

PARTS = ("cache", "order", "partition", "isolation")
NOTHING, BASE = ("none", "random", "hash", "equal"), ("lru", "random", "hash", "equal")
OURS = ("fifo", "proximity", "block", "program")
COLUMNS = (*PARTS, "hits", "crossing", "MB missed", "batches/s", "slowest stage", "speed-up")
SHOWN = ("nodes", "edges", "speed_up", "over_no_cache", "best_cache", "label_distance_near",
         "label_bound", "seconds", "processor_seconds", "peak_bytes")  # fmt: skip


@dataclass(kw_only=True)
class DataPipelineConfig:
    """`conf/data_pipeline.yaml`; `graph` and `machines` are objects by `_target_`."""

    # a file of edges, a line `node node` each, plain or .gz; null: the graph below
    input: str | None = None
    # of input: a line `node class` each; null: all nodes are of one class
    labels: str | None = None
    graph: Any
    machines: Any
    # share of the nodes that train, drawn; cut to whole batches
    training: Annotated[float, Gt(0.0), Le(1.0)] = 0.1
    batch: Count = 50  # training nodes of a batch
    fanouts: Annotated[Sequence[Count], MinLen(1)] = (
        10,
        5,
    )  # neighbours sampled at each hop, at most
    cache: Share = 0.1  # share of all feature rows that the cache holds
    sequences: Count = 25  # of near nodes that a batch takes from; divides batch
    reach: Count = 200  # nodes of a breadth-first search before the next root
    stores: Count = 4
    block: Count = 32  # nodes of a block of the partition, at most
    # what a store may have above an equal part of nodes and training nodes
    slack: NonNegative = 0.05
    metis: bool = False  # true: METIS' partition too (needs the extra graphs)
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.batch % self.sequences:
            raise InputError(f"config key 'sequences': it does not divide a batch of {self.batch}")
        if self.labels is not None and self.input is None:
            raise InputError("config key 'labels': they are those of input, which is not given")


def data_pipeline(config: DataPipelineConfig, run: Run) -> Result:
    """Sample an epoch in both orders, replay it in every cache, and time the stages."""
    start, used = time.perf_counter(), time.process_time()
    rng = np.random.default_rng(config.seed)
    machines = build_as(Machines, config.machines, "machines", "machines")
    source = build_as(GeneratedGraph, config.graph, "graph", "generated graph")
    graph = read_graph(config.input, config.labels) if config.input else source.draw(rng)
    wanted = int(config.training * graph.nodes) // config.batch * config.batch
    if not wanted:
        raise InputError("config key 'training': there are fewer training nodes than a batch has")
    training = rng.permutation(graph.nodes).astype(np.int32)[:wanted]
    blocks = BlockPartition(config.block, config.slack)
    stores = {
        "hash": hash_partition(graph, config.stores),
        "block": blocks(graph, training, config.stores, rng),
    }
    if config.metis:
        stores["metis"] = metis_partition(graph, config.stores)
    near = ProximityOrder(config.sequences, config.reach).near(graph, training, rng)
    shift = rng.integers(0, near.shape[1], len(near))
    orders = {"random": rng.permutation(training), "proximity": shifted(near, shift)}
    found: dict[tuple[str, ...], Demand] = {}
    for name, own in orders.items():
        requests = sample(graph, own, config.batch, config.fanouts, config.seed)
        for policy in POLICIES:
            hit = hits(policy, graph, requests.node, round(config.cache * graph.nodes))
            for partition, part in stores.items():
                found[policy, name, partition] = demand(machines, requests, policy, hit, part)
    choices = [(*key, x) for key in found for x in ("equal", "program")]
    every = {choice: _row(machines, found, choice) for choice in choices}
    chosen: dict[str, tuple[str, ...]] = {"nothing": NOTHING, "none of them": BASE}
    chosen |= {f"{x} alone": (*BASE[:i], OURS[i], *BASE[i + 1 :]) for i, x in enumerate(PARTS)}
    chosen |= {f"without {x}": (*OURS[:i], BASE[i], *OURS[i + 1 :]) for i, x in enumerate(PARTS)}
    parts = {x: every[own] for x, own in (chosen | {"together": OURS}).items()}
    caches: dict[str, Demand] = {policy: found[policy, *OURS[1:3]] for policy in POLICIES}
    best, solved = enumerated(caches, machines.units), integer_program(caches, machines.units)
    own_bound, any_bound = label_bound(graph, near, config.batch)
    distance = {name: label_distance(graph, own, config.batch) for name, own in orders.items()}
    together = parts["together"]["batches_per_s"]
    values: dict[str, object] = {
        "nodes": graph.nodes,
        "edges": len(graph.neighbour) // 2,
        "rows": list(every.values()),
        "parts": parts,
        "speed_up": parts["together"]["speed_up"],
        "over_no_cache": together / parts["nothing"]["batches_per_s"],
        "best_cache": best.cache,
        "best_batches_per_s": 1.0 / best.seconds,
        "program_batches_per_s": 1.0 / solved.seconds,
        "best_units": dict(zip(STAGES, best.units, strict=True)),
        "label_distance_random": float(distance["random"].mean()),
        "label_distance_near": float(distance["proximity"].mean()),
        "label_bound": own_bound,
        "label_bound_of_any_graph": any_bound,
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - used,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux
    }
    title = f"{graph.nodes} nodes, {values['edges']} edges: {together:.4g} batches/s together"
    tables = [
        Table("Parts", ("part", *COLUMNS), [(name, *_cells(row)) for name, row in parts.items()]),
        Table(
            "Every combination", COLUMNS, [_cells(row) for row in every.values()], on_console=False
        ),
    ]
    write_tables(run, title, tables, run.provenance)
    shown = {name: 1e3 * row["stages"] for name, row in parts.items() if "without" not in name}
    figure = draw_bars(STAGES, shown, "ms of a batch", title)
    write_figure(run.folder / "stages.png", figure, run.provenance)
    files = {Path(x).name: file_hash(Path(x)) for x in (config.input, config.labels) if x}
    return Result(values, run.provenance.with_inputs(**files), SHOWN)


def _row(
    machines: Machines, found: Mapping[tuple[str, ...], Demand], choice: tuple[str, ...]
) -> dict[str, Any]:
    """A choice of the parts; its speed-up is over `BASE`."""
    own, base, equal = found[choice[:3]], found[BASE[:3]], equal_shares(machines)
    shares = equal
    if choice[3] == "program":
        shares = enumerated({choice[0]: own}, machines.units).units
    seconds = own.seconds(shares)
    return dict(zip(PARTS, choice, strict=True)) | {
        "hit_ratio": own.hit_ratio,
        "crossing": own.crossing,
        "crossing_bytes": own.crossing_bytes,
        "missed_bytes": own.missed_bytes,
        "batches_per_s": 1.0 / seconds.max(),
        "slowest": STAGES[seconds.argmax()],
        "speed_up": base.seconds(equal).max() / seconds.max(),
        "stages": seconds,
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        *(row[part] for part in PARTS), f"{row['hit_ratio']:.3f}", f"{row['crossing']:.3f}",
        f"{row['missed_bytes'] / 1e6:.3g}", f"{row['batches_per_s']:.4g}", row["slowest"],
        f"{row['speed_up']:.2f}",
    )  # fmt: skip
