"""Gavel's table: what was measured, and the rates that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import named_trace

from envs.cluster.interference.gavel import GavelPairs, read_gavel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Labels, Trace
from envs.files import read_json
from tests.refusal import refusal

TYPES = {"V100": "v100", "P100": "p100", "K80": "k80"}
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


def test_the_published_figures(data: Path) -> None:
    path = data / "interference/gavel/simulation_throughputs.json.gz"
    table = read_gavel(path)["v100"]
    pairs = [pair for pair, both in table.pairs.items() if min(both) > 0.0]
    assert len(pairs) == 636
    assert np.mean([table.ratio(a, b) for a, b in pairs]) == pytest.approx(0.657, abs=5e-4)
    rates = GavelPairs(str(path), TYPES, "v100", 0.5, 0)
    assert len(rates.models) == 26
    assert rates.feasible.sum() == 636
    assert rates.pair[rates.feasible].mean() == pytest.approx(0.657, abs=5e-4)


def test_rates_of_the_published_table(data: Path) -> None:
    path = data / "interference/gavel/simulation_throughputs.json.gz"
    measured = read_json(path)
    names = ["ResNet-18 (batch size 128)", "ResNet-50 (batch size 16)"]
    trace = named_trace([*names, names[1], names[0]], [1, 1, 4, 1], [500, 500, 1000, 1000])
    cluster = Cluster.uniform(4, 4, gpu_types=("V100", "P100"))
    simulator = ClusterSimulator(cluster, trace, rates=GavelPairs(str(path), TYPES, "v100", 0.5, 0))
    simulator.advance()
    simulator.start(0, [(0, 1)])
    simulator.start(1, [(0, 1)], int(simulator.state.nodes[0]["partial"]))
    keys = [f"('{name}', 1)" for name in names]
    row = measured["v100"][keys[0]]
    both = row[keys[1]]
    alone = [row["null"], measured["v100"][keys[1]]["null"]]
    rate = simulator.state.jobs["rate"]
    assert rate[:2] == pytest.approx([both[0] / alone[0], both[1] / alone[1]], rel=1e-12)
    simulator.start(3, [(2, 1)])
    p100 = measured["p100"][keys[0]]["null"] / alone[0]
    assert simulator.state.jobs[3]["rate"] == pytest.approx(p100, rel=1e-12)
    simulator.start(2, [(2, 2), (3, 2)])
    four = f"('{names[1]}', 4)"
    spread = measured["p100_unconsolidated"][four]["null"] / measured["v100"][four]["null"]
    assert simulator.state.jobs[2]["rate"] == pytest.approx(spread, rel=1e-12)


def test_what_does_not_fit_takes_turns_and_can_be_asked_for(tmp_path: Path) -> None:
    rates = model(written(tmp_path, small()), turns=0.4)
    assert rates.pair == pytest.approx(np.array([[0.6, 0.8], [0.75, 0.4]]))
    assert rates.feasible.tolist() == [[True, True], [True, False]]
    trace = named_trace(["b", "b", "a"], [1, 1, 1], [300, 300, 300])
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace, rates=rates)
    simulator.advance()
    simulator.start(0, [(0, 1)])
    simulator.start(1, [(0, 1)], int(simulator.state.nodes[0]["partial"]))
    assert simulator.state.jobs["rate"][:2].tolist() == [0.4, 0.4]
    simulator.start(2, [(0, 1)], int(simulator.state.nodes[0]["partial"]))
    expected = [0.4 * 0.75, 0.4 * 0.75, 0.8 * 0.8]
    assert simulator.state.jobs["rate"] == pytest.approx(expected)


def test_a_job_that_does_not_fit_a_gpu_type_must_not_be_allowed_there(tmp_path: Path) -> None:
    rates = model(written(tmp_path, small()))
    both = Cluster.uniform(2, 2, gpu_types=("V100", "K80"))
    with refusal(r"record 0: field 'gpu_type': .* 'K80'"):
        rates.tables(named_trace(["a"], [2]), both)
    trace = named_trace(["a"], [2])
    object.__setattr__(trace, "gpu_type", Labels.of(["V100|P100"]))
    assert rates.tables(trace, both).speed[0].tolist() == [1.0, 0.0]


def test_jobs_without_a_model_draw_what_runs_everywhere(tmp_path: Path) -> None:
    rates = model(written(tmp_path, small()))
    one = Cluster.uniform(2, 2)
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
        (
            lambda t: t["y"][A].update({A: [1.0]}),
            r"\[1.0\] is not List should have",
        ),
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


def test_other_bad_input(tmp_path: Path) -> None:
    with refusal("cannot be read"):
        model(str(tmp_path / "none.json"))
    path = written(tmp_path, small())
    with refusal(r"'turns': 0.6 is not in"):
        model(path, 0.6)
    with refusal("GPU type 'A100' is not named"):
        model(path).tables(named_trace(["a"], [1]), Cluster.uniform(1, 1, gpu_types=("A100",)))
    with refusal("does not run on the reference type"):
        GavelPairs(path, {"V100": "y"}, "x", 0.5, 0).tables(
            named_trace(["a"], [2]), Cluster.uniform(1, 2)
        )
    (tmp_path / "table.json").write_text("[]")
    with refusal("is no mapping"):
        model(path)
