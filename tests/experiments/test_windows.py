"""Windows of a split and of a regime: what they hold, changed or not, and a policy on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran
from refusals import Refuses
from small_split import JOBS, one_of_several, overrides

from agents.cluster.queue import SRTF
from agents.cluster.replay import replay
from agents.cluster.rules.gangs import Yarn
from envs.cluster.interference.rates import NoInterference, RateTables, without_neighbours
from envs.cluster.workload.trace import Trace
from experiments.cluster.split_windows import Split, reference_load
from experiments.cluster.windows import Changes, SplitWindowsConfig, changed
from experiments.config.composing import check_command_line
from experiments.evaluate import main
from tests.refusal import refusal


def config(folder: Path, *more: str) -> SplitWindowsConfig:
    words = [*overrides(folder), *more]
    return check_command_line(words, "split_windows", SplitWindowsConfig).config


def test_windows_are_disjoint_and_offer_the_load(tmp_path: Path) -> None:
    made = Split(config(tmp_path).split)
    trace = made.traces["a"]
    jobs = sum(len(window.trace) for window in trace.windows.values())
    assert jobs == JOBS - 6  # without those of 16 GPUs
    times = [(w.start_s, w.end_s) for w in trace.windows.values()]
    assert times == [(0, 5000), (5000, 7001), (7001, 10_001)]
    parts = made.windows("test")
    test = trace.windows["test"].trace
    assert [len(p.problem.trace) for p in parts] == [6, 6] or len(test) != 12
    assert sum(len(p.problem.trace) for p in parts) == len(test)
    ids = [job for p in parts for job in p.problem.trace.job_id.tolist()]
    assert ids == test.job_id.tolist()
    assert not set(ids) & set(trace.windows["train"].trace.job_id.tolist())
    for part in parts:
        assert part.about["load"] == pytest.approx(1.1, rel=0.01)
        assert part.problem.trace.submit_s[0] == 0
        assert len(part.problem.trace) <= 8


def test_the_load_counts_gpus_by_their_speed_for_the_jobs(tmp_path: Path) -> None:
    class Halves(NoInterference):
        def tables(self, trace: Trace, cluster: Any) -> RateTables:
            profile = np.arange(len(trace), dtype=np.int32)
            speed = np.tile([1.0, 0.5], (len(trace), 1))
            speed[0, 1] = 0.0
            return without_neighbours(profile, speed)

    cluster = Split(config(tmp_path).split).traces["a"].cluster  # 8 GPUs of each type
    trace = Trace.of("two", [0, 100], [100, 300], [1, 1])
    assert reference_load(trace, cluster, NoInterference()) == pytest.approx(4.0 / 16.0)
    assert reference_load(trace, cluster, Halves()) == pytest.approx(4.0 / (8.0 + 8.0 * 0.375))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["split.data=null"], "split.data' is missing"),
        (["split.inputs={jobs.csv: beef}"], "the split was made from beef"),
        (["split.traces.a.max_gpus=9"], "9 GPUs, one GPU type has 8"),
        (["split.traces.a.format=itp2"], "traces.a.format"),
        (["split.traces.a.load=0"], "traces.a.load"),
        (["split.window_jobs=0"], "split.window_jobs"),
        (["split.shares={test: 0.5}"], "sum to"),
        (["split.traces.a.path=other.csv"], "no SHA-256 of 'other.csv'"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, more: list[str], message: str) -> None:
    with refusal(message):
        _ = Split(config(tmp_path, *more).split).traces


def test_a_policy_is_replayed_on_every_window(work: Path) -> None:
    found = ran(main, *overrides(work), "split=itp", "agent=srtf", "placement=yarn")
    windows = Split(config(work).split).windows("test")
    assert list(found["instances"]) == [window.name for window in windows]
    for window in windows:
        problem, row = window.problem, found["instances"][window.name]
        schedule = replay(
            SRTF(Yarn(), 0), problem.cluster, problem.trace, rates=problem.rates,
            overheads=problem.overheads,
        )  # fmt: skip
        assert row["mean_jct_s"] == schedule.jct.mean()
        assert row["p99_jct_s"] == np.percentile(schedule.jct, 99)
        assert 0.0 < row["lower_bound_s"] <= row["mean_jct_s"]
        assert row["load"] == pytest.approx(1.1, rel=0.01)
    mean = np.mean([row["mean_jct_s"] for row in found["instances"].values()])
    assert found["mean_jct_s"] == pytest.approx(mean)
    assert (found["knows"], found["windows"]) == ("durations", len(windows))


def test_changes_change_what_they_name(tmp_path: Path) -> None:
    split = Split(config(tmp_path).split)

    def part(**changes: Any) -> Any:
        return changed(split.traces["a"], Changes(**changes), "test")

    same = part()
    assert same.cluster.gpus.tolist() == [4] * 4
    assert same.cluster.rack.tolist() == [0, 1, 2, 3]
    assert part(nodes=2.0).cluster.num_nodes == 8
    assert part(nodes_per_rack=0).cluster.rack.tolist() == [0] * 4
    assert part(nodes=0.5, gpus_per_node=8).cluster.gpus.tolist() == [8, 8]
    assert part(gpu_types=["A100"]).cluster.gpu_types == ("A100",)
    assert part(restart_s=300.0).overheads.restart_s == 300.0
    assert part(load=0.7).load == 0.7
    assert same.rates is split.rates
    node = {"_target_": "envs.cluster.interference.rates.NoInterference"}
    assert isinstance(part(interference=node).rates, NoInterference)


def test_jobs_that_fit_no_type_are_left_out_and_counted(work: Path) -> None:
    jobs = Split(config(work).split).traces["a"].windows["test"].trace
    kept = jobs.take(np.flatnonzero(jobs.num_gpus <= 2))
    words = ["split=itp", "changes.nodes=0.5", "changes.gpus_per_node=2"]
    found = ran(main, *overrides(work), *words)
    assert found["left_out_jobs"] == {"jobs": len(jobs) - len(kept)}
    assert sum(row["jobs"] for row in found["instances"].values()) == len(kept) < len(jobs)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("changes.racks=1", "changes.racks"),
        ("changes.nodes=0", "changes.nodes"),
        ("changes.load=much", "changes.load"),
        ("changes.gpu_types=[]", "changes.gpu_types"),
        ("changes.nodes=0.2", "changes"),
        ("changes.gpus_per_node=0", "changes.gpus_per_node"),
        ("+changes.interference._target_=builtins.dict", "changes.interference"),
        ("window=nowhere", "window"),
        ("agent=heft", "agent"),
    ],
)
def test_what_cannot_be_is_named(work: Path, refuses: Refuses, word: str, message: str) -> None:
    refuses(main, [*overrides(work), "split=itp", word], message)


def test_a_policy_is_replayed_on_sampled_windows_of_a_regime(work: Path) -> None:
    """The same windows for every policy; `windows=null` are the first of them."""
    regime = [
        "~split@splits.philly", *one_of_several(work), "usual.splits=[itp]", "usual.jobs=[5,8]",
        "usual.nodes_per_type=[2,2]", "usual.load=[1.2,1.2]", "usual.gpu_types=[V100,P100]",
        "usual.rollouts=2", "+known.toy={gpu_milli: 500, nodes_per_rack: 1, max_gpus: 2}",
        "regime=toy",
    ]  # fmt: skip
    found = {}
    for name, words in (("a", ["agent=packing"]), ("b", ["agent=fifo", "windows=null"])):
        found[name] = ran(main, *regime, "windows=4", *words, run=name)["instances"]
    assert len(found["a"]) == 4
    assert list(found["b"]) == list(found["a"])[:2]
    for name, row in found["b"].items():
        assert row["lower_bound_s"] == found["a"][name]["lower_bound_s"] <= row["mean_jct_s"]
        assert 5 <= row["jobs"] == found["a"][name]["jobs"] <= 8
