"""`experiments.plan problem=pipeline`, and plan files: what is written is read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import ran, working_in
from layered_step import layered_step

from envs.files import read_json
from envs.graphs.storage import save_graph
from experiments.step.hybrid_file import read_hybrid_plan
from tests.refusal import refusal

ARGUMENTS = ("problem=pipeline", "graph=graph.npz", "topology=dgx1", "budget_s=2")


@pytest.fixture
def work(work: Path) -> Path:
    save_graph(layered_step(6, 2), work / "graph.npz")
    return work


def ask(*arguments: str) -> dict[str, Any]:
    return ran("plan", *ARGUMENTS, *arguments)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a plan file."""
    folder = tmp_path_factory.mktemp("plan")
    save_graph(layered_step(6, 2), folder / "graph.npz")
    with working_in(folder):
        assert ask("agent=alpa")["feasible"]
    return (folder / "run" / "hybrid_plan.json").read_text()


@pytest.fixture
def written(document: str, tmp_path: Path) -> Path:
    path = tmp_path / "hybrid_plan.json"
    path.write_text(document)
    return path


def test_stages_are_told_and_judged(work: Path) -> None:
    found = ask("agent=alpa", "problem.micro_batches=5")
    assert found["micro_batches"] == 5
    firsts, ends = zip(*(row["layers"] for row in found["stages"]), strict=True)
    assert firsts == (0, *ends[:-1])
    assert ends[-1] == found["layers"] == 6
    assert found["objective_s"] >= found["lower_bound_s"] > 0
    assert found["predicted_s"] > 0
    assert Path(found["picture"]).is_file()


def test_a_plan_survives_the_round_trip(written: Path) -> None:
    read, document = read_hybrid_plan(written), read_json(written)
    assert read.layers == tuple(document["problem"]["layers"])
    assert read.plan.micro_batches == 8
    assert read.plan.stages[-1].end == len(read.layers)
    used = [device for stage in document["stages"] for device in stage["devices"]]
    assert all(device.startswith("server0/") for device in used)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.update(kind="plan"), ("'kind'",)),
        (lambda d: d.update(schema_version=9), ("schema_version", "9")),
        (lambda d: d.update(stages=[]), ("stages",)),
        (lambda d: d["stages"][0].update(first=1), ("stages[0]", "first")),
        (lambda d: d["stages"][-1].update(end=9), ("end", "9")),
        (lambda d: d["stages"][0].update(shards=0), ("stages[0]", "shards")),
        (lambda d: d["stages"][0].update(shares=[0.3]), ("stages[0]", "shares")),
        (lambda d: d["stages"][0].update(colour="red"), ("stages[0]", "colour")),
        (lambda d: d["orders"][0].pop(), ("orders",)),
        (lambda d: d["orders"][0].append("0X0"), ("rank 0", "0X0")),
        (lambda d: d["orders"][0].reverse(), ("orders", "waits")),
        (lambda d: d.pop("micro_batches"), ("micro_batches", "missing")),
    ],
)
def test_a_broken_plan_is_refused(
    written: Path, edit: Callable[[dict[str, Any]], object], words: tuple[str, ...]
) -> None:
    document = read_json(written)
    edit(document)
    written.write_text(json.dumps(document))
    with refusal() as refused:
        read_hybrid_plan(written)
    assert all(word in str(refused.value) for word in (str(written), *words))
