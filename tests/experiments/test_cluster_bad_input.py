"""Bad input to the apps of clusters and traces: one line with the config key, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ran
from refusals import Refuses, write_traces

from agents.cluster.policy import Scheduler
from envs.cluster.simulation.cluster import ClusterSimulator
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


def test_a_policy_that_places_gangs_itself_has_no_placement(work: Path) -> None:
    assert ran(main, "env=cluster", "trace=jobs.csv", "agent=gandiva")["placement"] is None


def test_the_last_env_counts(work: Path, refuses: Refuses) -> None:
    refuses(main, ["env=cluster", "env=placement", "trace=jobs.csv"], "'trace'")


def test_rows_left_out_are_told_with_their_reason(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lax = ["trace.path=faulty.csv", "trace.format=itp", "trace.strict=false"]
    ran(main, "env=cluster", *lax)
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
