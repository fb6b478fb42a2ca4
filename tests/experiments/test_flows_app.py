"""`experiments.evaluate flows=`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.files import read_json
from experiments.command_line import run_job

TEXT = """\
shard,arrival_ns,size_bytes,src,dst,fct_ns,n_hosts
1,100,952,1,0,,2
0,7.0,1000,0,1,1676.8,2
0,7.0,1000,0,1,1600.0,2
"""


@pytest.fixture
def work(work: Path) -> Path:
    (work / "flows.csv").write_text(TEXT)
    return work


def test_the_result_file_has_the_times_in_the_order_of_the_file(work: Path) -> None:
    assert run_job("flows", ["flows=flows.csv", "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["fct_ns"] == pytest.approx([800.0, 1676.8, 1676.8], rel=1e-12)
    assert found["flows"] == 3
    assert found["shards"] == 2
    assert found["mean_slow_down"] == pytest.approx(5 / 3)
    assert found["p50_slow_down"] == pytest.approx(2.0)
    assert found["p99_slow_down"] == pytest.approx(2.0)
    assert found["largest_relative_difference"] == pytest.approx(0.048)
    assert list(found["provenance"]["inputs_sha256"]) == ["flows.csv"]


def test_without_given_times_there_is_nothing_to_compare(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "flows.csv").write_text(TEXT.replace("fct_ns", "other"))
    assert run_job("flows", ["flows=flows.csv", "hydra.run.dir=run"]) == 0
    assert read_json(work / "run/result.json")["largest_relative_difference"] is None
    shown = capsys.readouterr().out
    assert "p99_slow_down" in shown
    assert "difference" not in shown
    assert "fct_ns" not in shown


BAD = {
    "": ["config key 'flows' is missing"],
    "flows=absent.csv": ["absent.csv", "cannot be read"],
    "flows=.": ["cannot be read"],
    "flows=wrong.csv": ["wrong.csv", "row 2 (line 3)", "field 'dst'", "'2' is no host"],
    "flws=flows.csv": ["'flws'", "flows"],
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    command: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "wrong.csv").write_text(TEXT.replace("0,7.0,1000,0,1,1676.8", "0,7.0,1000,0,2,1676.8"))
    before = sorted(work.rglob("*"))
    assert run_job("flows", command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    for word in BAD[command]:
        assert word in err
    assert [path for path in sorted(work.rglob("*")) if path.is_file()] == [
        path for path in before if path.is_file()
    ]
