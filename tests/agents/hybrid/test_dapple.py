"""DAPPLE: the program's formula and plans, the pivot latency, early backward."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from agents.hybrid.dapple import Dapple, pivot_latency
from agents.hybrid.machines import Rates, all_groups
from agents.hybrid.pipedream import Level, optimize
from agents.pipeline.published import early_backward, gpipe, one_f_one_b
from envs.step.pipeline import Work, play
from tests.agents.hybrid.dapple_program import PROGRAM, GroupStage, latency, search
from tests.agents.hybrid.planning import divisions, needs_oracles, oracle, profile, stages_by
from tests.agents.hybrid.test_pipedream import random_cuts
from tests.envs.hybrid.rows_of_layers import random_row, servers
from tests.envs.step.pipelines import pipeline

PLANS: list[dict[str, Any]] = oracle("dapple_planner").get("plans", [])


@cache
def searched(name: str, profiled: int, batch: int, machines: tuple[int, ...]) -> float:
    """Our best in the program's space."""
    cuts = profile(name, batch / profiled)
    return search(cuts, machines, PROGRAM, batch=batch, budget_s=20)


def sizes_of(seps: list[int]) -> list[int]:
    return [b - a for a, b in pairwise([0, *seps])]


@needs_oracles
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_formula_and_search_of_the_program(number: int) -> None:
    plan = PLANS[number]
    cuts = profile(plan["profile"], plan["gbs"] / plan["pbs"])
    machine = np.repeat(np.arange(len(plan["seps"])), sizes_of(plan["seps"]))
    last = len(cuts.seconds) - 1
    stages = [
        GroupStage(
            first, last if end == last - 1 and number == len(plan["stages"]) - 1 else end,
            tuple(np.bincount(machine[gpus], minlength=len(plan["seps"])).tolist()),
        )
        for number, (first, end, _, gpus) in enumerate(plan["stages"])
    ]  # fmt: skip
    seconds = latency(cuts, stages, PROGRAM, batch=plan["gbs"], replicas=plan["rp"])
    assert cuts.seconds[-1] / seconds == pytest.approx(plan["speedup"], rel=1e-9)
    machines = tuple(sizes_of(plan["seps"]))
    found = searched(plan["profile"], plan["pbs"], plan["gbs"], machines)
    assert found <= seconds * (1 + 1e-12)


@needs_oracles
@pytest.mark.parametrize(
    ("name", "profiled", "ratio"),
    [
        ("image_classification-vgg16", 64, 1.937),
        ("image_classification-alexnet", 256, 1.641),
        ("translation-gnmt", 64, 1.718),
        ("image_classification-resnet50", 64, 3.771),
    ],
)
def test_gain_over_pipedreams_plan_under_the_same_formula(
    name: str, profiled: int, ratio: float
) -> None:
    levels = [Level(8, 25e9), Level(2, 1e9)]
    theirs = optimize(profile(f"{name}.txt"), levels, straight=False, fewer=False).stages
    cuts = profile(f"{name}.txt", 2048 / profiled)
    stages = [
        GroupStage(s.first, s.end, (sum(d < 8 for d in s.devices), sum(d >= 8 for d in s.devices)))
        for s in theirs
    ]
    seconds = latency(cuts, stages, PROGRAM, batch=2048, replicas=1, passes=1.0)
    ours = searched(f"{name}.txt", profiled, 2048, (8, 8))
    assert seconds / ours == pytest.approx(ratio, abs=0.001)


@pytest.mark.parametrize("seed", range(12))
def test_search_finds_the_best_plan_of_single_devices(seed: int) -> None:
    """On machines of one device the policies reach all groups: all plans are tried."""
    rng = np.random.default_rng(seed)
    count, machines, batch = int(rng.integers(1, 5)), int(rng.integers(1, 5)), 4
    cuts = random_cuts(rng, count)
    rates = Rates(inside=9.0, between=2.0, collective=3.0, pairs=True)
    best = np.inf
    for replicas in {machines // units for units in range(1, machines + 1)}:
        units = machines // replicas
        for stages, used in product(range(1, min(count, units) + 1), range(1, units + 1)):
            for spans, parts in product(divisions(count, stages), divisions(used, stages)):
                placed = [
                    GroupStage(*span, tuple(int(a <= k // replicas < b) for k in range(machines)))
                    for span, (a, b) in zip(spans, parts, strict=True)
                ]
                best = min(best, latency(cuts, placed, rates, batch=batch, replicas=replicas))
    found = search(cuts, [1] * machines, rates, batch=batch, budget_s=20)
    assert found == pytest.approx(best, rel=1e-9)


def test_policies_take_fresh_machines_machines_in_use_and_all_in_turn() -> None:
    groups = all_groups([4, 4], 1)
    assert groups is not None
    first = {groups.steps[step].group for step in groups.first}
    assert {(0, 3), (1, 2)} <= {tuple(sorted(group)) for group in first if sum(group) == 3}
    one = next(step for step in groups.first if groups.steps[step].group == (1, 0))
    after = {groups.steps[then].group for step, then in groups.arcs if step == one}
    assert {group for group in after if sum(group) == 3} == {(0, 3), (3, 0), (2, 1)}


def test_pivot_latency_is_exact_where_one_stage_is_slow() -> None:
    """The pivot never waits: warm-up, its work, what is left behind it."""
    forward, backward = (1.0, 5.0, 1.0), (2.0, 7.0, 1.0)
    played = play(pipeline(range(3), 6, (forward, backward, 0.0)), one_f_one_b(3, 6, 1))
    assert pivot_latency(forward, backward, (0.0,) * 3, 6) == played.makespan == 1 + 6 * 12 + 2
    assert pivot_latency((2.0,), (4.0,), (3.0,), 5) == 5 * 6 + 3
    # The gradients of the last stage are summed while the pivot still works.
    assert pivot_latency(forward, backward, (0.0, 0.0, 9.0), 6) == 1 + 5 + 5 * 12 + 9
    assert pivot_latency(forward, backward, (4.0, 0.0, 0.0), 6) == 1 + 5 + 5 * 12 + 9 + 4


def test_early_backward_hides_messages_and_keeps_less_than_gpipe() -> None:
    pipe = pipeline(range(3), 6, (1.0, 1.0, 1.0), communication=2.0)
    early, one, first = (play(pipe, rule(3, 6, 1)) for rule in (early_backward, one_f_one_b, gpipe))
    assert early.makespan < one.makespan
    live = [played.peak_live(Work.WEIGHT) for played in (one, early, first)]
    assert live == [[3, 2, 1], [5, 3, 1], [6, 6, 6]]


def test_many_machines_are_planned_in_bunches_and_alike_every_time() -> None:
    problem = random_row(np.random.default_rng(1), servers([8] * 4, 10.0, 1.0), 6, 4)
    stages = stages_by(Dapple(), problem)
    assert stages
    assert stages_by(Dapple(), problem) == stages
