"""Traces of torch's profiler (Kineto): Chrome trace JSON, plain or .gz."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.files import parse_json, read_content
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.readers.graph_file import GraphFile, cost
from envs.units import MICROSECOND

FORMAT = "kineto"
NODE = "autograd::engine::evaluate_function: "  # an autograd node that runs
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})
_BESIDE = ("Optimizer.zero_grad", "enumerate(DataLoader)")  # no part of the step


@dataclass(slots=True, eq=False)
class Event:
    """An operator as it ran, or an annotation around several.

    `seconds` are those of everything inside: wall time on the CPU, or in a trace with kernels the
    time of the kernels that were launched inside.
    """

    name: str
    start: float  # us
    end: float  # us
    parent: int  # event that it is inside of, or NONE
    phase: Phase | None  # None: beside the step
    operator: bool  # not an annotation
    sequence: int  # number of the autograd node that it makes or that runs; NONE: none
    dims: tuple[tuple[int, ...], ...]  # shapes of its arguments, () without record_shapes
    seconds: float


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of a trace by the time they began, parents before what is inside of them."""

    file: str
    events: tuple[Event, ...]
    on_device: bool  # times are those of kernels

    @cached_property
    def total_seconds(self) -> float:
        """Of all operators: the sum of their self times, or of the kernels they launched."""
        return sum(event.seconds for event in self.outermost)

    @property
    def outermost(self) -> Iterator[Event]:
        """The operators that are inside of no other."""
        inside = [False] * len(self.events)
        for index, event in enumerate(self.events):
            above = event.parent
            inside[index] = event.operator or (above != NONE and inside[above])
            if event.operator and (above == NONE or not inside[above]):
                yield event


@dataclass(frozen=True)
class KinetoReader:
    """Knows a trace, to say what it is for: it holds times and shapes, not who reads what."""

    format: str = FORMAT

    def accepts(self, content: bytes) -> bool:
        """JSON with trace events."""
        return content.lstrip()[:1] == b"{" and b'"traceEvents"' in content

    def read(self, path: Path) -> GraphFile:
        """Refuse it.

        Raises:
            InputError: always.
        """
        raise InputError(
            "is a profiler trace: it has the times of operators, not the tensors between them; "
            f"name the captured model by graph= and give cost=kineto cost.trace={Path(path).name}",
            file=path,
        )


def read_trace(path: str | Path) -> Trace:
    """What `torch.profiler.profile(...).export_chrome_trace(path)` wrote.

    An event is inside the event of its thread that had not ended when it began. Kernels belong to
    the operator whose external id they carry, or that launched them by their correlation.

    Raises:
        InputError: naming file, record and field; or there are no operators.
    """
    document = parse_json(read_content(path), path)
    listed = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InputError("is no list of events", file=path, field="traceEvents")
    host: list[tuple[Any, float, float, int]] = []  # thread, start, minus length, place
    device: list[int] = []
    launches: dict[Any, tuple[Any, float, Any]] = {}  # correlation -> thread, start, external id
    for place, event in enumerate(listed):
        if not isinstance(event, dict):
            raise InputError("is no event", file=path, record=f"traceEvents[{place}]")
        kind = event.get("cat")
        if event.get("ph") != "X" or not isinstance(kind, str):
            continue
        record = f"traceEvents[{place}]"
        if kind in {"cpu_op", "user_annotation"}:
            if not isinstance(event.get("name"), str):
                raise InputError("is no text", file=path, record=record, field="name")
            start = cost(event.get("ts"), path, record, "ts")
            length = cost(event.get("dur"), path, record, "dur")
            host.append((_thread(event), start, -length, place))
        elif kind in _ON_DEVICE:
            device.append(place)
        elif kind in _LAUNCHES:
            arguments = _arguments(event, path, record)
            start = cost(event.get("ts"), path, record, "ts")
            launch = (_thread(event), start, arguments.get("External id"))
            launches[repr(arguments.get("correlation"))] = launch
    host.sort()
    events, external = _nested(host, listed, path)
    _add_seconds(events, external, [listed[place] for place in device], launches, host, path)
    order = sorted(range(len(events)), key=lambda index: (events[index].start, index))
    number = {old: new for new, old in enumerate(order)}
    for event in events:
        event.parent = number.get(event.parent, NONE)
    trace = Trace(str(path), tuple(events[index] for index in order), bool(device))
    if not any(event.operator for event in trace.events):
        raise InputError("holds no operators (events of category cpu_op)", file=path)
    return trace


def _nested(
    host: list[tuple[Any, float, float, int]], listed: list[Any], path: str | Path
) -> tuple[list[Event], dict[str, int]]:
    """The events of all threads, and the event of every external id."""
    events: list[Event] = []
    external: dict[str, int] = {}
    stack: list[int] = []
    thread = None
    for own, start, minus, place in host:
        if own != thread:
            thread, stack = own, []
        while stack and events[stack[-1]].end <= start:
            stack.pop()
        parent = stack[-1] if stack else NONE
        raw, record = listed[place], f"traceEvents[{place}]"
        arguments = _arguments(raw, path, record)
        name, sequence = raw["name"], arguments.get("Sequence number", NONE)
        if isinstance(sequence, bool) or not isinstance(sequence, int):
            raise InputError("is no number", file=path, record=record, field="Sequence number")
        event = Event(
            name=name,
            start=start,
            end=start - minus,
            parent=parent,
            phase=_phase(name, Phase.FORWARD if parent == NONE else events[parent].phase),
            operator=raw["cat"] == "cpu_op",
            sequence=sequence,
            dims=_dims(arguments.get("Input Dims")),
            seconds=-minus * MICROSECOND,
        )
        if "External id" in arguments:
            external.setdefault(repr(arguments["External id"]), len(events))
        stack.append(len(events))
        events.append(event)
    return events, external


def _phase(name: str, around: Phase | None) -> Phase | None:
    if name.startswith("Optimizer.step"):
        return Phase.OPTIMIZER
    if name.startswith(_BESIDE):
        return None
    return Phase.BACKWARD if name.startswith(NODE) else around


def _add_seconds(
    events: list[Event],
    external: Mapping[str, int],
    device: list[Any],
    launches: Mapping[Any, tuple[Any, float, Any]],
    host: list[tuple[Any, float, float, int]],
    path: str | Path,
) -> None:
    """Replace wall time by that of kernels, where there are any, and sum up annotations."""
    if not device:
        inside: dict[int, float] = defaultdict(float)
        for index in range(len(events) - 1, -1, -1):  # an annotation is what it is around
            event = events[index]
            if not event.operator:
                event.seconds = inside[index]
            inside[event.parent] += event.seconds
        return
    for event in events:
        event.seconds = 0.0
    threads: dict[Any, list[int]] = defaultdict(list)
    for index, (thread, *_) in enumerate(host):
        threads[thread].append(index)
    for raw in device:
        record = f"kernel {raw.get('name')!r}"
        arguments = _arguments(raw, path, record)
        owner = external.get(repr(arguments.get("External id")), NONE)
        launch = launches.get(repr(arguments.get("correlation")))
        if owner == NONE and launch is not None:
            owner = external.get(repr(launch[2]), NONE)
            if owner == NONE:
                owner = _running(events, threads[launch[0]], launch[1])
        seconds = cost(raw.get("dur"), path, record, "dur") * MICROSECOND
        while owner != NONE:
            events[owner].seconds += seconds
            owner = events[owner].parent


def _running(events: list[Event], thread: list[int], time: float) -> int:
    """The innermost event of a thread that was running at a time, or NONE."""
    running = NONE
    for index in thread:
        if events[index].start > time:
            break
        if events[index].end > time:
            running = index
    return running


def _thread(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _arguments(event: Mapping[str, Any], path: str | Path, record: str) -> Mapping[str, Any]:
    arguments = event.get("args", {})
    if not isinstance(arguments, dict):
        raise InputError("is no mapping", file=path, record=record, field="args")
    return arguments


def _dims(value: object) -> tuple[tuple[int, ...], ...]:
    """Shapes as they stand in the file; () of an argument that is no tensor."""
    if not isinstance(value, list):
        return ()
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
        for shape in value
    )
