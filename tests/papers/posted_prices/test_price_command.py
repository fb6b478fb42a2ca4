"""`meshwright price`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.files import read_json
from experiments.command_line import main_of

SMALL = "seeds=1 learner.iterations=2 learner.hidden=4 levels=20 parts=20 sizes=[1,2] units=[2]"
QUICK = [*SMALL.split(), "rental.levels=2", "rental.rounds=2", "spreads=[5.0]"]
main = main_of("price")
pytestmark = pytest.mark.usefixtures("work")


def test_every_rule_has_its_worst_ratio(work: Path) -> None:
    assert main(["problem=rentals", *QUICK, "hydra.run.dir=run"]) == 0
    (row,) = read_json(work / "run/result.json")["rows"]
    names = {"greedy", "fixed", "utilised", "random", "untrained", "learned"}
    assert names <= set(row)
    assert len(row["learned_ratios"]) == 1
    assert all(row[x] is None or row[x] >= row["program"] * (1 - 1e-6) for x in names)
    assert (work / "run" / "ratios.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("problem=auction", "config key 'problem': 'auction' is not one of k_max_search"),
        ("spreads=[1.0]", "config key 'spreads"),
        ("sizes=[21]", "config key 'sizes': an item is larger"),
        ("units=[1000000000]", "config key 'units"),
        ("problem=knapsack parts=20000 levels=20000", "config key 'parts'"),
        ("learner.hot=0", "config key 'learner.hot'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.strip().count("\n")) == ("", 0)
    assert fault in err
