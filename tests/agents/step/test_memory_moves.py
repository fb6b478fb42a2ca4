"""Memory moves: the knapsack against all choices, repairs against all moves of small chains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from agents.placement.baselines import ContiguousSplit, EqualShares
from agents.step.incumbent import StepIncumbent
from agents.step.memory_moves import MemoryMoves, options
from agents.step.residence import cheapest
from envs.graphs.op_graph import Phase
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.rematerialise import Residence, rematerialised
from envs.step.step import StepSimulator
from tests.asking import planned
from tests.envs.step.random_steps import topology_of
from tests.envs.step.test_rematerialise import GB, chain
from tests.strength import trials

KEEP, RECOMPUTE, OFFLOAD = Residence
BOTH = ("recompute", "offload")


@pytest.mark.parametrize("seed", range(trials(200)))
def test_the_knapsack_finds_the_least_cost_of_all_choices(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups, count = random.integers(1, 5), random.integers(1, 5)
    saved, seconds, traffic, transient = random.integers(0, 6, (4, groups, count)).astype(float)
    for column in (saved, seconds, traffic, transient):
        column[:, 0] = 0.0
    need, hidden = float(random.integers(0, 14)), float(random.integers(0, 5))
    rows = np.arange(groups)

    def cost(choice: Iterable[int]) -> float:
        chosen = rows, np.array(choice)
        if saved[chosen].sum() < need + transient[chosen].max():
            return np.inf
        return seconds[chosen].sum() + max(0.0, traffic[chosen].sum() - hidden)

    best = min(map(cost, product(range(count), repeat=int(groups))))
    found = cheapest(saved, seconds, traffic, transient, need, hidden)
    assert (found is None) == np.isinf(best)
    assert found is None or cost(found) == pytest.approx(best, abs=1e-6)


def test_the_options_are_those_that_the_problem_allows() -> None:
    keep, again = (KEEP, KEEP), [(RECOMPUTE, KEEP), (RECOMPUTE, RECOMPUTE)]
    assert options(()) == [keep]
    assert options(("recompute",)) == [keep, *again]
    assert options(("offload",)) == [keep, (OFFLOAD, OFFLOAD)]
    assert options(BOTH)[-1] == (RECOMPUTE, OFFLOAD)


def groups_of(problem: StepProblem) -> np.ndarray:
    """The layer of each operator, by its name."""
    return np.array([int(name[1]) for name in problem.graph.op_names])


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("moves", [("recompute",), ("offload",), BOTH])
def test_a_repair_finds_room_where_any_choice_does(
    micro_batches: int, moves: tuple[str, ...]
) -> None:
    """Of a uniform chain, each layer with a choice of its own, under every capacity in question."""
    problem = replace(chain(3, micro_batches), memory_moves=moves)
    graph = problem.graph
    device, order = np.zeros((2, graph.num_operators), dtype=np.int64)
    # all forward before all backward, so that two micro-batches are under way
    order = np.lexsort((np.arange(len(device)), graph.phase))
    known = {0: KEEP} | {1 + m: Residence[move.upper()] for m, move in enumerate(moves)}
    seen = []
    for choice in product(known.values(), repeat=3):
        residence = np.where(graph.phase == Phase.FORWARD, np.array(choice)[groups_of(problem)], 0)
        made = rematerialised(problem, device, order, residence)
        timeline = StepSimulator(made.problem).run(made.device, made.order)
        seen.append((timeline.peak_memory[0], timeline.step_time))
    for capacity in sorted({peak for peak, _ in seen}):
        tight = replace(problem, capacity=np.array([capacity]))
        fastest = min(seconds for peak, seconds in seen if peak <= capacity)
        found = MemoryMoves(tight, groups_of(problem)).repair(device, order)
        assert found.fits
        assert found.seconds >= fastest * (1 - 1e-9)
        plan = Plan(Placement(device), found.order, found.residence)
        assert plan.violations(tight) == []
    none = replace(problem, capacity=np.array([5 * GB]))
    assert not MemoryMoves(none, groups_of(problem)).repair(device, order).fits


@pytest.mark.parametrize(
    ("gigabytes", "moves", "seconds"),
    [
        (28, (), np.inf), (28, BOTH, 54.0),
        # one micro-batch after the other; as in a pipeline with second runs; with the host
        (32, (), 54.0), (32, ("recompute",), 44.0), (32, BOTH, 36.0),
    ],
)  # fmt: skip
def test_moves_make_plans_where_nothing_else_fits(
    gigabytes: float, moves: tuple[str, ...], seconds: float
) -> None:
    line = chain(6, micro_batches=3)
    topology = topology_of([0, 0], False)
    spec = line.topology.devices[0].spec
    problem = replace(
        line,
        topology=replace(topology, devices=tuple(replace(d, spec=spec) for d in topology.devices)),
        op_seconds=np.repeat(line.op_seconds, 2, axis=1),
        capacity=np.full(2, gigabytes * GB),
        memory_moves=moves,
    )
    found = planned(ContiguousSplit(groups=6, shares=EqualShares()), problem, 60.0, 1)
    assert found.value == pytest.approx(seconds)
    if found.solution is not None:
        assert found.solution.violations(problem) == []
        assert (found.solution.residence is not None) == (moves != ())
        step, device, order = found.solution.played(problem)
        assert StepSimulator(step).step_time(device, order) == found.value


def test_what_is_offered_is_moved_where_it_overflows() -> None:
    problem = replace(chain(3), capacity=np.array([25 * GB]), memory_moves=("recompute",))
    incumbent = StepIncumbent(problem)
    device = np.zeros(6, dtype=np.int64)
    assert not incumbent.offer(device).any()
    assert incumbent.plan.residence is not None
    assert incumbent.step_time > 9.0
    again = StepIncumbent(problem)
    again.offer_plan(incumbent.plan)
    assert again.step_time == incumbent.step_time
    without = StepIncumbent(replace(problem, memory_moves=()))
    assert without.offer(device).any()
    assert without.plan is None


def test_moves_of_the_best_plan_are_changed_while_that_helps() -> None:
    problem = replace(chain(3), capacity=np.array([32 * GB]), memory_moves=("recompute",))
    incumbent = StepIncumbent(problem)
    device, order = np.zeros(6, dtype=np.int64), np.arange(6)
    everything = np.where(problem.graph.phase == Phase.FORWARD, int(RECOMPUTE), 0)
    incumbent.offer_plan(Plan(Placement(device), order, everything))
    assert incumbent.step_time == 12.0
    incumbent.improve_moves(60.0)
    assert incumbent.step_time == 9.0
    assert incumbent.plan.violations(problem) == []
