"""Data for graph neural networks: caches, orders, partitions and resources, apart and together.

meshwright data_pipeline
meshwright data_pipeline input=edges.txt labels=labels.txt metis=true

A batch asks for the features of a sampled neighbourhood; eight stages bring it to the GPUs. The run
folder receives stages.png: what each stage takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le, MinLen

from envs.bounds import Count, NonNegative, Share
from envs.errors import InputError
from experiments.config.targets import build_as
from experiments.papers.bgl.locality import (
    block_partition,
    enumerated,
    hash_partition,
    label_bound,
    label_distance,
    metis_partition,
    near_sequences,
    shifted,
)
from experiments.papers.bgl.pipeline import (
    POLICIES,
    STAGES,
    Demand,
    GeneratedGraph,
    Machines,
    demand,
    equal_shares,
    hits,
    read_graph,
    sample,
)
from experiments.pictures.style import draw_bars
from experiments.reporting.tables import Columns, Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.provenance import peak_rss_bytes

PARTS = ("cache", "order", "partition", "isolation")
NOTHING, BASE = ("none", "random", "hash", "equal"), ("lru", "random", "hash", "equal")
OURS = ("fifo", "proximity", "block", "program")
COLUMNS: Columns = {
    **{part: f"{{{part}}}" for part in PARTS},
    "hits": "{hit_ratio:.3f}",
    "crossing": "{crossing:.3f}",
    "MB missed": lambda row: f"{row['missed_bytes'] / 1e6:.3g}",
    "batches/s": "{batches_per_s:.4g}",
    "slowest stage": "{slowest}",
    "speed-up": "{speed_up:.2f}",
}
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
    stores = {
        "hash": hash_partition(graph, config.stores),
        "block": block_partition(graph, training, config.stores, config.block, config.slack, rng),
    }
    if config.metis:
        stores["metis"] = metis_partition(graph, config.stores)
    near = near_sequences(graph, training, config.sequences, config.reach, rng)
    shift = rng.integers(0, near.shape[1], len(near))
    orders = {"random": rng.permutation(training), "proximity": shifted(near, shift)}
    found: dict[tuple[str, ...], Demand] = {}
    for name, order in orders.items():
        requests = sample(graph, order, config.batch, config.fanouts, config.seed)
        for policy in POLICIES:
            hit = hits(policy, graph, requests.node, round(config.cache * graph.nodes))
            for partition, store in stores.items():
                found[policy, name, partition] = demand(machines, requests, policy, hit, store)
    equal = equal_shares(machines)
    slowest = found[BASE[:3]].seconds(equal).max()
    every: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, own in found.items():
        programmed = enumerated({"": own}, machines.units).units
        for isolation, units in (("equal", equal), ("program", programmed)):
            seconds = own.seconds(units)
            choice = (*key, isolation)
            every[choice] = dict(zip(PARTS, choice, strict=True)) | {
                **own.figures,
                "batches_per_s": 1.0 / seconds.max(),
                "slowest": STAGES[seconds.argmax()],
                "speed_up": slowest / seconds.max(),
                "stages": seconds,
            }
    chosen: dict[str, tuple[str, ...]] = {"nothing": NOTHING, "none of them": BASE}
    for words, others, ours in (("{} alone", BASE, OURS), ("without {}", OURS, BASE)):
        for i, part in enumerate(PARTS):
            chosen[words.format(part)] = (*others[:i], ours[i], *others[i + 1 :])
    parts = {x: every[choice] for x, choice in (chosen | {"together": OURS}).items()}
    caches = {policy: found[policy, *OURS[1:3]] for policy in POLICIES}
    best = enumerated(caches, machines.units)
    own_bound, any_bound = label_bound(graph, near, config.batch)
    distance = {x: label_distance(graph, order, config.batch).mean() for x, order in orders.items()}
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
        "best_units": dict(zip(STAGES, best.units, strict=True)),
        "label_distance_random": distance["random"],
        "label_distance_near": distance["proximity"],
        "label_bound": own_bound,
        "label_bound_of_any_graph": any_bound,
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - used,
        "peak_bytes": peak_rss_bytes(),
    }
    title = f"{graph.nodes} nodes, {values['edges']} edges: {together:.4g} batches/s together"
    shown = [{"part": name, **row} for name, row in parts.items()]
    tables = [
        Table.of("Parts", {"part": "{part}", **COLUMNS}, shown),
        replace(Table.of("Every combination", COLUMNS, every.values()), on_console=False),
    ]
    ms = {name: 1e3 * row["stages"] for name, row in parts.items() if "without" not in name}
    figures = {"stages.png": draw_bars(STAGES, ms, "ms of a batch", title)}
    write_tables(run, title, tables, run.provenance, figures=figures)
    files = [file for file in (config.input, config.labels) if file]
    return Result(values, run.provenance.with_files(*files), SHOWN)
