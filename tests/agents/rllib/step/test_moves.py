"""Placements near placements."""

from __future__ import annotations

import numpy as np

from agents.rllib.step.moves import crossed, exchanged, kicked


def test_a_kick_moves_one_run_and_only_where_it_can_go() -> None:
    able = np.ones((12, 3), dtype=np.bool_)
    able[4:6, 2] = False
    rng = np.random.default_rng(0)
    for _ in range(300):
        before = rng.integers(0, 2, 12)
        after = kicked(before, able, 5, rng)
        moved = np.flatnonzero(after != before)
        assert able[np.arange(12), after].all()
        assert len(set(after[moved])) <= 1
        assert np.ptp(moved) < 5 if len(moved) else True
    np.testing.assert_array_equal(kicked(before, able, 0, rng), before)


def test_an_exchange_swaps_two_devices_in_one_run_and_only_where_they_can_go() -> None:
    able = np.ones((12, 3), dtype=np.bool_)
    able[4:6, 2] = False
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(300):
        before = np.where(able[:, 2], rng.integers(0, 3, 12), 0)
        after = exchanged(before, able, 3, rng)
        moved = np.flatnonzero(after != before)
        changed += len(moved) > 0
        assert able[np.arange(12), after].all()
        assert np.ptp(moved) < 6 if len(moved) else True
        pairs = {frozenset((int(before[g]), int(after[g]))) for g in moved}
        assert len(pairs) <= 1
    assert changed > 150
    np.testing.assert_array_equal(exchanged(before, able, 0, rng), before)
    alone = np.zeros(4, dtype=np.int64)
    np.testing.assert_array_equal(exchanged(alone, np.ones((4, 1), dtype=np.bool_), 2, rng), alone)


def test_a_crossing_takes_one_run_of_the_other_plan_and_only_where_it_can_go() -> None:
    able = np.ones((12, 3), dtype=np.bool_)
    able[4:6, 2] = False
    rng = np.random.default_rng(0)
    as_named = 0
    for _ in range(300):
        before, other = (np.where(able[:, 2], rng.integers(0, 3, 12), 0) for _ in range(2))
        after = crossed(before, other, able, rng)
        assert able[np.arange(12), after].all()
        moved = np.flatnonzero(after != before)
        if not len(moved):
            continue
        run = slice(moved[0], moved[-1] + 1)
        names = {(int(a), int(b)) for a, b in zip(other[run], after[run], strict=True)}
        names = {pair for pair in names if able[run].all()}
        assert len({a for a, _ in names}) == len(names) == len({b for _, b in names})
        as_named += (after[run] == other[run]).all()
    assert 100 < as_named < 290
