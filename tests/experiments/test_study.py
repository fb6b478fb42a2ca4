"""Cells of a study, their tables, and what is read from these; every shipped study at toy size."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from layered_step import layered_step
from small_split import one_of_several, overrides
from test_recipes import TINY

from envs.graphs.storage import save_graph
from experiments.command_line import main_of
from experiments.config.composing import check_command_line, plain_config
from experiments.studies import cells as cells_module
from experiments.studies.comparison import Comparison, Entry
from experiments.studies.frames import CELLS, CURVES, VALUES, Frames
from experiments.studies.running import StudyConfig
from experiments.studies.study import Cell, Study
from tests.paths import CONF
from tests.refusal import refusal
from tests.strength import trials

main = main_of("study")
TOY: Mapping[str, Any] = {
    "title": "Toy",
    "problems": {"orders": {"one": ["problem.orders=[one_f_one_b]"], "any": []}},
    "solvers": ["contiguous", "dp", "random"],
    "budgets": [9],
    "seeds": 2,
    "words": ["env=placement_toy"],
}


def study_file(folder: Path, **changes: Any) -> str:
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump({**TOY, **changes}, sort_keys=False))
    return f"study={path}"


def composed(*words: str) -> StudyConfig:
    return check_command_line(words, "study", StudyConfig).config


# What is crossed


def test_cells_are_all_levels_of_all_factors_once(tmp_path: Path) -> None:
    found = composed(study_file(tmp_path)).study.cells(3)
    assert len(found) == len({cell.key for cell in found}) == 2 * 3 * 2
    assert {cell.seed for cell in found} == {3, 4}
    first = found[0]
    assert first.words == (
        "env=placement_toy", "problem.orders=[one_f_one_b]", "agent=contiguous", "budget_s=9",
        "seed=3",
    )  # fmt: skip
    assert first.name == "one: contiguous: 9 s: seed 3"


def test_a_part_takes_from_its_study_and_a_common_word_goes_last(tmp_path: Path) -> None:
    parts = {"all": {}, "one": {"solvers": ["dp"], "budgets": [2], "seeds": 1}}
    study = composed(study_file(tmp_path, parts=parts)).study
    found = study.cells(0, ["env=other"])
    assert len(found) == 12 + 2
    assert [cell.budget for cell in found[-2:]] == [2, 2]
    assert all(
        "env=other" in cell.words and "env=placement_toy" not in cell.words for cell in found
    )


def test_the_key_is_of_the_words_and_of_the_files_they_name(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text("1")

    def key(*words: str) -> str:
        return Cell("plan", {}, "s", "", None, 0, words).key

    before = key(f"graph={file}")
    assert before == key(f"graph={file}") != key("graph=other")
    file.write_text("2")
    assert key(f"graph={file}") != before


def test_a_cell_reads_that_of_its_seed_and_problem(tmp_path: Path) -> None:
    parts = {
        "first": {"solvers": {"a": ["agent=dp"]}},
        "second": {"solvers": {"b": ["agent=$CELL(a)/agent.yaml"]}},
        "third": {"problems": {}, "solvers": {"c": ["agent=[$CELLS(a)/x.json]"]}, "seeds": 1},
    }
    found = composed(study_file(tmp_path, parts=parts)).study.cells(0)
    by_key = {cell.key: cell for cell in found}
    for cell in found:
        if cell.solver == "b":
            (read,) = (by_key[key] for key in cell.reads)
            assert (read.solver, read.seed, read.problem) == ("a", cell.seed, cell.problem)
            assert f"agent='{tmp_path}/{read.key}/agent.yaml'" in cell.command(tmp_path)
        if cell.solver == "c":
            assert len(cell.reads) == 4
            assert " ".join(cell.words).count("$CELL(") == 4
    parts["second"] = {"solvers": {"b": ["agent=$CELL(nobody)"]}}
    with refusal("reads 0 cells of 'nobody'"):
        composed(study_file(tmp_path, parts=parts)).study.cells(0)


def test_levels_without_their_data_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = {"ours": ["graph=gpt2"], "theirs": ["graph=$MESHWRIGHT_DATA/x.json"]}
    given = study_file(tmp_path, problems={"graph": graphs})
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    assert composed(given).study.left_out() == ["theirs"]
    assert {cell.problem for cell in composed(given).study.cells(0)} == {"ours"}
    monkeypatch.setenv("MESHWRIGHT_DATA", "/data")
    assert composed(given).study.left_out() == []
    assert "graph=/data/x.json" in composed(given).study.cells(0)[-1].words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verb": "nope"}, "'study.verb'"),
        ({"metrics": []}, "'study.metrics'"),
        ({"words": ["seed=3"]}, "'seed=3' is the study's own"),
        ({"solvers": {}, "problems": {"x": {"y": ["graph=$MESHWRIGHT_DATA/g"]}}}, "no cells"),
        ({"solvers": {"evil": ["agent=os.system"]}}, "os.system"),
        ({"solvers": {"x": ["agent=contigous"]}}, "did you mean contiguous"),
        ({"solvers": {"x": ["agnt=dp"]}}, "'agnt'"),
        ({"parts": {"a": {}, "b": {"solvers": {"x": ["agnt=$CELL(dp)/a"]}}}}, "'agnt'"),
        ({"titel": "x"}, "did you mean title"),
        ({"budgets": [-1]}, "budgets"),
        ({"against": ["nobody"]}, "'nobody' is not one of best_per_problem"),
        ({"yardsticks": ["nobody"]}, "'study.yardsticks'"),
        (
            {"metrics": ["nothing"], "problems": {}, "solvers": ["contiguous"]},
            "no cell has a figure 'nothing'",
        ),
    ],
)
def test_a_fault_is_one_line(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    changes: Mapping[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    assert main([study_file(work, **{"seeds": 1, **changes}), "hydra.run.dir=run"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


# What is run


def test_three_tables_and_what_is_read_from_them(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [study_file(work, solvers=["contiguous", "random"]), "hydra.run.dir=run", "json=true"]
    assert main(given) == 0
    result = json.loads(capfd.readouterr().out)
    frames = {name: pl.read_parquet(work / "run" / f"{name}.parquet") for name in Frames._fields}
    for name, schema in (("cells", CELLS), ("values", VALUES), ("curves", CURVES)):
        assert frames[name].schema == pl.Schema(schema)
    cells, values = frames["cells"], frames["values"]
    assert len(cells) == 8
    assert set(values["cell"]) == set(cells["cell"])
    for name in ("table.md", "table.tex", "table.csv", "study.html", "study.png"):
        assert (work / "run" / name).stat().st_size > 100
    own = values.filter(pl.col("metric") == "objective").join(cells, "cell")
    for problem, by_solver in result["values"].items():
        for solver, found in by_solver.items():
            same = own.filter(pl.col("problem") == problem, pl.col("solver") == solver)
            assert found["objective"] == same.sort("seed")["value"].to_list()
    artefacts = [Path(path) for path in cells["artefact"]]
    assert all(json.loads((path / "result.json").read_text()) for path in artefacts)


def test_cells_that_are_done_are_not_done_again(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the second cell; the command that is told goes on; another study shares cells."""
    small = {"solvers": ["contiguous", "dp"], "seeds": 1, "problems": {}}
    assert main([study_file(work, **small), "hydra.run.dir=whole"]) == 0
    run, calls = cells_module.run_quietly, itertools.count()

    def counted(*arguments: Any) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        run(*arguments)

    monkeypatch.setattr(cells_module, "run_quietly", counted)
    shared = f"cells={work}/kept"
    assert main([study_file(work, **small), "hydra.run.dir=run", shared]) == 130
    capsys.readouterr()
    assert main(["resume=run"]) == 0
    assert "1 of 2 cells were done before" in capsys.readouterr().out
    assert next(calls) == 2 + 1
    assert below(work / "run") == below(work / "whole")
    assert main(["resume=run", "study.against=[dp]"]) == 0  # from the same cells
    assert main([study_file(work, **small, title="More"), "hydra.run.dir=more", shared]) == 0
    assert next(calls) == 2 + 1 + 1
    assert "over that of dp" in (work / "run/table.md").read_text()


def below(folder: Path) -> list[tuple[object, ...]]:
    """Every figure of every cell that is no time."""
    values, cells = (pl.read_parquet(folder / f"{x}.parquet") for x in ("values", "cells"))
    kept = values.filter(~pl.col("metric").str.contains("second"))
    kept = kept.join(cells, "cell")
    return sorted(kept.select("cell", "solver", "status", "metric", "value").iter_rows())


def test_a_cell_that_fails_is_a_row_and_stops_those_that_read_it(work: Path) -> None:
    parts = {
        "good": {"solvers": {"dp": ["agent=dp"]}},
        "bad": {
            "solvers": {"bad": ["agent=dp", "graph=gpt2", "env=placement", "topology=from_graph"]}
        },
        "reads": {"solvers": {"reads": ["agent=learned", "agent.checkpoint=$CELL(bad)/x"]}},
    }
    given = study_file(work, parts=parts, problems={}, seeds=1, words=[])
    assert main([given, "hydra.run.dir=run", "graph=gpt2", "graph.micro_batches=2"]) == 0
    cells = pl.read_parquet(work / "run/cells.parquet").sort("solver")
    assert cells["status"][0] == "failed"
    assert (
        "reads a cell that has no result" in cells.filter(pl.col("solver") == "reads")["reason"][0]
    )
    assert "Without a result" in (work / "run/table.md").read_text()


@pytest.mark.proof
def test_killed_in_processes_a_study_goes_on_to_the_same_tables(work: Path) -> None:
    """SIGKILL of the command alone: its workers end, and what was done is kept."""
    pytest.importorskip("joblib")
    given = [study_file(work, solvers=["contiguous", "local_search"], budgets=[60], seeds=1)]
    limit = ["deterministic_limit=30"]
    assert main([*given, *limit, "hydra.run.dir=whole"]) == 0
    command = [sys.executable, "-m", "experiments.study", *given, *limit, "workers=2"]
    process = subprocess.Popen(
        [*command, f"hydra.run.dir={work / 'run'}"], cwd=CONF.parent, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while not list((work / "run/cells").glob("*/config.yaml")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert main([f"resume={work / 'run'}"]) == 0
    assert below(work / "run") == below(work / "whole")


# What is read from the tables


class Value(NamedTuple):
    problem: str
    solver: str
    value: float
    budget: float | None = None
    instance: str = ""
    seed: int = 0
    variant: str = ""


def compared(
    *rows: tuple[Any, ...],
    curves: Mapping[str, Sequence[tuple[float, float]]] = {},
    seconds: float = 1.0,
    **changes: Any,
) -> Comparison:
    """A study with such a `Value` in each row; solvers' curves are of (seconds, value)."""
    cells, values = {}, []
    for x in itertools.starmap(Value, rows):
        key = f"{x.problem}/{x.solver}{x.variant}/{x.budget}/{x.seed}"
        cells[key] = (
            key, "s", x.problem, json.dumps({"problem": x.problem}), x.solver, x.variant, x.budget,
            x.seed, "done", "", seconds, None, "", "{}",
        )  # fmt: skip
        values.append((key, x.instance, "m", x.value))
    points = [(f"p/{name}/None/0", *at, None) for name, curve in curves.items() for at in curve]
    frames = Frames(
        pl.DataFrame([*cells.values()], CELLS, orient="row"),
        pl.DataFrame(values, VALUES, orient="row"),
        pl.DataFrame(points, CURVES, orient="row"),
    )
    return Comparison(Study(title="s", metrics=["m"], **changes), frames, "m")


Values = st.dictionaries(
    st.tuples(*map(st.sampled_from, ("pq", "ij", "abc")), st.integers(0, 1)),
    st.integers(1, 9),
    min_size=1,
)  # fmt: skip


@given(Values, st.sampled_from(["min", "max"]))
def test_yardsticks_are_those_of_loops_over_rows(
    values: dict[tuple[str, str, str, int], int], sense: Any
) -> None:
    rows = [(p, s, float(v), None, i, seed) for (p, i, s, seed), v in values.items()]
    found = compared(*rows, sense=sense)
    better = min if sense == "min" else max

    def mean(problem: str, instance: str, solver: str) -> float | None:
        own = [v for (p, i, s, _), v in values.items() if (p, i, s) == (problem, instance, solver)]
        return float(np.mean(own)) if own else None

    best = {}
    for number, item in enumerate(found.items):
        known = [m for s in "abc" if (m := mean(*item, s)) is not None]
        best[item] = better(known)
        assert found.best[number] == best[item]
    for entry in found.entries:
        for number, item in enumerate(found.items):
            for column, seed in enumerate(found.seeds):
                value = values.get((*item, entry.solver, seed))
                ratio = found.ratios(entry)[number, column]
                assert np.isnan(ratio) if value is None else ratio == value / best[item]
        own = [mean(*item, entry.solver) for item in found.items]
        summary = found.summary(entry)
        assert summary["missing"] == own.count(None)
        assert summary["best_on"] == sum(
            m is not None and m == best[item] for m, item in zip(own, found.items, strict=True)
        )
    for problem, places in found.problems.items():
        chosen = found.overall(places)
        scores = {}
        for solver in {entry.solver for entry in found.entries}:
            ratios = [
                m / best[item] for item in (found.items[n] for n in places)
                if (m := mean(*item, solver)) is not None
            ]  # fmt: skip
            sign = 1.0 if sense == "min" else -1.0
            scores[solver] = len(places) - len(ratios), sign * np.mean(ratios or [np.inf * sign])
        assert scores[chosen.solver] == min(scores.values()), problem


def test_a_yardstick_may_be_a_solver_a_level_or_published() -> None:
    rows = ("p", "a", 2.0), ("p", "b", 4.0), ("q", "a", 6.0), ("q", "b", 3.0)
    a, b = Entry("a", "", None), Entry("b", "", None)
    assert compared(*rows, against=["a"]).ratios(b)[:, 0].tolist() == [2.0, 0.5]
    assert compared(*rows, against=["problem=p"]).ratios(a)[:, 0].tolist() == [1.0, 3.0]
    assert compared(*rows, known={"p": 1.0}).ratios(a)[:, 0].tolist() == [2.0, 2.0]
    assert compared(*rows, yardsticks=["b"]).ratios(a)[:, 0].tolist() == [0.5, 2.0]
    assert compared(*rows, against=["best_overall"]).yardstick(b).tolist() == [2.0, 6.0]


def test_nobody_is_the_best_whom_one_beats_that_is_no_yardstick() -> None:
    found = compared(("p", "a", 2.0), ("p", "b", 3.0), ("p", "c", 4.0), yardsticks=["c"])
    assert [found.summary(entry)["best_on"] for entry in found.entries] == [1, 0, 0]
    assert (found.leader().solver, found.overall().solver) == ("a", "c")


def test_a_level_and_a_solver_have_the_last_word(tmp_path: Path) -> None:
    levels = {"load": {"high": ["trace.load=2"], "low": []}}
    words = ["env=cluster", "trace.load=1", "agent=sjf"]
    given = study_file(tmp_path, verb="evaluate", words=words, problems=levels, solvers=["fifo"])
    found = composed(given).study.cells(0)
    first = [x.words[:3] for x in found[:: len(found) // 2]]
    assert first == [("env=cluster", f"trace.load={load}", "agent=fifo") for load in (2, 1)]


def test_the_objective_of_a_cell_is_what_its_job_is_judged_by() -> None:
    def figures(document: dict[str, Any], *words: str) -> pl.DataFrame:
        cell = Cell("evaluate", {}, "x", "", None, 0, words)
        return Frames.of("s", [(cell, document, Path())]).figures("objective")

    of_windows = {"mean_jct_s": 3.0, "instances": {"w": {"mean_jct_s": 4.0}}}
    found = figures(of_windows, "env=cluster")
    assert found.select("instance", "value").rows() == [("", 3.0), ("w", 4.0)]
    found = figures({"policies": [{"mean_jct_s": 5.0}]}, "env=policies")
    assert found["value"].to_list() == [5.0]
    found = figures({"objective": 1.0, "mean_jct_s": 2.0}, "env=cluster")
    assert found["value"].to_list() == [1.0]
    assert figures({"jobs": 2}, "env=cluster").is_empty()


def test_the_best_variant_of_a_solver_is_shown() -> None:
    a, b = ("p", "s", 2.0, None, "", 0, "a"), ("p", "s", 4.0, None, "", 0, "b")
    found = compared(a, b)
    assert [found.name(entry) for entry in found.shown] == ["s/a"]


def test_times_to_a_quality_are_censored_at_the_end_of_a_search() -> None:
    """b has a's value after four times its seconds; c never has."""
    curves = {"a": [(0.5, 3.0), (1.0, 2.0)], "b": [(1.0, 5.0), (4.0, 2.0)], "c": [(2.0, 3.0)]}
    rows = ("p", "a", 2.0), ("p", "b", 2.0), ("p", "c", 3.0)
    found = compared(*rows, curves=curves, seconds=10.0, against=["a"])
    b, c = Entry("b", "", None), Entry("c", "", None)
    assert found.time_to(b, 0.0) == [(4.0, False)]
    assert found.time_to(c, 0.0) == [(10.0, True)]
    assert found.time_to(c, 0.5) == [(2.0, False)]
    assert found.time_ratios(b, 0.0)["median"] == 4.0
    never = found.time_ratios(c, 0.0)
    assert (never["items"], never["censored"], never["median"]) == (1, 1, 10.0)


def test_in_its_time_a_rival_has_what_it_found_by_then() -> None:
    """Of a curve its best by then; of runs of several budgets the least that is enough."""
    rows = ("p", "mine", 4.0), ("p", "curve", 2.0), ("p", "runs", 8.0, 1.0), ("p", "runs", 1.0, 5.0)
    for seconds, ratio in ((0.8, 4 / 6), (1.2, 4 / 1), (4.0, 4 / 1)):
        found = compared(*rows, curves={"curve": [(0.5, 6.0), (3.0, 2.0)]}, seconds=seconds)
        assert found.in_its_time(Entry("mine", "", None)) == pytest.approx(ratio)


# The shipped studies


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "study").glob("*.yaml")))
def test_a_shipped_study_composes(name: str, data: Path) -> None:
    """Its cells are those that its levels say; one of each solver and of each problem composes."""
    study = composed(f"study={name}").study
    found = study.cells(0)
    sizes = 0
    for part in study.whole_parts.values():
        solvers = len(part.solvers or {}) * max(1, len(part.budgets or []))
        for levels in (part.variants or {}).values():
            solvers *= len(levels)
        sets = [*(part.problem_sets or {}).values()]
        sets = [*sets, *([part.problems or {}] if part.problems or not sets else [])]
        problems = sum(int(np.prod([len(x) for x in one.values()])) for one in sets)
        sizes += solvers * problems * (part.seeds or 1)
    assert len(found) == sizes
    assert study.left_out() == []
    first = [cell for cell in found if cell.seed == 0]
    cells_module.check(first[:: -(-len(first) // trials(40, 2))], Path("nowhere"))


DURATIONS = [
    "model.history=1", "model.hidden=4", "model.readout=8", "model.epochs=1",
    "~split@splits.philly", "sampling.windows=3", "sampling.evaluation_windows=2",
    "sampling.jobs=[8,20]", "sampling.least_jobs=5", "sampling.nodes_per_type=[2,3]",
    "sampling.instants=8",
    "evaluation.samples=20",
]  # fmt: skip
PRIORITY = [
    "model.rounds=1", "model.pairs=2", "~split@splits.philly", "parts.jobs=[8,20]",
    "parts.least_jobs=5", "parts.nodes_per_type=[2,3]", "evaluation_parts=1", "samples=20",
    "workers=1",
]  # fmt: skip
TRAINING = ["~splits.philly", *TINY, "training.max_steps=32"]
TASK = [
    "training.max_steps=8", "training.budget_s=null", "training.evaluation_episodes=1",
    "agent.num_envs=2", "agent.episodes=1",
]  # fmt: skip
MAIN = [
    "graph=graph.npz", "budget_s=1", "env.max_groups=8", "agent.num_envs=8", "agent.group_size=8",
    "model.hidden=8", "model.heads=2", "training.min_iterations=1", "training.budget_s=1e-9",
    "~quick.random_one", "~searching.fusion_milp",
]  # fmt: skip
REGIME = [
    "~split@splits.philly", "usual.splits=[itp]", "usual.jobs=[5,8]", "usual.nodes_per_type=[2,2]",
    "usual.load=[1.2,1.2]", "usual.gpu_types=[V100,P100]", "usual.rollouts=1", "windows=2",
]  # fmt: skip
SMALL = {"jobs": "[5,8]", "nodes_per_type": "[2,2]"}  # in place of what a regime says itself
RULE = ["model.drawn=2", "model.rounds=1", "model.near=1", "evaluation_windows=2"]
ONE = {"graph": {"layers": ["graph=graph.npz"]}, "topology": ["planes_4x1"]}


def at_toy_size(name: str, folder: Path) -> dict[str, Any]:
    """A shipped study with tiny problems, budgets and trainings; all else is as it was."""
    study = plain_config(composed(f"study={name}"))["study"]
    save_graph(layered_step(6, 2), folder / "graph.npz")
    own, split = one_of_several(folder), overrides(folder)
    before = study["words"]
    for part in [study, *study["parts"].values()]:
        verb = part["verb"] or study["verb"]
        words = list(before if part["words"] is None else part["words"])
        solvers = part["solvers"] or {}
        if part["problem_sets"] and verb == "plan":
            part["problem_sets"] = {}
            part["problems"] = {**ONE, "problem": ["max_load"]} if name == "partition" else ONE
        elif part["problems"] and verb == "plan":
            part["problems"] |= ONE
        elif "condition" in (part["problems"] or {}):
            part["problems"] = {"condition": dict(list(part["problems"]["condition"].items())[:2])}
        elif "split" in (part["problems"] or {}):
            part["problems"] = {"split": ["itp"]}
        elif "environment" in (part["problems"] or {}):
            ids = list(part["problems"]["environment"].items())
            part["problems"] = {"environment": dict([ids[0], ids[-2]])}
        elif "regime" in (part["problems"] or {}):
            part["problems"] = {"regime": part["problems"]["regime"][:1]}
        part["budgets"] = [0.3, 0.6][: len(part["budgets"])] if part["budgets"] else part["budgets"]
        part["variants"] = {"placement": ["yarn"]} if part["variants"] else part["variants"]
        tiny: list[str] = []
        if part is study and study["parts"]:
            words = ([x for x in words if x.startswith("split=")] and [*words, *split]) or words
        elif verb == "main":
            tiny = MAIN
        elif verb == "train" and "task=environment" in words:
            tiny = TASK
        elif verb == "train" and "numbers" in solvers:
            tiny = [*own, *REGIME[:-1], "windows=2", *RULE]
        elif verb == "train":
            made = {"durations": DURATIONS, "priority": PRIORITY}
            tiny = [*next((made[x] for x in solvers if x in made), TRAINING), *own]
        elif verb == "evaluate" and (
            regimes := (part["problems"] or study["problems"]).get("regime")
        ):
            known = yaml.safe_load((CONF / "regimes.yaml").read_text())["known"][regimes[0]]
            small = [f"known.{regimes[0]}.{key}={x}" for key, x in SMALL.items() if key in known]
            words = [*own, *REGIME, *small, *words]
        elif verb == "evaluate":
            tiny = split
        words = [x for x in words if verb != "plan" or not x.startswith("graph.")]
        if isinstance(solvers, dict) and solvers:  # whose own words come after those of all
            part["solvers"] = {x: [*own_words, *tiny] for x, own_words in solvers.items()}
            part["words"] = words
        else:
            part["words"] = [*words, *tiny]
    return {**study, "seeds": min(study["seeds"], trials(2, 1))}


# One of each kind runs daily, of trainings that of test_hand_rules.py; all of them compose daily.
DAILY = {"generalise", "partition"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(path.stem, marks=[] if path.stem in DAILY else [pytest.mark.proof])
    for path in sorted((CONF / "study").glob("*.yaml"))
])  # fmt: skip
def test_a_shipped_study_runs_at_toy_size(
    name: str, work: Path, request: pytest.FixtureRequest
) -> None:
    if name.startswith("headroom"):
        request.getfixturevalue("data")  # pairs of jobs as measured
    toy = at_toy_size(name, work)
    (work / "toy.yaml").write_text(yaml.safe_dump(toy, sort_keys=False))
    assert main(["study=toy.yaml", "hydra.run.dir=run"]) == 0
    cells = pl.read_parquet(work / "run/cells.parquet")
    failed = cells.filter(pl.col("status") == "failed")
    assert failed.is_empty(), failed["reason"].to_list()
    assert len(cells) == len(composed("study=toy.yaml").study.cells(0))
    assert (work / "run/table.md").stat().st_size > 500
