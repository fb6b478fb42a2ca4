"""Coflows replayed: against exact arithmetic, and against what published simulators print."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.papers.coinnetflow.orders import ORDERS
from experiments.papers.coinnetflow.simulation import (
    CoflowProblem,
    coflow_problem,
    simulate,
    simulate_fair,
)
from experiments.papers.coinnetflow.trace import (
    java_doubles,
    quantised,
    read_coflows,
    simulate_coflowsim,
)
from tests.papers.coinnetflow import reference_coflows as reference
from tests.refusal import refusal
from tests.strength import examples

COFLOWSIM = {"fifo": 536312, "sebf": 210472, "scf": 211424, "ncf": 210752, "lcf": 210472}


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> CoflowProblem:
    """Whole numbers, so that instants coincide; empty coflows, and several flows on a pair."""
    ports = draw(st.integers(1, 4))
    port = st.integers(0, ports - 1)
    flows = st.lists(st.tuples(port, port, st.integers(0, 6)), max_size=6)
    coflows = draw(st.lists(st.tuples(st.integers(0, 8), flows), min_size=1, max_size=most))
    rows = []
    for _, own in coflows:
        s, d, size = np.array(own, dtype=np.int64).reshape(-1, 3).T
        rows.append((s, d, size.astype(np.float64)))
    arrival = np.array([start for start, _ in coflows], dtype=np.float64)
    return coflow_problem(ports, 1.0, arrival, rows)


# The second coflow, of two flows from one port, has half of that port.
HALF_A_PORT = coflow_problem(
    3,
    1.0,
    np.zeros(2),
    [
        (np.array([0, 1]), np.array([0, 1]), np.array([2.0, 1.0])),
        (np.array([1, 1]), np.array([1, 2]), np.array([1.0, 1.0])),
    ],
)


@examples(100)
@given(problems(), st.sampled_from(["fifo", "scf", "ncf"]))
@example(HALF_A_PORT, "fifo")
def test_rates_are_those_of_exact_arithmetic(problem: CoflowProblem, name: str) -> None:
    """The orders are those that rounding cannot change; the reference checks every port."""
    order = ORDERS[name]
    for rates, exact in (("greedy", reference.greedy), ("madd", reference.madd)):
        expected = reference.replay(problem, order, exact)
        found = simulate(problem, order, rates)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.completion, expected, rtol=1e-9, atol=1e-9)
        assert np.all(found.completion >= problem.alone - 1e-9)


@pytest.mark.parametrize("ports", [59, 61, 130])
def test_more_ports_than_a_word_has_bits(ports: int) -> None:
    """A permutation of all ports is sent at once, a second one after it."""
    every = np.arange(ports)
    rows = [(every, np.roll(every, shift), np.full(ports, 2.0)) for shift in (1, 7)]
    problem = coflow_problem(ports, 0.5, np.zeros(2), rows)
    assert simulate(problem, ORDERS["fifo"], "greedy").completion.tolist() == [4.0, 8.0]


def test_fair_flows_of_two_coflows_share_their_port() -> None:
    one = np.zeros(1, dtype=np.int64)
    rows = [(one, one, np.array([2.0])), (one, one, np.array([1.0]))]
    problem = coflow_problem(2, 1.0, np.zeros(2), rows)
    assert simulate_fair(problem).completion.tolist() == [3.0, 2.0]


def test_the_averages_of_sincronias_simulator(data: Path) -> None:
    """Its orders go by single precision and its flows by place in the file: hence the third digit.
    Its `madd` looks again only when a coflow would end without being filled up."""
    folder = data / "network" / "coflow"
    for file, greedy, madd in (
        ("10-0.9-FB-UPWS", 8.2, 8.1445),
        ("200-0.9-FB-UPWS", 104.395, 108.328),
        ("400-0.9-FB-UPWS", 158.95, 165.211),
        ("2000-0.7-FB-UPWS-CHUNKS", 809.858, 820.988),
    ):
        problem = read_coflows(folder / f"{file}.txt.gz").problem.offline()
        found = simulate(problem, ORDERS["sebf"], "greedy").completion.mean()
        assert found == pytest.approx(greedy, rel=1e-3)
        found = simulate(problem, ORDERS["sebf"], "madd").completion.mean()
        assert found == pytest.approx(madd, rel=0.01)


@pytest.mark.parametrize("name", COFLOWSIM)
def test_the_sums_that_coflowsim_prints(name: str, data: Path) -> None:
    file = data / "network" / "coflow" / "FB2010-1Hr-150-0.txt.gz"
    trace = read_coflows(file).first(50)
    found = simulate_coflowsim(quantised(trace), trace.arrival, name)
    assert found.completion.sum() == COFLOWSIM[name]


def test_the_random_numbers_of_java() -> None:
    """java.util.Random(42).nextDouble(), thrice."""
    stream = java_doubles(42)
    found = [next(stream) for _ in range(3)]
    assert found == [0.7275636800328681, 0.6832234717598454, 0.30871945533265976]


HEAD = "3 1\n"
BAD = {
    "": "is empty",
    "3\n": "line 1: field 'coflows': the line ends",
    "3 2\n0 0 0 0 0\n": "line 1: field 'coflows': the header tells of 2 coflows, the file has 1",
    HEAD + "0 -1 0 0 0\n": "line 2: field 'arrival': '-1' is no number",
    HEAD + "0 nan 0 0 0\n": "'nan' is no number",
    HEAD + "0 0 1 1 1 0 3 1\n": "line 2: field 'destination': 3 is not between 0 and 2",
    HEAD + "0 0 1 1 1 0 1 x\n": "line 2: field 'size': 'x' is no number",
    HEAD + "0 0 1 1 1 0 1 1_0\n": "'1_0' is no number",
    HEAD + "0 0 2 1 1 0 1 1\n": "the line ends too early",
    HEAD + "\n0 0 1 1 1 0 1 1 7\n": "line 3: field 'end': 1 words too many",
    HEAD + "0 0 1 0 1 1:\n": "line 2: field 'megabytes': '' is no number",
    HEAD + "0 0 0 1 1:2\n": "field 'mappers': there are reducers, but no mapper",
    HEAD + "0 0 1 0 2 1:2 2\n": "field 'megabytes': '' is no number",
    HEAD + "0 0 999 0 1 1:2\n": "field 'mappers': 999 is not between 0 and 6",
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_file_is_told_by_line_and_field(text: str, tmp_path: Path) -> None:
    path = tmp_path / "coflows.txt"
    path.write_text(text)
    with refusal() as raised:
        _ = read_coflows(path).problem
    assert BAD[text] in str(raised.value)
    assert str(path) in str(raised.value)


def test_both_forms_are_read(tmp_path: Path) -> None:
    """A mapper named twice sends twice; several flows on a pair add up."""
    path = tmp_path / "coflows.txt"
    path.write_text("3 2\n7 0 3 0 2 0 1 1:6.0\n8 5 1 1 2 0:1 2:3\n")
    problem = read_coflows(path).problem
    assert problem.size.tolist() == [4.0, 2.0, 1.0, 3.0]
    assert problem.alone.tolist() == [6 / 0.125, 4 / 0.125]
    assert read_coflows(path).first(1).problem.num_coflows == 1
    path.write_text("3 1\n0 4 3 2 2 0 1 2 2 0 1 0 1 3\n")
    problem = read_coflows(path).problem
    assert list(zip(problem.source, problem.destination, problem.size, strict=True)) == [
        (2, 0, 1.0),
        (0, 1, 5.0),
    ]
    with refusal("mappers and reducers"):
        quantised(read_coflows(path))
