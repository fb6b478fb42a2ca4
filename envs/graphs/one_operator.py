"""The calls of some modules as one operator each, in the trace of one micro-batch."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from torch import nn

from envs.errors import InputError
from envs.graphs.op_graph import NONE, FloatArray, IntArray, Kind, Phase
from envs.graphs.unroll import MicroBatch, ParameterUse


def named_modules(root: nn.Module, names: Sequence[str]) -> dict[nn.Module, str]:
    """The modules that `names` mean, each with the name that means it.

    A name is a dotted path in `root`, in which `*` stands for anything, or a class.

    Raises:
        InputError: a name means no module.
    """
    found: dict[nn.Module, str] = {}
    for name in names:
        meant = [
            module
            for path, module in root.named_modules()
            if fnmatchcase(path, name) or type(module).__name__ == name
        ]
        for module in meant:
            found.setdefault(module, name)
        if not meant:
            known = sorted({type(module).__name__ for module in root.modules()})
            told = f"{name!r} is no path of a module and none of its classes ({', '.join(known)})"
            raise InputError(told, field="one_operator")
    return found


@dataclass(frozen=True, eq=False)
class Calls:
    """Which operators of a micro-batch belong to which call of a module.

    `merged` makes one operator of the forward operators of a call and up to two of its backward
    ones: those that an operator outside of the call waits for (the gradient of the input, which
    needs the saved activations) and the rest (the gradients of the weights), as libraries of
    recurrent layers have two functions for them. FLOP and bytes are summed. Tensors inside an
    operator vanish; those from one operator to the same readers are one tensor of the sum of their
    bytes, but every gradient of a parameter stays by itself.

    Where a call waits for something outside that waits for the call itself (recomputed
    activations, a module that hooks into another), one operator would wait for itself: it becomes
    as many operators as it takes, by the levels of `envs.graphs.contraction.contract`.
    """

    call: IntArray  # (n,) call each operator belongs to, or NONE
    labels: Sequence[str]  # of each call: path and class of the module

    def merged(
        self,
        step: MicroBatch,
        parameters: Sequence[ParameterUse],
        shared: Sequence[tuple[int, ...]],
    ) -> tuple[MicroBatch, list[ParameterUse], list[tuple[int, ...]]]:
        """The micro-batch, its parameters and its shared state in terms of the new operators."""
        source, target = step.producer[step.uses[:, 0]], step.uses[:, 1]
        part = self._parts(step, source, target)
        piece, first = _pieces(part, source, target)
        keep = np.zeros(len(step.producer), dtype=bool)
        keep[[p.gradient for p in parameters if p.gradient != NONE]] = True
        tensor, made = _tensors(step, piece, keep)
        size = np.bincount(piece)
        dtype = np.zeros(len(first), dtype=np.int64)
        heaviest_last = np.argsort(step.flop, kind="stable")
        dtype[piece[heaviest_last]] = step.dtype[heaviest_last]
        micro_batch = MicroBatch(
            names=self._names(step, part, piece, first, size),
            kind=np.where(size == 1, step.kind[first], int(Kind.FUSED)),
            phase=step.phase[first],
            flop=_summed(step.flop, piece),
            bytes_read=_summed(step.bytes_read, piece),
            bytes_written=_summed(step.bytes_written, piece),
            dtype=dtype,
            mirror=self._mirrors(step, piece, first),
            tensor_bytes=_summed(step.tensor_bytes[tensor != NONE], tensor[tensor != NONE]),
            tensor_dtype=np.array([dtype for _, _, dtype, _ in made], dtype=np.int64),
            producer=np.array([producer for producer, *_ in made], dtype=np.int64),
            uses=np.array(
                [(t, reader) for t, (_, readers, *_) in enumerate(made) for reader in readers],
                dtype=np.int64,
            ).reshape(-1, 2),
        )
        moved = [
            replace(
                use,
                users=_unique(piece, use.users),
                gradient=NONE if use.gradient == NONE else int(tensor[use.gradient]),
            )
            for use in parameters
        ]
        return micro_batch, moved, [_unique(piece, users) for users in shared]

    def _parts(self, step: MicroBatch, source: IntArray, target: IntArray) -> IntArray:
        """(n,) dense number of the set each operator would be merged into."""
        backward = step.phase == Phase.BACKWARD
        outward = [False] * len(self.call)  # a backward operator outside of the call waits for it
        call = self.call.tolist()
        waits = backward[source]
        for u, v in sorted(zip(source[waits].tolist(), target[waits].tolist(), strict=True))[::-1]:
            outward[u] = outward[u] or call[v] != call[u] or outward[v]
        weight = backward & ~np.array(outward)
        some = np.zeros(len(self.labels), dtype=bool)
        some[self.call[backward & ~weight & (self.call != NONE)]] = True
        if len(some):
            weight &= some[self.call]  # nothing outside waits: nothing to tell apart
        own = 3 * len(self.labels) + np.arange(len(self.call))
        inside = 3 * self.call + backward + weight
        return np.unique(np.where(self.call == NONE, own, inside), return_inverse=True)[1]

    def _names(
        self, step: MicroBatch, part: IntArray, piece: IntArray, first: IntArray, size: IntArray
    ) -> tuple[str, ...]:
        alone = {step.names[i] for i in first[size == 1].tolist()}
        weight = _weight_parts(self.call, part)
        names = []
        for i, members in zip(first.tolist(), size.tolist(), strict=True):
            if members == 1:
                names.append(step.names[i])
                continue
            suffix = "_weight" if part[i] in weight else ""
            label = f"{Phase(step.phase[i]).name.lower()}/{self.labels[self.call[i]]}{suffix}"
            name, number = label, 1
            while name in alone:
                number += 1
                name = f"{label}#{number}"
            alone.add(name)
            names.append(name)
        return tuple(names)

    def _mirrors(self, step: MicroBatch, piece: IntArray, first: IntArray) -> IntArray:
        """(pieces,) of a backward operator of a call: the forward one of the same call."""
        forward: dict[int, int] = {}
        for i in np.flatnonzero((step.phase == Phase.FORWARD) & (self.call != NONE)).tolist():
            forward.setdefault(int(self.call[i]), int(piece[i]))
        mirror = np.full(len(first), NONE, dtype=np.int64)
        for p, i in enumerate(first.tolist()):
            if step.phase[i] == Phase.BACKWARD:
                of_call = forward.get(int(self.call[i]), NONE)
                own = int(step.mirror[i])
                mirror[p] = of_call if of_call != NONE or own == NONE else piece[own]
        return mirror


def _weight_parts(call: IntArray, part: IntArray) -> set[int]:
    """The parts that are the third of their call: forward, backward, gradients of the weights."""
    found: dict[int, set[int]] = {}
    for c, p in zip(call.tolist(), part.tolist(), strict=True):
        if c != NONE:
            found.setdefault(c, set()).add(p)
    return {max(parts) for parts in found.values() if len(parts) == 3}


def _pieces(part: IntArray, source: IntArray, target: IntArray) -> tuple[IntArray, IntArray]:
    """(n,) piece of each operator, topologically numbered, and the first operator of each.

    A piece is a part unless the parts wait for each other in a circle.
    """
    rank = _ranks(part, source, target)[part]
    level = [0] * len(part)
    step = (rank[source] > rank[target]).astype(np.int64)
    arcs = np.stack([target, source, step], axis=1)
    for v, u, up in arcs[np.argsort(target, kind="stable")].tolist():
        level[v] = max(level[v], level[u] + up)
    code = np.array(level, dtype=np.int64) * (int(part.max(initial=0)) + 1) + rank
    _, first, piece = np.unique(code, return_index=True, return_inverse=True)
    return piece.reshape(-1).astype(np.int64), first.astype(np.int64)


def _ranks(part: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """(parts,) a topological order of the parts, the earliest operator first.

    In a circle the part that began first goes first.
    """
    count = int(part.max(initial=NONE)) + 1
    begin = np.full(count, len(part), dtype=np.int64)
    np.minimum.at(begin, part, np.arange(len(part)))
    arcs = np.unique(np.stack([part[source], part[target]], axis=1), axis=0)
    arcs = arcs[arcs[:, 0] != arcs[:, 1]]
    missing = np.bincount(arcs[:, 1], minlength=count).tolist()
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in arcs.tolist():
        after[u].append(v)
    ready = [(int(begin[p]), p) for p in range(count) if not missing[p]]
    heapq.heapify(ready)
    waiting = iter(np.argsort(begin, kind="stable").tolist())
    rank = np.full(count, NONE, dtype=np.int64)
    for place in range(count):
        p = heapq.heappop(ready)[1] if ready else next(p for p in waiting if rank[p] == NONE)
        rank[p] = place
        for q in after[p]:
            missing[q] -= 1
            if not missing[q] and rank[q] == NONE:
                heapq.heappush(ready, (int(begin[q]), q))
    return rank


_Tensor = tuple[int, tuple[int, ...], int, int]  # producer, readers, type, gradient or NONE


def _tensors(
    step: MicroBatch, piece: IntArray, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[IntArray, list[_Tensor]]:
    """(t,) the new tensor each one is a part of, or NONE, and the new ones."""
    readers: list[set[int]] = [set() for _ in step.producer]
    for t, v in step.uses.tolist():
        readers[t].add(int(piece[v]))
    number: dict[_Tensor, int] = {}
    tensor = np.full(len(step.producer), NONE, dtype=np.int64)
    for t, producer in enumerate(piece[step.producer].tolist()):
        outside = tuple(sorted(readers[t] - {producer}))
        if outside or keep[t]:
            made = (producer, outside, int(step.tensor_dtype[t]), t if keep[t] else NONE)
            tensor[t] = number.setdefault(made, len(number))
    return tensor, list(number)


def _summed(values: FloatArray, target: IntArray) -> FloatArray:
    rows = int(target.max(initial=NONE)) + 1
    return np.bincount(target, weights=values, minlength=rows).astype(np.float64)


def _unique(piece: IntArray, users: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({int(piece[user]) for user in users}))
