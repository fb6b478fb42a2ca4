"""`experiments.split`: windows, their load, the facts that are written and compared."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from small_split import JOBS, overrides

from envs.cluster.interference.rates import NoInterference, RateTables, without_neighbours
from envs.cluster.workload.trace import Trace
from experiments.cluster import baselines
from experiments.cluster.baselines import (
    baselines_of,
    check_class,
    outcome_of,
    problem_hash,
    replay_cell,
)
from experiments.cluster.split import SplitAppConfig, check_facts, facts_of
from experiments.cluster.split_windows import Split, SplitWindow, reference_load
from experiments.config.composing import check_command_line
from experiments.run.app import run_job
from experiments.run.one_run import RunConsole
from experiments.run.provenance import Provenance
from experiments.study.display import ProgressDisplay
from experiments.study.grid import FunctionCell, Grid, Outcomes
from experiments.study.processes import LocalProcesses
from tests.refusal import refusal

SOME = [
    "~agents.optimus", "~agents.las_gavel", "~agents.qssf", "~agents.max_min",
    "~agents.finish_time_fairness", "~rules", "+rules={}",
]  # fmt: skip


def config(folder: Path, *more: str) -> SplitAppConfig:
    return check_command_line([*overrides(folder), *more], "split_app", SplitAppConfig).config


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


def test_fix_then_compare(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*overrides(work), *SOME]
    runs = (("1", work / "one.yaml"), ("2", work / "two.yaml"))
    for folder, output in runs:
        told = [*given, "fix=true", f"output={output}", f"hydra.run.dir={folder}"]
        assert run_job("split_app", told) == 0
    first, second = (output.read_text() for _, output in runs)
    assert first == second
    assert re.search(r"(\d+) of \1 cells were done before", capsys.readouterr().out)
    facts = yaml.safe_load(first)
    assert facts["windows"]["a"]["train"]["start_s"] == 0
    for row in facts["test"]:
        assert 0.0 < row["lower_bound_s"] <= row["mean_jct_s"]
        assert row["gap"] == pytest.approx(1 - row["lower_bound_s"] / row["mean_jct_s"], abs=1e-3)
        assert row["best"].partition("/")[0] in {"fifo", "fifo_backfill", "las_2d", "gittins"}
    checked = [*given, f"+split.facts={_flow(facts)}", "hydra.run.dir=3"]
    checked.remove("+split.facts={}")
    assert run_job("split_app", checked) == 0
    changed = [text.replace("load: 1.1", "load: 1.2") for text in checked[:-1]]
    assert run_job("split_app", [*changed, "hydra.run.dir=4"]) == 2
    assert "split.facts.test" in capsys.readouterr().err


def _flow(facts: Any) -> str:
    text: str = yaml.safe_dump(facts, default_flow_style=True, width=10**6).strip()
    return text.replace("'", '"')


def test_compare_names_what_differs() -> None:
    facts = {"windows": {"a": 1}, "left_out": {}, "test": [{"name": "a.0", "jobs": 3}]}
    written = {**facts, "test": [{"name": "a.0", "jobs": 3, "best": "x", "gap": 0.1}]}
    check_facts(written, facts)
    with refusal(r"facts.test\[0\].*'jobs': 3.*'jobs': 4"):
        check_facts(written, {**facts, "test": [{"name": "a.0", "jobs": 4}]})
    with refusal("1 windows, the files have 2"):
        check_facts(written, {**facts, "test": [{}, {}]})
    with refusal(r"facts.windows' is missing"):
        check_facts({}, facts)


@pytest.mark.parametrize(
    ("more", "told"),
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
def test_bad_input_is_named(tmp_path: Path, more: list[str], told: str) -> None:
    with refusal(told):
        _ = Split(config(tmp_path, *more).split).traces


def test_outcomes_are_kept_by_what_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(tmp_path, *SOME)
    windows = Split(chosen.split).windows("test")
    found = baselines_of("unknown", chosen.agents, chosen.placements, {"fifo": ["first_fit"]})
    assert [b.name for b in found if b.policy == "fifo"] == ["fifo/first_fit"]
    assert not {"srtf", "sjf"} & {b.policy for b in found}
    known = baselines_of("known", chosen.agents, chosen.placements, {})
    assert {"srtf", "fifo"} <= {b.policy for b in known}
    fifo = found[0]

    def cell(window: SplitWindow, node: Any = fifo.node) -> FunctionCell:
        digest, contender = problem_hash(window.problem), replace(fifo, node=node)
        return replay_cell(window.problem, digest, contender, tmp_path / "kept")

    def replay(*cells: FunctionCell) -> Outcomes:
        with ProgressDisplay(RunConsole(quiet=True)) as display:
            return Grid(LocalProcesses(1), Provenance(0, {})).run(cells, display)

    one, two = (cell(window) for window in windows[:2])
    first = outcome_of(one, replay(one).documents[one])
    assert one.record.exists()
    assert outcome_of(one, replay(one).documents[one]) == first
    assert one.record != two.record
    assert one.record != cell(windows[0], {**fifo.node, "seed": 7}).record
    one.record.write_text("{}")
    with refusal("is no outcome of a baseline"):
        outcome_of(one, replay(one).documents[one])
    monkeypatch.setattr(baselines, "VERSION", baselines.VERSION + 1)
    assert not cell(windows[0]).record.exists()


def test_rules_of_what_is_not_there(tmp_path: Path) -> None:
    chosen = config(tmp_path)
    for rules in ({"nobody": ["best_fit"]}, {"fifo": ["nowhere"]}):
        with refusal("is not among those given"):
            baselines_of("unknown", chosen.agents, chosen.placements, rules)
    with refusal("config key 'information': 'some' is none of unknown, known"):
        check_class("some", "information")


@pytest.mark.parametrize("name", ["itp", "philly"])
def test_the_splits_that_ship(data: Path, name: str) -> None:
    """Their files, windows, loads and bounds are those that were written before training."""
    chosen = check_command_line(
        [f"split={name}", f"split.data={data}"], "split_app", SplitAppConfig
    ).config
    facts = chosen.split.facts
    check_facts(facts, facts_of(Split(chosen.split), {}))
    for row in facts["test"]:
        assert 0.69 < row["load"] < 1.31
    for found in facts["gaps"].values():
        assert found["gap"] >= 0.3
