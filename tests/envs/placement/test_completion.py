"""Where undecided groups stand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.errors import InputError
from envs.placement.completion import FastestDevice
from envs.placement.toy import toy_pipeline
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem


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
    with pytest.raises(InputError, match="group 0"):
        completed(replace(problem, op_seconds=seconds))
