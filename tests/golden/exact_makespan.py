"""The exact makespan of a small graph under the simulator's rules, by CP-SAT.

python -m tests.golden.exact_makespan <file.xls> limits|unlimited

Prints {"makespan", "device", "order"}. A process of its own: OR-tools and highspy bring different
builds of HiGHS and cannot be loaded into one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from ortools.sat.python import cp_model

from envs.cost.tabulated import TabulatedCost
from envs.graphs.readers import read_moirai
from envs.plans import Placement, Plan
from envs.simulation.problem import StepProblem

HORIZON = 100


def problem_of(path: Path) -> StepProblem:
    file = read_moirai(path)
    assert file.topology is not None
    return StepProblem.build(file.graph, file.topology, TabulatedCost())


def solve(problem: StepProblem) -> tuple[float, Plan]:
    """The least step time of any plan under `single_port`, and a plan that has it.

    Decides placement, order (one permutation) and times together, by the simulator's rules:
    devices run operators by position, ports serve transfers by the positions of producer and
    consumer. For graphs with one consumer per tensor and whole-second times.
    """
    graph, topology = problem.graph, problem.topology
    n, d = graph.num_operators, topology.num_devices
    seconds = problem.op_seconds.astype(int)
    transfer = problem.transfer_seconds.astype(int)
    assert (seconds == problem.op_seconds).all()
    assert (transfer == problem.transfer_seconds).all()

    model = cp_model.CpModel()
    on = [[model.new_bool_var(f"on{v},{i}") for i in range(d)] for v in range(n)]
    start = [model.new_int_var(0, HORIZON, f"start{v}") for v in range(n)]
    position = [model.new_int_var(0, n - 1, f"position{v}") for v in range(n)]
    duration = [sum(int(seconds[v, i]) * on[v][i] for i in range(d)) for v in range(n)]
    makespan = model.new_int_var(0, HORIZON, "makespan")
    model.add_all_different(position)
    before: dict[tuple[int, int], cp_model.LiteralT] = {}
    for a, b in combinations(range(n), 2):
        before[a, b] = model.new_bool_var(f"before{a},{b}")
        before[b, a] = before[a, b].negated()
    for (a, b), first in before.items():
        model.add(position[a] < position[b]).only_enforce_if(first)
        for i in range(d):
            model.add(start[b] >= start[a] + duration[a]).only_enforce_if(first, on[a][i], on[b][i])
    for v in range(n):
        model.add_exactly_one(on[v])
        model.add(makespan >= start[v] + duration[v])
    for i in range(d):
        resident = sum(int(graph.state_bytes[v]) * on[v][i] for v in range(n))
        model.add(resident <= int(min(problem.capacity[i], graph.state_bytes.sum())))

    sent, sending = {}, {}
    held: dict[tuple[int, int], cp_model.LiteralT] = {}  # (tensor, port)
    for u, v, tensor in graph.edges:
        model.add(before[u, v] == 1)
        sent[tensor] = model.new_int_var(0, HORIZON, f"sent{tensor}")
        sending[tensor] = 0
        model.add(sent[tensor] >= start[u] + duration[u])
        for i, j in permutations(range(d), 2):
            used = model.new_bool_var(f"used{tensor},{i},{j}")
            model.add_bool_or(on[u][i].negated(), on[v][j].negated(), used)
            model.add_implication(used, on[u][i])
            model.add_implication(used, on[v][j])
            length = int(transfer[tensor, topology.link_class[i, j]])
            sending[tensor] += length * used
            for port in (topology.send_port[i, j], topology.receive_port[i, j]):
                if (tensor, port) not in held:
                    held[tensor, port] = model.new_bool_var(f"holds{tensor},{port}")
                if length > 0:
                    model.add_implication(used, held[tensor, port])
        model.add(start[v] >= sent[tensor] + sending[tensor])
    for (u, v, s), (x, y, t) in permutations(map(tuple, graph.edges), 2):
        first = before[u, x] if u != x else before[v, y]
        for port in range(topology.num_ports):
            model.add(sent[t] >= sent[s] + sending[s]).only_enforce_if(
                first, held[s, port], held[t, port]
            )
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 120
    assert solver.solve(model) == cp_model.OPTIMAL
    device = np.array([[solver.value(x) for x in row] for row in on]).argmax(axis=1)
    order = np.argsort([solver.value(x) for x in position])
    return solver.objective_value, Plan(Placement(device.astype(np.int64)), order.astype(np.int64))


if __name__ == "__main__":
    problem = problem_of(Path(sys.argv[1]))
    if sys.argv[2] == "unlimited":
        problem = replace(problem, capacity=np.full_like(problem.capacity, np.inf))
    makespan, plan = solve(problem)
    found = {"device": plan.placement.device.tolist(), "order": plan.order.tolist()}
    print(json.dumps({"makespan": makespan, **found}))
