"""`experiments.train task=cells` and `task=evolved_cells`: both write a choice and its table."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ran
from small_split import one_of_several

from agents.cluster.cells import LearnedCells
from experiments.train import main

SMALL = [
    "~split@splits.philly", "+known.late.gpu_types=[V100,P100]", "+known.late.splits=[itp]",
    "known.late.schedulers=2", "known.late.nodes_per_type=[2,2]", "known.late.jobs=[5,8]",
    "known.late.max_gpus=4", "windows=2", "evaluation_windows=2", "delays=[2.0]", "samples=50",
]  # fmt: skip
PPO = [
    "task=cells", "agent.num_envs=2", "agent.group_size=2", "training.evaluation_episodes=2",
    "training.max_steps=1", "model.hidden=3",
]  # fmt: skip
EVOLUTION = ["task=evolved_cells", "search.replays=2", "search.products=true", "budget_s=0.01"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [PPO, EVOLUTION])
def test_what_is_learned_stands_beside_rules_without_weights(words: list[str], work: Path) -> None:
    rows = ran(main, *words, *SMALL, *one_of_several(work))["rows"]
    assert {"trained", "untrained", "JSQ(2)", "best offer, seen as it is"} <= set(rows)
    assert sum(name.endswith("(= 1)") for name in rows) == 1
    assert LearnedCells("run/checkpoint").weights["weights"].shape == (18, 4)
