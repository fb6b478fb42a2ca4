"""A captured graph as PyTorch Geometric's data."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from envs.graphs.op_graph import Kind, OpGraph, Phase

NODE_FEATURES = ("flop", "bytes_read", "bytes_written", "state_bytes", "micro_batch")


def to_pyg(graph: OpGraph) -> Data:
    """The operators of a graph as nodes, the uses of its tensors as edges.

    The data has `x` (N, F) float32: the columns `feature_names` (`NODE_FEATURES`, then one-hot
    `kind_*` and `phase_*`), unscaled; `edge_index` (2, E) int64 from producer to consumer, which
    ascends; `edge_attr` (E, 1) float32 bytes; `tensor` (E,) int64, the tensor of each edge, which
    may have several consumers; `colocation` (N,) int64 group or -1; `op_names` and `name`.
    """
    numbers = [np.asarray(getattr(graph, name), np.float64) for name in NODE_FEATURES]
    kinds = [graph.kind == kind for kind in Kind]
    phases = [graph.phase == phase for phase in Phase]
    columns = np.stack([*numbers, *kinds, *phases], axis=1).astype(np.float32)
    source, target, tensor = graph.edges.T
    return Data(
        x=torch.from_numpy(columns),
        edge_index=torch.from_numpy(np.stack([source, target]).astype(np.int64)),
        edge_attr=torch.from_numpy(graph.tensor_bytes[tensor].astype(np.float32)[:, None]),
        tensor=torch.from_numpy(tensor.astype(np.int64)),
        colocation=torch.from_numpy(graph.colocation.astype(np.int64)),
        op_names=list(graph.op_names),
        name=graph.name,
        feature_names=[
            *NODE_FEATURES,
            *(f"kind_{kind.name.lower()}" for kind in Kind),
            *(f"phase_{phase.name.lower()}" for phase in Phase),
        ],
    )
