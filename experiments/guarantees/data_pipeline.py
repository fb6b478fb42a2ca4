"""What `experiments.data_pipeline` does: every cache, order and partition, apart and together."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le, MinLen

from agents.data_pipeline.isolation import enumerated, integer_program
from agents.data_pipeline.orders import (
    ProximityOrder,
    label_bound,
    label_distance,
    shifted,
)
from agents.data_pipeline.partitions import BlockPartition, hash_partition, metis_partition
from envs.bounds import Count, NonNegative, Share
from envs.data_pipeline.caches import POLICIES, hits
from envs.data_pipeline.graph import GeneratedGraph, Graph, NodeArray, read_graph
from envs.data_pipeline.pipeline import STAGES, Demand, Machines, demand, equal_shares
from envs.data_pipeline.sampling import sample
from envs.errors import InputError
from experiments.pictures.data_pipeline import draw_stages
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.run.tables import Table, write_tables
from experiments.run.targets import build_as

PICTURE_FILE = "stages.png"
BASE, OURS = ("lru", "random", "hash", "equal"), ("fifo", "proximity", "block", "program")
PARTS = ("cache", "order", "partition", "isolation")
COLUMNS = ("cache", "order", "partition", "isolation", "hits", "crossing", "MB missed", "batches/s",
           "slowest stage", "speed-up")  # fmt: skip
SHOWN = ("nodes", "edges", "speed_up", "over_no_cache", "best_cache", "mean_label_distance",
         "label_bound", "seconds", "peak_gib")  # fmt: skip
Choice = tuple[str, ...]  # of `PARTS`


@dataclass
class DataPipelineConfig:
    """`conf/data_pipeline.yaml`; `graph` and `machines` are objects by `_target_`."""

    input: str | None
    labels: str | None
    graph: Any
    machines: Any
    training: Annotated[float, Gt(0.0), Le(1.0)]
    batch: Count
    fanouts: Annotated[list[Count], MinLen(1)]
    cache: Share
    sequences: Count
    reach: Count
    stores: Count
    block: Count
    slack: NonNegative
    caches: list[str]
    partitions: list[str]
    seed: int
    json: bool

    def __post_init__(self) -> None:
        for key, given, known, needed in (
            ("caches", self.caches, POLICIES, {BASE[0], OURS[0]}),
            ("partitions", self.partitions, ("hash", "metis", "block"), {BASE[2], OURS[2]}),
        ):
            if not needed <= set(given) <= set(known):
                told = f"names of {', '.join(known)}, with {' and '.join(sorted(needed))}"
                raise InputError(f"config key '{key}': these are {told}")
        if self.batch % self.sequences:
            raise InputError(f"config key 'sequences': it does not divide a batch of {self.batch}")


def data_pipeline(config: DataPipelineConfig, run: Run) -> Result:
    """Sample an epoch in both orders, replay it in every cache, and time the stages."""
    start = time.perf_counter()
    rng = np.random.default_rng(config.seed)
    machines = build_as(Machines, config.machines, "machines", "machines")
    graph = _graph(config, rng)
    wanted = int(config.training * graph.nodes) // config.batch * config.batch
    training = rng.permutation(graph.nodes).astype(np.int32)[:wanted]
    if not wanted:
        raise InputError("config key 'training': there are fewer training nodes than a batch has")
    stores = _stores(config, graph, training, rng)
    near = ProximityOrder(config.sequences, config.reach).near(graph, training, rng)
    shift = rng.integers(0, near.shape[1], len(near))
    orders = {"random": rng.permutation(training), "proximity": shifted(near, shift)}
    rows = round(config.cache * graph.nodes)
    found: dict[tuple[str, str, str], Demand] = {}
    for name, own in orders.items():
        requests = sample(graph, own, config.batch, config.fanouts, config.seed)
        for policy in (x for x in POLICIES if x in config.caches):
            hit = hits(policy, graph, requests.node, rows)
            for partition, part in stores.items():
                found[policy, name, partition] = demand(machines, requests, policy, hit, part)
    timed = _Timed(machines, found)
    every = [timed.row((*key, how)) for key in found for how in ("equal", "program")]
    parts = {"none of them": timed.row(BASE)}
    for at, name in enumerate(PARTS):
        parts[f"{name} alone"] = timed.row((*BASE[:at], OURS[at], *BASE[at + 1 :]))
    for at, name in enumerate(PARTS):
        parts[f"without {name}"] = timed.row((*OURS[:at], BASE[at], *OURS[at + 1 :]))
    parts["together"] = timed.row(OURS)
    caches = {name: found[name, *OURS[1:3]] for name in config.caches}
    best, solved = enumerated(caches, machines.units), integer_program(caches, machines.units)
    own_bound, any_bound = label_bound(graph, near, config.batch)
    distance = {name: label_distance(graph, own, config.batch) for name, own in orders.items()}
    scale = 1024**2 if sys.platform != "darwin" else 1024**3
    values: dict[str, object] = {
        "nodes": graph.nodes,
        "edges": len(graph.neighbour) // 2,
        "batches": len(training) // config.batch,
        "rows": every,
        "parts": parts,
        "speed_up": parts["together"]["speed_up"],
        "best_cache": best.cache,
        "best_batches_per_s": 1.0 / best.seconds,
        "program_batches_per_s": 1.0 / solved.seconds,
        "best_units": dict(zip(STAGES, best.units, strict=True)),
        "label_distance": {name: [x.mean(), x.max()] for name, x in distance.items()},
        "mean_label_distance": float(distance["proximity"].mean()),
        "label_bound": own_bound,
        "label_bound_of_any_graph": any_bound,
    }
    if "none" in config.caches:
        alone = timed.row(("none", *BASE[1:]))
        values["over_no_cache"] = parts["together"]["batches_per_s"] / alone["batches_per_s"]
    values["seconds"] = time.perf_counter() - start
    values["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
    title = (
        f"{graph.nodes} nodes, {values['edges']} edges: all parts together are "
        f"{values['speed_up']:.2f} times as fast as {', '.join(BASE[:3])}"
    )
    tables = [
        Table("Parts", ("part", *COLUMNS), [(name, *_cells(row)) for name, row in parts.items()]),
        Table("Every combination", COLUMNS, [_cells(row) for row in every], on_console=False),
    ]
    write_tables(run, title, tables, run.provenance)
    shown = {name: row["stages"] for name, row in parts.items() if "without" not in name}
    write_figure(run.folder / PICTURE_FILE, draw_stages(STAGES, shown, title), run.provenance)
    files = [Path(x) for x in (config.input, config.labels) if x is not None]
    provenance = run.provenance.with_inputs(**{path.name: file_hash(path) for path in files})
    return Result(values, provenance, [key for key in SHOWN if key in values])


def _graph(config: DataPipelineConfig, rng: np.random.Generator) -> Graph:
    if config.input is not None:
        return read_graph(config.input, config.labels)
    if config.labels is not None:
        raise InputError("config key 'labels': they are those of a file of edges, give input too")
    return build_as(GeneratedGraph, config.graph, "graph", "generated graph").draw(rng)


def _stores(
    config: DataPipelineConfig, graph: Graph, training: NodeArray, rng: np.random.Generator
) -> dict[str, NodeArray]:
    blocks = BlockPartition(config.block, config.slack)
    found: dict[str, NodeArray] = {}
    for name in dict.fromkeys(config.partitions):
        if name == "block":
            found[name] = blocks(graph, training, config.stores, rng)
        else:
            rule = hash_partition if name == "hash" else metis_partition
            found[name] = rule(graph, config.stores)
    return found


class _Timed:
    """The seconds of a batch under a choice of parts; speed-ups are over `BASE`."""

    def __init__(self, machines: Machines, found: Mapping[tuple[str, str, str], Demand]) -> None:
        self._machines, self._found = machines, found
        self._base = float(self._seconds(BASE).max())

    def _seconds(self, choice: Choice) -> Any:
        own = self._found[choice[0], choice[1], choice[2]]
        if choice[3] == "equal":
            return own.seconds(equal_shares(self._machines))
        return own.seconds(enumerated({choice[0]: own}, self._machines.units).units)

    def row(self, choice: Choice) -> dict[str, Any]:
        own, seconds = self._found[choice[0], choice[1], choice[2]], self._seconds(choice)
        return dict(zip(PARTS, choice, strict=True)) | {
            "hit_ratio": own.hit_ratio,
            "crossing": own.crossing,
            "crossing_bytes": own.crossing_bytes,
            "missed_bytes": own.missed_bytes,
            "batches_per_s": 1.0 / seconds.max(),
            "slowest": STAGES[seconds.argmax()],
            "speed_up": self._base / seconds.max(),
            "stages": seconds,
        }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        *(row[part] for part in PARTS), f"{row['hit_ratio']:.3f}", f"{row['crossing']:.3f}",
        f"{row['missed_bytes'] / 1e6:.3g}", f"{row['batches_per_s']:.4g}", row["slowest"],
        f"{row['speed_up']:.2f}",
    )  # fmt: skip
