"""A step of a hybrid plan: by hand, against pipelines without replicas, and what is conserved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from numpy.random import default_rng

from agents.pipeline.published import gpipe, one_f_one_b
from agents.synchronisation.classical import DoubleTree, Ring
from envs.graphs.op_graph import Kind
from envs.hybrid.plan import HybridPlan, Stage, ordered, peak_memory
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import pipeline_of, simulate, streams
from envs.hybrid.timing import all_reduce_seconds
from envs.step.pipeline import Action, Work, play
from envs.synchronisation.planned import PlannedSums
from tests.envs.hybrid.rows_of_layers import random_row, random_stages, row, servers
from tests.strength import SEEDS


def test_replicas_with_uneven_shares_pass_on_what_overlaps() -> None:
    """Stage 0 on two devices, 3/4 and 1/4; stage 1 on two, 1/2 each; 8 bytes, 1 byte/s."""
    problem = row(servers([1, 1, 1, 1], 1, 1), [8, 4], [0, 0], [0, 0], cuts=[8])
    stages = (Stage(0, 1, (0, 1), shares=(0.75, 0.25)), Stage(1, 2, (2, 3)))
    step = simulate(problem, ordered(stages, 1, gpipe))
    line = step.timeline
    ways = zip(line.transfer_source.tolist(), line.transfer_destination.tolist(), strict=True)
    times = zip(line.transfer_start.tolist(), line.transfer_finish.tolist(), strict=True)
    sent = dict(zip(ways, times, strict=True))
    # forward ends at 6 and 2; device 0 sends 4 bytes to 2 and 2 to 3, device 1 sends 2 to 3
    assert sent[1, 3] == (2, 4)
    assert sent[0, 2] == (6, 10)
    assert sent[0, 3] == (10, 12)
    # both of stage 1 take 2 s once all parts are there, and send gradients back at once: device 2
    # 4 bytes at 12, device 3 2 bytes to each at 14, one of them when device 0 has received
    assert sent[2, 0] == (12, 16)
    assert sorted([sent[3, 0], sent[3, 1]]) in ([(14, 16), (16, 18)], [(16, 18), (18, 20)])
    assert step.step_time == line.transfer_finish.max()


def test_gradients_are_summed_beside_the_last_backward_pass() -> None:
    """Two replicas, three layers of 6 s backward in all; buckets of a layer each, 1 byte/s."""
    problem = row(
        servers([1, 1], 1, 1), [2, 2, 2], [2, 2, 2], [2, 2, 2], gradients=[3, 1, 5], micro_batches=2
    )
    problem = replace(problem, bucket_bytes=1.0)
    step = simulate(problem, ordered([Stage(0, 3, (0, 1))], 2, one_f_one_b))
    # a replica does half of each micro-batch: 3 s forward, 6 s backward, twice; the last backward
    # begins at 12, its gradients are there at 14, 16, 18; a ring of two sends what there is once:
    # 14 to 19, 19 to 20, 20 to 23
    assert step.step_time == 23
    sums = step.macro.graph.kind == Kind.COLLECTIVE
    assert step.timeline.op_start[sums].tolist() == [14, 19, 20]
    alone = simulate(problem, ordered([Stage(0, 3, (0,))], 2, one_f_one_b))
    assert alone.step_time == 36


def test_gradients_are_summed_when_the_slowest_replica_has_them() -> None:
    """One does 3/4 of 8 s; then a ring of two sends 5 bytes, 1 byte/s."""
    problem = row(servers([1, 1], 1, 1), [4], [4], [0], gradients=[5])
    stage = Stage(0, 1, (0, 1), shares=(0.75, 0.25))
    assert simulate(problem, ordered([stage], 1, gpipe)).step_time == 6 + 5


def test_stages_that_share_servers_sum_one_after_the_other() -> None:
    problem = row(servers([2, 2], 9, 1), [1, 1], [1, 1], [1, 1], gradients=[10, 10])
    apart = (Stage(0, 1, (0, 1)), Stage(1, 2, (2, 3)))
    across = (Stage(0, 1, (0, 2)), Stage(1, 2, (1, 3)))
    assert streams(problem, apart) == [0, 1]
    assert streams(problem, across) == [0, 0]


def test_replicas_sum_by_the_plans_of_any_planner() -> None:
    """A ring through four servers, planned and played, and as the formula has it; a tree beside it.

    Two shards on a server share its port: two rings beside each other take twice as long.
    """
    one = row(servers([1] * 4, 1, 1), [4], [4], [0], gradients=[6e7])
    plan = ordered([Stage(0, 1, (0, 1, 2, 3))], 1, gpipe)
    expected = simulate(one, plan).step_time
    planned = simulate(replace(one, sums=PlannedSums(Ring())), plan).step_time
    assert planned == pytest.approx(expected, rel=1e-3)
    tree = simulate(replace(one, sums=PlannedSums(DoubleTree())), plan).step_time
    assert expected <= tree < 2 * expected
    shared = row(servers([2, 2], 1e6, 1), [4], [4], [0], gradients=[6e7])
    for stage in (Stage(0, 1, (0, 2)), Stage(0, 1, (0, 1, 2, 3), shards=2)):
        pair = all_reduce_seconds(shared, stage, 6e7)
        found = all_reduce_seconds(replace(shared, sums=PlannedSums(Ring())), stage, 6e7)
        assert found == pytest.approx(pair, rel=1e-3)


def without_replicas(
    rng: np.random.Generator, bandwidth: float, micro_batches: int
) -> tuple[HybridProblem, list[Stage]]:
    """Five layers on four servers of one device each."""
    problem = random_row(rng, servers([1] * 4, bandwidth, bandwidth), 5, micro_batches)
    return problem, [replace(s, devices=s.devices[:1]) for s in random_stages(rng, 5, 4)]


@given(SEEDS)
def test_without_replicas_and_messages_it_is_the_pipeline(seed: int) -> None:
    rng = default_rng(seed)
    problem, stages = without_replicas(rng, np.inf, int(rng.integers(1, 7)))
    for order in (gpipe, one_f_one_b):
        plan = ordered(stages, problem.micro_batches, order)
        assert plan.violations(problem) == []
        pipeline = pipeline_of(problem, plan)
        assert simulate(problem, plan).step_time == play(pipeline, plan.orders).makespan


@given(SEEDS)
def test_one_micro_batch_waits_for_every_message(seed: int) -> None:
    problem, stages = without_replicas(default_rng(seed), 1, 1)
    plan = ordered(stages, 1, gpipe)
    work = float(problem.work()[:, 0].sum())
    cuts = 2 * sum(problem.cut_bytes[stage.end] for stage in stages)
    assert simulate(problem, plan).step_time == pytest.approx(work + cuts)


@given(SEEDS)
def test_bytes_and_work_are_conserved(seed: int) -> None:
    rng = default_rng(seed)
    problem = random_row(rng, servers([3, 2], 2, 1), 4, int(rng.integers(1, 5)))
    stages = random_stages(rng, 4, 5)
    for number, stage in enumerate(stages):
        cut = rng.dirichlet(np.ones(len(stage.devices)))
        stages[number] = replace(stage, shares=tuple(cut.tolist()))
    plan = ordered(stages, problem.micro_batches, one_f_one_b)
    assert plan.violations(problem) == []
    step = simulate(problem, plan)
    cuts = sum(problem.cut_bytes[stage.end] for stage in stages)
    assert step.macro.graph.tensor_bytes.sum() == pytest.approx(2 * problem.micro_batches * cuts)
    busy = step.timeline.busy_seconds(step.macro.topology.num_devices)[:5]
    assert busy.sum() == pytest.approx(problem.work()[:, 0].sum())
    assert step.step_time >= problem.bound() * (1 - 1e-9)


def test_memory_is_what_the_order_keeps() -> None:
    problem = row(
        servers([1, 1], 1, 1), [1, 1], [1, 1], [1, 1], cuts=[2], gradients=[100, 200],
        saved=[10, 7], micro_batches=4,
    )  # fmt: skip
    stages = (Stage(0, 1, (0,)), Stage(1, 2, (1,)))
    assert peak_memory(problem, ordered(stages, 4, gpipe)).tolist() == [140, 228]
    assert peak_memory(problem, ordered(stages, 4, one_f_one_b)).tolist() == [120, 207]
    again = (stages[0], replace(stages[1], recompute=True))
    # four inputs of 2 bytes, and 7 bytes once
    assert peak_memory(problem, ordered(again, 4, gpipe)).tolist() == [140, 215]
    small = replace(problem, capacity=np.array([119.0, 1000.0]))
    assert ordered(stages, 4, one_f_one_b).violations(small) == [
        "device 'd0' needs 120 bytes, 1 too many"
    ]


@pytest.mark.parametrize(
    ("stages", "fault"),
    [
        ([Stage(0, 1, (0,))], "stage 0: ends at layer 1 of 2"),
        ([Stage(0, 1, (0,)), Stage(1, 2, (0, 1))], "device 'd0' is in two groups"),
        ([Stage(0, 2, (0, 1), shares=(0.5, 0.4))], "shares are not 2 positive numbers"),
        ([Stage(0, 2, (0, 1), shards=2)], "2 shards are none of 1"),
        ([Stage(0, 2, (0, 0))], "each device once"),
        ([Stage(0, 2, (0, 7))], "a device that is none"),
        ([Stage(1, 2, (0,))], "has layers 1 to 2, after 0"),
        ([Stage(0, 2, (0,))], "waits for ever"),
    ],
)
def test_wrong_plans_are_told(stages: list[Stage], fault: str) -> None:
    problem = row(servers([1, 1], 1, 1), [1, 1], [1, 1], [1, 1])
    orders = [[Action(Work.BACKWARD, 0, 0), Action(Work.FORWARD, 0, 0)]]
    found = HybridPlan(tuple(stages), 1, orders).violations(problem)
    assert any(fault in sentence for sentence in found)
