"""`experiments.execute`: plans run in processes, and train what the unsplit model trains."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from commands import ran, result
from plans_of_layers import PLANS, write

from envs.files import read_json
from envs.graphs.readers.pipedream import PipeDreamReader
from experiments.command_line import run_job
from experiments.execution.executing import outcome
from experiments.execution.split import read_split
from experiments.execution.worker import work
from tests.paths import CONF
from tests.refusal import refusal

SMALL = [
    "layers.blocks=4", "layers.width=16", "layers.heads=2", "layers.sequence=8",
    "layers.vocabulary=32", "layers.micro_batch=2",
]  # fmt: skip
RUN = ("one_f_one_b", "zb_h1", "zb_v", "by_hand", "replicas")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans that ran in two processes."""
    folder = tmp_path_factory.mktemp("execute")
    plans = ",".join(write(folder, name) for name in RUN)
    ran("execute", f"plan=[{plans}]", *SMALL, "warm_up=1", "steps=4", run=folder / "run")
    return folder / "run"


def test_plans_train_what_the_unsplit_model_trains_in_their_order(run: Path) -> None:
    found = result(run)
    assert [plan["name"] for plan in found["plans"]] == list(RUN)
    for plan in found["plans"]:
        assert plan["loss_difference"] <= 1e-5
        assert plan["gradient_difference"] <= 1e-5
        assert plan["in_order"]
        assert plan["simulated_again_s"] > 0
        assert plan["planned_s"] == 0.25  # the file's
        assert plan["planned_of_measured"] == pytest.approx(0.25 / plan["step_time_s"])
        actions = sum(len(row) for row in PLANS[plan["name"]]["orders"])
        assert sum(action["count"] for action in plan["actions"]) == actions
    assert found["equal"]
    trace = read_json(run / "trace.json")["traceEvents"]
    order = [x["name"] for x in trace if (x["pid"], x["tid"]) == ("by_hand", 1)]
    assert order == PLANS["by_hand"]["orders"][1]


def test_another_order_or_another_loss_would_be_told(run: Path) -> None:
    seen = [read_json(run / f"processes/process{p}.json")["plans"][0] for p in range(2)]
    split = read_split(run.parent / "one_f_one_b.json")
    assert outcome(split, seen, 1)[0]["equal"]
    bars = seen[1]["steps"][2]["bars"]
    bars[0], bars[2] = bars[2], bars[0]
    assert not outcome(split, seen, 1)[0]["in_order"]
    bars[0], bars[2] = bars[2], bars[0]
    seen[0]["unsplit_losses"][3] += 2e-5
    assert outcome(split, seen, 1)[0]["in_order"]
    assert not outcome(split, seen, 1)[0]["equal"]


def test_averaging_gradients_is_part_of_the_step(run: Path) -> None:
    number = RUN.index("replicas")
    seen = [read_json(run / f"processes/process{p}.json")["plans"][number] for p in range(2)]
    split = read_split(run.parent / "replicas.json")
    before = outcome(split, seen, 1)[0]
    for one in seen:
        for step in one["steps"]:
            step["times"][2] += 1.0
    after = outcome(split, seen, 1)[0]
    for key in ("step_time_s", "simulated_again_s", "averaging_s"):
        assert after[key] == pytest.approx(before[key] + 1.0)


def test_a_model_with_other_layers_is_refused(run: Path) -> None:
    task = read_json(run / "processes/task.json")
    task["layers"]["blocks"] = 5
    (run / "processes/task.json").write_text(json.dumps(task))
    with refusal(r"one_f_one_b\.json: field 'layers'.*layers\.4"):
        work(run / "processes", 0)


def test_processes_end_with_their_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"plan={write(tmp_path, 'gpipe')}", "limit_s=0.1", f"hydra.run.dir={tmp_path / 'run'}"]
    assert run_job("execute", words) == 2
    assert "'limit_s': [0, 1] of the processes still ran" in capsys.readouterr().err


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    words = [f"plan={write(tmp_path, 'gpipe')}", "steps=100000", f"hydra.run.dir={tmp_path}/run"]
    app = [sys.executable, "-m", "experiments.execute"]
    command = subprocess.Popen([*app, *words], cwd=CONF.parent)
    while len(started := psutil.Process(command.pid).children()) < 2:
        assert command.poll() is None
        time.sleep(0.05)
    command.kill()
    command.wait()
    assert not psutil.wait_procs(started, timeout=60)[1]


def test_planners_read_the_profile_of_layers(tmp_path: Path) -> None:
    file = tmp_path / "layers.txt"
    words = [f"profile={file}", *SMALL, "warm_up=0", "repeats=2"]
    found = ran("execute_profile", *words, run=tmp_path / "r")
    graph = PipeDreamReader(training=True).read(file).graph
    names = PLANS["gpipe"]["problem"]["layers"]
    assert [x for x in graph.op_names if not x.endswith(".backward")] == names
    assert sum(found["forward_s"]) + sum(found["backward_s"]) == pytest.approx(
        float(graph.profile_seconds.sum()), abs=1e-7
    )
    assert found["input_gradient_s"][0] == 0.0  # the first layer's are all in the other half
