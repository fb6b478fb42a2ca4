"""Who sends how much to whom between the groups of a fused graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.graphs.contraction import Fusion, sum_rows
from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GroupTraffic:
    """E ordered pairs of groups with tensors from the first to the second, sorted."""

    source: IntArray  # (E,) group
    target: IntArray  # (E,) group
    seconds: FloatArray  # (E, L) transfer seconds of a whole step on each link class
    forward_share: FloatArray  # (E,) part of the tensors (by bytes) that belong to the forward pass

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.source)


def group_traffic(fused: StepProblem, fusion: Fusion) -> GroupTraffic:
    """The traffic between groups; a tensor counts once for every group that receives it."""
    graph, groups = fused.graph, fusion.num_groups
    edges = graph.edges
    sender = fusion.piece_group[edges[:, 0]]
    receiver = fusion.piece_group[edges[:, 1]]
    across = sender != receiver
    deliveries, first = np.unique(
        edges[across, 2] * groups + receiver[across], return_index=True
    )  # (tensor, receiving group)
    tensor = deliveries // groups
    pair = sender[across][first] * groups + deliveries % groups
    pairs, edge = np.unique(pair, return_inverse=True)
    edge = edge.reshape(-1).astype(np.int64)
    nbytes = graph.tensor_bytes[tensor]
    forward = graph.phase[edges[across, 1][first]] == Phase.FORWARD
    total = sum_rows(nbytes, edge, len(pairs))
    share = sum_rows(np.where(forward, nbytes, 0.0), edge, len(pairs))
    return GroupTraffic(
        source=(pairs // groups).astype(np.int64),
        target=(pairs % groups).astype(np.int64),
        seconds=sum_rows(fused.transfer_seconds[tensor], edge, len(pairs)),
        forward_share=np.divide(share, total, out=np.zeros_like(total), where=total > 0),
    )
