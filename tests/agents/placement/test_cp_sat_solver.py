"""CP-SAT's process, times as integers, and devices that can change places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.constraint_program.program import ConstraintProgram, TimeScale, whole_bytes
from agents.constraint_program.solver import CpSettings, CpSolver, Event
from agents.step.grouping import canonical, device_classes
from envs.graphs.builder import GraphBuilder
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import cluster, problems
from tests.paths import ROOT
from tests.strength import examples

pytestmark = pytest.mark.slow

ONE = CpSettings(workers=1, seed=0)


def search(program: ConstraintProgram, watched: list[int], seconds: float = 30.0) -> list[Event]:
    with CpSolver() as solver:
        found = solver.search(program, watched, ONE, seconds=seconds, deterministic_limit=None)
        return list(found)


def knapsack() -> tuple[ConstraintProgram, list[int]]:
    """Of 5, 7 and 11 that add up to at least 12, the least sum is 5 + 7."""
    program = ConstraintProgram()
    chosen = [program.boolean() for _ in range(3)]
    total = program.integer(0, 100)
    terms = list(zip(chosen, (5, 7, 11), strict=True))
    program.add_linear([*terms, (total, -1)], lower=0, upper=0)
    program.add_linear(terms, lower=12)
    program.minimize(total)
    return program, [*chosen, total]


def market_split() -> ConstraintProgram:
    """Halve six random sums at once: infeasible, and far out of reach of branch and bound."""
    random = np.random.default_rng(0)
    program = ConstraintProgram()
    chosen = [program.boolean() for _ in range(50)]
    for row in random.integers(1, 100, size=(6, 50)).tolist():
        half = sum(row) // 2
        terms = list(zip(chosen, row, strict=True))
        program.add_linear(terms, lower=half, upper=half)
    program.minimize(chosen[0])
    return program


def test_the_last_solution_is_the_optimum_and_the_end_has_a_status_and_a_bound() -> None:
    events = search(*knapsack())
    assert [event.values for event in events if event.values][-1] == [1, 1, 0, 12]
    assert (events[-1].status, events[-1].bound) == ("OPTIMAL", 12.0)


def test_either_and_both_say_what_their_literals_say() -> None:
    for first in (0, 1):
        for second in (0, 1):
            program = ConstraintProgram()
            a, b = program.integer(first, first), program.integer(second, second)
            some, every = program.either([a, b]), program.both(a, b)
            found = program.integer(0, 3)
            program.add_linear([(some, 1), (every, 2), (found, -1)], lower=0, upper=0)
            program.minimize(found)
            assert search(program, [found])[-1].bound == (first | second) + 2 * (first & second)


def test_a_search_stops_at_its_limit_and_keeps_no_process() -> None:
    with CpSolver() as solver:
        process = solver._process.pid
        found = solver.search(market_split(), [0], ONE, seconds=0.5, deterministic_limit=None)
        events = list(found)
    assert all(event.status not in {"OPTIMAL", "INFEASIBLE"} for event in events)
    assert not running(process)


def test_the_process_ends_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", (
            "import sys, time\n"
            "from agents.constraint_program.solver import CpSolver\n"
            "solver = CpSolver()\n"
            "print(solver._process.pid, flush=True)\n"
            "time.sleep(60)\n"
        )],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    process = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while running(process):
        time.sleep(0.05)


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")  # a child nobody has waited for is a zombie
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_means_nothing_is_refused_with_the_reason() -> None:
    program = ConstraintProgram()
    program.minimize(7)
    with pytest.raises(RuntimeError, match="CP-SAT's process failed"):
        search(program, [])


def test_binary_and_decimal_times_have_a_common_unit() -> None:
    binary = TimeScale.of([np.array([0.5, 1.25, 3.0, np.inf])], 10.0, 2.0**20)
    assert (float(binary.unit), binary.exact, binary.bound(5.0)) == (0.25, True, 1.25)
    decimal = TimeScale.of([np.array([0.0177899, 0.003, 0.1])], 1.0, 2.0**30)
    assert float(decimal.unit) == 1e-7
    np.testing.assert_array_equal(
        decimal.units(np.array([0.0177899, 0.003, np.inf])), [177899.0, 30000.0, np.inf]
    )


def test_a_few_odd_times_do_not_cost_the_others_their_unit() -> None:
    scale = TimeScale.of([np.array([0.169, 2.0**-18, 0.003, np.pi / 100])], 1.0, 2.0**33)
    assert not scale.exact
    seconds = np.array([0.169, 2.0**-18, 0.003])
    np.testing.assert_allclose(scale.units(seconds) * float(scale.unit), seconds, rtol=1e-15)
    assert scale.units(np.array([np.pi / 100])) * float(scale.unit) < np.pi / 100


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8), st.sampled_from([14, 24, 40]))
def test_rounded_times_never_exceed_the_times(times: list[float], digits: int) -> None:
    values = np.array(times)
    scale = TimeScale.of([values], float(values.sum()), 2.0**digits)
    units = scale.units(values)
    assert scale.bound(float(units.sum())) <= values.sum()
    assert scale.bound(float(units.sum()) + len(times)) >= values.sum() * (1.0 - 1e-9)


@given(
    st.lists(st.integers(0, 2**40).map(float) | st.floats(0.0, 1e12), min_size=1, max_size=6),
    st.floats(0.0, 1.0),
)
def test_what_fits_in_bytes_fits_in_units(sizes: list[float], part: float) -> None:
    values = np.array(sizes)
    capacity = part * float(values.sum())
    units, room = whole_bytes(values, capacity)
    assert units.max() < 2**31
    for chosen in product([False, True], repeat=len(sizes)):
        if values[list(chosen)].sum() <= capacity:
            assert units[list(chosen)].sum() <= room


@examples(50)
@given(problems(max_operators=8, max_devices=3), st.randoms(use_true_random=False))
def test_devices_of_one_class_change_places_without_a_difference(
    problem: StepProblem, random: object
) -> None:
    simulator = StepSimulator(problem)
    n, d = problem.op_seconds.shape
    classes = device_classes(problem)
    assert sorted(device for members in classes for device in members) == list(range(d))
    device = np.array([random.randrange(d) for _ in range(n)])  # type: ignore[attr-defined]
    renamed = canonical(device, classes)
    order = np.arange(n)
    assert simulator.step_time(renamed, order) == simulator.step_time(device, order)
    np.testing.assert_array_equal(canonical(renamed, classes), renamed)
    for members in classes:
        first = [int(np.argmax(renamed == member)) for member in members if member in renamed]
        assert first == sorted(first)


def test_devices_of_two_servers_are_interchangeable_only_within_a_server() -> None:
    topology = cluster([0, 0, 1], 1.0)
    builder = GraphBuilder("one")
    builder.add_operator("op")
    problem = StepProblem(
        builder.build(), topology, np.ones((1, 3)), np.zeros((0, 3)), topology.memory_bytes
    )
    assert device_classes(problem) == [[0, 1], [2]]
