"""The table of learned schedulers, from nothing: posterior, trainings, curves, test windows.

python -m experiments.study
python -m experiments.study resume=<run folder>         # goes on where it was killed, or has failed
python -m experiments.study seeds=[0,1] budget_s=120 ~recipes.cluster_known

One after the other: a posterior of durations for every seed, and the weights of a priority that are
sought with it; every recipe with every seed; its learning curves; its checkpoints, beside all
policies of their class, on the test windows of every split.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envs.errors import InputError
from experiments.cluster.comparison import MEASURES
from experiments.cluster.comparison_report import OVERALL, OVERALL_PUBLISHED
from experiments.learning.exporting import CHECKPOINT_FOLDER
from experiments.learning.study_plan import RecipePlan, StudyConfig, StudyPlan
from experiments.learning.train_durations import DURATIONS
from experiments.learning.train_priority import WEIGHTS_FILE
from experiments.run.app import Result, Run, run_app
from experiments.run.saved_run import saved_config
from experiments.run.stages import run_stages
from experiments.run.statistics import Interval
from experiments.run.tables import TABLE_FILE, Table, write_tables

CHANGEABLE = ("json=", "resume=", "hydra.")  # by a study that goes on
TEST_COLUMNS = ("recipe", "split", "windows", "against", *MEASURES)
TRAINING_COLUMNS = (
    "recipe", "seed", "iterations", "decisions", "untrained exam", "best exam", "after iteration",
    "seconds",
)  # fmt: skip
FILE_COLUMNS = ("what", "where")
CAPTION = (
    "Test windows: JCTs of a recipe's checkpoints over those of baselines, means over windows and "
    "seeds with 95 % bootstrap intervals; below 1 the checkpoints are faster. Exams: mean JCT over "
    "that of the reference, on validation windows."
)
WIDTH = 150  # characters of a table where there is no terminal


def study(config: StudyConfig, run: Run) -> Result:
    """Run what is not yet done, then write the table.

    Raises:
        SystemExit: a stage has failed, with its exit code; the study can be resumed.
    """
    start = time.perf_counter()
    if config.resume is not None:
        config = _resumed(config, run)
    plan = StudyPlan.of(config, run.folder.resolve())
    stages = plan.stages()
    hours = len(config.recipes) * len(config.seeds) * config.budget_s / 3600.0
    run.console.print(
        f"{len(stages)} stages, {hours:.2f} hours of training, and the test windows",
        highlight=False,
    )
    code = run_stages(stages, run.console)
    if code != 0:
        told = (
            f"error: the study stops here; resume={run.folder} goes on with the stage that failed"
        )
        print(told, file=sys.stderr)
        raise SystemExit(code)
    hashes = {
        str(stage.folder.relative_to(run.folder.resolve())): stage.sha256() for stage in stages
    }
    provenance = replace(run.provenance, seed=config.seed).with_inputs(**hashes)
    found = {recipe.name: _found(recipe, config) for recipe in plan.recipes}
    sections = [
        Table("Test windows", TEST_COLUMNS, _test_rows(found)),
        Table("Training", TRAINING_COLUMNS, _training_rows(found)),
        Table("Files", FILE_COLUMNS, _file_rows(plan)),
    ]
    write_tables(run, "Learned schedulers", sections, provenance, caption=CAPTION, width=WIDTH)
    values: dict[str, object] = {
        "recipes": found,
        "durations": [str(stage.folder / DURATIONS) for stage in plan.durations],
        "priorities": [str(stage.folder / WEIGHTS_FILE) for stage in plan.priorities],
        "stages": len(stages),
        "table": str(run.folder / TABLE_FILE),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, provenance, shown=("stages", "table", "seconds"))


def _resumed(config: StudyConfig, run: Run) -> StudyConfig:
    """The config of the study that goes on.

    Raises:
        InputError: the command line changes it.
    """
    for override in run.overrides:
        if not override.startswith(CHANGEABLE):
            key = override.partition("=")[0]
            raise InputError(f"config key '{key}': a resumed study keeps it")
    saved = saved_config(run.folder, StudyConfig)
    return replace(saved, json=config.json, resume=config.resume)


def _found(recipe: RecipePlan, config: StudyConfig) -> dict[str, Any]:
    """All numbers of a recipe."""
    trainings = []
    for seed, stage in zip(config.seeds, recipe.trainings, strict=True):
        result = stage.result()
        told = (
            "iterations", "decisions", "untrained_score", "best_score", "best_iteration", "seconds",
            "checkpoint",
        )  # fmt: skip
        trainings.append({"seed": seed, **{key: result[key] for key in told}})
    curves = recipe.curves.result()
    tests = {}
    for split, stage in recipe.tests.items():
        result = stage.result()
        keys = ("best_overall", "best_published", "ratios", "mean_gap_to_bound", "table", "picture")
        tests[split] = {"windows": len(result["windows"]), **{key: result[key] for key in keys}}
    return {
        "information": config.recipes[recipe.name].information,
        "trainings": trainings,
        "curves": {key: curves[key] for key in ("decisions", "interquartile_mean", "picture")},
        "tests": tests,
    }


def _test_rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, recipe in found.items():
        for split, test in recipe["tests"].items():
            kinds = {OVERALL: test["best_overall"], OVERALL_PUBLISHED: test["best_published"]}
            for yardstick, ratios in test["ratios"].items():
                told = [kind for kind, best in kinds.items() if best == yardstick]
                against = f"{yardstick} ({', '.join(told)})" if told else yardstick
                texts = [Interval(**ratios[measure]).text() for measure in MEASURES]
                rows.append((name, split, str(test["windows"]), against, *texts))
    return rows


def _training_rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            name, str(one["seed"]), f"{one['iterations']:,}", f"{one['decisions']:,}",
            _score(one["untrained_score"]), _score(one["best_score"]), str(one["best_iteration"]),
            f"{one['seconds']:,.0f}",
        )
        for name, recipe in found.items()
        for one in recipe["trainings"]
    ]  # fmt: skip


def _score(score: float | None) -> str:
    """Of an exam; infinities are null in a result."""
    return "given up" if score is None else f"{score:.3f}"


def _file_rows(plan: StudyPlan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    rows += [(stage.name, str(stage.folder / DURATIONS)) for stage in plan.durations]
    rows += [(stage.name, str(stage.folder / WEIGHTS_FILE)) for stage in plan.priorities]
    for recipe in plan.recipes:
        rows.append((f"{recipe.name}: learning curves", recipe.curves.result()["picture"]))
        rows += [
            (f"{recipe.name}: {split}", stage.result()["picture"])
            for split, stage in recipe.tests.items()
        ]
        rows += [
            (f"{stage.name}: checkpoint", str(stage.folder / CHECKPOINT_FOLDER))
            for stage in recipe.trainings
        ]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The app."""
    return run_app("study", StudyConfig, study, None if arguments is None else list(arguments))


if __name__ == "__main__":
    sys.exit(main())
