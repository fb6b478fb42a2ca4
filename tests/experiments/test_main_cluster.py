"""The main job on a cluster says whether the scheduler that it exports has learned anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import code_of, ran
from test_cluster_export import SMALL

from experiments.export import main as export
from experiments.main import main
from experiments.train import main as train

pytestmark = pytest.mark.slow

TINY = [
    *SMALL, "env.schedulers=1", "comparison.jobs=20", "training.budget_s=1e-9",
    "training.min_iterations=4", "training.max_steps=null", "~agents.migrating_las", "~agents.srtf",
]  # fmt: skip
LEARNS = [
    "model.initial_expert_weight=0", "training.cloning.iterations=4",
    "training.cloning.learning_rate=5e-2",
]  # fmt: skip
STANDS_STILL = ["agent.learning_rate=1e-12", "training.cloning.learning_rate=1e-12"]


@pytest.mark.parametrize("learns", [pytest.param(True, marks=pytest.mark.proof), False])
def test_table_card_and_warning_tell_of_the_untrained_twin(
    learns: bool, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = ran(main, *TINY, *(LEARNS if learns else STANDS_STILL))
    assert (found["iterations"], found["best_iteration"] > 0) == (4, learns)
    rows = {row["policy"] for row in found["policies"]}
    assert rows & {"learned", "untrained"} == (
        {"learned", "untrained"} if learns else {"untrained"}
    )
    assert "unknown_durations" in rows
    card = Path(found["checkpoint"], "README.md").read_text()
    for text in (card, Path("run/table.md").read_text()):
        assert "4 iterations of training" in text
        assert "the plan that it is shown (" in text
        assert ("the untrained policy" if learns else "nothing was learned") in text
    warnings = [
        line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")
    ]
    assert len(warnings) == (not learns)
    assert ran(export, "run=run", run="exported")["verified"]
    assert code_of(train, "resume=run") == 2
    assert "begun by another command" in capfd.readouterr().err
