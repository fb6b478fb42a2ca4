"""Traces of torch's profiler (Kineto): Chrome trace JSON, plain or .gz."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import InputError, refused_in
from envs.files import parse_json, read_content
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.readers.graph_file import GraphFile, cost
from envs.units import MICROSECOND

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
    end: float  # us
    parent: int  # event that it is inside of, or NONE
    phase: Phase | None  # None: beside the step
    operator: bool  # not an annotation
    dims: tuple[tuple[int, ...], ...]  # shapes of its arguments, () without record_shapes
    seconds: float

    @property
    def in_step(self) -> bool:
        """Whether it is an operator of a forward or backward pass."""
        return self.operator and self.phase in {Phase.FORWARD, Phase.BACKWARD}


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of a trace by the time they began, parents before what is inside of them.

    `total_seconds` are those of all operators: the sum of their self times, or of their kernels.
    """

    file: str
    events: tuple[Event, ...]
    total_seconds: float


@dataclass(frozen=True)
class KinetoReader:
    """Knows a trace, to say what it is for: it holds times and shapes, not who reads what."""

    format: str = "kineto"

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
    the operator whose external id they carry, or the launch of their correlation.

    Raises:
        InputError: naming file, record and field; or there are no operators.
    """
    with refused_in(path):
        return _trace(str(path), parse_json(read_content(path), path))


def _trace(file: str, document: object) -> Trace:
    listed = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InputError("is no list of events", field="traceEvents")
    host: list[tuple[float, float, int, Mapping[str, Any], Mapping[str, Any]]] = []
    kernels: list[tuple[float, Mapping[str, Any]]] = []
    launches: dict[str, str] = {}  # correlation -> external id
    for place, raw in enumerate(listed):
        record = f"traceEvents[{place}]"
        kind = raw.get("cat") if isinstance(raw, dict) else None
        if not isinstance(kind, str) or raw.get("ph") != "X":
            continue
        arguments = raw.get("args", {})
        if not isinstance(arguments, dict):
            raise InputError("is no mapping", record=record, field="args")
        if kind in _LAUNCHES:
            launches[repr(arguments.get("correlation"))] = repr(arguments.get("External id"))
        elif kind in _ON_DEVICE:
            kernels.append((cost(raw.get("dur"), record, "dur"), arguments))
        elif kind in {"cpu_op", "user_annotation"}:
            if not isinstance(raw.get("name"), str):
                raise InputError("is no text", record=record, field="name")
            start, length = (cost(raw.get(key), record, key) for key in ("ts", "dur"))
            host.append((start, -length, place, raw, arguments))
    host.sort(key=lambda event: event[:3])
    events: list[Event] = []
    external: dict[str, int] = {}
    stacks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for start, minus, _, raw, arguments in host:
        stack = stacks[str(raw.get("pid")), str(raw.get("tid"))]
        while stack and events[stack[-1]].end <= start:
            stack.pop()
        external.setdefault(repr(arguments.get("External id")), len(events))
        parent = stack[-1] if stack else NONE
        around = Phase.FORWARD if parent == NONE else events[parent].phase
        event = Event(
            name=raw["name"],
            end=start - minus,
            parent=parent,
            phase=_phase(raw["name"], around),
            operator=raw["cat"] == "cpu_op",
            dims=_dims(arguments.get("Input Dims")),
            seconds=0.0 if kernels or raw["cat"] != "cpu_op" else -minus * MICROSECOND,
        )
        stack.append(len(events))
        events.append(event)
    if not any(event.operator for event in events):
        raise InputError("holds no operators (events of category cpu_op)")
    external.pop(repr(None), None)
    total = _sum_up(events, kernels, external, launches)
    return Trace(file, tuple(events), total)


def _sum_up(
    events: list[Event],
    kernels: list[tuple[float, Mapping[str, Any]]],
    external: Mapping[str, int],
    launches: Mapping[str, str],
) -> float:
    """Fill in the seconds of kernels, and of annotations; returns those of all operators."""
    for length, arguments in kernels:
        launch = launches.get(repr(arguments.get("correlation")), "")
        owner = external.get(repr(arguments.get("External id")), external.get(launch, NONE))
        while owner != NONE and events[owner].operator:
            events[owner].seconds += length * MICROSECOND
            owner = events[owner].parent
    total = 0.0
    for event in reversed(events):
        above = events[event.parent] if event.parent != NONE else None
        if above is not None and not above.operator:
            above.seconds += event.seconds
        if event.operator and (above is None or not above.operator):
            total += event.seconds
    return total


def _phase(name: str, around: Phase | None) -> Phase | None:
    if name.startswith("Optimizer.step"):
        return Phase.OPTIMIZER
    if name.startswith(_BESIDE):
        return None
    return Phase.BACKWARD if name.startswith("autograd::engine::evaluate_function") else around


def _dims(value: object) -> tuple[tuple[int, ...], ...]:
    """Shapes as they stand in the file; () of an argument that is no tensor."""
    shapes = value if isinstance(value, list) else []
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
        for shape in shapes
    )
