"""Where a layer graph can be cut: the antichain states of PipeDream's optimizer.

Narayanan et al., "PipeDream", SOSP 2019, section 3.1: where a graph is no chain, a pipeline can be
cut at its antichains. A state is an antichain with all that comes before it; the states are
partially ordered by inclusion, and the layers between two of them are a possible stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph, Phase

_MOST = 5_000  # states


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """The forward layers of a training graph without its inputs, as sets of bits.

    An input is a forward operator without a backward one. A sink that costs nothing (an output
    without readers) is left out too.

    Raises:
        InputError: the graph is not one micro-batch of training, or has no profile.
    """

    operators: tuple[int, ...]  # (N,) forward operators of the graph, in topological order
    forward: FloatArray  # (N,) seconds
    backward: FloatArray  # (N,) seconds
    parameters: FloatArray  # (N,) bytes
    written: FloatArray  # (N,) bytes of all outputs
    readers: tuple[int, ...]  # (N,) sets of layers
    before: tuple[int, ...]  # (N,) sets of layers: all that a layer needs

    @staticmethod
    def of(graph: OpGraph) -> LayerGraph:
        """The layers of `graph`."""
        if graph.num_micro_batches != 1 or not (graph.phase == Phase.BACKWARD).any():
            raise InputError("is not one micro-batch of training", file=f"graph {graph.name}")
        if not graph.profile_classes:
            raise InputError("has no profile", file=f"graph {graph.name}")
        seconds = graph.profile_seconds[:, 0]
        backward = np.zeros(graph.num_operators)
        behind = np.flatnonzero((graph.phase == Phase.BACKWARD) & (graph.mirror != NONE))
        np.add.at(backward, graph.mirror[behind], seconds[behind])
        parameters = np.zeros(graph.num_operators)
        np.add.at(parameters, graph.parameter_owner, graph.parameter_bytes)
        kept = np.zeros(graph.num_operators, dtype=np.bool_)
        kept[graph.mirror[behind]] = True
        read = np.zeros(graph.num_operators, dtype=np.bool_)
        for source, reader, _ in graph.edges.tolist():
            read[source] |= kept[reader]
        kept &= read | (seconds + backward + parameters > 0)
        operators = np.flatnonzero(kept).tolist()
        number = {operator: layer for layer, operator in enumerate(operators)}
        readers, before = [0] * len(operators), [0] * len(operators)
        for source, reader, _ in sorted(graph.edges.tolist(), key=lambda edge: edge[1]):
            if source in number and reader in number:
                u, v = number[source], number[reader]
                readers[u] |= 1 << v
                before[v] |= before[u] | 1 << u
        return LayerGraph(
            operators=tuple(operators),
            forward=seconds[operators],
            backward=backward[operators],
            parameters=parameters[operators],
            written=graph.bytes_written[operators],
            readers=tuple(readers),
            before=tuple(before),
        )


@dataclass(frozen=True, eq=False)
class AntichainStates:
    """S states, every one after those it contains; the last one is the whole graph.

    A possible stage goes from a state (or from nothing) to a state that contains it, and costs the
    difference of the two.
    """

    layers: LayerGraph
    members: tuple[int, ...]  # (S,) sets of layers

    @cached_property
    def cut_bytes(self) -> FloatArray:
        """(S,) what PipeDream's optimizer lets a cut behind each state send.

        All outputs of the antichain, and of every layer with a reader that is neither in the past
        of an antichain's layer behind it nor that layer: also where another one has it.
        """
        layers, cut = self.layers, np.zeros(len(self.members))
        for state, members in enumerate(self.members):
            past = sent = 0
            for layer in _bits(members):
                past |= layers.before[layer]
            for end in _bits(members & ~past):  # the antichain: what no other one needs
                inside = layers.before[end] | 1 << end
                sent |= 1 << end
                for layer in _bits(layers.before[end]):
                    if layers.readers[layer] & ~inside:
                        sent |= 1 << layer
            cut[state] = layers.written[_bits(sent)].sum()
        return cut

    @cached_property
    def contains(self) -> BoolArray:
        """(S + 1, S + 1) [i, j]: j properly contains i; 0 is nothing, i > 0 is state i - 1."""
        held = self._held.astype(np.float32)
        contains: BoolArray = held @ (1 - held).T == 0
        np.fill_diagonal(contains, val=False)
        return contains

    def total(self, column: FloatArray) -> FloatArray:
        """(S + 1,) a column of layers summed over each state, nothing first."""
        return np.asarray(self._held @ column)

    @cached_property
    def _held(self) -> BoolArray:
        """(S + 1, N) whether a state has a layer."""
        held = np.zeros((len(self.members) + 1, len(self.layers.operators)), dtype=np.bool_)
        for state, members in enumerate(self.members):
            held[state + 1, _bits(members)] = True
        return held


def antichain_states(layers: LayerGraph) -> AntichainStates:
    """All states that are reached from the first layer, each time by one more layer and its past.

    Raises:
        InputError: there are more than can be planned with.
    """
    found, waiting = {1}, [1]  # layers are in topological order
    while waiting:
        state = waiting.pop()
        readers = 0
        for layer in _bits(state):
            readers |= layers.readers[layer]
        for layer in _bits(readers & ~state):
            larger = state | layers.before[layer] | 1 << layer
            if larger not in found:
                found.add(larger)
                waiting.append(larger)
        if len(found) > _MOST:
            raise InputError(f"has more than {_MOST} antichains", file="layer graph")
    return AntichainStates(layers, tuple(sorted(found, key=lambda s: (s.bit_count(), s))))


def layers_in_a_row(graph: OpGraph) -> IntArray:
    """(N,) the layers' forward operators, each time the one behind which least is read.

    Every cut of the row is a state.

    Raises:
        InputError: as `LayerGraph`.
    """
    layers = LayerGraph.of(graph)

    def read_behind(state: int) -> float:
        """Bytes of the layers of a state that others read."""
        sent = [layer for layer in _bits(state) if layers.readers[layer] & ~state]
        return float(layers.written[sent].sum())

    row: list[int] = []
    state, left = 0, set(range(len(layers.operators)))
    while left:
        ready = [layer for layer in left if not layers.before[layer] & ~state]
        _, layer = min((read_behind(state | 1 << layer), layer) for layer in ready)
        state |= 1 << layer
        left.remove(layer)
        row.append(layers.operators[layer])
    return np.array(row)


def _bits(members: int) -> list[int]:
    return [place for place in range(members.bit_length()) if members >> place & 1]
