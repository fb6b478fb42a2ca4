"""m-SCT: devices kept for favourite children, and what a limit does."""

from __future__ import annotations

import numpy as np

from agents.placement.list_planners import MEtf, MSct, schedule_by
from agents.placement.list_scheduling.rank import favourite_children, upward_rank
from agents.placement.list_scheduling.schedule import earliest_start
from agents.step.grouping import GroupedProblem
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from tests.agents.placement.test_heft import dag
from tests.asking import planned
from tests.refusal import refusal

NO_LIMIT = 60.0


def fork() -> StepProblem:
    """n1 feeds n2, its favourite, and n3, which is worth more but dear to nobody."""
    seconds = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    return dag(seconds, {(1, 2): 1.0, (1, 3): 0.5, (3, 4): 0.1}, [0.0] * 4)


def test_a_device_is_kept_for_the_favourite_child() -> None:
    problem = fork()
    grouped = GroupedProblem.of(problem, 4)
    rank = upward_rank(grouped.problem)
    start = {}
    for name, child in (("etf", NONE), ("sct", 1)):
        favourite = np.array([child, NONE, NONE, NONE])
        schedule = schedule_by(lambda f=favourite: earliest_start(rank, f, 3), grouped,
                               problem.capacity)  # fmt: skip
        assert schedule is not None
        start[name] = schedule.start.tolist()
        device = grouped.fusion.expand(schedule.group_device)
        assert (device[0] == device[1]) == (name == "sct")
    # ETF takes n3 first, its rank is larger: n2 moves away and waits for its transfer
    assert start["etf"][:3] == [0.0, 2.0, 1.0]
    # SCT keeps d0 for n2; n3 would be urgent there at 1.5, and is elsewhere at the same time
    assert start["sct"][:3] == [0.0, 1.0, 1.5]


def test_without_transfers_nothing_is_a_favourite_and_the_plan_is_that_of_etf() -> None:
    problem = dag([[1.0, 2.0]] * 4, {(1, 2): 0.0, (1, 3): 0.0, (3, 4): 0.0}, [0.0] * 4)
    favourite = favourite_children(problem, NO_LIMIT)
    assert favourite is not None
    assert (favourite == NONE).all()
    sct = planned(MSct(groups=(4,), lp_seconds=NO_LIMIT), problem, 9.0)
    etf = planned(MEtf(groups=(4,)), problem, 9.0)
    assert sct.solution is not None
    assert etf.solution is not None
    assert sct.solution.placement.device.tolist() == etf.solution.placement.device.tolist()


def test_a_program_stopped_by_its_limit_is_reported_and_the_plan_is_that_of_etf() -> None:
    random = np.random.default_rng(0)
    pairs = [(u, v) for u in range(1, 25) for v in range(u + 1, 25) if random.random() < 0.3]
    moves = {pair: float(random.uniform(0.1, 1.0)) for pair in pairs}
    problem = dag([[float(p)] * 3 for p in random.uniform(1.0, 2.0, 24)], moves, [0.0] * 24)
    search = MSct(groups=(24,), lp_seconds=NO_LIMIT)
    stopped, etf = planned(search, problem, 9.0, 1), planned(MEtf(groups=(24,)), problem, 9.0)
    assert "no piece has a favourite child" in stopped.reason
    assert stopped.value == etf.value
    solved = planned(search, problem, 9.0)
    assert solved.reason == ""
    assert solved.value != etf.value


def test_a_time_limit_that_is_not_positive_is_refused() -> None:
    with refusal("lp_seconds"):
        MSct(groups=(4,), lp_seconds=0.0)
