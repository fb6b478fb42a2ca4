"""`meshwright allocate`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.files import read_json
from experiments.run.app import main_of

main = main_of("allocate")
pytestmark = pytest.mark.slow


def test_a_plan_stands_beside_its_bound(work: Path) -> None:
    rows = "".join(f"{n},{600 * n},3600,{1 + n % 2}\n" for n in range(6))
    rows += "large,3600,60,9\nlate,14400,60,1\nlast,14400,60,9\n"
    (work / "jobs.csv").write_text(f"job_id,submission_time,duration,num_gpu\n{rows}")
    trace = ["problem=trace", "trace.path=jobs.csv", "trace.format=itp", "machines=1", "slots=8"]
    assert main([*trace, "agent=optimus", "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert (found["jobs"], found["left_out_jobs"]) == (6, 3)
    assert list(found["left_out"].values()) == [2, 1]  # too late, whatever their size; too large
    assert 0.0 < found["utility"] <= found["upper_bound"]
    assert (work / "run" / "workers.png").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("agent=heft", "config key 'agent': 'heft' is none of all, fifo"),
        ("agent=fifo speed=mesh", "config key 'speed': 'mesh' is none of ring"),
        ("problem=trace", "config key 'trace.path' is missing"),
        ("slots=1000000000", "config key 'slots'"),
        ("jobs=100000000", "config key 'jobs'"),
        ("jobs=10000 slots=10000", "config key 'slots': 10000 times 10000 jobs"),
        ("machines=1000000000", "config key 'slots': 40 times 20 jobs times"),
        ("study=1 slots=1000000000", "config key 'slots'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, told: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err
