"""A captured graph in stages, replicas and shards: what is conserved, what cannot be asked."""

from __future__ import annotations

import pytest

from envs.cost import RooflineCost
from envs.errors import InputError
from envs.hardware.devices import device_spec
from envs.hybrid.links import Servers
from envs.hybrid.simulation import pipeline_of
from envs.network.allreduce import LINKS
from envs.step.pipeline import play
from experiments.step.simulating_captured import captured_run, captured_step
from tests.experiments.layered_step import layered_step

SERVERS = Servers(device_spec("A100-40GB"), 4, LINKS["NVLink 3"], 1, 12.5e9)


def seconds(degrees: tuple[int, int, int], **more: bool) -> float:
    """Of a step of eight layers and four micro-batches."""
    options = {"recompute": False, "overlap": False, **more}
    graph = layered_step(8, 4)
    found = captured_run(graph, SERVERS, RooflineCost(), degrees, "1f1b", **options)
    assert not found[1].violations(found[0])
    step = captured_step(*found)["step_time_s"]
    assert isinstance(step, float)
    return step


def test_one_device_does_one_thing_after_the_other() -> None:
    problem, plan = captured_run(
        layered_step(8, 4), SERVERS, RooflineCost(), (1, 1, 1), "1f1b",
        recompute=False, overlap=False,
    )  # fmt: skip
    assert seconds((1, 1, 1)) == pytest.approx(problem.work().sum())
    assert [stage.end for stage in plan.stages] == [problem.num_layers]


def test_replicas_have_all_micro_batches_and_sum_at_the_end() -> None:
    alone = seconds((1, 1, 1))
    assert seconds((1, 1, 2)) > alone
    assert seconds((1, 1, 4)) > seconds((1, 1, 2))
    assert seconds((1, 1, 4), overlap=True) <= seconds((1, 1, 4))


def test_stages_share_the_work_in_a_pipeline() -> None:
    problem, plan = captured_run(
        layered_step(8, 4), SERVERS, RooflineCost(), (1, 4, 1), "1f1b",
        recompute=False, overlap=False,
    )  # fmt: skip
    ends = [stage.end for stage in plan.stages]
    assert len(ends) == 4
    assert ends == sorted(set(ends))
    least = play(pipeline_of(problem, plan), plan.orders).makespan
    assert seconds((1, 4, 1)) >= 0.999 * least
    assert seconds((1, 4, 1), recompute=True) > seconds((1, 4, 1))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="64 stages of"):
        seconds((1, 64, 1))
