"""The main job: a policy trained from nothing beside a shipped one and the planners."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import ran, result
from layered_step import layered_step

from envs.graphs.storage import save_graph
from experiments.learning.one_problem import LEARNED, MET, SEARCHED, SHIPPED, TRAINED, UNTRAINED
from experiments.learning.replay import PLANS, tokens
from experiments.main import main
from models.export.placer import OnnxPlacer
from tests.strength import at_full_strength


@pytest.mark.slow
def test_a_policy_is_trained_from_nothing_shown_beside_its_untrained_twin_and_exported(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_graph(layered_step(6, 2), "graph.npz")
    asked = [
        "graph=graph.npz", "budget_s=1", "env.max_groups=8", "agent.num_envs=8",
        "agent.group_size=8", "model.hidden=8", "model.heads=2", "training.min_iterations=6",
        "training.budget_s=1e-9", "~quick.random_one", "~searching.fusion_milp",
    ]  # fmt: skip
    found = ran(main, *asked)
    times = {row["method"]: row["step_time_s"] for row in found["methods"]}
    assert {LEARNED, SEARCHED, SHIPPED, TRAINED, UNTRAINED, MET, "local_search"} <= set(times)
    assert list(times.values()) == sorted(times.values())
    assert times[SEARCHED] <= times[LEARNED]
    assert found["trained_step_time_s"] == times[TRAINED] >= found["lower_bound_s"]
    assert found["iterations"] == 6  # beyond the budget

    message = Path("run/table.md").read_text()
    for what in ("trained from nothing", "untrained twin", "HEFT, list scheduler", "Exported is"):
        assert what in message
    (before,), (after,) = found["evaluation"].values()
    assert after <= before
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warned) == len(found.get("warnings", [])) == (after == before)
    card = (Path(found["checkpoint"]) / "README.md").read_text()
    for text in (message, card):
        assert "6 iterations of training" in text
        assert f"{before * 1e3:.1f} ms" in text

    assert found["verification"]["passed"]
    with np.load("run/observations.npz", allow_pickle=False) as archive:
        seen = {name: archive[name] for name in archive.files}
    network = OnnxPlacer(found["checkpoint"])
    plans = tokens(network, network.sweeps, seen).reshape(PLANS, -1)
    assert found["verification"]["decisions"] == plans.size
    assert (plans[:, :-1] < seen["sizes"][0, 2]).all()

    if not at_full_strength():  # that a run goes on is tested in test_train_cluster.py
        return
    assert main(["resume=run", "training.min_iterations=8"]) == 0
    later = result()
    assert (later["iterations"], later["evaluation"]["untrained_s"]) == (8, [before])
    printed = capsys.readouterr().out
    assert "last checkpoint: iteration_000006" in printed
    assert "pictures in it: gantt.png, learning_curve.png" in printed
