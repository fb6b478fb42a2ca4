"""The times of a profiler trace given to the operators of the captured graph of the same step."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from math import prod

import numpy as np

from envs.errors import InputError
from envs.graphs.op_graph import NONE, FloatArray, OpGraph, Phase
from envs.graphs.readers.kineto import NODE, Event, Trace

_NAME = re.compile(r"mb(\d+)/(?:(?:forward|backward)/(?:.*/)?([^/]+?)(?:#\d+)?|accumulate/.*)")
_ACCUMULATE = NODE + "torch::autograd::AccumulateGrad"
_SAME = {  # names of one operator, on one device and another
    "_batch_norm_with_update": "native_batch_norm",
    "_efficient_attention_forward": "scaled_dot_product_attention",
    "_flash_attention_forward": "scaled_dot_product_attention",
    "alpha_dropout": "native_dropout",
    "cudnn_batch_norm": "native_batch_norm",
    "dropout": "native_dropout",
    "miopen_batch_norm": "native_batch_norm",
}

_VIEWS = re.compile(  # names of which a gap alone is no operator
    "alias|as_strided|broadcast_to|chunk|detach|empty.*|expand.*|flatten|item|lift_fresh|movedim|"
    "narrow|permute|reshape|resolve_.*|result_type|select|slice|split.*|squeeze|swapaxes|t|"
    "transpose|unbind|unflatten|unfold|unsqueeze|view.*"
)


@dataclass(frozen=True, eq=False)
class TracedTimes:
    """What a trace says of a graph.

    Attributes:
        seconds: (N,) of every operator; NaN where the trace does not say.
        runs: how often the trace ran the micro-batch that the graph repeats.
        matched_seconds: of the trace, that were given to operators.
        total_seconds: of all operators in the trace.
        shared: names of operators with a share of the time of several: estimates.
        faults: which operators have no time, by name.
    """

    seconds: FloatArray
    runs: int
    matched_seconds: float
    total_seconds: float
    shared: tuple[str, ...]
    faults: tuple[str, ...]


def traced_times(graph: OpGraph, trace: Trace) -> TracedTimes:
    """Match the operators of a captured graph with the events of a trace of the same step.

    * Forward operators by name and order, in every forward pass of the trace: the outermost event
      of that name, a product only if it has the same FLOP. R passes are R runs of a micro-batch;
      where R is a multiple of the graph's micro-batches M, run r is micro-batch r mod M, else every
      run is of all of them. Times are means over the runs. Operators between two that were found
      share, by their bytes, the time of what ran between these: a kernel that stands for several.
    * Backward operators by the sequence number of the autograd node that ran them, which is that
      of a forward event, hence operator; inside of the nodes of one forward operator by name and
      order. What is not found there is looked for by name and order in all that is left, and what
      is not found then shares, by its bytes, the time that is left of these nodes: kernels of
      another name.
    * Updates share the time inside of `Optimizer.step` by their bytes, and accumulates that of the
      sums inside of `AccumulateGrad`.

    Raises:
        InputError: the graph was not captured, no forward pass of the trace has half of its
            operators, or matrices of other shapes are multiplied there.
    """
    return _Matching(graph, trace).times()


Times = dict[tuple[int, int], float]  # seconds by operator of micro-batch 0 and run


@dataclass(eq=False)
class _Matching:
    graph: OpGraph
    trace: Trace

    def __post_init__(self) -> None:
        events = self.trace.events
        self.inside: list[list[int]] = [[] for _ in events]
        for index, event in enumerate(events):
            if event.parent != NONE:
                self.inside[event.parent].append(index)
        self.taken: dict[int, tuple[int, int]] = {}  # event -> template operator, run
        self.instead: dict[int, tuple[int, int]] = {}  # an event that several operators share
        self.inner: set[int] = set()  # these and what is inside of them
        self.gap: dict[int, int] = {}  # operator that shares -> the first that shares with it
        self.shared: set[str] = set()  # names of operators whose times are shares
        self.number: list[tuple[int, str]] = []  # micro-batch and key of every operator
        self.template: list[int] = []  # forward and backward operators of micro-batch 0
        self.names: dict[int, str] = {}  # of these
        for op, name in enumerate(self.graph.op_names):
            found = _NAME.fullmatch(name)
            self.number.append((int(found[1]), name.split("/", 1)[1]) if found else (NONE, name))
            if found and found[2] is not None and int(found[1]) == 0:
                self.template.append(op)
                self.names[op] = _canonical(found[2])
        if not self.template:
            raise InputError(
                "has no operators named mb0/forward/...: a trace has times for captured graphs",
                file=f"graph {self.graph.name}",
            )

    def times(self) -> TracedTimes:
        graph = self.graph
        forward = [op for op in self.template if graph.phase[op] == Phase.FORWARD]
        backward = [op for op in self.template if graph.phase[op] == Phase.BACKWARD]
        seconds: Times = {}
        runs = self._forward(forward, seconds)
        nodes = self._nodes()
        self._inside_of_nodes(backward, nodes)
        self._by_name(backward, runs)
        for index, (op, run) in self.taken.items():
            seconds[op, run] = self.trace.events[index].seconds
        self._share_nodes(backward, nodes, seconds)
        matched = sum(seconds.values())
        table = np.full((graph.num_operators, runs), np.nan)
        for (op, run), value in seconds.items():
            table[op, run] = value
        result, shared = self._whole(table, runs)
        return TracedTimes(
            seconds=result,
            runs=runs,
            matched_seconds=matched + shared,
            total_seconds=self.trace.total_seconds,
            shared=tuple(sorted(self.shared)),
            faults=self._untimed(result),
        )

    def _forward(self, operators: Sequence[int], seconds: Times) -> int:
        """Match every forward pass in the trace; returns how many there are.

        Raises:
            InputError: none is the graph's.
        """
        names = [self.names[op] for op in operators]
        wrong: list[str] = []
        run = products = 0
        for pass_ in self._passes(set(names), len(names)):
            found = [_canonical(self.trace.events[index].name) for index in pass_]
            pairs: list[tuple[int, int]] = []
            for op, index in _aligned(names, found):
                fault = self._other_shapes(operators[op], self.trace.events[pass_[index]])
                wrong += [fault] if fault else []
                products += fault == ""
                pairs += [(op, index)] if not fault else []
            if 2 * len(pairs) < len(names):
                continue
            for op, index in pairs:
                self.taken[pass_[index]] = (operators[op], run)
            self._share_gaps(operators, [(op, pass_[index]) for op, index in pairs], run, seconds)
            run += 1
        if wrong and (run == 0 or len(wrong) > products):
            raise InputError(wrong[0], file=self.trace.file)
        if run == 0:
            raise InputError(
                f"holds no forward pass of graph {self.graph.name!r}: less than half of its "
                f"operators ({', '.join(names[:5])}, ...) are there in their order",
                file=self.trace.file,
            )
        return run

    def _passes(self, wanted: set[str], size: int) -> Iterator[list[int]]:
        """The wanted events of each forward pass: a backward pass or an update is between two."""
        events = self.trace.events
        rest = dict.fromkeys(wanted)
        found = set(self._outermost(range(len(events)), rest, {Phase.FORWARD}))
        passes: list[list[int]] = [[]]
        for index, event in enumerate(events):
            if index in found:
                passes[-1].append(index)
            elif event.phase is not Phase.FORWARD and passes[-1]:
                passes.append([])
        for own in filter(None, passes):
            times = len(own) // size if len(own) % size == 0 else 1  # several without a backward
            part = len(own) // times
            yield from (own[k * part : (k + 1) * part] for k in range(times))

    def _other_shapes(self, op: int, event: Event) -> str | None:
        """What is wrong with a product of other shapes, "" of the same; None: it is none."""
        first = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}.get(self.names[op])
        shapes = event.dims[first : first + 2] if first is not None else ()
        if len(shapes) < 2 or min(len(shape) for shape in shapes) < 2:
            return None
        flop = 2.0 * prod(shapes[0]) * shapes[1][-1]
        if flop == self.graph.flop[op]:
            return ""
        return (
            f"{event.name} of {list(shapes[0])} by {list(shapes[1])} is {flop:g} FLOP, and the "
            f"graph's operator {self.graph.op_names[op]!r} {self.graph.flop[op]:g}: trace the "
            "micro-batch that was captured"
        )

    def _share_gaps(
        self,
        operators: Sequence[int],
        pairs: Sequence[tuple[int, int]],
        run: int,
        seconds: Times,
    ) -> None:
        """Between two events that were found: what ran there, to the operators that were not."""
        events = self.trace.events
        above = self._around([index for _, index in pairs])
        for (before, left), (after, right) in pairwise(pairs):
            ops = operators[before + 1 : after]
            if not ops:
                continue
            between: dict[int, float] = {}
            for index in range(left + 1, right):
                event = events[index]
                if index in above or event.phase is not Phase.FORWARD or not event.operator:
                    continue
                if event.parent not in self.inner and event.start >= events[left].end:
                    between[index] = event.seconds
                if event.start >= events[left].end:
                    self.inner.add(index)
            ran = [_canonical(events[index].name) for index in between]
            if not all(map(_VIEWS.fullmatch, ran)) and sum(between.values()) > 0:
                self.shared.update(self.names[op] for op in ops)
                for op, share in zip(ops, self._shares(ops), strict=True):
                    seconds[op, run] = sum(between.values()) * share
                    self.gap.setdefault(op, ops[0])
                for index in between:
                    self.instead[index] = (self.gap[ops[0]], run)

    def _around(self, indices: Iterable[int]) -> set[int]:
        """The events that these are inside of."""
        around: set[int] = set()
        for index in indices:
            above = self.trace.events[index].parent
            while above != NONE and above not in around:
                around.add(above)
                above = self.trace.events[above].parent
        return around

    def _nodes(self) -> Mapping[tuple[int, int], list[int]]:
        """The autograd nodes that ran, by the forward operator and the run they belong to."""
        maker: dict[int, int] = {}
        owner: list[int] = []
        events = self.trace.events
        for index, event in enumerate(events):
            above = owner[event.parent] if event.parent != NONE else NONE
            owner.append(index if index in self.taken or index in self.instead else above)
            if event.phase is Phase.FORWARD and event.sequence != NONE and event.operator:
                maker[event.sequence] = owner[index]
        nodes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, event in enumerate(events):
            made = maker.get(event.sequence, NONE)
            if event.name.startswith(NODE) and made != NONE:
                nodes[self.taken.get(made) or self.instead[made]].append(index)
        return nodes

    def _forward_of(self, op: int) -> int:
        """The forward operator of a backward one, or the first that shares with that."""
        mirror = int(self.graph.mirror[op])
        return self.gap.get(mirror, mirror)

    def _inside_of_nodes(
        self, operators: Sequence[int], nodes: Mapping[tuple[int, int], list[int]]
    ) -> None:
        mirrored: dict[int, list[int]] = defaultdict(list)
        for op in operators:
            mirrored[self._forward_of(op)].append(op)
        for (forward, run), own in nodes.items():
            wanted = self._by_names(mirrored[forward])
            found: dict[str, list[int]] = defaultdict(list)
            for index in self._outermost(self._below(own), wanted, {Phase.BACKWARD}):
                found[_canonical(self.trace.events[index].name)].append(index)
            for name, ops in wanted.items():
                if len(found[name]) == len(ops):
                    for op, index in zip(ops, found[name], strict=True):
                        self.taken[index] = (op, run)

    def _by_name(self, operators: Sequence[int], runs: int) -> None:
        """Backward operators that no node of their forward operator ran, such as sums."""
        timed = {op for op, _ in self.taken.values()}
        wanted = self._by_names(op for op in operators if op not in timed)
        events = self.trace.events
        around = self._around(self.taken)
        free = [index for index in range(len(events)) if index not in around | self.inner]
        phases = {Phase.FORWARD, Phase.BACKWARD}
        found: dict[str, list[int]] = defaultdict(list)
        for index in self._outermost(free, wanted, phases):
            found[_canonical(events[index].name)].append(index)
        for name, ops in wanted.items():
            if len(found[name]) == runs * len(ops):
                for place, index in enumerate(found[name]):
                    self.taken[index] = (ops[place % len(ops)], place // len(ops))

    def _share_nodes(
        self,
        operators: Sequence[int],
        nodes: Mapping[tuple[int, int], list[int]],
        seconds: Times,
    ) -> None:
        timed = {op for op, _ in seconds}
        untimed: dict[int, list[int]] = defaultdict(list)
        for op in operators:
            if op not in timed:
                untimed[self._forward_of(op)].append(op)
        events = self.trace.events
        for (forward, run), own in nodes.items():
            ops = untimed[forward]
            if ops:
                left = sum(events[index].seconds for index in own) - sum(
                    events[index].seconds for index in self._below(own) if index in self.taken
                )
                self.shared.update(self.names[op] for op in ops)
                for op, share in zip(ops, self._shares(ops), strict=True):
                    seconds[op, run] = left * share

    def _whole(self, table: FloatArray, runs: int) -> tuple[FloatArray, float]:
        """(N,) seconds of all micro-batches, accumulates and updates; those of the last two."""
        graph, count = self.graph, self.graph.num_micro_batches
        first = {key: op for op, (m, key) in enumerate(self.number) if m == 0}
        result = np.full(graph.num_operators, np.nan)
        for op, (m, key) in enumerate(self.number):
            if key in first and m != NONE:
                own = table[first[key], m::count] if runs % count == 0 else table[first[key]]
                result[op] = own.mean()
        summed = [
            index
            for index, event in enumerate(self.trace.events)
            if event.name == _ACCUMULATE
            and any(self.trace.events[i].name in {"aten::add_", "aten::add"}
                    for i in self._below([index]))
        ]  # fmt: skip
        adding = [op for op, (m, key) in enumerate(self.number) if m > 0 and key not in first]
        steps = [
            index
            for index, event in enumerate(self.trace.events)
            if event.phase is Phase.OPTIMIZER and event.name.startswith("Optimizer.step")
        ]
        updates = np.flatnonzero(graph.phase == Phase.OPTIMIZER).tolist()
        total = 0.0
        for ops, events, times in (
            (adding, summed, len(summed) // max(1, len(adding))),
            (updates, steps, len(steps)),
        ):
            if ops and times and len(events) % times == 0:
                spent = sum(self.trace.events[index].seconds for index in events)
                total += spent
                result[ops] = np.array(self._shares(ops)) * spent / times
        return result, total

    def _untimed(self, result: FloatArray) -> tuple[str, ...]:
        """What has no time, by name; what does nothing takes none."""
        graph = self.graph
        untimed = np.isnan(result)
        result[untimed & (graph.flop + graph.bytes_read + graph.bytes_written == 0)] = 0.0
        missing: Counter[str] = Counter()
        for op in np.flatnonzero(np.isnan(result)).tolist():
            name = self.names.get(op)
            if graph.phase[op] == Phase.OPTIMIZER:
                missing["updates (no Optimizer.step in the trace)"] += 1
            elif self.number[op][1].startswith("accumulate/"):
                missing["accumulates (no micro-batch after the first in the trace)"] += 1
            elif name is not None:
                missing[f"{name} ({Phase(graph.phase[op]).name.lower()})"] += 1
        return tuple(f"{count} {name}" for name, count in sorted(missing.items()))

    def _by_names(self, operators: Iterable[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for op in operators:
            found[self.names[op]].append(op)
        return found

    def _outermost(
        self, indices: Iterable[int], wanted: Mapping[str, object], phases: set[Phase]
    ) -> list[int]:
        """The wanted operators among these events that are inside of no other, nor taken."""
        events = self.trace.events
        under: set[int] = set()
        found = []
        for index in indices:
            event = events[index]
            if event.parent in under or index in self.taken or event.parent in self.taken:
                under.add(index)
            elif event.operator and event.phase in phases and _canonical(event.name) in wanted:
                under.add(index)
                found.append(index)
        return found

    def _below(self, indices: Iterable[int]) -> list[int]:
        """The events inside of these, by the time they began."""
        found: list[int] = []
        waiting = list(indices)
        while waiting:
            below = self.inside[waiting.pop()]
            found += below
            waiting += below
        return sorted(found)

    def _shares(self, ops: Sequence[int]) -> list[float]:
        moved = (self.graph.bytes_read + self.graph.bytes_written)[list(ops)]
        total = float(moved.sum())
        return (moved / total).tolist() if total > 0 else [1 / len(ops)] * len(ops)


def _aligned(wanted: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of equal names in the order of both."""
    if list(wanted) == list(found):
        return [(place, place) for place in range(len(wanted))]
    blocks = SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
    return [(b.a + k, b.b + k) for b in blocks for k in range(b.size)]


def _canonical(name: str) -> str:
    plain = name.rpartition("::")[2]
    if plain.startswith("_scaled_dot_product") and "backward" not in plain:
        return "scaled_dot_product_attention"
    return _SAME.get(plain, plain)
