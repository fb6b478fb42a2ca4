"""The times of a profiler trace given to the operators of the captured graph of the same step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from math import prod

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.graphs.readers.kineto import Event, Trace

_NAME = re.compile(r"mb(\d+)/((?:forward|backward)/(?:.*/)?([^/]+?)(?:#\d+)?)")
_WRAPPER = re.compile(r"autograd::engine::.*|torch::autograd::.*|.*Backward\d*")
_ADDS = re.compile(r"aten::add_?")
_VIEWS = re.compile(  # names of which a gap alone is no operator
    "alias|as_strided|broadcast_to|chunk|detach|empty.*|expand.*|flatten|item|lift_fresh|movedim|"
    "narrow|permute|reshape|resolve_.*|result_type|select|slice|split.*|squeeze|swapaxes|t|"
    "transpose|unbind|unflatten|unfold|unsqueeze|view.*"
)
_SAME = {  # names of one operator, on one device and another
    "_batch_norm_with_update": "native_batch_norm",
    "_efficient_attention_forward": "scaled_dot_product_attention",
    "_flash_attention_forward": "scaled_dot_product_attention",
    "cudnn_batch_norm": "native_batch_norm",
    "dropout": "native_dropout",
    "miopen_batch_norm": "native_batch_norm",
}
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # product: place of its first factor


@dataclass(frozen=True, eq=False)
class TracedTimes:
    """What a trace says of a graph.

    Attributes:
        seconds: (N,) of every operator; NaN where the trace does not say.
        runs: how often the trace ran the micro-batch that the graph repeats.
        matched_seconds: of the trace, that were given to operators.
        total_seconds: of all operators in the trace.
        shared: names of operators with a share of the time of several: estimates.
        untimed: how many operators of a micro-batch have no time, by name.
    """

    seconds: FloatArray
    runs: int
    matched_seconds: float
    total_seconds: float
    shared: tuple[str, ...]
    untimed: tuple[str, ...]


def traced_times(graph: OpGraph, trace: Trace) -> TracedTimes:
    """Match the operators of a captured graph with the events of a trace of the same step.

    Every run of a micro-batch in the trace, forward and backward, is aligned with the graph's by
    name and order; an event is the outermost one of that name, a product one of the same FLOP.
    Where several operators or other kernels ran between two that were found (a fused attention),
    the graph's operators there share that time, by FLOP or else bytes. With R runs and M
    micro-batches, run r is micro-batch r mod M where M divides R, else every run is of all; times
    are means.
    Updates share the time inside of `Optimizer.step` by their bytes, accumulates that of the sums
    inside of `AccumulateGrad`.

    Raises:
        InputError: the graph was not captured, no run has half of its operators, or matrices of
            other shapes are multiplied there.
    """
    return _Matching(graph, trace).times()


Pairs = list[tuple[int, int]]  # operator of micro-batch 0, event


@dataclass(eq=False)
class _Matching:
    graph: OpGraph
    trace: Trace

    def __post_init__(self) -> None:
        found = [_NAME.fullmatch(name) for name in self.graph.op_names]
        self.names = [_canonical(match[3]) if match else "" for match in found]
        self.keys = [(int(match[1]), match[2]) if match else (NONE, "") for match in found]
        self.template: list[int] = []
        self.parts: dict[int, list[int]] = {}  # operators that are one event
        for op in (op for op, (m, _) in enumerate(self.keys) if m == 0):
            before = self.template[-1] if self.template else NONE
            same = self.names[op] == self.names[before] == "convolution_backward"
            if same and self.graph.mirror[op] == self.graph.mirror[before]:
                self.parts[before].append(op)
            else:
                self.template.append(op)
                self.parts[op] = [op]
        self.shared: set[str] = set()
        if not self.template:
            raise InputError(
                "has no operators named mb0/forward/...: a trace has times for captured graphs",
                file=f"graph {self.graph.name}",
            )

    def times(self) -> TracedTimes:
        graph, count = self.graph, self.graph.num_micro_batches
        runs = self._runs()
        table = np.full((graph.num_operators, len(runs)), np.nan)
        for run, pairs in enumerate(runs):
            for op, index in pairs:
                parts = self.parts[op]
                table[parts, run] = self._shares(parts) * self.trace.events[index].seconds
            for ops, spent in self._gaps(pairs):
                self.shared.update(self.names[op] for op in ops)
                table[ops, run] = self._shares(ops) * spent
        first = {key: op for op, (m, key) in enumerate(self.keys) if m == 0}
        seconds: FloatArray = np.full(graph.num_operators, np.nan)
        for op, (m, key) in enumerate(self.keys):
            if key in first:
                own = table[first[key], m::count] if len(runs) % count == 0 else table[first[key]]
                found = own[~np.isnan(own)]
                seconds[op] = found.mean() if len(found) else np.nan
        matched = float(np.nansum(table)) + self._accumulate_and_update(seconds)
        idle = graph.flop + graph.bytes_read + graph.bytes_written == 0
        seconds[np.isnan(seconds) & idle] = 0.0
        return TracedTimes(
            seconds=seconds,
            runs=len(runs),
            matched_seconds=matched,
            total_seconds=self.trace.total_seconds,
            shared=tuple(sorted(self.shared)),
            untimed=self._untimed(seconds),
        )

    def _runs(self) -> list[Pairs]:
        """What was found of every run of the micro-batch."""
        wanted = [_key(self.graph.phase[op], self.names[op]) for op in self.template]
        runs: list[Pairs] = []
        wrong: list[str] = []
        products = 0
        for own in self._candidates({name for _, name in wanted}, len(wanted)):
            events = [self.trace.events[index] for index in own]
            pairs: Pairs = []
            for op, index in _aligned(wanted, [_key(e.phase, _canonical(e.name)) for e in events]):
                fault = self._other_shapes(self.template[op], events[index])
                products += fault == ""
                if fault:
                    wrong.append(fault)
                else:
                    pairs.append((self.template[op], own[index]))
            if 2 * len(pairs) >= len(wanted):
                runs.append(pairs)
        if wrong and (not runs or len(wrong) > products):
            raise InputError(wrong[0], file=self.trace.file)
        if not runs:
            names = ", ".join(name for _, name in wanted[:5])
            raise InputError(
                f"holds no run of graph {self.graph.name!r}: less than half of its operators "
                f"({names}, ...) are there in their order",
                file=self.trace.file,
            )
        return runs

    def _candidates(self, wanted: set[str], size: int) -> Iterator[list[int]]:
        """The wanted events, cut where forward follows backward, or an update."""
        runs: list[list[int]] = [[]]
        inside: set[int] = set()
        before = Phase.FORWARD
        for index, event in enumerate(self.trace.events):
            if event.phase is Phase.FORWARD and before is not Phase.FORWARD:
                runs.append([])
            before = before if event.phase is None else event.phase
            if event.parent in inside:
                inside.add(index)
            elif event.in_step and _canonical(event.name) in wanted:
                inside.add(index)
                runs[-1].append(index)
        for own in filter(None, runs):
            times = len(own) // size if len(own) % size == 0 else 1  # forward passes alone
            part = len(own) // times
            yield from (own[k * part : (k + 1) * part] for k in range(times))

    def _other_shapes(self, op: int, event: Event) -> str | None:
        """What is wrong with a product of other shapes, "" of the same; None: it is none."""
        first = _FACTORS.get(self.names[op])
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

    def _gaps(self, pairs: Pairs) -> Iterator[tuple[list[int], float]]:
        """Operators between two that were found, and the seconds of what ran there."""
        events, place = self.trace.events, {op: at for at, op in enumerate(self.template)}
        around: set[int] = set()
        for _, index in pairs:
            while (index := events[index].parent) != NONE and index not in around:
                around.add(index)
        for (before, left), (after, right) in pairwise(pairs):
            missing = self.template[place[before] + 1 : place[after]]
            ops = [part for op in missing for part in self.parts[op]]
            ran: list[Event] = []
            inside = {left}
            for index in range(left + 1, right if ops else 0):
                event = events[index]
                if event.parent in inside:
                    inside.add(index)
                elif index not in around and event.in_step and not _WRAPPER.fullmatch(event.name):
                    inside.add(index)
                    ran.append(event)
            if not all(_VIEWS.fullmatch(_canonical(event.name)) for event in ran):
                yield ops, sum(event.seconds for event in ran)

    def _accumulate_and_update(self, seconds: FloatArray) -> float:
        """Fill in what runs once for each weight; returns the seconds of the trace it took."""
        events = self.trace.events
        sums = [
            event for event in events
            if _ADDS.fullmatch(event.name) and event.parent != NONE
            and events[event.parent].name == "torch::autograd::AccumulateGrad"
        ]  # fmt: skip
        steps = [event for event in events if event.name.startswith("Optimizer.step")]
        updates = np.flatnonzero(self.graph.phase == Phase.OPTIMIZER).tolist()
        adding = [op for op, name in enumerate(self.graph.op_names)
                  if self.keys[op][0] == NONE and "/accumulate/" in name]  # fmt: skip
        total = 0.0
        for ops, ran, times in (
            (adding, sums, len(sums) / max(1, len(adding))), (updates, steps, len(steps)),
        ):  # fmt: skip
            if ops and times >= 1 and times == int(times):
                spent = sum(event.seconds for event in ran)
                seconds[ops] = self._shares(ops) * spent / times
                total += spent
        return total

    def _untimed(self, seconds: FloatArray) -> tuple[str, ...]:
        missing: Counter[str] = Counter()
        for op in np.flatnonzero(np.isnan(seconds)).tolist():
            m, _ = self.keys[op]
            phase = Phase(self.graph.phase[op])
            if m == 0:
                missing[f"{self.names[op]} ({phase.name.lower()})"] += 1
            elif m == NONE and phase is Phase.OPTIMIZER:
                missing["updates (no Optimizer.step in the trace)"] += 1
            elif m == NONE:
                missing["accumulates (no micro-batch after the first in the trace)"] += 1
        return tuple(f"{count} {name}" for name, count in sorted(missing.items()))

    def _shares(self, ops: Sequence[int]) -> FloatArray:
        """By FLOP where all have some, else by bytes."""
        work = self.graph.flop[list(ops)]
        if not work.all():
            work = (self.graph.bytes_read + self.graph.bytes_written)[list(ops)]
        return work / work.sum() if work.any() else np.full(len(ops), 1 / len(ops))


Key = tuple[object, str]  # phase, name


def _aligned(wanted: Sequence[Key], found: Sequence[Key]) -> list[tuple[int, int]]:
    """Pairs of equal keys in the order of both."""
    blocks = SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
    return [(b.a + k, b.b + k) for b in blocks for k in range(b.size)]


def _key(phase: object, name: str) -> Key:
    """The gradient of the loss is made before the backward pass begins."""
    return (Phase.FORWARD if name == "ones_like" else phase, name)


def _canonical(name: str) -> str:
    plain = name.rpartition("::")[2]
    if plain.startswith("_scaled_dot_product") and "backward" not in plain:
        return "scaled_dot_product_attention"
    return _SAME.get(plain, plain)
