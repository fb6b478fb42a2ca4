"""Where groups may go, and what devices hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.joint.generator import toy_stages
from envs.placement.generator import toy_pipeline
from envs.placement.types import FastestDevice, GroupPlacement
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem
from tests.refusal import refusal

START = [0, 0, 1, 1, 2]  # devices hold two layers each


def groups_of(problem: StepProblem) -> GroupPlacement:
    fusion = fuse(problem, 5)
    made = GroupPlacement(fused_problem(problem, fusion), fusion)
    made.start(START)
    return made


def decide(groups: GroupPlacement, *devices: int) -> None:
    """Each group in its turn."""
    for device in devices:
        groups.place(device)
        groups.look((groups.current + 1) % 5)


def test_a_full_device_is_masked_until_it_has_room() -> None:
    groups = groups_of(toy_stages())
    assert groups.mask.all()
    decide(groups, 2, 2)
    assert groups.mask.tolist() == [True, True, False]
    assert groups.used.tolist() == [0.0, 0.0, 8.0]
    decide(groups, 0, 0, 1)
    assert groups.current == 0
    assert groups.mask.tolist() == [False, True, True]  # device 2 is full of group 0 itself
    decide(groups, 1)
    assert groups.used.tolist() == [8.0, 8.0, 4.0]
    assert groups.mask.tolist() == [False, False, True]


def test_where_nothing_fits_the_device_with_most_free_memory_is_allowed() -> None:
    tight = replace(toy_stages(), capacity=np.array([4.0, 6.0, 5.0]))
    groups = groups_of(tight)
    decide(groups, 0, 1, 2)
    assert not groups.fits.any()
    assert groups.mask.tolist() == [False, True, False]


def test_a_group_stays_where_no_other_device_can_run_it() -> None:
    problem = toy_stages()
    seconds = problem.op_seconds.copy()
    seconds[problem.graph.colocation == 0, 1:] = np.inf
    groups = groups_of(replace(problem, op_seconds=seconds))
    assert groups.mask.tolist() == [True, False, False]
    devices, variants = groups.variants()
    assert devices.tolist() == [0]
    np.testing.assert_array_equal(variants[0], groups.pieces)
    groups.place(1)
    assert groups.device.tolist() == START
    assert not groups.placed.any()
    with refusal("cannot run"):
        groups.start([1, 0, 1, 1, 2])


def test_variants_move_the_current_group_alone() -> None:
    groups = groups_of(toy_stages())
    decide(groups, 0)
    devices, variants = groups.variants()
    assert devices.tolist() == [0, 1, 2]
    for device, pieces in zip(devices, variants, strict=True):
        moved = np.flatnonzero(pieces != groups.pieces)
        assert (groups.fusion.piece_group[moved] == 1).all()
        assert (pieces[groups.fusion.piece_group == 1] == device).all()


def test_compute_seconds_are_those_of_the_layers() -> None:
    layer = 2 * (1.0 + 2.0) + 0.5
    assert groups_of(toy_stages()).compute_seconds().tolist() == [2 * layer, 2 * layer, layer]


def completed(problem: StepProblem) -> list[int]:
    fusion = fuse(problem, 6)
    return [int(device) for device in FastestDevice()(fused_problem(problem, fusion), fusion)]


def test_everything_stands_on_the_fastest_device_that_holds_it() -> None:
    problem = toy_pipeline()
    assert completed(replace(problem, capacity=np.array([23.0, 24.0, 99.0]))) == [1] * 6
    assert completed(replace(problem, capacity=np.array([23.0, 23.0, 99.0]))) == [2] * 6


def test_without_such_a_device_the_fastest_are_filled_front_to_back() -> None:
    assert completed(toy_pipeline()) == [0, 0, 0, 0, 1, 1]


def test_what_fits_nowhere_stands_where_most_room_is_left() -> None:
    assert completed(replace(toy_pipeline(), capacity=np.array([4.0, 6.0, 3.0])))[:4] == [
        0,
        1,
        2,
        1,
    ]


def test_a_group_that_no_device_can_run_is_an_input_error() -> None:
    problem = toy_pipeline()
    seconds = problem.op_seconds.copy()
    seconds[0] = np.inf
    with refusal("group 0"):
        completed(replace(problem, op_seconds=seconds))
