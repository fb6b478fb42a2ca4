"""Bad input to the apps of clusters and traces: one line with the config key, exit code 2."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError
from experiments.evaluate import main
from experiments.packing import PackingConfig, packing
from experiments.run.app import run_app
from experiments.run.targets import build, check_targets
from experiments.trace import TraceAppConfig, trace

JOBS = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,5,10,2\n"
FAULTY = "job_id,submission_time,duration,num_gpu\na,0,10,1\nb,1,-4,1\nc,3,10,2\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1024,1,500,\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,{gpus},G2\n"


class Idle:
    """A policy that starts nothing."""

    name = "idle"

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing is kept."""

    def decide(self, simulator: ClusterSimulator) -> None:
        """Nothing."""

    def wake(self, simulator: ClusterSimulator) -> float:
        """Never."""
        return float("inf")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "faulty.csv").write_text(FAULTY)
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(NODES.format(gpus=4))
    (tmp_path / "bare.csv").write_text(NODES.format(gpus=0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    return tmp_path


def run(app: str, arguments: list[str]) -> int:
    if app == "trace":
        return run_app("trace", TraceAppConfig, trace, arguments)
    if app == "packing":
        files = ["pods=pods.csv", "nodes=nodes.csv"]
        return run_app("packing", PackingConfig, packing, [*files, *arguments])
    return main(["env=cluster", "trace=jobs.csv", *arguments])


REFUSED: dict[str, list[str]] = {
    "evaluate cluster.nodes=0": ["'cluster.nodes'", "below 1"],
    "evaluate cluster.gpus_per_node=3000000000": ["'cluster.gpus_per_node'", "above 2147483647"],
    "evaluate cluster.nodes=99999999999999": ["'cluster.nodes'", "above 2147483647"],
    "evaluate cluster.gpu_types=[V100,V100]": ["'cluster.gpu_types'", "twice"],
    "evaluate cluster.nodes=1 cluster.gpu_types=[V100,P100]": ["'cluster.gpu_types'", "2 types"],
    "evaluate cluster=null": ["'cluster'", "None"],
    "evaluate overheads=null": ["'overheads'", "None"],
    "evaluate overheads.restart_s=x": ["'overheads.restart_s'", "a number"],
    "evaluate failures=true": ["'failures'", "True"],
    "evaluate agent=heft": ["'agent'", "fifo"],
    "evaluate agent=max_min agent.round_s=inf": ["'agent.round_s'", "finite"],
    "evaluate agent=themis agent.lease_s=inf": ["'agent.lease_s'", "finite"],
    "evaluate agent=gandiva agent.quantum_s=inf": ["'agent.quantum_s'", "finite"],
    "evaluate agent=qssf agent.durations=null": ["'agent.durations'", "RollingDuration"],
    "evaluate agent=qssf agent.durations.recency=3": ["'agent.durations.recency'", "at most 1"],
    "evaluate agent=test_cluster_bad_input.Idle": ["idle", "waiting for ever"],
    "evaluate interference=analytic interference.profiles=zoo": [
        "'interference.profiles'",
        "'zoo'",
    ],
    "evaluate interference=contention interference.beta=0": ["'interference.beta'"],
    "evaluate placement=os.getcwd": ["'agent.placement'", "os.getcwd"],
    "trace trace=nosuch.csv": ["nosuch.csv", "no such file"],
    "trace trace=nosuch.parquet": ["nosuch.parquet", "no such file"],
    "trace trace=jobs.csv trace.end_s=-5": ["'trace.end_s'"],
    "trace trace=jobs.csv trace.start_s=-5": ["'trace.start_s'"],
    "trace trace=jobs.csv trace.stretch=0": ["'trace.stretch'"],
    "trace trace=jobs.csv trace.load=-1 trace.gpus=4": ["'trace.load'"],
    "trace trace=jobs.csv trace.load=1 trace.gpus=0": ["'trace.gpus'"],
    "trace trace=jobs.csv trace.window=train trace.windows.train=-1": ["'trace.windows.train'"],
    "trace trace.format=synthetic trace.jobs=0": ["'trace.jobs'"],
    "trace trace=jobs.csv action.most_labels=-1": ["'action.most_labels'"],
    "trace trace=jobs.csv action.gpus=[0]": ["'action.gpus'"],
    "trace action=download action.source=itp action.attempts=0": ["'action.attempts'"],
    "trace action=download action.source=itp action.timeout_s=-1": ["'action.timeout_s'"],
    "packing nodes=bare.csv": ["bare", "no GPUs"],
    "packing '+rules.x={_target_: os.getcwd}'": ["'rules.x'", "no packing rule"],
    "packing rules.fgd.score_levels=-1": ["'rules.fgd.score_levels'"],
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_is_one_line_that_names_the_key(
    command: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app, *arguments = shlex.split(command)
    assert run(app, [*arguments, "hydra.run.dir=run"]) == 2
    error = capfd.readouterr().err.strip()
    assert len([line for line in error.splitlines() if line.startswith("error: ")]) == 1
    assert "Traceback" not in error
    for word in REFUSED[command]:
        assert word in error.splitlines()[-1]
    assert not (work / "run").exists()


def test_a_cluster_policy_outside_the_cluster_says_so(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent=fifo", "hydra.run.dir=run"]) == 2
    error = capsys.readouterr().err
    assert "'agent.placement'" in error
    assert "another env" in error


def test_a_policy_that_places_gangs_itself_has_no_placement(work: Path) -> None:
    assert main(["env=cluster", "trace=jobs.csv", "agent=gandiva", "hydra.run.dir=run"]) == 0
    assert json.loads((work / "run" / "result.json").read_text())["placement"] is None


def test_a_cluster_policy_without_placement_says_so_too(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent=gandiva", "graph=gpt2", "hydra.run.dir=run"]) == 2
    assert "env=cluster" in capsys.readouterr().err


def test_the_last_env_counts(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env=cluster", "env=placement", "trace=jobs.csv"]) == 2
    assert "'trace'" in capsys.readouterr().err


def test_rows_left_out_are_told_with_their_reason(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lax = ["trace.path=faulty.csv", "trace.format=itp", "trace.strict=false"]
    assert main(["env=cluster", *lax, "hydra.run.dir=run"]) == 0
    told = capsys.readouterr().out
    assert "left out: 1 rows, duration is negative (first: row 2 (line 3))" in told


def test_a_node_is_no_object_without_a_target() -> None:
    with pytest.raises(InputError, match="config key 'thing': 5 describes no object"):
        build(5, "thing")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'thing': a mapping without _target_"):
        build({"a": 1}, "thing")


def too_large() -> None:
    """Something that no memory holds."""
    raise MemoryError("3 EiB")


def test_what_does_not_fit_the_memory_comes_out_as_that() -> None:
    with pytest.raises(MemoryError, match="3 EiB"):
        build({"_target_": f"{__name__}.too_large"}, "thing")


def test_named_tuples_are_checked_as_other_targets() -> None:
    node = {"_target_": "envs.cluster.simulation.cluster_state.Overheads", "restart_s": "x"}
    with pytest.raises(InputError, match=r"'overheads\.restart_s': 'x' is not a number"):
        check_targets({**node, "checkpoint_s": 0.0}, "overheads")
