"""The quotient of a training step by a grouping of its operators: acyclic for any grouping."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numba
import numpy as np

from envs.graphs.op_graph import NONE, BoolArray, FloatArray, IntArray, Kind, OpGraph, Phase


@dataclass(frozen=True, eq=False)
class Fusion:
    """A contraction of a graph into G groups, and the way back.

    A *piece* is an operator of the fused graph: the operators of one group that share phase (weight
    gradients apart, if asked), micro-batch, replica and level (see `contract`). Groups are what is
    placed; pieces are what is run. All pieces of a group form one co-location group of `graph`,
    with the group's number.
    """

    graph: OpGraph  # the fused graph: one operator per piece, in topological order
    group: IntArray  # (N,) group of every original operator 0..G-1
    piece: IntArray  # (N,) fused operator of every original operator
    piece_group: IntArray  # (N_fused,) group of every fused operator
    num_groups: int
    tensor: IntArray  # (T,) fused tensor of every original tensor, NONE: inside one piece

    @classmethod
    def of_fused(cls, graph: OpGraph) -> Fusion:
        """Of a fused graph: its operators are the pieces, its co-location groups the groups."""
        pieces, tensors = np.arange(graph.num_operators), np.arange(graph.num_tensors)
        return cls(graph, graph.colocation, pieces, graph.colocation, graph.num_groups, tensors)

    def expand(self, group_device: IntArray) -> IntArray:
        """(G,) device of every group -> (N,) device of every original operator."""
        return np.asarray(group_device, dtype=np.int64)[self.group]

    def expand_pieces(self, group_device: IntArray) -> IntArray:
        """(G,) device of every group -> (N_fused,) device of every fused operator."""
        return np.asarray(group_device, dtype=np.int64)[self.piece_group]


def contract(graph: OpGraph, group: IntArray, *, weight_gradients: bool = False) -> Fusion:
    """Contract `graph` by `group` (N,), whose numbers 0..G-1 say which group goes first.

    With `weight_gradients` they are pieces of their own, apart from the other backward operators,
    so that an order can defer them.

    Any grouping gives an acyclic graph. Let key(v) be (phase, micro-batch, group, weight gradient
    where those are apart, replica) of operator v and rank(key) its place in a fixed order of the
    keys: phase first, then micro-batch, then the group's number (backward: from the last group to
    the first). Let

        level(v) = max(base(v), max over inputs u of v: level(u) + [rank(key(u)) > rank(key(v))])

    and let piece(v) be (key(v), level(v)). Claim: sorted by (level, rank) the pieces are in
    topological order. Proof: take a dependency u -> v between two different pieces. By definition
    level(v) >= level(u). If level(v) > level(u), u's piece is first. If the levels are equal, the
    bracket is 0, so rank(key(u)) <= rank(key(v)); equal ranks would mean equal keys and, with equal
    levels, one piece; so rank(key(u)) < rank(key(v)) and u's piece is first. Hence no cycle.

    The claim holds for every `base`. It is 0, except that all optimizer operators of a group start
    at the highest level any of them needs: the update of a group is one piece unless updates of
    different groups depend on each other.

    FLOP, bytes, profiled seconds and parameters are summed, never changed. Tensors inside a piece
    vanish; the tensors of one producing piece with the same set of consuming pieces become one
    tensor whose bytes and link seconds are the sums of theirs: a latency is counted once for each
    original tensor, as in the original graph, where each is sent by itself.
    """
    num_groups = int(group.max(initial=NONE)) + 1
    apart = graph.weight_gradient if weight_gradients else np.zeros(len(group), dtype=np.bool_)
    rank = _key_rank(graph, group, num_groups, apart)
    level = _levels(graph, rank)
    code = level * (int(rank.max(initial=0)) + 1) + rank
    _, first, piece = np.unique(code, return_index=True, return_inverse=True)
    piece = piece.reshape(-1).astype(np.int64)
    tensor, producer, consumer_ptr, consumer = _fused_tensors(graph, piece)
    fused = _fused_graph(
        graph,
        group[first],
        level[first],
        first,
        piece,
        tensor,
        producer,
        consumer_ptr,
        consumer,
        apart[first],
    )
    return Fusion(
        graph=fused,
        group=group.astype(np.int64),
        piece=piece,
        piece_group=group[first].astype(np.int64),
        num_groups=num_groups,
        tensor=tensor,
    )


def sum_rows(values: FloatArray, target: IntArray, rows: int) -> FloatArray:
    """(N,) or (N, K) values added up by `target` (N,) into `rows` rows; target NONE is left out."""
    kept = target != NONE
    total = np.zeros((rows, *values.shape[1:]))
    np.add.at(total, target[kept], values[kept])
    return total


def _key_rank(graph: OpGraph, group: IntArray, num_groups: int, apart: BoolArray) -> IntArray:
    """(N,) dense rank of (phase, micro-batch, group by direction, apart, replica)."""
    optimizer = graph.phase == Phase.OPTIMIZER
    micro_batch = np.where(optimizer, NONE, graph.micro_batch)
    stage = np.where(graph.phase == Phase.BACKWARD, num_groups - 1 - group, group)
    replica = np.where(optimizer, 0, graph.replica) if _one_replica(graph) else graph.replica
    code = row_codes(graph.phase, micro_batch, stage, apart.astype(np.int64), replica)
    return np.unique(code, return_inverse=True)[1].astype(np.int64)


def row_codes(*columns: IntArray) -> IntArray:
    """(N,) numbers that are equal where rows of `columns` (N,) are, and in the same order.

    Sorting them is much faster than sorting rows. The ranges of the columns multiplied must be
    below 2**63.
    """
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        low = int(column.min(initial=0))
        code = code * (int(column.max(initial=0)) - low + 1) + (column - low)
    return code


def _one_replica(graph: OpGraph) -> bool:
    return bool((graph.replica == graph.replica[:1]).all())


def _levels(graph: OpGraph, rank: IntArray) -> IntArray:
    """(N,) level of each operator; one pass over the dependencies, two with an optimizer."""
    edges = graph.edges
    edges = edges[np.argsort(edges[:, 1], kind="stable")]
    step = (rank[edges[:, 0]] > rank[edges[:, 1]]).astype(np.int64)
    level = np.zeros(graph.num_operators, dtype=np.int64)
    _propagate(edges, step, level)
    optimizer = np.flatnonzero(graph.phase == Phase.OPTIMIZER)
    if len(optimizer) == 0:
        return level
    highest = np.zeros(int(rank.max()) + 1, dtype=np.int64)
    np.maximum.at(highest, rank[optimizer], level[optimizer])
    level[:] = 0
    level[optimizer] = highest[rank[optimizer]]
    _propagate(edges, step, level)
    return level


@numba.njit(cache=True, nogil=True)
def _propagate(edges: IntArray, step: IntArray, level: IntArray) -> None:
    """Raise `level` (N,), in and out, to at least that of every input, and `step` (E,) above it.

    `edges` (E, 3) are sorted by consumer, so that a producer's level is final when it is read.
    """
    for e in range(len(step)):
        u, v = edges[e, 0], edges[e, 1]
        level[v] = max(level[v], level[u] + step[e])


def _fused_tensors(
    graph: OpGraph, piece: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(T,) fused tensor or NONE, (T_fused,) producers, row pointer, (C_fused,) consumers."""
    edges = graph.edges
    source, target = piece[edges[:, 0]], piece[edges[:, 1]]
    crossing = np.flatnonzero(source != target)
    code = row_codes(edges[crossing, 2], target[crossing])
    crossing = crossing[np.unique(code, return_index=True)[1]]
    tensors, start = np.unique(edges[crossing, 2], return_index=True)
    producers = piece[graph.producer[tensors]].tolist()
    consumers = [tuple(row) for row in _split(target[crossing].tolist(), start.tolist())]
    signatures = list(zip(producers, consumers, strict=True))
    known = {signature: index for index, signature in enumerate(sorted(set(signatures)))}
    fused = np.full(graph.num_tensors, NONE, dtype=np.int64)
    fused[tensors] = [known[signature] for signature in signatures]
    lengths = [len(row) for _, row in known]
    return (
        fused,
        np.array([producer for producer, _ in known], dtype=np.int64),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array([piece for _, row in known for piece in row], dtype=np.int64),
    )


def _split(values: list[int], start: list[int]) -> list[list[int]]:
    return [values[a:b] for a, b in pairwise([*start, len(values)])]


def _fused_graph(
    graph: OpGraph,
    piece_group: IntArray,
    piece_level: IntArray,
    first: IntArray,  # (N_fused,) first member of each piece
    piece: IntArray,
    tensor: IntArray,
    producer: IntArray,
    consumer_ptr: IntArray,
    consumer: IntArray,
    apart: BoolArray,  # (N_fused,) weight gradients by themselves
) -> OpGraph:
    n, t = len(first), len(producer)
    members = np.bincount(piece, minlength=n)
    phase = graph.phase[first]
    micro_batch = np.where(phase == Phase.OPTIMIZER, NONE, graph.micro_batch[first])
    labels = zip(
        piece_group.tolist(), phase.tolist(), micro_batch.tolist(), graph.replica[first].tolist(),
        piece_level.tolist(), apart.tolist(), strict=True,
    )  # fmt: skip
    return OpGraph(
        name=f"{graph.name}/{int(piece_group.max(initial=NONE)) + 1} groups",
        op_names=tuple(
            f"group{g}/{Phase(p).name.lower()}{'_weight' if w else ''}/m{m}/r{r}/l{level}"
            for g, p, m, r, level, w in labels
        ),
        kind=np.where(members == 1, graph.kind[first], int(Kind.FUSED)),
        phase=phase,
        micro_batch=micro_batch,
        replica=graph.replica[first],
        flop=sum_rows(graph.flop, piece, n),
        bytes_read=sum_rows(graph.bytes_read, piece, n),
        bytes_written=sum_rows(graph.bytes_written, piece, n),
        op_dtype=_of_heaviest(graph.op_dtype, graph.flop, piece, n),
        colocation=piece_group.astype(np.int64),
        mirror=_mirrors(graph, piece, n),
        tensor_bytes=sum_rows(graph.tensor_bytes, tensor, t),
        tensor_dtype=_of_heaviest(graph.tensor_dtype, graph.tensor_bytes, tensor, t),
        producer=producer,
        consumer_ptr=consumer_ptr,
        consumer=consumer,
        parameter_names=graph.parameter_names,
        parameter_bytes=graph.parameter_bytes,
        gradient_bytes=graph.gradient_bytes,
        optimizer_bytes=graph.optimizer_bytes,
        parameter_owner=piece[graph.parameter_owner],
        profile_classes=graph.profile_classes,
        profile_seconds=sum_rows(graph.profile_seconds, piece, n)
        if graph.profile_classes
        else np.zeros((0, 0)),
        link_classes=graph.link_classes,
        link_seconds=sum_rows(graph.link_seconds, tensor, t)
        if graph.link_classes
        else np.zeros((0, 0)),
    )


def _of_heaviest(values: IntArray, weight: FloatArray, target: IntArray, rows: int) -> IntArray:
    """(rows,) value of the heaviest entry of each row, the first of equals."""
    order = np.lexsort((-np.arange(len(values)), weight))
    order = order[target[order] != NONE]
    chosen = np.zeros(rows, dtype=np.int64)
    chosen[target[order]] = values[order]
    return chosen


def _mirrors(graph: OpGraph, piece: IntArray, n: int) -> IntArray:
    """(n,) the piece that holds the mirror of a piece's first mirrored member, or NONE."""
    mirrored = np.flatnonzero(graph.mirror != NONE)[::-1]
    mirror = np.full(n, NONE, dtype=np.int64)
    mirror[piece[mirrored]] = piece[graph.mirror[mirrored]]
    return mirror
