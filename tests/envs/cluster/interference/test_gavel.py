"""Gavel's table: what was measured, and the rates that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import arrived, named_trace, play

from envs.cluster.interference.gavel import GavelPairs
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Labels, Trace
from envs.files import read_json
from tests.refusal import refusal

A, B, BIG = "('a', 1)", "('b', 1)", "('a', 2)"


def small() -> dict[str, Any]:
    """Two job types on two GPU types; `b` does not fit beside itself, `a` on two GPUs not on x."""
    fast = {
        A: {"null": 10.0, A: [6.0, 6.0], B: [8.0, 3.0]},
        B: {"null": 4.0, A: [3.0, 8.0], B: [0.0, 0.0]},
        BIG: {"null": 18.0, BIG: [0.0, 0.0]},
    }
    slow = {
        A: {"null": 5.0, A: [2.0, 2.0], B: [0.0, 0.0]},
        B: {"null": 1.0, A: [0.0, 0.0], B: [0.0, 0.0]},
        BIG: {"null": 0.0, BIG: [0.0, 0.0]},
    }
    spread = json.loads(json.dumps(fast))
    spread[BIG]["null"] = 12.0
    return {"y": fast, "x": slow, "y_unconsolidated": spread, "x_unconsolidated": slow}


def written(tmp_path: Path, content: object) -> str:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    return str(path)


def model(path: str, turns: float = 0.5) -> GavelPairs:
    return GavelPairs(path, {"V100": "y", "K80": "x"}, "y", turns, 0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return written(tmp_path, small())


@pytest.fixture
def published(data: Path) -> GavelPairs:
    return GavelPairs(str(data / "interference/gavel/simulation_throughputs.json.gz"))


def test_the_published_figures(published: GavelPairs) -> None:
    assert sum(min(both) > 0.0 for both in published.reference.pairs.values()) == 636
    assert len(published.models) == 26
    assert published.feasible.sum() == 636
    for ratios in (published.reference.ratios(published.models), published.pair):
        assert ratios[published.feasible].mean() == pytest.approx(0.657, abs=5e-4)


def test_rates_of_the_published_table(published: GavelPairs) -> None:
    measured = read_json(published.path)
    names = ["ResNet-18 (batch size 128)", "ResNet-50 (batch size 16)"]
    trace = named_trace([*names, names[1], names[0]], [1, 1, 4, 1], [500, 500, 1000, 1000])
    cluster = Cluster.uniform(4, 4, gpu_types=("V100", "P100"))
    simulator = arrived(published, cluster, trace)
    first, second, four = (str((names[at], gpus)) for at, gpus in ((0, 1), (1, 1), (1, 4)))
    row = measured["v100"][first]
    alone = [row["null"], measured["v100"][second]["null"]]
    spread = measured["p100_unconsolidated"][four]["null"] / measured["v100"][four]["null"]
    p100 = measured["p100"][first]["null"] / alone[0]
    expected = [row[second][0] / alone[0], row[second][1] / alone[1], 0.0, p100]
    rates = play(simulator, {0: [(0, 1)], 1: [(0, 1)], 3: [(2, 1)]})
    assert rates == pytest.approx(expected, rel=1e-12)
    assert play(simulator, {2: [(2, 2), (3, 2)]})[2] == pytest.approx(spread, rel=1e-12)


def test_what_does_not_fit_takes_turns_and_can_be_asked_for(path: str) -> None:
    rates = model(path, turns=0.4)
    assert rates.pair == pytest.approx(np.array([[0.6, 0.8], [0.75, 0.4]]))
    assert rates.feasible.tolist() == [[True, True], [True, False]]
    trace = named_trace(["b", "b", "a"], [1, 1, 1], [300, 300, 300])
    simulator = arrived(rates, Cluster.uniform(1, 1), trace)
    assert play(simulator, {0: [(0, 1)], 1: [(0, 1)]}) == [0.4, 0.4, 0.0]
    expected = [0.4 * 0.75, 0.4 * 0.75, 0.8 * 0.8]
    assert play(simulator, {2: [(0, 1)]}) == pytest.approx(expected)


def test_a_job_that_does_not_fit_a_gpu_type_must_not_be_allowed_there(path: str) -> None:
    rates = model(path)
    both = Cluster.uniform(2, 2, gpu_types=("V100", "K80"))
    trace = named_trace(["a"], [2])
    with refusal(r"record 0: field 'gpu_type': .* 'K80'"):
        rates.tables(trace, both)
    object.__setattr__(trace, "gpu_type", Labels.of(["V100|P100"]))
    assert rates.tables(trace, both).speed[0].tolist() == [1.0, 0.0]


def test_jobs_without_a_model_draw_what_runs_everywhere(path: str) -> None:
    rates, one = model(path), Cluster.uniform(2, 2)
    trace = Trace.of("t", [0] * 60, [1] * 60, [1, 2] * 30)
    row = rates.tables(trace, one).row
    assert set(row[:, 0].tolist()) == {0, 1}
    two = Trace.of("t", [0] * 20, [1] * 20, [2] * 20)
    assert rates.tables(two, one).row.tolist() == [[0]]  # `b` was not measured on two GPUs
    with refusal("no profile suits a job of 2 GPUs"):
        rates.tables(two, Cluster.uniform(2, 2, gpu_types=("V100", "K80")))


def test_faster_when_spread_counts_as_1(tmp_path: Path) -> None:
    table = small()
    table["y_unconsolidated"][BIG]["null"] = 27.0
    rates = model(written(tmp_path, table))
    result = rates.tables(named_trace(["a"], [2]), Cluster.uniform(2, 2))
    assert result.locality.max() == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["y"][A].pop("null"), r"field 'y\.\('a', 1\)\.null': is missing"),
        (lambda t: t["y"][A].update(null=-1), r"\.null': -1 is not greater than or equal to 0"),
        (lambda t: t["y"][A].update({A: [1.0]}), r"\[1.0\] is not List should have"),
        (lambda t: t["y"][A].update({B: [8.0, 2.0]}), "differs from the same pair"),
        (lambda t: t["y"][A].update({"('c', 1)": [1, 1]}), "was not measured alone"),
        (lambda t: t["y"].update({"c": {"null": 1.0}}), r"record y: 'c' is no \('model', GPUs\)"),
        (lambda t: t.pop("x_unconsolidated"), "field 'gpu_types': no table of GPU type 'x'"),
    ],
)
def test_a_malformed_table_names_the_place(tmp_path: Path, change: Any, message: str) -> None:
    table = small()
    change(table)
    with refusal(message):
        model(written(tmp_path, table))


def test_other_bad_input(path: str) -> None:
    with refusal("cannot be read"):
        model("none.json")
    with refusal(r"'turns': 0.6 is not in"):
        model(path, 0.6)
    with refusal("'gpu_types': 'A100' is none of V100, K80"):
        model(path).tables(named_trace(["a"], [1]), Cluster.uniform(1, 1, gpu_types=("A100",)))
    trace, cluster = named_trace(["a"], [2]), Cluster.uniform(1, 2)
    with refusal("does not run on the reference type"):
        GavelPairs(path, {"V100": "y"}, "x", 0.5, 0).tables(trace, cluster)
    table = small()
    del table["y_unconsolidated"][BIG]
    with refusal(r"record y_unconsolidated: \('a', 2\) was not measured"):
        model(written(Path(path).parent, table)).tables(trace, cluster)
    Path(path).write_text("[]")
    with refusal("is no mapping"):
        model(path)
