"""The search for degrees of parallelism beside all runs, each simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from agents.hybrid.degrees import DegreeSearch, TrainingProblem, estimate
from agents.solver import Budget
from envs.graphs.transformer import TransformerSize
from envs.hardware.devices import device_spec
from envs.hybrid.links import Servers
from envs.hybrid.training_run import TrainingRun
from envs.hybrid.transformer_row import Constants, TransformerRow
from envs.network.allreduce import LINKS
from tests.envs.hybrid.kernel_costs import Peaks
from tests.envs.hybrid.training_runs import drawn
from tests.strength import SEEDS, examples

GPT = TransformerSize("gpt", 512, 4, 8, 2048, 256)
LLAMA = TransformerSize("llama", 256, 8, 4, 1024, 512)
DEVICE = device_spec("A100-80GB")


def tiny(
    model: TransformerSize, devices: int, free: float, per_server: int = 8, batch: int = 8,
    choices: tuple[str, ...] = ("tensor", "pipeline", "micro_batch", "recompute"), **run: Any,
) -> TrainingProblem:  # fmt: skip
    """`free`: bytes that the framework leaves."""
    servers = Servers(DEVICE, per_server, LINKS["NVLink 3"], 2, 5e9)
    own = TrainingRun(model, global_batch=batch, **run)
    constants = Constants(framework_bytes=DEVICE.memory_bytes - free)
    row = TransformerRow(own, servers, Peaks(), constants=constants)
    return TrainingProblem(row, devices, choices)


PROBLEMS = {
    "room": tiny(GPT, 8, 8e9),
    "little room": tiny(GPT, 8, 120e6),
    "two servers": tiny(LLAMA, 8, 1e9, per_server=2),
    "divided states": tiny(LLAMA, 4, 90e6, choices=("pipeline", "zero", "micro_batch")),
    "chunks": tiny(LLAMA, 4, 1e9, schedule="interleaved", chunks=2),
    "gpipe": tiny(GPT, 4, 200e6, batch=32, schedule="gpipe"),
    "scores": tiny(GPT, 4, 200e6, fused_attention=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_best_of_all_runs_is_found(problem: TrainingProblem) -> None:
    runs = [run for run in problem.runs() if not problem.violations(run)]
    assert len(set(runs)) == len(runs) > 3
    least = min(problem.price(run)["step_time_s"] for run in runs)
    result = DegreeSearch().solve(problem, Budget(60.0))
    assert result.value == pytest.approx(least)
    assert 0.0 < result.bound <= least
    ranking = DegreeSearch().ranking(problem)
    assert [seconds for seconds, _, _ in ranking] == sorted(x for x, _, _ in ranking)
    for seconds, peak, run in ranking:
        price = problem.price(run)
        assert (price["step_time_s"], price["peak_memory_bytes"]) == (seconds, peak)
        assert peak <= DEVICE.memory_bytes
        assert run.devices == problem.devices


@examples(60)
@given(st.floats(0.0, 1.0), st.sampled_from(["1f1b", "gpipe", "interleaved"]), st.booleans())
def test_as_few_blocks_as_fit_are_computed_again(share: float, schedule: str, fused: bool) -> None:
    run: dict[str, Any] = {
        "choices": ("recompute",), "pipeline": 2, "data": 2, "batch": 16,
        "schedule": schedule, "chunks": 2 if schedule == "interleaved" else 1,
        "fused_attention": fused,
    }  # fmt: skip
    wide = tiny(LLAMA, 4, 8e9, **run)
    prices = [tuple(wide.price(each).values()) for each in wide.runs()]
    assert len(prices) == (3 if schedule == "interleaved" else 5) + (not fused)
    needs = [peak - wide.row.constants.framework_bytes for _, peak in prices]
    free = min(needs) + share * (max(needs) - min(needs)) + 1
    least = min(price[0] for price, need in zip(prices, needs, strict=True) if need <= free)
    (seconds, _, best), *_ = DegreeSearch(100).ranking(tiny(LLAMA, 4, free, **run))
    assert seconds == least
    event(f"{best.recompute}: {best.recompute_layers}")


def test_runs_whose_order_keeps_too_much_are_passed_over() -> None:
    problem = tiny(GPT, 4, 200e6, batch=32, schedule="gpipe")
    assert any(
        problem.violations(run) and estimate(replace(problem.row, run=run))[1]
        for run in problem.runs()
    )
    assert len(DegreeSearch(1).ranking(problem)) == 1


def test_no_room_at_all() -> None:
    result = DegreeSearch().solve(tiny(GPT, 4, 1e6), Budget(60.0))
    assert (result.status, result.solution) == ("infeasible", None)


def test_what_is_wrong_with_a_run() -> None:
    problem = PROBLEMS["room"]
    run = replace(problem.row.run, pipeline=2)
    assert problem.violations(run) == ["it uses 2 devices, not 8"]
    assert "divide 4 blocks" in problem.violations(replace(run, pipeline=8))[0]


@examples(100)
@given(SEEDS)
def test_bounds_and_estimates_of_memory_hold(seed: int) -> None:
    run = drawn(seed)
    if run.model.hidden > 256:
        return
    servers = Servers(DEVICE, 4, LINKS["NVLink 3"], 2, 5e9)
    row = TransformerRow(replace(run, zero=min(run.zero, 1)), servers, Peaks())
    problem = TrainingProblem(row, run.devices)
    if "divide" in "".join(problem.violations(row.run)):
        return
    price = problem.price(row.run)
    assert problem.bound() <= price["step_time_s"]
    room = replace(DEVICE, memory_bytes=price["peak_memory_bytes"] * (1 + 1e-9))
    assert estimate(replace(row, servers=replace(servers, device=room)))[1]
