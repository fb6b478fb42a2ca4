"""No way through the toy collects more than its docstring says."""

from itertools import product

import numpy as np
import pytest

from envs.errors import InputError
from examples.extend.environment.env import toy_environment


def test_the_best_keeps_the_first_and_the_last_layer() -> None:
    found = {}
    for actions in product((0, 1), repeat=3):
        env = toy_environment()
        env.reset(seed=0)
        try:
            found[actions] = sum(env.step(np.int64(action))[1] for action in actions)
        except InputError:
            continue  # the mask forbids it
    assert max(found, key=found.__getitem__) == (1, 0, 1)
    assert found[1, 0, 1] == pytest.approx(-2 / 9)
