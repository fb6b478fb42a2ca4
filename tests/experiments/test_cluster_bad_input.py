"""Bad input to the apps of clusters and traces: one line with the config key, exit code 2."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from refusals import command_refused, option_of, option_refused, run_refused, told

from agents.cluster.policy import Scheduler
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.files import read_json
from experiments.cluster.evaluate_cluster import EvaluateClusterConfig
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.config.composing import check_command_line
from experiments.config.targets import build, check_targets
from experiments.evaluate import main
from tests.refusal import refusal

JOBS = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,5,10,2\n"
FAULTY = "job_id,submission_time,duration,num_gpu\na,0,10,1\nb,1,-4,1\nc,3,10,2\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1000,1024,1,500,\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,{gpus},G2\n"


class Idle(Scheduler):
    """A policy that starts nothing."""

    name = "idle"
    knows = "nothing"

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing is kept."""

    def decide(self, simulator: ClusterSimulator) -> None:
        """Nothing."""

    def wake(self, simulator: ClusterSimulator) -> float:
        """Never."""
        return float("inf")


@pytest.fixture
def work(work: Path) -> Path:
    (work / "jobs.csv").write_text(JOBS)
    (work / "faulty.csv").write_text(FAULTY)
    (work / "pods.csv").write_text(PODS)
    (work / "nodes.csv").write_text(NODES.format(gpus=4))
    (work / "bare.csv").write_text(NODES.format(gpus=0))
    return work


OTHER = {"_target_": "os.getcwd"}  # what is nothing here
COMMANDS: dict[str, list[str]] = {  # refused before there is a run
    "evaluate_cluster overheads.restart_s=x": ["'overheads.restart_s'", "a number"],
    "evaluate_cluster agent=no_such_policy": ["agent=no_such_policy"],
    "evaluate_cluster placement=nowhere": ["placement=nowhere"],
    "evaluate_cluster agent=qssf agent.durations=null": ["'agent.durations'", "RollingDuration"],
    "evaluate_cluster interference=analytic interference.profiles=zoo": [
        "'interference.profiles'",
        "'zoo'",
    ],
    "trace trace=nosuch.csv": ["nosuch.csv", "no such file"],
    "trace trace=nosuch.parquet": ["nosuch.parquet", "no such file"],
    "trace trace=jobs.csv trace.start_s=-5": ["'trace.start_s'"],
    "trace trace=jobs.csv trace.load=1 trace.gpus=0": ["'trace.gpus'"],
}
RUNS: dict[str, list[str]] = {  # one of each family
    "evaluate_cluster trace=jobs.csv cluster.nodes=0": ["'cluster.nodes'", "0 is not between 1"],
    "evaluate_cluster trace=jobs.csv overheads.restart_s=-1": ["restart_s", "-1"],
    "evaluate_cluster trace=jobs.csv failures=true": ["'failures'", "True"],
    "evaluate_cluster trace=jobs.csv agent=test_cluster_bad_input.Idle": ["idle", "waiting"],
    "evaluate_cluster trace=jobs.csv interference=contention interference.beta=0": [
        "'interference.beta'",
    ],
    "evaluate_cluster trace.path=missing.csv": ["missing.csv"],
    "trace trace=jobs.csv trace.end_s=-5": ["'trace.end_s'"],
    "trace trace=jobs.csv trace.window=train trace.windows.train=-1": ["'trace.windows.train'"],
    "trace action=download action.source=itp action.attempts=0": ["'action.attempts'"],
    "packing pods=pods.csv nodes=bare.csv": ["bare", "no GPUs"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_refused_by_name(command: str, work: Path) -> None:
    app, *arguments = command.split()
    command_refused(app, arguments, COMMANDS[command])


@pytest.mark.parametrize("command", RUNS)
def test_a_run_is_refused_by_name(
    command: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app, *arguments = command.split()
    asked = [*arguments, "hydra.run.dir=run"]
    run_refused(app, asked, RUNS[command], work, capfd)
    assert not (work / "run").exists()


OPTIONS: dict[str, list[str]] = {  # refused when they are built
    "agent=max_min agent.round_s=.inf": ["agent.round_s", "finite"],
    "agent=themis agent.lease_s=.inf": ["agent.lease_s", "finite"],
    "agent=gandiva agent.quantum_s=.inf": ["agent.quantum_s", "finite"],
    "agent=qssf agent.durations.recency=3": ["agent.durations.recency", "3 is not in (0, 1]"],
    "agent=joint_choice agent.choice=best": ["agent.choice", "'best' is none of gain, tightest"],
    "agent=joint_choice agent.partitioned.arrival=best": [
        "agent.partitioned.arrival",
        "'best' is none of routed, least_load",
    ],
    "agent=forwarding agent.partitioned.forward_s=0": ["agent.partitioned.forward_s", "0"],
    "agent=tetris agent.first=0": ["agent.first", "0"],
    "agent=rollout agent.futures=0": ["agent.futures", "0"],
    "agent=rollout agent.posterior.path=no_such": ["neither a folder nor shipped"],
    "agent=rollout agent.sure=-1": ["agent.sure", "-1"],
    "packing_rule=fgd packing_rule.score_levels=-1": ["score_levels"],
    "action=summary action.most_labels=-1": ["action.most_labels", "-1"],
    "action=summary action.gpus=[0]": ["action.gpus", "0"],
    "action=download action.timeout_s=-1": ["action.timeout_s", "-1"],
}


@pytest.mark.parametrize("text", OPTIONS)
def test_an_option_is_refused_by_name(text: str) -> None:
    option_refused(text, OPTIONS[text])


CLUSTERS: dict[str, list[str]] = {
    "gpus_per_node=3000000000": ["'cluster.gpus_per_node'", "is not between"],
    "nodes=99999999999999": ["'cluster.nodes'", "is not between"],
    "gpu_types=[V100,V100]": ["'cluster.gpu_types'", "twice"],
    "nodes=1 gpu_types=[V100,P100]": ["'cluster.gpu_types'", "2 types"],
}
PROBLEMS: dict[str, tuple[object, list[str]]] = {
    "cluster": (None, ["'cluster'", "None"]),
    "overheads": (None, ["'overheads'", "None"]),
    "interference": (OTHER, ["'interference'", "no interference model"]),
    "failures": (OTHER, ["'failures'", "no model of failing nodes"]),
}


def described() -> dict[str, Any]:
    """The nodes of a problem, as `conf/evaluate_cluster.yaml` has them."""
    config = check_command_line(
        ["trace=jobs.csv"], "evaluate_cluster", EvaluateClusterConfig
    ).config
    nodes = ("cluster", "interference", "overheads", "failures")
    return {name: getattr(config, name) for name in nodes}


def test_a_problem_is_refused_by_name(work: Path) -> None:
    trace, nodes = CanonicalReader().read("jobs.csv").trace, described()

    def problem(**changed: object) -> ClusterProblem:
        return ClusterProblem.of(trace, **{**nodes, **changed})

    for change, words in CLUSTERS.items():
        changes = OmegaConf.to_container(OmegaConf.from_dotlist(change.split()))
        assert isinstance(changes, dict)
        told(partial(problem, cluster={**nodes["cluster"], **changes}), words)
    for key, (node, words) in PROBLEMS.items():
        told(partial(problem, **{key: node}), words)
    assert len(problem().trace) == 2


def test_a_policy_is_refused_by_name() -> None:
    heft = option_of("agent=heft")["agent"]
    told(lambda: built_policy(heft, "agent"), ["'agent'", "fifo"])
    lost = {**option_of("agent=fifo")["agent"], "placement": {"_target_": "os.getcwd"}}
    told(lambda: built_policy(lost, "agent"), ["'agent.placement'", "os.getcwd"])


def test_a_cluster_policy_outside_the_cluster_says_so(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent=fifo", "hydra.run.dir=run"]) == 2
    error = capsys.readouterr().err
    assert "'agent.placement'" in error
    assert "another env" in error


def test_a_policy_that_places_gangs_itself_has_no_placement(work: Path) -> None:
    assert main(["env=cluster", "trace=jobs.csv", "agent=gandiva", "hydra.run.dir=run"]) == 0
    assert read_json(work / "run/result.json")["placement"] is None


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
    with refusal("config key 'thing': 5 describes no object"):
        build(5, "thing")  # type: ignore[arg-type]
    with refusal("'thing': a mapping without _target_"):
        build({"a": 1}, "thing")


def too_large() -> None:
    """Something that no memory holds."""
    raise MemoryError("3 EiB")


def test_what_does_not_fit_the_memory_comes_out_as_that() -> None:
    with pytest.raises(MemoryError, match="3 EiB"):
        build({"_target_": f"{__name__}.too_large"}, "thing")


def test_named_tuples_are_checked_as_other_targets() -> None:
    node = {"_target_": "envs.cluster.simulation.cluster_state.Overheads", "restart_s": "x"}
    with refusal(r"'overheads\.restart_s': 'x' is not a number"):
        check_targets({**node, "checkpoint_s": 0.0}, "overheads")
