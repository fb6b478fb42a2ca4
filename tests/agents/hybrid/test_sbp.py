"""Data and tensor parallelism: the best degree, by the formula and in the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from agents.hybrid.machines import PREDICTED
from agents.hybrid.sharding import SBP, one_stage_seconds
from agents.solver import Budget
from envs.hybrid.plan import HybridProblem, Sharding, Stage
from envs.hybrid.simulation import simulate
from tests.envs.hybrid.rows_of_layers import row, servers


def shared(gradients: float, sent: float, saved: float = 0.0) -> HybridProblem:
    """Two layers on 2 x 2 devices that 1, 2 or 4 shards divide evenly, sending `sent` each way."""
    problem = row(
        servers([2, 2], inside=100.0, between=10.0), [4.0, 4.0], [4.0, 4.0], [4.0, 4.0], [1.0],
        [gradients, gradients], [saved, saved], micro_batches=3,
    )  # fmt: skip
    degrees = (1, 2, 4)
    part = np.array([[1 / p] * 2 for p in degrees])
    bytes_ = np.array([[0.0, 0.0], [sent, sent], [1.5 * sent, 1.5 * sent]])
    messages = np.zeros((3, 2))
    columns = part, part, part, bytes_, bytes_, messages, messages
    return replace(problem, sharding=Sharding(degrees, *columns))


@pytest.mark.parametrize(
    ("gradients", "sent", "shards"),
    [(1.0, 1000.0, 1), (10_000.0, 1.0, 4), (300.0, 60.0, 2)],
)
def test_the_degree_follows_what_is_sent(gradients: float, sent: float, shards: int) -> None:
    problem = shared(gradients, sent)
    found = SBP().solve(problem, Budget(1.0))
    assert found.solution is not None
    assert [stage.shards for stage in found.solution.stages] == [shards]
    every = [one_stage_seconds(problem, Stage(0, 2, (0, 1, 2, 3), p)) for p in (1, 2, 4)]
    assert found.figures[PREDICTED] == min(every)
    assert simulate(problem, found.solution).step_time == pytest.approx(
        found.figures[PREDICTED], rel=0.2
    )


def test_memory_asks_for_shards() -> None:
    problem = shared(1.0, 1000.0, saved=40.0)  # a device holds a quarter of 80, and state
    for room, shards in ((22.0, 1), (21.5, 2), (20.7, 4)):
        found = SBP().solve(replace(problem, capacity=np.full(4, room)), Budget(1.0))
        assert found.solution is not None
        assert found.solution.stages[0].shards == shards
    none = SBP().solve(replace(problem, capacity=np.full(4, 20.0)), Budget(1.0))
    assert (none.solution, none.status) == (None, "infeasible")
