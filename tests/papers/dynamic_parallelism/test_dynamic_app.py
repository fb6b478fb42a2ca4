"""`meshwright dynamic`, from the command line to its files and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envs.files import read_json
from experiments.command_line import main_of
from experiments.papers.dynamic_parallelism.slots import SlotFile

SMALL = ["slots.workers=3", "slots.slots=8", "layers.blocks=4", "seeds=2", "bootstrap=50"]
main = main_of("dynamic")
pytestmark = pytest.mark.slow


def ran(work: Path, folder: str, *words: str) -> dict[str, Any]:
    assert main([*words, f"hydra.run.dir={folder}"]) == 0
    found: dict[str, Any] = read_json(work / folder / "result.json")
    return found


def test_policies_side_by_side_and_the_slots_again_from_their_file(work: Path) -> None:
    found = ran(work, "run", *SMALL, "seed=3")
    rows = {row["policy"]: row for row in found["policies"]}
    assert list(rows) == [
        "even", "static", "greedy", "greedy_budget", "lyapunov", "static_hindsight", "clairvoyant",
    ]  # fmt: skip
    assert rows["static"]["over_static"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert rows["greedy"]["mean_batch_s"] <= rows["lyapunov"]["mean_batch_s"] * (1 + 1e-9)
    assert rows["lyapunov"]["reduction_percent"] == found["reduction_percent"]
    assert found["beyond_the_theorem"] < 1e-9
    assert len(found["clairvoyant_bound_s"]) == 2
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert "| greedy_budget |" in (work / "run" / "table.md").read_text()
    assert SlotFile(found["slots"]).draw(0).values.shape == (8, 3, 3)
    words = ["layers.blocks=4", "bootstrap=50", "slots=file", f"slots.path={found['slots']}"]
    again = ran(work, "again", *words, "seeds=1")
    alone = ran(work, "alone", *SMALL, "seeds=1", "seed=3")
    for one, two in zip(again["policies"], alone["policies"], strict=True):
        assert one["mean_batch_s"] == pytest.approx(two["mean_batch_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("budget.rent=1.0e-6", "no plans keep to the budgets on average"),
        ("seed=4294967295", "config key 'seeds': seeds above 4294967295 are needed"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    work: Path, word: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, word, "hydra.run.dir=bad"]) == 2
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1
    assert not (work / "bad").exists()
