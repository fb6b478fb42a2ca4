"""Running scales against the statistics of everything at once."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agents.rllib.cluster.scales import RewardScale, ValueScale


def test_the_reward_scale_is_the_deviation_of_all_discounted_sums() -> None:
    rng = np.random.default_rng(0)
    rewards, discounts = rng.normal(5.0, 2.0, (40, 3)), rng.uniform(0.5, 1.0, (40, 3))
    ends = rng.random((40, 3)) < 0.1
    sums, running = [], np.zeros(3)
    for t in range(40):
        running = running + rewards[t]
        sums.append(running)
        running = np.where(ends[t], 0.0, running * discounts[t])
    scale = RewardScale(3)
    assert scale.deviation == 1.0
    for part in (slice(0, 7), slice(7, 40)):
        scale.add(rewards[part], discounts[part], ends[part])
    assert scale.deviation == pytest.approx(np.std(sums), rel=1e-12)


def test_the_value_scale_of_one_batch_is_that_of_the_batch() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(-300.0, 7.0, (16, 4))
    scale = ValueScale(10.0)
    assert (scale.mean, scale.deviation) == (0.0, 1.0)
    scale.add(targets)
    assert scale.mean == pytest.approx(targets.mean())
    assert scale.deviation == pytest.approx(targets.std())
    np.testing.assert_allclose(scale.values(scale.scored(targets)), targets)
    assert scale.scored(targets).std() == pytest.approx(1.0)


def test_the_value_scale_forgets() -> None:
    rng = np.random.default_rng(0)
    scale = ValueScale(5.0)
    scale.add(rng.normal(1000.0, 1.0, 100))
    for _ in range(100):
        scale.add(rng.normal(3.0, 2.0, 1000))
    assert scale.mean == pytest.approx(3.0, abs=0.2)
    assert scale.deviation == pytest.approx(2.0, rel=0.1)


def test_equal_targets_do_not_divide_by_nothing() -> None:
    scale = ValueScale(5.0)
    scale.add(np.full(9, -4.0))
    np.testing.assert_array_equal(scale.scored(np.full(2, -4.0)), [0.0, 0.0])


@pytest.mark.parametrize("kind", [lambda: RewardScale(2), lambda: ValueScale(4.0)])
def test_scales_go_through_json(kind: object) -> None:
    rng = np.random.default_rng(0)
    first, second = kind(), kind()  # type: ignore[operator]
    arguments = [rng.normal(size=(5, 2))]
    if isinstance(first, RewardScale):
        arguments += [np.full((5, 2), 0.9), np.zeros((5, 2), np.bool_)]
    first.add(*arguments)
    second.restore(json.loads(json.dumps(first.document())))
    first.add(*arguments)
    second.add(*arguments)
    assert first.document() == second.document()
