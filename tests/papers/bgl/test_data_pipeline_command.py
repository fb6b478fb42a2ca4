"""`meshwright data_pipeline`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.files import read_json
from experiments.command_line import main_of

SMALL = ["graph.nodes=2000", "graph.edges=8000", "graph.communities=50", "batch=10", "sequences=5",
         "reach=40"]  # fmt: skip
main = main_of("data_pipeline")


@pytest.fixture(autouse=True)
def work(work: Path) -> Path:
    (work / "edges.txt").write_text("0 1\n1 2\n2\n")
    return work


@pytest.mark.slow
def test_parts_alone_left_out_and_together(work: Path) -> None:
    assert main([*SMALL, "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert len(found["rows"]) == 5 * 2 * 2 * 2
    for row in found["rows"]:
        assert row["batches_per_s"] == pytest.approx(1.0 / max(row["stages"]))
    parts = {name: row["speed_up"] for name, row in found["parts"].items()}
    assert parts["none of them"] == 1.0
    assert parts["isolation alone"] >= 1.0
    assert parts["together"] >= parts["without isolation"]
    every = {(r["cache"], r["order"], r["partition"], r["isolation"]): r for r in found["rows"]}
    near = every["fifo", "proximity", "block", "program"]
    random = every["fifo", "random", "hash", "equal"]
    assert near["missed_bytes"] < random["missed_bytes"]
    assert near["crossing"] < random["crossing"]
    assert found["best_batches_per_s"] >= near["batches_per_s"]
    assert found["label_bound"] <= found["label_bound_of_any_graph"]
    assert (work / "run" / "stages.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("sequences=3", "config key 'sequences': it does not divide a batch of 10"),
        ("input=edges.txt", "edges.txt: record line 3: has 1 words, not node node"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    word: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, word]) == 2
    out, err = capsys.readouterr()
    assert (out, err.strip().count("\n")) == ("", 0)
    assert fault in err
