"""`LatencyProblem` against a literal replay of calls, and on published figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from envs.cost import TabulatedCost
from envs.graphs.readers import read_graph_file
from envs.partition.problem import LatencyProblem
from envs.step.problem import StepProblem
from tests.agents.partition.dp_graphs import Sketch, small_problem
from tests.envs.partition.test_max_load import slow_loads
from tests.strength import SEEDS, examples


def replay(step: StepProblem, host: int, device: list[int]) -> float:
    """Start whatever has all its inputs, again and again; inf when something never has."""
    n = step.graph.num_operators
    blocks = {}
    for op, d in enumerate(device):
        blocks.setdefault(("host", op) if d == host else ("call", d), []).append(op)
    inputs: dict[int, set[int]] = {op: set() for op in range(n)}
    for u, v, _ in step.graph.edges.tolist():
        inputs[v].add(u)
    loads = slow_loads(step, host, device)
    ready: dict[int, float] = {}
    waiting = dict(blocks)
    while waiting:
        for name, ops in list(waiting.items()):
            needed = set().union(*(inputs[op] for op in ops)) - set(ops)
            if needed <= ready.keys():
                start = max((ready[u] for u in needed), default=0.0)
                kind, number = name
                busy = float(step.op_seconds[number, host]) if kind == "host" else loads[number]
                ready |= dict.fromkeys(ops, start + busy)
                del waiting[name]
                break
        else:
            return float("inf")
    return max(ready.values())


@given(SEEDS)
@examples(200)
def test_latency_is_that_of_the_replay(seed: int) -> None:
    step = small_problem(seed)
    problem = LatencyProblem(step)
    random = np.random.default_rng(seed)
    devices = step.topology.num_devices
    device = random.integers(0, devices, step.graph.num_operators)
    for group in range(step.graph.num_groups):
        device[step.graph.colocation == group] = random.integers(0, devices)
    expected = replay(step, problem.host, device.tolist())
    assert problem.objective(device) == pytest.approx(expected, rel=1e-12)
    supported = np.isfinite(step.op_seconds[np.arange(len(device)), device]).all()
    if np.isinf(expected) and supported:
        assert problem.violations(device)
    if not problem.violations(device):
        assert np.isfinite(expected)


def test_a_call_waits_receives_computes_and_sends() -> None:
    sketch = Sketch(0)
    first = sketch.node([], 1.0, 1.0, slower=2.0)
    left = sketch.node([first], 1.0, 1.0, slower=2.0)
    right = sketch.node([first], 1.0, 1.0, slower=2.0)
    sketch.node([left, right], 1.0, 1.0, slower=2.0)
    problem = LatencyProblem(sketch.problem(accelerators=2, capacity=1.0))
    compute, traffic = sketch.accelerator, sketch.traffic
    on_host = 2 * (compute[0] + max(compute[1], compute[2]) + compute[3])
    assert problem.objective(np.array([2, 2, 2, 2])) == pytest.approx(on_host)
    call = traffic[0] + compute[1] + traffic[1]
    mixed = 2 * compute[0] + max(call, 2 * compute[2]) + 2 * compute[3]
    assert problem.objective(np.array([2, 0, 2, 2])) == pytest.approx(mixed)
    twice = np.array([0, 0, 1, 0])
    assert problem.objective(twice) == np.inf
    assert problem.violations(twice) == [
        "needs more than one call of a device: data goes round accelerator0 -> accelerator1 -> "
        "accelerator0"
    ]


def test_one_device_for_all_and_the_host_alone_on_a_published_graph(data: Path) -> None:
    file = data / "graphs/dnn-partitioning/latency-inputs/OperatorGraphs/bert_l-3_inference.json.gz"
    read = read_graph_file(file)
    assert read.topology is not None
    step = StepProblem.build(read.graph, read.topology, TabulatedCost())
    problem = LatencyProblem(step)
    everywhere = np.zeros(step.graph.num_operators, dtype=np.int64)
    assert problem.objective(everywhere) == pytest.approx(step.op_seconds[:, 0].sum(), rel=1e-12)
    assert "too many" in problem.violations(everywhere)[0]
    on_host = everywhere + problem.host
    assert problem.violations(on_host) == []
    longest = np.zeros(step.graph.num_operators)
    for v in range(len(longest)):
        before = step.graph.edges[step.graph.edges[:, 1] == v, 0]
        longest[v] = step.op_seconds[v, problem.host] + longest[before].max(initial=0.0)
    assert problem.objective(on_host) == pytest.approx(longest.max(), rel=1e-12)
