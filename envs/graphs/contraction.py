"""The quotient of a training step by a grouping of its operators: acyclic for any grouping."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase


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
    piece_group = group[first].astype(np.int64)
    n, t = len(first), len(producer)
    members = np.bincount(piece, minlength=n)
    phase = graph.phase[first]
    micro_batch = np.where(phase == Phase.OPTIMIZER, NONE, graph.micro_batch[first])
    part = [p.name.lower() + w for p in Phase for w in ("", "_weight")]
    labels = zip(
        piece_group.tolist(), (2 * phase + apart[first]).tolist(), micro_batch.tolist(),
        graph.replica[first].tolist(), level[first].tolist(), strict=True,
    )  # fmt: skip
    fused = OpGraph(
        name=f"{graph.name}/{num_groups} groups",
        op_names=tuple(f"group{g}/{part[p]}/m{m}/r{r}/l{level}" for g, p, m, r, level in labels),
        kind=np.where(members == 1, graph.kind[first], int(Kind.FUSED)),
        phase=phase,
        micro_batch=micro_batch,
        replica=graph.replica[first],
        flop=sum_rows(graph.flop, piece, n),
        bytes_read=sum_rows(graph.bytes_read, piece, n),
        bytes_written=sum_rows(graph.bytes_written, piece, n),
        op_dtype=_of_heaviest(graph.op_dtype, graph.flop, piece, n),
        colocation=piece_group,
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
    return Fusion(
        graph=fused,
        group=group.astype(np.int64),
        piece=piece,
        piece_group=piece_group,
        num_groups=num_groups,
        tensor=tensor,
    )


def sum_rows(values: FloatArray, target: IntArray, rows: int) -> FloatArray:
    """(N,) or (N, K) values added up by `target` (N,) into `rows` rows; target NONE is left out."""
    columns = np.ascontiguousarray(values if values.ndim == 2 else values[:, None], np.float64)
    total = np.zeros((rows, columns.shape[1]))
    _add_rows(columns, np.ascontiguousarray(target), total)
    return total if values.ndim == 2 else total[:, 0]


@compiled
def _add_rows(values: FloatArray, target: IntArray, total: FloatArray) -> None:
    for i in range(len(values)):
        if target[i] != NONE:
            for k in range(values.shape[1]):
                total[target[i], k] += values[i, k]


_WIDEST = 2**62  # codes of rows beyond this are ranked before they grow further


def row_codes(columns: Iterable[IntArray]) -> IntArray:
    """(N,) codes >= 0 of the rows of whole-number columns (N,), in their lexicographic order."""
    code, span = np.zeros(1, dtype=np.int64), 1
    for column in columns:
        if len(column) == 0:
            return np.zeros(0, dtype=np.int64)
        low = int(column.min())
        width = int(column.max()) - low + 1
        if span > _WIDEST // width:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
            span = int(code.max()) + 1
        code, span = code * width + (column - low), span * width
    return code


def row_ranks(columns: Iterable[IntArray]) -> IntArray:
    """(N,) dense ranks, from 0, of the rows of whole-number columns (N,)."""
    code = row_codes(columns)
    top = int(code.max(initial=0))
    if top > 4 * len(code) + 1000:
        return np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)
    known = np.zeros(top + 1, dtype=np.int64)
    known[code] = 1
    return np.asarray((np.cumsum(known) - 1)[code])


def _key_rank(graph: OpGraph, group: IntArray, num_groups: int, apart: BoolArray) -> IntArray:
    """(N,) dense rank of (phase, micro-batch, group by direction, apart, replica)."""
    optimizer = graph.phase == Phase.OPTIMIZER
    micro_batch = np.where(optimizer, NONE, graph.micro_batch)
    stage = np.where(graph.phase == Phase.BACKWARD, num_groups - 1 - group, group)
    one = bool((graph.replica == graph.replica[:1]).all())
    replica = np.where(optimizer, 0, graph.replica) if one else graph.replica
    return row_ranks((graph.phase, micro_batch, stage, apart.astype(np.int64), replica))


def _levels(graph: OpGraph, rank: IntArray) -> IntArray:
    """(N,) level of each operator; one pass over the dependencies, two with an optimizer."""
    level = np.zeros(graph.num_operators, dtype=np.int64)
    _raise_levels(graph.use_ptr, graph.use_op, rank, level)
    optimizer = np.flatnonzero(graph.phase == Phase.OPTIMIZER)
    if len(optimizer) == 0:
        return level
    highest = np.zeros(int(rank.max()) + 1, dtype=np.int64)
    np.maximum.at(highest, rank[optimizer], level[optimizer])
    base = np.zeros(graph.num_operators, dtype=np.int64)
    base[optimizer] = highest[rank[optimizer]]
    _raise_levels(graph.use_ptr, graph.use_op, rank, base)
    return base


@compiled
def _raise_levels(use_ptr: IntArray, use_op: IntArray, rank: IntArray, level: IntArray) -> None:
    """Producer by producer, so that a level is final when it is read."""
    for u in range(len(rank)):
        for k in range(use_ptr[u], use_ptr[u + 1]):
            v = use_op[k]
            level[v] = max(level[v], level[u] + (1 if rank[u] > rank[v] else 0))


def _fused_tensors(
    graph: OpGraph, piece: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(T,) fused tensor or NONE, (T_fused,) producers, row pointer, (C_fused,) consumers."""
    maker = piece[graph.producer]
    ptr, rows = receivers(maker, graph.consumer_ptr, graph.consumer, piece)
    crossing = np.flatnonzero(np.diff(ptr))
    lead = np.full(len(maker), NONE, dtype=np.int64)
    lead[crossing] = maker[crossing] * (len(piece) + 1) + rows[ptr[crossing]]
    order = crossing[np.argsort(lead[crossing], kind="stable")]
    fused, first = _by_signature(lead, order, ptr, rows)
    length = ptr[first + 1] - ptr[first]
    start = sums_before(length)
    place = np.repeat(ptr[first] - start[:-1], length) + np.arange(start[-1])
    return fused, maker[first], start, rows[place]


@compiled
def receivers(
    maker: IntArray, consumer_ptr: IntArray, consumer: IntArray, piece: IntArray
) -> tuple[IntArray, IntArray]:
    """Row pointer (T + 1,) and rows: the other pieces (N,) that read each tensor, sorted.

    `maker` (T,) is a tensor's own piece.
    """
    ptr, rows = np.zeros(len(maker) + 1, dtype=np.int64), np.empty(len(consumer), dtype=np.int64)
    end = 0
    for t in range(len(maker)):
        for k in range(consumer_ptr[t], consumer_ptr[t + 1]):
            new = piece[consumer[k]]
            i = end
            while i > ptr[t] and rows[i - 1] > new:
                i -= 1
            if new == maker[t] or (i > ptr[t] and rows[i - 1] == new):
                continue
            for j in range(end, i, -1):
                rows[j] = rows[j - 1]
            rows[i] = new
            end += 1
        ptr[t + 1] = end
    return ptr, rows[:end]


@compiled_inner
def _before(a: int, b: int, ptr: IntArray, rows: IntArray) -> bool:
    """Whether row `a` sorts before row `b`; a part of a row goes before it."""
    i, j = ptr[a], ptr[b]
    while i < ptr[a + 1] and j < ptr[b + 1] and rows[i] == rows[j]:
        i, j = i + 1, j + 1
    if i < ptr[a + 1] and j < ptr[b + 1]:
        return bool(rows[i] < rows[j])
    return bool(j < ptr[b + 1])


@compiled_inner
def _found(
    t: int, begin: int, end: int, first: IntArray, ptr: IntArray, rows: IntArray
) -> tuple[int, bool]:
    """Where the row of `t` belongs in the sorted rows of `first[begin:end]`, and if it is there."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if _before(first[middle], t, ptr, rows):
            low = middle + 1
        else:
            high = middle
    return low, low < end and not _before(t, first[low], ptr, rows)


@compiled
def _by_signature(
    lead: IntArray, order: IntArray, ptr: IntArray, rows: IntArray
) -> tuple[IntArray, IntArray]:
    """Number tensors by `lead` (T,), then by row; `order` (some of them) is sorted by `lead`.

    Returns:
        (T,) the number or NONE, and of every number a tensor.
    """
    number, first = np.full(len(lead), NONE), np.empty(len(order), dtype=np.int64)
    count = begin = i = 0
    while i < len(order):
        j = i
        while j < len(order) and lead[order[j]] == lead[order[i]]:
            place, known = _found(order[j], begin, count, first, ptr, rows)
            if not known:
                for k in range(count, place, -1):
                    first[k] = first[k - 1]
                first[place] = order[j]
                count += 1
            j += 1
        for t in order[i:j]:
            number[t] = _found(t, begin, count, first, ptr, rows)[0]
        begin, i = count, j
    return number, first[:count]


@compiled
def _of_heaviest(values: IntArray, weight: FloatArray, target: IntArray, rows: int) -> IntArray:
    """(rows,) value of the heaviest entry of each row, the first of equals."""
    heaviest, chosen = np.full(rows, -np.inf), np.zeros(rows, dtype=np.int64)
    for i in range(len(values)):
        row = target[i]
        if row != NONE and weight[i] > heaviest[row]:
            heaviest[row], chosen[row] = weight[i], values[i]
    return chosen


def _mirrors(graph: OpGraph, piece: IntArray, n: int) -> IntArray:
    """(n,) the piece that holds the mirror of a piece's first mirrored member, or NONE."""
    mirrored = np.flatnonzero(graph.mirror != NONE)[::-1]
    mirror = np.full(n, NONE, dtype=np.int64)
    mirror[piece[mirrored]] = piece[graph.mirror[mirrored]]
    return mirror
