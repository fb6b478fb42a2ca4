"""Times of a profiler trace: each given once, to the operator that ran."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.placement.list_planners import Heft
from envs.cost import TracedCost
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph, Phase
from envs.graphs.readers import read_graph_file
from envs.graphs.readers.kineto import read_trace
from envs.graphs.traced_times import traced_times
from envs.hardware.builders import mixed, single_server
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem
from tests.asking import planned
from tests.envs.graphs.traced_steps import captured, write_trace
from tests.refusal import refusal

STEPS, MICRO_BATCHES = 2, 2


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return captured(MICRO_BATCHES)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(path, MICRO_BATCHES, STEPS)
    return path


def t4s() -> Topology:
    return single_server(
        "t4s", PcieServer("T4", 2, {"medium": "pcie", "bandwidth": "16GB/s", "latency": "5us"})
    )


def operators(document: Any) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"]


def self_seconds(document: Any) -> float:
    """What every operator took beyond those inside of it, added up."""
    events = sorted(operators(document), key=lambda e: (e["ts"], -e["dur"]))
    own = [event["dur"] for event in events]
    for place, event in enumerate(events):
        for before in range(place - 1, -1, -1):
            if events[before]["ts"] + events[before]["dur"] > event["ts"]:
                own[before] -= event["dur"]
                break
    return float(sum(own)) * 1e-6


def named(graph: OpGraph, end: str) -> list[int]:
    """Operators by the name torch has for them."""
    return [i for i, name in enumerate(graph.op_names)
            if name.rpartition("/")[2].partition("#")[0] == end]  # fmt: skip


@pytest.mark.slow
def test_every_operator_has_its_time_and_no_time_is_given_twice(graph: OpGraph, path: Path) -> None:
    document = read_json(path)
    found = traced_times(graph, read_trace(path))
    assert found.runs == STEPS * MICRO_BATCHES
    assert found.untimed == ()
    assert not np.isnan(found.seconds).any()
    assert found.total_seconds == pytest.approx(self_seconds(document))
    assert found.seconds.sum() * STEPS == pytest.approx(found.matched_seconds)
    assert 0.5 * found.total_seconds < found.matched_seconds <= found.total_seconds
    assert found.shared == ("native_dropout_backward",)  # on a CPU a product, told by its node


def test_times_are_those_of_the_events_of_that_name(graph: OpGraph, path: Path) -> None:
    document = read_json(path)
    seconds = traced_times(graph, read_trace(path)).seconds
    for name in ("addmm", "convolution", "native_layer_norm", "convolution_backward", "relu",
                 "native_layer_norm_backward", "max_pool2d_with_indices"):  # fmt: skip
        ran = [e["dur"] for e in operators(document) if e["name"] == f"aten::{name}"]
        assert seconds[named(graph, name)].sum() * STEPS == pytest.approx(sum(ran) * 1e-6), name
    products = sorted(
        (e["ts"], e["dur"]) for e in operators(document) if e["name"] == "aten::addmm"
    )
    each = np.array([length for _, length in products]).reshape(STEPS, MICRO_BATCHES, 4) * 1e-6
    assert seconds[named(graph, "addmm")] == pytest.approx(each.mean(axis=0).ravel())
    means = sorted((e["ts"], -e["dur"]) for e in operators(document) if e["name"] == "aten::mean")
    outer = -1e-6 * sum(length for _, length in means[::2])  # each has another one inside
    assert seconds[named(graph, "mean")].sum() * STEPS == pytest.approx(outer)
    assert (seconds[graph.phase == Phase.OPTIMIZER] > 0).all()


def on_a_gpu(document: Any) -> Any:
    """The same trace as if some of its operators had each launched a kernel of 3 us."""
    events = operators(document)
    kernels, launches = [], []
    for number, event in enumerate(events):
        event["args"]["External id"] = number + 1
        if event["name"] in {"aten::addmm", "aten::mm", "aten::threshold_backward"}:
            kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": event["ts"] + 1000.0,
                      "dur": 3.0, "pid": 0, "tid": 7, "args": {"correlation": number}}  # fmt: skip
            if number % 2:
                kernel["args"]["External id"] = number + 1
            else:
                launch = {"correlation": number, "External id": number + 1}
                launches.append(
                    {"ph": "X", "cat": "cuda_runtime", "name": "launch", "args": launch}
                )
            kernels.append(kernel)
    return document | {"traceEvents": document["traceEvents"] + launches + kernels}


def test_kernels_are_those_of_the_operators_that_launched_them(
    graph: OpGraph, path: Path, tmp_path: Path
) -> None:
    document = on_a_gpu(read_json(path))
    written = tmp_path / "gpu.json.gz"
    written.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = read_trace(written)
    kernels = sum(event.get("cat") == "kernel" for event in document["traceEvents"])
    assert trace.total_seconds == pytest.approx(kernels * 3e-6)
    found = traced_times(graph, trace)
    assert found.matched_seconds == pytest.approx(found.total_seconds)
    for name in ("addmm", "mm", "threshold_backward"):
        assert found.seconds[named(graph, name)] == pytest.approx(3e-6)
    assert (found.seconds[named(graph, "native_layer_norm")] == 0).all()


def test_a_plan_comes_out(graph: OpGraph, path: Path) -> None:
    cost = TracedCost(str(path), "refuse")
    problem = StepProblem.build(graph, t4s(), cost)
    assert np.array_equal(problem.op_seconds[:, 0], problem.op_seconds[:, 1])
    found = planned(Heft(groups=[16]), problem, 1.0)
    assert found.solution is not None


@pytest.fixture
def changed(path: Path, tmp_path: Path) -> Iterator[Any]:
    """Write the trace again without some of its events."""

    def write(leave_out: Any) -> str:
        document = read_json(path)
        document["traceEvents"] = [e for e in document["traceEvents"] if not leave_out(e)]
        written = tmp_path / "changed.json"
        written.write_text(json.dumps(document))
        return str(written)

    return write


def test_what_is_not_in_the_trace_is_told_and_has_its_roofline_where_asked(
    graph: OpGraph, changed: Any
) -> None:
    topology = t4s()
    file = changed(lambda e: e.get("name", "").startswith(("Optimizer.step", "aten::max_pool2d")))
    with refusal(r"no time for 1 max_pool2d_with_indices \(forward\), 14 upd"):
        TracedCost(file, "refuse").operator_seconds(graph, topology)
    seconds = TracedCost(file, "roofline").operator_seconds(graph, topology)
    assert (seconds > 0).all()


@pytest.mark.slow
def test_another_batch_another_model_and_another_graph_are_refused(
    graph: OpGraph, path: Path, tmp_path: Path, changed: Any
) -> None:
    write_trace(tmp_path / "small.json", 1, 1, samples=4)
    with refusal(r"addmm of \[4, 64\] by \[64, 32\] is 16384 FLOP, and the"):
        traced_times(graph, read_trace(tmp_path / "small.json"))
    file = changed(lambda e: e.get("cat") == "cpu_op" and "layer_norm" not in e["name"])
    with refusal("holds no run of graph 'network'"):
        traced_times(graph, read_trace(file))
    builder = GraphBuilder("own")
    builder.add_operator("a")
    with refusal("has no operators named mb0/forward"):
        traced_times(builder.build(), read_trace(path))
    link = {"medium": "pcie", "bandwidth": "16GB/s", "latency": "5us"}
    servers = [PcieServer(kind, 1, link) for kind in ("T4", "L4")]
    unequal = mixed("unequal", servers, link)
    with refusal("is of one class of devices, and topology unequal has T4"):
        TracedCost(str(path), "refuse").operator_seconds(graph, unequal)


def test_a_trace_is_no_graph(path: Path) -> None:
    with refusal("not the tensors between them; name the captured model"):
        read_graph_file(path)
