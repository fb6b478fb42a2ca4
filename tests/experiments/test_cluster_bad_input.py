"""Bad input to the apps of clusters and traces: one line with the config key, exit code 2."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from refusals import option_of, refused, write_traces

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
    write_traces(work)
    return work


OTHER = {"_target_": "os.getcwd"}  # what is nothing here
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
        refused(partial(problem, cluster={**nodes["cluster"], **changes}), words)
    for key, (node, words) in PROBLEMS.items():
        refused(partial(problem, **{key: node}), words)
    assert len(problem().trace) == 2


def test_a_policy_is_refused_by_name() -> None:
    heft = option_of("agent=heft")["agent"]
    refused(lambda: built_policy(heft, "agent"), ["'agent'", "fifo"])
    lost = {**option_of("agent=fifo")["agent"], "placement": {"_target_": "os.getcwd"}}
    refused(lambda: built_policy(lost, "agent"), ["'agent.placement'", "os.getcwd"])


def test_a_policy_that_places_gangs_itself_has_no_placement(work: Path) -> None:
    assert main(["env=cluster", "trace=jobs.csv", "agent=gandiva", "hydra.run.dir=run"]) == 0
    assert read_json(work / "run/result.json")["placement"] is None


def test_the_last_env_counts(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env=cluster", "env=placement", "trace=jobs.csv"]) == 2
    assert "'trace'" in capsys.readouterr().err


def test_rows_left_out_are_told_with_their_reason(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lax = ["trace.path=faulty.csv", "trace.format=itp", "trace.strict=false"]
    assert main(["env=cluster", *lax, "hydra.run.dir=run"]) == 0
    message = capsys.readouterr().out
    assert "left out: 1 rows, duration is negative (first: row 2 (line 3))" in message


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
