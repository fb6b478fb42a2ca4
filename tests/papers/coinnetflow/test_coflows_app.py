"""`meshwright coflows`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.files import read_json
from experiments.run.app import main_of

main = main_of("coflows")
BENCHMARK = "3 2\n1 0 1 0 2 1:2.0 2:2.0\n2 8 1 0 1 1:1.0\n"
UPWS = "3 2\n0 9 2 1 2 0 1 2 0 2 2\n1 10 1 1 1 0 1 1\n"


@pytest.fixture
def work(work: Path) -> Path:
    (work / "benchmark.txt").write_text(BENCHMARK)
    (work / "upws.txt").write_text(UPWS)
    return work


@pytest.mark.parametrize(
    ("words", "times"),
    [
        ("input=upws.txt agent=bssi rates=greedy", [5.0, 1.0]),
        ("input=upws.txt agent=fifo rates=madd", [4.0, 5.0]),
        ("input=upws.txt semantics=online agent=sebf rates=greedy", [5.0, 1.0]),
        ("input=benchmark.txt agent=fifo rates=madd", [32.0, 32.0]),
        ("input=benchmark.txt agent=sebf rates=greedy", [40.0, 8.0]),
        ("input=benchmark.txt agent=fair coflows=1", [32.0]),
        ("input=benchmark.txt semantics=coflowsim agent=scf rates=madd", [40.0, 8.0]),
    ],
)
def test_times_stand_in_the_order_of_the_file(words: str, times: list[float], work: Path) -> None:
    assert main([*words.split(), "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["cct_ms"] == pytest.approx(times)
    assert found["sum_cct_ms"] == pytest.approx(sum(times))
    assert found["lower_bound_ms"] <= found["sum_cct_ms"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("input=upws.txt agent=heft", "config key 'agent': 'heft' is none of fifo, sebf"),
        ("input=upws.txt semantics=coflowsim agent=fifo", "config key 'semantics': CoflowSim"),
        ("input=benchmark.txt semantics=coflowsim agent=bssi", "config key 'agent': 'bssi' is"),
        ("input=benchmark.txt semantics=coflowsim rates=greedy", "config key 'rates': CoflowSim"),
        ("input=wrong.txt", "wrong.txt: record line 2: field 'size': the line ends too early"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, told: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "wrong.txt").write_text("3 1\n0 0 1 1 1 0 1\n")
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.strip().splitlines()) == 1
