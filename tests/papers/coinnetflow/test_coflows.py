"""Coflows against exact arithmetic, every order, and what published simulators print."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.arrays import FloatArray, IntArray
from envs.files import read_json
from experiments.command_line import main_of
from experiments.papers.coinnetflow.orders import ORDERS, bssi, lower_bound
from experiments.papers.coinnetflow.simulation import (
    RATES,
    CoflowProblem,
    Order,
    coflow_problem,
    simulate,
    simulate_fair,
)
from experiments.papers.coinnetflow.trace import java_doubles, read_coflows, simulate_coflowsim
from tests.papers.coinnetflow import reference_coflows as reference
from tests.refusal import refusal
from tests.strength import examples

COFLOWSIM = {"fifo": 536312, "sebf": 210472, "scf": 211424, "ncf": 210752, "lcf": 210472}
main = main_of("coflows")


def made(ports: int, arrival: list[float], *coflows: list[tuple[int, int, float]]) -> CoflowProblem:
    rows = [tuple(np.array(flows).reshape(-1, 3).T) for flows in coflows]
    whole = [(s.astype(np.int64), d.astype(np.int64), size * 1.0) for s, d, size in rows]
    return coflow_problem(ports, 1.0, np.array(arrival, np.float64), whole)


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> CoflowProblem:
    """Whole numbers, so that instants coincide; empty coflows, and several flows on a pair."""
    ports = draw(st.integers(1, 4))
    port = st.integers(0, ports - 1)
    flows = st.lists(st.tuples(port, port, st.integers(0, 6)), max_size=6)
    coflows = draw(st.lists(st.tuples(st.integers(0, 8), flows), min_size=1, max_size=most))
    return made(ports, [start for start, _ in coflows], *(own for _, own in coflows))


# The second coflow, of two flows from one port, has half of that port.
HALF_A_PORT = made(3, [0, 0], [(0, 0, 2), (1, 1, 1)], [(1, 1, 1), (1, 2, 1)])


@examples(100)
@given(problems(), st.sampled_from(["fifo", "scf", "ncf"]))
@example(HALF_A_PORT, "fifo")
def test_rates_are_those_of_exact_arithmetic(problem: CoflowProblem, name: str) -> None:
    """The orders are those that rounding cannot change; the reference checks every port."""
    for rates, exact in (("greedy", reference.greedy), ("madd", reference.madd)):
        expected = reference.replay(problem, ORDERS[name], exact)
        found = simulate(problem, ORDERS[name], RATES[rates])
        np.testing.assert_allclose(found.completion, expected, rtol=1e-9, atol=1e-9)
        assert np.all(found.completion >= problem.alone - 1e-9)


def fixed(rank: tuple[int, ...]) -> Order:
    return lambda _, active, load: active[np.argsort(np.array(rank)[active])]


@examples(60)
@given(problems(most=4), st.booleans())
def test_no_order_beats_the_bound_and_bssi_is_near_the_best(
    problem: CoflowProblem, offline: bool
) -> None:
    problem = problem.offline() if offline else problem
    bound = lower_bound(problem)
    costs = [
        simulate(problem, fixed(rank), play).completion.sum()
        for rank in itertools.permutations(range(problem.num_coflows))
        for play in RATES.values()
    ]
    assert bound <= min(*costs, simulate_fair(problem).completion.sum()) * (1 + 1e-9) + 1e-9
    if offline:
        found = simulate(problem, ORDERS["bssi"], RATES["greedy"]).completion.sum()
        assert found <= 4 * min(bound, *costs) + 1e-9


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.integers(1, 5), min_size=6, max_size=6),
)
def test_one_port_is_served_as_smith_says(times: list[tuple[int, int]], weight: list[int]) -> None:
    """On one port the order is optimal and the dual its cost; on two it is below every order's."""
    d, w = np.array(times, np.float64), np.array(weight[: len(times)], np.float64)

    def cost(order: IntArray, d: FloatArray) -> float:
        ends = np.cumsum(d[order], axis=0) * (d[order] > 0)
        return float(ends.max(axis=1) @ w[order])

    order, bound = bssi(d[:, :1].copy(), w)
    assert bound == pytest.approx(cost(order, d[:, :1]))
    orders = map(np.array, itertools.permutations(range(len(d))))
    assert bssi(d, w)[1] <= min(cost(order, d) for order in orders) + 1e-9


def test_flows_of_two_coflows_share_their_port_and_a_permutation_is_sent_at_once() -> None:
    shared = made(2, [0, 0], [(0, 0, 2)], [(0, 0, 1)])
    assert simulate_fair(shared).completion.tolist() == [3.0, 2.0]
    turned = [[(p, (p + shift) % 61, 2) for p in range(61)] for shift in (1, 7)]
    found = simulate(made(61, [0, 0], *turned), ORDERS["fifo"], RATES["greedy"])
    assert found.completion.tolist() == [2.0, 4.0]


# Averages of BSSI between two, its bound, and SEBF's averages as the published simulator has them.
@pytest.mark.parametrize(
    ("file", "low", "high", "dual", "greedy", "madd"),
    [
        ("10-0.9-FB-UPWS", 8.1, 8.1, 7.575, 8.2, 8.1445),
        ("200-0.9-FB-UPWS", 97.3, 97.9, 88.475, 104.395, 108.328),
        ("400-0.9-FB-UPWS", 143.2, 144.0, 133.064, 158.95, 165.211),
        ("2000-0.7-FB-UPWS-CHUNKS", 0.0, 717.1, 669.570, 809.858, 820.988),
    ],
)
def test_the_averages_of_sincronias_simulator(
    file: str, low: float, high: float, dual: float, greedy: float, madd: float, data: Path
) -> None:
    """Its orders go by single precision and its flows by place in the file: hence the third digit.
    Its `madd` looks again only when a coflow would end without being filled up."""
    problem = read_coflows(data / "network" / "coflow" / f"{file}.txt.gz").problem.offline()
    found = {
        (order, rates): simulate(problem, ORDERS[order], RATES[rates]).completion.mean()
        for order, rates in (("bssi", "greedy"), ("sebf", "greedy"), ("sebf", "madd"))
    }
    bound = lower_bound(problem) / problem.num_coflows
    assert bound == pytest.approx(dual, abs=6e-4)
    assert low <= round(found["bssi", "greedy"], 9) <= min(high, 1.12 * bound)
    assert found["sebf", "greedy"] == pytest.approx(greedy, rel=1e-3)
    assert found["sebf", "madd"] == pytest.approx(madd, rel=0.01)


@pytest.mark.parametrize("name", COFLOWSIM)
def test_the_sums_that_coflowsim_prints(name: str, data: Path) -> None:
    file = data / "network" / "coflow" / "FB2010-1Hr-150-0.txt.gz"
    _, found = simulate_coflowsim(read_coflows(file).first(50), name)
    assert found.completion.sum() == COFLOWSIM[name]


def test_the_random_numbers_of_java() -> None:
    """java.util.Random(42).nextDouble(), thrice."""
    found = [*itertools.islice(java_doubles(42), 3)]
    assert found == [0.7275636800328681, 0.6832234717598454, 0.30871945533265976]


HEAD = "3 1\n"
BAD = {
    "": "is empty",
    "3\n": "line 1: field 'coflows': the line ends",
    "3 2\n0 0 0 0 0\n": "line 1: field 'coflows': the header names 2 coflows, the file has 1",
    HEAD + "0 -1 0 0 0\n": "line 2: field 'arrival': '-1' is no number",
    HEAD + "0 nan 0 0 0\n": "'nan' is no number",
    HEAD + "0 0 1 1 1 0 3 1\n": "line 2: field 'destination': '3' is no whole number from 0 to 2",
    HEAD + "0 0 1 1 1 0 1 1_0\n": "line 2: field 'size': '1_0' is no number",
    HEAD + "0 0 2 1 1 0 1 1\n": "the line ends too early",
    HEAD + "\n0 0 1 1 1 0 1 1 7\n": "line 3: field 'end': 1 words too many",
    HEAD + "0 0 1 0 1 1:\n": "line 2: field 'megabytes': '' is no number",
    HEAD + "0 0 0 1 1:2\n": "field 'mappers': there are reducers, but no mapper",
    HEAD + "0 0 999 0 1 1:2\n": "field 'mappers': '999' is no whole number from 0 to 6",
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_file_is_refused_by_line_and_field(text: str, tmp_path: Path) -> None:
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
    flows = zip(problem.source, problem.destination, problem.size, strict=True)
    assert [*flows] == [(2, 3 + 0, 1.0), (0, 3 + 1, 5.0)]


FILES = {
    "benchmark.txt": "3 2\n1 0 1 0 2 1:2.0 2:2.0\n2 8 1 0 1 1:1.0\n",
    "upws.txt": "3 2\n0 9 2 1 2 0 1 2 0 2 2\n1 10 1 1 1 0 1 1\n",
}


@pytest.fixture
def work(work: Path) -> Path:
    for name, text in FILES.items():
        (work / name).write_text(text)
    return work


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "times"),
    [
        ("input=upws.txt agent=bssi rates=greedy", [5.0, 1.0]),
        ("input=upws.txt agent=fifo rates=madd", [4.0, 5.0]),
        ("input=upws.txt semantics=online agent=sebf rates=greedy", [5.0, 1.0]),
        ("input=benchmark.txt agent=fifo rates=madd", [32.0, 32.0]),
        ("input=benchmark.txt agent=fair coflows=1", [32.0]),
        ("input=benchmark.txt semantics=coflowsim agent=scf rates=madd", [40.0, 8.0]),
    ],
)
def test_times_stand_in_the_order_of_the_file(words: str, times: list[float], work: Path) -> None:
    assert main([*words.split(), "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["cct_ms"] == pytest.approx(times)
    assert found["sum_cct_ms"] == pytest.approx(sum(times))
    assert found["lower_bound_ms"] <= found["sum_cct_ms"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("input=upws.txt agent=heft", "config key 'agent': 'heft' is not one of fifo, sebf"),
        ("input=upws.txt semantics=coflowsim agent=fifo", "config key 'semantics': CoflowSim"),
        ("input=benchmark.txt semantics=coflowsim agent=bssi", "config key 'agent': 'bssi' is"),
        (
            "input=benchmark.txt semantics=coflowsim agent=scf rates=greedy",
            "key 'rates': CoflowSim",
        ),
    ],
)
@pytest.mark.usefixtures("work")
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert fault in err
    assert len(err.strip().splitlines()) == 1
