"""DeepShare's tables, and the authors' rule on dictionaries."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from crowds import holdings, rates
from made_up import arrived, named_trace, play

from envs.cluster.interference.deepshare import (
    ISOLATED,
    SHARED,
    DeepShareContention,
    read_deepshare,
)
from envs.cluster.nodes import Cluster
from tests.refusal import refusal


def folder(
    tmp_path: Path,
    isolated: str = ',isol_thp\n"m,2,2",10\n"m,4,2",18\n"m,4,4",12\n',
    shared: str = '\ufeff,"m,2,2","m,4,2","m,4,4"\n"m,2,2",0.9,0.8,0.2\n"m,4,2",0.5,1.1,0.7\n'
    '"m,4,4",0.6,0.4,1.0\n',
) -> str:
    (tmp_path / ISOLATED).write_text(isolated)
    (tmp_path / SHARED).write_text(shared)
    return str(tmp_path)


def test_the_published_figures(data: Path) -> None:
    table = read_deepshare(data / "interference/deepshare")
    assert table.ratio.shape == (36, 36)
    assert table.ratio.mean() == pytest.approx(0.789, abs=5e-4)
    assert table.ratio.min() == 0.123
    assert table.ratio.max() <= 1.0


def test_the_authors_rule(data: Path) -> None:
    """min over the other spanning jobs of a shared node, not below the floor; 2 to 8 GPUs."""
    place = data / "interference/deepshare"
    with open(place / SHARED, encoding="utf-8-sig", newline="") as stream:
        lines = list(csv.reader(stream))
    ratio = {
        (line[0], name): float(value)
        for line in lines[1:]
        for name, value in zip(lines[0][1:], line[1:], strict=True)
    }
    rng = np.random.default_rng(5)
    names = ["MobileNetV3", "FSDP", "MoE", "DLRM"]
    models, gangs = rng.choice(names, 30).tolist(), rng.choice([2, 4, 8], 30)
    cluster = Cluster.uniform(10, 8)
    model = DeepShareContention(str(place))
    sim = arrived(model, cluster, named_trace(models, gangs.tolist()))
    for job in range(30):
        nodes = int(rng.choice([n for n in (1, 2, 4, 8) if n <= gangs[job]]))
        room = np.flatnonzero(sim.state.nodes["free"] >= gangs[job] // nodes)
        if len(room) >= nodes:
            chosen = rng.permutation(room)[:nodes].tolist()
            play(sim, {job: [(node, int(gangs[job]) // nodes) for node in chosen]})
    held, crowded = holdings(sim), 0
    for job, rate in rates(sim).items():
        beside = [o for o in held if o != job and set(held[o]) & set(held[job])]
        key = {o: f"{models[o]},{gangs[o]},{len(held[o])}" for o in [*beside, job]}
        others = [o for o in beside if len(held[o]) > 1 and len(held[job]) > 1]
        left = max(0.35, min(ratio[key[job], key[o]] for o in others)) if others else 1.0
        crowded += len(others) > 1
        alone = sim.tables.locality[sim.tables.profile[job], 0, 0, len(held[job]) - 1]
        assert rate == pytest.approx(alone * left, rel=1e-12)
    assert crowded > 5


def test_throughput_by_nodes(tmp_path: Path) -> None:
    model = DeepShareContention(folder(tmp_path))
    result = model.tables(named_trace(["m", "m"], [2, 4]), Cluster.uniform(8, 2))
    assert result.locality[0, 0, 0] == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert result.locality[1, 0, 0] == pytest.approx([1.0, 1.0, 1.0, 12 / 18])
    assert result.row.tolist() == [[0, 0, 0, 0], [1, 1, 1, 2]]
    assert model.pair.max() == 1.0  # 1.1 was measured


def test_the_floor(tmp_path: Path) -> None:
    trace = named_trace(["m", "m"], [2, 4])
    model = DeepShareContention(folder(tmp_path))
    simulator = arrived(model, Cluster.uniform(8, 4), trace)
    rates = play(simulator, {0: [(0, 1), (1, 1)], 1: [(node, 1) for node in range(4)]})
    assert rates[0] == 0.35  # 0.2 was measured
    assert rates[1] == pytest.approx(12 / 18 * 0.6)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "isolated",
            ',x\n"m,2",10\n',
            f"{ISOLATED}: record row 1 .*: 'm,2' is no 'model,GPUs,nodes'",
        ),
        ("isolated", ',x\n"m,2,4",10\n', "'m,2,4' is no"),
        ("isolated", ',x\n"m,2,2",0\n', "row 1 .*: field 'x': '0' is not above 0"),
        ("isolated", ',x\n"m,2,2",1\n"m,2,2",1\n', "row 2 .*: 'm,2,2' stands twice"),
        ("isolated", ',x\n"m,2,2",1\n', f"{ISOLATED}: record m,4,2: is missing"),
        ("isolated", "", "is empty"),
        ("shared", ',"m,2,2"\n"m,2,2",0.9,1\n', f"{SHARED}: record row 1 .*: has 3 cells"),
        ("shared", ',"m,2,2"\n"m,4,2",0.9\n', "has other jobs in its rows"),
        ("shared", ',"m,2,2"\n"m,2,2",none\n', "field 'm,2,2': 'none' is not a number"),
        ("shared", ',"m,2,2","m,4,2"\n"m,2,2",1,1\n', "has other jobs in its rows"),
    ],
)
def test_a_malformed_file_names_the_place(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    with refusal(message):
        DeepShareContention(folder(tmp_path, **{file: text}))


def test_other_bad_input(tmp_path: Path) -> None:
    with refusal("cannot be read"):
        DeepShareContention(str(tmp_path / "none"))
    model = DeepShareContention(folder(tmp_path))
    mixed = Cluster.uniform(2, 2, gpu_types=("V100", "P100"))
    with refusal("measured on one GPU type"):
        model.tables(named_trace(["m"], [1]), mixed)
