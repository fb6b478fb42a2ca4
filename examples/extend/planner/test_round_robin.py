"""A step that can be worked out by hand."""

from examples.extend.planner.round_robin import RoundRobin
from tests.agents.placement.random_problems import cluster, pipeline
from tests.asking import planned


def test_layers_take_turns_where_one_device_is_too_small() -> None:
    problem = pipeline([1.0] * 4, 1, cluster([0, 0], 15.0))
    plan = planned(RoundRobin(groups=4), problem, 10.0).solution
    assert plan is not None
    device = plan.placement.device
    layers = [set(device[problem.graph.colocation == layer].tolist()) for layer in range(4)]
    assert layers[0] == layers[2] != layers[1] == layers[3]
