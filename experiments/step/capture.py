"""Capture of a training step as a graph file, with its figures."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from envs.errors import InputError
from envs.graphs.op_graph import Kind
from envs.graphs.storage import graph_hash, save_graph
from experiments.config.targets import build
from experiments.run.one_run import Result, Run
from experiments.run.provenance import peak_rss_bytes
from experiments.step.problem import ModelSource

GRAPH_FILE = "graph.npz"


@dataclass(kw_only=True)
class CaptureConfig:
    """`conf/capture.yaml`; the graph is an object by `_target_`."""

    graph: Any
    seed: int
    json: bool


def capture(config: CaptureConfig, run: Run) -> Result:
    """Trace the model now, whatever the cache holds, and save the graph in the run folder."""
    source = build(config.graph)
    if not isinstance(source, ModelSource):
        raise InputError("config key 'graph': a graph file is no model; name one of conf/graph")
    start = time.perf_counter()
    graph = source.capture()
    seconds = time.perf_counter() - start
    path = run.folder / GRAPH_FILE
    provenance = run.provenance.with_inputs(**source.inputs())
    save_graph(graph, path, provenance.document())
    kinds = Counter(Kind(kind).name.lower() for kind in graph.kind)
    return Result(
        {
            "graph": graph.name,
            "operators": graph.num_operators,
            "tensors": graph.num_tensors,
            "edges": len(graph.consumer),
            "parameters": graph.num_parameters,
            "forward_flop": graph.forward_flop(),
            "backward_flop": graph.backward_flop(),
            "parameter_bytes": float(graph.parameter_bytes.sum()),
            "gradient_bytes": float(graph.gradient_bytes.sum()),
            "optimizer_bytes": float(graph.optimizer_bytes.sum()),
            "micro_batches": graph.num_micro_batches,
            "operators_by_kind": dict(sorted(kinds.items())),
            "seconds": seconds,
            "peak_rss_bytes": peak_rss_bytes(),
            "graph_file": str(path),
            "graph_sha256": graph_hash(graph),
        },
        provenance,
    )
