"""Max-load and latency against loads added up one by one and a literal replay of calls."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from envs.graphs.op_graph import NONE, Phase
from envs.partition.problem import LatencyProblem, MaxLoadProblem
from envs.step.problem import StepProblem
from tests.agents.partition.dp_graphs import Sketch, published, small_problem
from tests.strength import SEEDS, examples


def slow_loads(step: StepProblem, host: int, device: list[int]) -> list[float]:
    """Compute, plus each output of an operator once where it is made and once where it is read."""
    graph, link = step.graph, step.topology.link_class
    load = [0.0] * step.topology.num_devices
    for op, d in enumerate(device):
        load[d] += float(step.op_seconds[op, d])
    outputs: dict[tuple[int, tuple[float, ...]], set[int]] = {}
    for tensor in range(graph.num_tensors):
        key = (int(graph.producer[tensor]), tuple(step.transfer_seconds[tensor].tolist()))
        outputs.setdefault(key, set()).update(graph.consumers(tensor).tolist())
    for (producer, seconds), readers in outputs.items():
        home = device[producer]
        away = {device[reader] for reader in readers} - {home}
        for d in away | ({home} if away else set()):
            if host not in (NONE, d):
                load[d] += seconds[link[d, host]]
            elif host == NONE:
                load[d] += max(seconds[link[d, e]] for e in range(len(load)) if e != d)
    return load


def in_a_line(step: StepProblem, device: list[int]) -> bool:
    """Whether some order of the devices makes all edges that bind go forward."""
    graph = step.graph
    forward = [phase == Phase.FORWARD for phase in graph.phase.tolist()]
    backward = [phase == Phase.BACKWARD for phase in graph.phase.tolist()]
    colour = graph.colocation.tolist()
    has_forward = {c for c, f in zip(colour, forward, strict=True) if f and c != NONE}
    orphan = [b and c not in has_forward for b, c in zip(backward, colour, strict=True)]
    arcs = []
    for u, v, _ in graph.edges.tolist():
        if forward[u] and forward[v]:
            arcs.append((device[u], device[v]))
        if backward[u] and backward[v] and (orphan[u] or orphan[v]):
            arcs.append((device[v], device[u]))
    return any(
        all(place.index(a) <= place.index(b) for a, b in arcs)
        for place in permutations(range(step.topology.num_devices))
    )


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
def test_loads_lines_and_latencies_are_those_of_the_definition(seed: int) -> None:
    step = small_problem(seed)
    random = np.random.default_rng(seed)
    devices = step.topology.num_devices
    device = random.integers(0, devices, step.graph.num_operators)
    for group in range(step.graph.num_groups):
        device[step.graph.colocation == group] = random.integers(0, devices)
    free, bound = MaxLoadProblem(step, contiguous=False), MaxLoadProblem(step, contiguous=True)
    expected = slow_loads(step, free.host, device.tolist())
    np.testing.assert_allclose(free.loads(device), expected, rtol=1e-12)
    assert free.objective(device) == pytest.approx(max(expected), rel=1e-12)
    calls = LatencyProblem(step)
    latency = replay(step, calls.host, device.tolist())
    assert calls.objective(device) == pytest.approx(latency, rel=1e-12)
    broken = free.violations(device)
    if broken:
        assert bound.violations(device) == calls.violations(device) == broken
    else:
        assert (bound.violations(device) == []) == in_a_line(step, device.tolist())
        assert (calls.violations(device) == []) == np.isfinite(latency)


def test_the_message_says_which_way_the_forward_pass_goes_round() -> None:
    for seed in range(1000):
        step = small_problem(seed)
        device = np.arange(step.graph.num_operators) % step.topology.num_devices
        problem = MaxLoadProblem(step, contiguous=True)
        found = problem.violations(device)
        if found and not MaxLoadProblem(step, contiguous=False).violations(device):
            assert found[0].startswith("is not contiguous: the forward pass goes round ")
            route = found[0].split("goes round ")[1].split(" -> ")
            assert len(route) > 2
            assert route[0] == route[-1]
            again = LatencyProblem(step).violations(device)
            assert again[0].startswith("needs more than one call of a device: data goes round ")
            return
    pytest.fail("no placement went round")


def test_too_much_state_and_unsupported_operators_are_named() -> None:
    step = small_problem(3)
    device = np.zeros(step.graph.num_operators, dtype=np.int64)
    tight = replace(step, capacity=np.full(step.topology.num_devices, -1.0))
    unable = replace(step, op_seconds=np.full_like(step.op_seconds, np.inf))
    for changed, words in ((tight, "too many"), (unable, "cannot run")):
        assert any(words in text for text in MaxLoadProblem(changed, False).violations(device))
    assert MaxLoadProblem(unable, contiguous=False).objective(device) == np.inf


def test_a_call_waits_receives_computes_and_sends() -> None:
    sketch = Sketch(0)
    for inputs in ([], [0], [0], [1, 2]):
        sketch.node(inputs, 1.0, 1.0, slower=2.0)
    problem = LatencyProblem(sketch.problem(accelerators=2, capacity=1.0))
    compute, traffic = sketch.accelerator, sketch.traffic
    on_host = 2 * (compute[0] + max(compute[1], compute[2]) + compute[3])
    assert problem.objective(np.array([2, 2, 2, 2])) == pytest.approx(on_host)
    call = traffic[0] + compute[1] + traffic[1]
    mixed = 2 * compute[0] + max(call, 2 * compute[2]) + 2 * compute[3]
    assert problem.objective(np.array([2, 0, 2, 2])) == pytest.approx(mixed)
    twice = np.array([0, 0, 1, 0])
    assert problem.objective(twice) == np.inf
    around = "accelerator0 -> accelerator1 -> accelerator0"
    assert problem.violations(twice)[0].endswith(f"one call of a device: data goes round {around}")


def test_one_device_for_all_and_the_host_alone_on_a_published_graph(data: Path) -> None:
    step = published(data, "latency", "OperatorGraphs/bert_l-3_inference")
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
