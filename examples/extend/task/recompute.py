"""A training task: the environment of `examples/extend/environment` for our learner.

python -m experiments.train task=examples.extend.task.recompute.task training.budget_s=20

In the project a registered environment needs none: task=environment task.id=<id>.
"""

from functools import partial

from agents.rllib.environments import EnvironmentTask
from examples.extend.environment.env import RecomputeEnv
from examples.extend.environment.generator import RandomLayers


def task(layers: int = 8, objective: str | None = "cost") -> EnvironmentTask:
    """Keep or recompute the activations of some layers.

    Args:
        layers: of every episode.
        objective: see `EnvironmentTask`; cost: minus the return.
    """
    make = partial(RecomputeEnv, RandomLayers(layers))
    return EnvironmentTask(make=make, objective=objective)
