from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.simulation.cluster_metrics import StepFunction

changes = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 3)), max_size=25)


@given(changes, st.integers(-5, 50), st.integers(1, 20))
def test_values_and_areas_are_those_of_a_loop_over_seconds(
    steps: list[tuple[int, int]], start: int, length: int
) -> None:
    time = np.array([at for at, _ in steps], np.float64)
    change = np.array([value for _, value in steps], np.float64)
    function = StepFunction.of_changes(time, change)
    seconds = np.arange(-5, 80)
    wanted = np.array([change[time <= second].sum() for second in seconds])
    np.testing.assert_array_equal(function.at(seconds.astype(np.float64)), wanted)
    area = wanted[start + 5 : start + length + 5].sum()
    found = function.mean(np.array([float(start)]), np.array([float(start + length)]))
    assert found[0] * length == pytest.approx(area)
    assert (np.diff(function.time) > 0).all()
    assert (np.diff(function.value) != 0).all()


def test_half_seconds_count() -> None:
    function = StepFunction.of_changes(np.array([0.5, 2.0]), np.array([4.0, -4.0]))
    np.testing.assert_array_equal(function.integral(np.array([0.0, 1.0, 2.0, 9.0])), [0, 2, 6, 6])
