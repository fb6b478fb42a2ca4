"""`experiments.train model=interference`, from command line to a simulated cluster."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import is_drawn, ran, result, working_in
from refusals import Refuses

from experiments.evaluate import main as evaluate
from experiments.train import main

JOB_TYPES = [f"{m} (batch size {b})" for m in ("Ash", "Elm", "Fir", "Oak") for b in (8, 64)]
PLACED = [f"{m},{g},{n}" for m in ("ash", "elm", "fir") for g, n in ((2, 2), (4, 2), (4, 4))]
SMALL = [
    "model=interference", "model.steps=3", "model.hidden=4", "model.members=2",
    "model.inner_members=1", "evaluation.probes=2", "evaluation.other_probes=[0]",
]  # fmt: skip
MEASURED = ["measurements.gavel=gavel.json", "measurements.deepshare=deepshare"]


def write_measurements(folder: Path) -> None:
    rng = np.random.default_rng(0)
    content: dict[str, dict[str, dict[str, object]]] = {}
    for gpu_type in ("old", "new"):
        turn = np.exp(rng.normal(0, 0.5, len(JOB_TYPES)))
        alone = rng.uniform(1, 9, len(JOB_TYPES))
        keys = [str((name, 1)) for name in JOB_TYPES]
        rows: dict[str, dict[str, object]] = {}
        for i, key in enumerate(keys):
            share = turn[i] / (turn[i] + turn)
            rows[key] = {"null": alone[i]}
            rows[key] |= {
                other: [alone[i] * share[j], alone[j] * (1 - share[j])]
                for j, other in enumerate(keys)
            }
        for i, key in enumerate(keys):  # both directions to the last digit
            for other in keys[:i]:
                a, b = rows[other][key]  # type: ignore[misc]
                rows[key][other] = [b, a]
        content[gpu_type] = rows
        content[f"{gpu_type}_unconsolidated"] = rows
    (folder / "gavel.json").write_text(json.dumps(content))
    (folder / "deepshare").mkdir()
    quoted = [f'"{name}"' for name in PLACED]
    isolated = "".join(f"{name},{rng.uniform(1, 9):.3f}\n" for name in quoted)
    (folder / "deepshare" / "isolated_thp.csv").write_text(f",isol_thp\n{isolated}")
    ratio = rng.uniform(0.4, 1.0, (len(PLACED), len(PLACED)))
    rows_text = "".join(
        f"{name},{','.join(f'{x:.3f}' for x in row)}\n"
        for name, row in zip(quoted, ratio, strict=True)
    )
    (folder / "deepshare" / "shared_thp_ratio.csv").write_text(f",{','.join(quoted)}\n{rows_text}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with measurements and the folder `run` of a training on them."""
    folder = tmp_path_factory.mktemp("interference")
    write_measurements(folder)
    with working_in(folder):
        ran(main, *SMALL, *MEASURED)
    return folder


@pytest.fixture
def work(made: Path, work: Path) -> Path:
    for name in ("gavel.json", "deepshare", "run"):
        (work / name).symlink_to(made / name)
    return work


def test_errors_of_every_method_reach_the_result(made: Path) -> None:
    found = result(made / "run")
    rows = {(r["method"], r["unseen"], r["probes"]): r for r in found["errors"]}
    methods = {
        "network", "median", "analytic", "contention", "nearest neighbour", "5 nearest",
        "matrix completion",
    }  # fmt: skip
    assert set(rows) == {
        (m, u, k) for m in methods for u, k in (("model", 2), ("model", 0), ("job", 2))
    }
    network = rows["network", "model", 2]
    assert found["mae"] == network["mae"]["all"]
    assert set(network["mae"]) == {"all", "old", "new", "deepshare"}
    counts = network["measurements"]
    weights = [counts[name] for name in ("old", "new", "deepshare")]
    means = [network["mae"][name] for name in ("old", "new", "deepshare")]
    assert network["mae"]["all"] == pytest.approx(np.average(means, weights=weights))
    assert len(network["mae_of_seeds"]) == 2
    assert set(rows["contention", "model", 2]["mae"]) == {"all", "deepshare"}
    # A fold of Gavel's 8 jobs leaves 2 out: 64 - 36 pairs, less those with 2 probes.
    assert counts["old"] == 4 * (64 - 36 - 2 * 2 * 2)
    assert rows["network", "job", 2]["measurements"]["old"] == 8 * (15 - 2 * 2)
    others = [r["mae"]["all"] for k, r in rows.items() if k[1:] == ("model", 2)]
    assert found["best_method"] == "network" or min(others) < found["mae"]
    inputs = found["provenance"]["inputs_sha256"]
    assert set(inputs) == {"gavel", "deepshare/isolated_thp.csv", "deepshare/shared_thp_ratio.csv"}


def test_intervals_reach_the_result(made: Path) -> None:
    found = result(made / "run")
    rows = {(row["table"], row["level"]): row for row in found["coverage"]}
    assert set(rows) == {(t, x) for t in ("old", "new", "deepshare") for x in (0.8, 0.95)}
    for table in ("old", "new", "deepshare"):
        low, high = rows[table, 0.8], rows[table, 0.95]
        assert 0.5 < low["held"] <= high["held"] <= 1.0
        assert low["worst"] <= low["held"]
        assert 0.0 < low["width"] <= high["width"] <= 1.0


def test_table_and_pictures_are_written(made: Path) -> None:
    table = (made / "run" / "table.md").read_text()
    lines = [line for line in table.splitlines() if line.startswith("| network | model | 2 |")]
    assert len(lines) == 1
    assert lines[0].count("|") == 9  # all, gavel, old, new, deepshare
    assert "| old | 80% |" in table
    assert is_drawn(made / "run/predicted.png", made / "run/errors.png")


def test_one_seed_one_predictor(work: Path) -> None:
    """Whatever else is evaluated."""
    less = ["evaluation.other_probes=[]", "evaluation.single_jobs=false"]
    ran(main, *SMALL, *MEASURED, *less, run="again")
    for source in ("gavel", "deepshare"):
        first, again = (
            (work / run / "predictors" / source / "weights.safetensors").read_bytes()
            for run in ("run", "again")
        )
        assert first == again


def replayed(*asked: str) -> float:
    """The mean JCT of jobs on a spread."""
    spread = [
        "env=cluster", "agent=fifo_backfill", "placement=spread", "trace.format=synthetic",
        "trace.jobs=60", "trace.load=1.2", "trace.gpus=32", "trace.max_gpus=8",
        "cluster.nodes=8", "cluster.gpus_per_node=4",
    ]  # fmt: skip
    folder = "_".join(asked[:3]).replace("=", "_").replace("/", "_")
    found = ran(evaluate, *spread, *asked, run=folder)
    assert found["finished"] == found["jobs"]
    return float(found["mean_jct_s"])


def test_the_run_becomes_an_interference_model(work: Path) -> None:
    undisturbed = replayed("interference=none")
    network = [
        "interference=learned", "interference.source=deepshare", "interference.table=deepshare",
        "interference.path=run",
    ]  # fmt: skip
    assert replayed(*network) > undisturbed
    on_gpu = [
        "interference=learned", "interference.path=run/predictors/gavel", "interference.table=new",
    ]  # fmt: skip
    assert replayed(*on_gpu) == undisturbed  # whole GPUs are not shared


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], "config key 'measurements'"),
        (["measurements.gavel=missing.json"], "missing.json"),
        ([*MEASURED, "evaluation.probes=-1"], "evaluation.probes"),
        ([*MEASURED, "evaluation.other_probes=[-1]"], "evaluation.other_probes"),
        ([*MEASURED, "evaluation.probes=5"], "5 probes of"),
        ([*MEASURED, "evaluation.levels=[1.5]"], "evaluation.levels"),
        ([*MEASURED, "model.steps=0"], "model.steps"),
        ([*MEASURED, "model.depth=3"], "model.depth"),
        ([*MEASURED, "threads=0"], "threads"),
        ([*MEASURED, "graph=bert_large"], "graph"),
    ],
)
def test_bad_input_is_told_in_one_line(
    work: Path, refuses: Refuses, asked: list[str], message: str
) -> None:
    refuses(main, [*SMALL, *asked], message)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["interference.path=nowhere"], "nowhere"),
        (["interference.path=run", "interference.table=k80"], "interference.table"),
    ],
)
def test_a_bad_predictor_is_told(
    work: Path, refuses: Refuses, asked: list[str], message: str
) -> None:
    jobs = ["env=cluster", "trace.format=synthetic", "trace.jobs=9", "interference=learned"]
    refuses(evaluate, [*jobs, *asked], message)
