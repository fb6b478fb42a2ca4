"""A split of generated traces, and the shipped scheduler by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ran
from refusals import Refuses

from experiments.cluster.split_windows import Split
from experiments.cluster.windows import SplitWindowsConfig
from experiments.config.composing import check_command_line
from experiments.evaluate import main
from tests.refusal import refusal


@pytest.fixture(autouse=True)
def no_data(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)


def made(*more: str) -> Split:
    given = ["split=synthetic", *more]
    return Split(check_command_line(given, "split_windows", SplitWindowsConfig).config.split)


def test_its_windows_need_no_file() -> None:
    split = made()
    windows = split.windows("test")
    assert {window.name.partition(".")[0] for window in windows} == set(split.traces)
    for window in windows:
        asked = split.traces[window.name.partition(".")[0]].load
        assert window.about["load"] == pytest.approx(asked, rel=0.01)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("split.formats.itp_1001.seed=7", "split.formats.itp_1001'?: has SHA-256"),
        ("~split.inputs.itp_1001", "no SHA-256 of 'itp_1001'"),
        ("+split.inputs.more=0", "split.data' is missing"),
        (
            "split.formats.itp_1001={_target_: envs.cluster.workload.readers.job_logs.ItpReader}",
            "split.traces.itp_1001.path' is missing",
        ),
    ],
)
def test_what_it_refuses(override: str, message: str) -> None:
    more = ["~split.formats.itp_1001", f"+{override}"] if "Reader" in override else [override]
    with refusal(message):
        made(*more)


def test_an_unknown_scheduler_is_bad_input(refuses: Refuses) -> None:
    given = ["agent=checkpoint", "agent.checkpoint=nobody"]
    said = "agent.checkpoint", "shipped: unknown_durations"
    refuses(main, ["split=synthetic", *given], *said)
    refuses(main, ["env=cluster", "trace.format=synthetic", "trace.jobs=5", *given], *said)


def test_the_shipped_one_is_what_agent_checkpoint_means() -> None:
    given = [
        "env=cluster", "agent=checkpoint", "trace.format=synthetic", "trace.jobs=12",
        "trace.max_gpus=4", "trace.head=8", "cluster.nodes=3", "cluster.gpus_per_node=4",
        "cluster.gpu_types=[V100,P100,T4]", "interference=analytic",
    ]  # fmt: skip
    found = ran(main, *given)
    assert found["jobs"] == 8
    assert found["knows"] == "predictions"
    assert len(found["provenance"]["inputs_sha256"]["checkpoint"]) == 64
