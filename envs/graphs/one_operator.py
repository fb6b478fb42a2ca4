"""The calls of some modules as one operator each, in the trace of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import networkx
import numpy as np
from torch import nn

from envs.arrays import IntArray
from envs.errors import InputError
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE, Kind, Phase
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
            reason = f"{name!r} is no path of a module and none of its classes ({', '.join(known)})"
            raise InputError(reason, field="one_operator")
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
    """

    call: IntArray  # (n,) call each operator belongs to, or NONE
    labels: Sequence[str]  # of each call: path and class of the module

    def merged(
        self,
        step: MicroBatch,
        parameters: Sequence[ParameterUse],
        shared: Sequence[tuple[int, ...]],
    ) -> tuple[MicroBatch, list[ParameterUse], list[tuple[int, ...]]]:
        """The micro-batch, its parameters and its shared state in terms of the new operators.

        Raises:
            InputError: a call waits for something outside that waits for the call itself.
        """
        part = self._parts(step)
        piece, first = self._pieces(step, part)
        gradients = {p.gradient for p in parameters if p.gradient != NONE}
        tensor, made = _tensors(step, piece, gradients)
        size = np.bincount(piece)
        dtype = np.zeros(len(first), dtype=np.int64)
        heaviest_last = np.argsort(step.flop, kind="stable")
        dtype[piece[heaviest_last]] = step.dtype[heaviest_last]
        micro_batch = MicroBatch(
            names=self._names(step, part[first], first, size),
            kind=np.where(size == 1, step.kind[first], int(Kind.FUSED)),
            phase=step.phase[first],
            flop=sum_rows(step.flop, piece, len(first)),
            bytes_read=sum_rows(step.bytes_read, piece, len(first)),
            bytes_written=sum_rows(step.bytes_written, piece, len(first)),
            dtype=dtype,
            mirror=self._mirrors(step, piece, first),
            tensor_bytes=sum_rows(step.tensor_bytes, tensor, len(made)),
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

    def _parts(self, step: MicroBatch) -> IntArray:
        """(n,) what each operator becomes a part of.

        3 call, and 1 more for gradients of the input, 2 for those of weights; others are alone.
        """
        call, backward = self.call.tolist(), step.phase == Phase.BACKWARD
        outward = [False] * len(call)  # a backward operator outside of the call waits for it
        arcs = sorted(zip(step.producer[step.uses[:, 0]].tolist(), step.uses[:, 1].tolist()))  # noqa: B905
        for u, v in reversed(arcs):
            outward[u] = outward[u] or (bool(backward[u]) and (call[v] != call[u] or outward[v]))
        weight = backward & ~np.array(outward)
        for c in range(len(self.labels)):
            own = self.call == c
            weight[own] &= bool(
                (backward & ~weight)[own].any()
            )  # or there is nothing to tell apart
        alone = 3 * len(self.labels) + np.arange(len(call))
        return np.where(self.call == NONE, alone, 3 * self.call + backward + weight)

    def _pieces(self, step: MicroBatch, part: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) operator that each one becomes, topologically, and the first one of each."""
        parts, first, dense = np.unique(part, return_index=True, return_inverse=True)
        arcs = np.stack([dense[step.producer[step.uses[:, 0]]], dense[step.uses[:, 1]]], axis=1)
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(parts)))
        graph.add_edges_from((u, v) for u, v in np.unique(arcs, axis=0).tolist() if u != v)
        try:
            order = list(
                networkx.lexicographical_topological_sort(graph, first.tolist().__getitem__)
            )
        except networkx.NetworkXUnfeasible:
            circle = {self.labels[parts[u] // 3] for u, _ in networkx.find_cycle(graph)
                      if parts[u] < 3 * len(self.labels)}  # fmt: skip
            reason = "cannot be one operator: it waits for something that waits for it"
            raise InputError(reason, record=min(circle), field="one_operator") from None
        rank = np.empty(len(parts), dtype=np.int64)
        rank[order] = np.arange(len(parts))
        return rank[dense], first[order].astype(np.int64)

    def _names(
        self, step: MicroBatch, part: IntArray, first: IntArray, size: IntArray
    ) -> tuple[str, ...]:
        taken = {step.names[i] for i in first[size == 1].tolist()}
        names = []
        for i, what, members in zip(first.tolist(), part.tolist(), size.tolist(), strict=True):
            name = step.names[i]
            if members > 1:
                label = f"{Phase(step.phase[i]).name.lower()}/{self.labels[what // 3]}"
                label += "_weight" * (what % 3 == 2)
                name, number = label, 1
                while name in taken:
                    number += 1
                    name = f"{label}#{number}"
                taken.add(name)
            names.append(name)
        return tuple(names)

    def _mirrors(self, step: MicroBatch, piece: IntArray, first: IntArray) -> IntArray:
        """(pieces,) of a backward operator of a call: the forward one of the same call."""
        ran = np.flatnonzero((step.phase == Phase.FORWARD) & (self.call != NONE))
        forward = dict(zip(self.call[ran].tolist(), piece[ran].tolist(), strict=True))
        own = step.mirror[first]
        mirror = np.where(own == NONE, NONE, piece[own])
        for p in np.flatnonzero(step.phase[first] == Phase.BACKWARD).tolist():
            mirror[p] = forward.get(int(self.call[first[p]]), mirror[p])
        return mirror


_Tensor = tuple[int, tuple[int, ...], int, int]  # producer, readers, type, gradient or NONE


def _tensors(
    step: MicroBatch, piece: IntArray, gradients: set[int]
) -> tuple[IntArray, list[_Tensor]]:
    """(t,) the new tensor each one is a part of, or NONE, and the new ones."""
    readers: list[set[int]] = [set() for _ in step.producer]
    for t, v in step.uses.tolist():
        readers[t].add(int(piece[v]))
    number: dict[_Tensor, int] = {}
    tensor = np.full(len(step.producer), NONE, dtype=np.int64)
    for t, producer in enumerate(piece[step.producer].tolist()):
        outside = tuple(sorted(readers[t] - {producer}))
        if outside or t in gradients:
            made = (producer, outside, int(step.tensor_dtype[t]), t if t in gradients else NONE)
            tensor[t] = number.setdefault(made, len(number))
    return tensor, list(number)


def _unique(piece: IntArray, users: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({int(piece[user]) for user in users}))
