"""`meshwright asynchronous`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.files import read_json
from experiments.command_line import main_of

SMALL = (
    "text=text.txt batch=2 workers=[2] heterogeneity=[2] target=3.4 "
    "horizon_s=24 learning_rates=[1.0] slack=[1] local_steps=[2] check_s=[8] commit_rates=[1] "
    "tuning=1 runs=2"
)
main = main_of("asynchronous")


@pytest.fixture
def work(work: Path) -> Path:
    (work / "text.txt").write_text("abcdefghijklmnopqrstuvwxyz ,.;:!?" * 9)
    (work / "short.txt").write_text("ab")
    return work


@pytest.mark.slow
def test_every_policy_has_a_row_and_adsp_is_one_times_itself(work: Path) -> None:
    assert main([*SMALL.split(), "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    rows = {row["policy"]: row for row in found["policies"]}
    assert set(rows) == {"bsp", "ssp", "tap", "local_sgd", "adacomm", "adsp", "adsp_fixed"}
    assert rows["adsp"]["over_adsp"] == 1.0
    assert all(len(row["seconds"]) == 2 for row in rows.values())
    assert (work / "run" / "losses.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("text=short.txt", "short.txt: 2 bytes"),
        ("policies=[adsp,gossip]", "config key 'policies'"),
        ("heterogeneity=[0.5]", "heterogeneity"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    word: str, fault: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL.split(), word]) == 2
    out, err = capsys.readouterr()
    assert (out, err.strip().count("\n")) == ("", 0)
    assert fault in err
