"""The main job: what the shipped policy gives at once, and what is added to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from layered_step import layered_step

from agents.placement.baselines import ContiguousSplit, EqualShares, SingleDevice
from envs.graphs.storage import save_graph
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT
from experiments.learning.main_job import FINE_TUNED, LEARNED, SEARCHED, gains_of
from experiments.learning.replay import PLANS, tokens
from experiments.main import main
from experiments.step.comparison import Comparison, Row
from experiments.step.evaluation import evaluate_plan
from models.export.placer import OnnxPlacer


def test_a_sentence_says_what_each_added(problem: StepProblem) -> None:
    split = ContiguousSplit(groups=8, shares=EqualShares())
    alone, searched = (
        evaluate_plan(problem, found.plan, SINGLE_PORT)
        for found in (SingleDevice().plan(problem, 1.0), split.plan(problem, 1.0))
        if found.plan is not None
    )
    rows = (
        Row(LEARNED, alone, 0.25, ""),
        Row(FINE_TUNED, None, 9.0, "does not fit"),
        Row(SEARCHED, searched, 3.0, ""),
    )
    gain = 1.0 - searched.step_time / alone.step_time
    assert 0.01 < gain < 1.0
    assert gains_of(Comparison(rows, None, 0.0)) == (
        f"the shipped policy alone: {alone.step_time * 1e3:.1f} ms after 0.2 s; "
        "fine-tuned on this problem: does not fit after 9.0 s; "
        f"searched on from its plans: {searched.step_time * 1e3:.1f} ms after 3.0 s "
        f"({gain:.1%} less)"
    )


@pytest.mark.proof
def test_the_shipped_policy_is_shown_fine_tuned_exported_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main"])
    save_graph(layered_step(6, 2), "graph.npz")
    asked = ["graph=graph.npz", "budget_s=2", "env.max_groups=8", "agent.num_envs=8"]
    asked += ["agent.alike=8", "agent.episodes=1", "hydra.run.dir=run"]
    assert main(asked) == 0
    found = json.loads(Path("run/result.json").read_text())
    times = {row["method"]: row["step_time_s"] for row in found["methods"]}
    assert {LEARNED, FINE_TUNED, SEARCHED, "local_search", "fusion_milp"} <= set(times)
    assert times[SEARCHED] <= times[LEARNED]
    assert found["fine_tuned_step_time_s"] == times[FINE_TUNED] >= found["lower_bound_s"]
    assert found["verification"]["passed"]
    with np.load("run/observations.npz", allow_pickle=False) as archive:
        seen = {name: archive[name] for name in archive.files}
    network = OnnxPlacer(found["checkpoint"])
    plans = tokens(network, network.sweeps, seen).reshape(PLANS, -1)
    assert found["verification"]["decisions"] == plans.size
    assert (plans[:, :-1] < seen["sizes"][0, 2]).all()
