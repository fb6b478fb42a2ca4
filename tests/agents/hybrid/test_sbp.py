"""Data and tensor parallelism: the best degree, by the formula and in the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from agents.hybrid.machines import PREDICTED
from agents.hybrid.sharding import SBP, one_stage_seconds
from agents.solver import Budget
from envs.hybrid.plan import Stage
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import simulate
from tests.agents.hybrid.planning import stages_by
from tests.envs.hybrid.rows_of_layers import row, servers, shared


def two_layers(gradients: float, sent: float, saved: float = 0.0) -> HybridProblem:
    """On 2 x 2 devices, which 1, 2 or 4 shards divide evenly."""
    problem = row(
        servers([2, 2], 100.0, 10.0), [4, 4], [4, 4], [4, 4], [1], [gradients] * 2, [saved] * 2, 3
    )
    return shared(problem, {2: sent, 4: 1.5 * sent})


@pytest.mark.parametrize(
    ("gradients", "sent", "shards"),
    [(1.0, 1000.0, 1), (10_000.0, 1.0, 4), (300.0, 60.0, 2)],
)
def test_the_degree_follows_what_is_sent(gradients: float, sent: float, shards: int) -> None:
    problem = two_layers(gradients, sent)
    found = SBP().solve(problem, Budget(1.0))
    assert found.solution is not None
    assert [stage.shards for stage in found.solution.stages] == [shards]
    every = [one_stage_seconds(problem, Stage(0, 2, (0, 1, 2, 3), p)) for p in (1, 2, 4)]
    assert found.figures[PREDICTED] == min(every)
    seconds = simulate(problem, found.solution).step_time
    assert seconds == pytest.approx(found.figures[PREDICTED], rel=0.2)


def test_memory_asks_for_shards() -> None:
    problem = two_layers(1.0, 1000.0, saved=40.0)  # a device holds a quarter of 80, and state
    for room, shards in ((22.0, [1]), (21.5, [2]), (20.7, [4]), (20.0, [])):
        tight = replace(problem, capacity=np.full(4, room))
        assert [stage.shards for stage in stages_by(SBP(), tight)] == shards
