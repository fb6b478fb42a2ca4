"""`suite=study`: learned schedulers from nothing to their table.

A posterior of durations for every seed, and the weights of a priority that are sought with it;
every recipe with every seed; its learning curves; its checkpoints, beside all policies of their
class, on the test windows of every split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen

from envs.bounds import Positive, bounded
from envs.errors import InputError
from envs.forms import Form, read_form
from experiments.cluster.baselines import check_class
from experiments.cluster.generalising import MEASURES, OVERALL, OVERALL_PUBLISHED
from experiments.config.command_words import with_recipes
from experiments.config.verbs import JOBS
from experiments.learning.exporting import CHECKPOINT_FOLDER
from experiments.learning.train_durations import DURATIONS
from experiments.learning.train_priority import WEIGHTS_FILE
from experiments.study.grid import AppCell, Document, quoted
from experiments.study.statistics import Interval
from experiments.study.suite import Check, Report, check_several_seeds
from experiments.study.tables import Table

PRIORITY = "priority"  # folder of the searches
DURATIONS_VARIABLE = "$DURATIONS"  # in overrides: the folder of the posterior of the same seed
PRIORITY_VARIABLE = "$PRIORITY"  # the weights that were sought with it
TEST_COLUMNS = ("recipe", "split", "windows", "against", *MEASURES)
TRAINING_COLUMNS = (
    "recipe", "seed", "iterations", "steps", "untrained exam", "best exam", "after iteration",
    "seconds",
)  # fmt: skip
FILE_COLUMNS = ("what", "where")
CAPTION = (
    "Test windows: JCTs of a recipe's checkpoints over those of baselines, means over windows and "
    "seeds with 95 % bootstrap intervals; below 1 the checkpoints are faster. Exams: mean JCT over "
    "that of the reference, on validation windows."
)


class _Recipe(Form):
    information: Any
    overrides: list[str]


class _Lists(Form):
    recipes: Annotated[dict[str, _Recipe], MinLen(1)]
    splits: Annotated[dict[str, list[str]], MinLen(1)]
    durations: list[str]
    weights: list[str]
    training: list[str]
    curves: list[str]
    generalise: list[str]


@bounded
@dataclass(frozen=True)
class Study:
    """The stages of a study.

    Args:
        title: for a reader.
        recipes: by name, `information` (the class of the baselines it is compared with) and
            `overrides` of experiments.train; `$DURATIONS` in them is the folder of the posterior
            of the same seed, `$PRIORITY` the file of the weights sought with it.
        seeds: one posterior and one training of each recipe each.
        budget_s: wall time of each training.
        splits: by name, overrides of experiments.generalise.
        durations: overrides of experiments.train model=durations.
        weights: and of experiments.train model=priority.
        training: of every training of schedulers.
        curves: of experiments.plot.
        generalise: of every experiments.generalise.
    """

    title: str
    recipes: Mapping[str, Any]
    seeds: Sequence[int]
    budget_s: Positive
    splits: Mapping[str, Sequence[str]]
    durations: Sequence[str]
    weights: Sequence[str]
    training: Sequence[str]
    curves: Sequence[str]
    generalise: Sequence[str]

    own = ("training.budget_s=", "seed=", "json=", "hydra.")
    left_out = ()

    def __post_init__(self) -> None:
        check_several_seeds(self.seeds)
        lists = {key: getattr(self, key) for key in _Lists.model_fields}
        read_form(_Lists, lists, inside="")
        for key in ("recipes", "splits"):
            for name in getattr(self, key):
                if name in ("", ".", "..", DURATIONS, PRIORITY) or "/" in name:
                    raise InputError(f"{name!r} cannot be the name of a folder", field=key)
        for name, recipe in self.recipes.items():
            check_class(recipe["information"], f"suite.recipes.{name}.information")

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        return [cell for _, cell in self._stages(folder, seed)]

    def checks(self) -> Iterator[Check]:
        others = tuple(f", seed {seed}" for seed in self.seeds[1:])
        for config, cell in self._stages(Path(DURATIONS), 0):
            if cell.name.endswith(others):
                continue
            name = f"stage {cell.name.removesuffix(f', seed {self.seeds[0]}')!r}"
            given = 2 if config == "train_cluster" else 1
            words = cell.overrides[:-given]
            chosen = dict(word.split("=", 1) for word in with_recipes(words) if "=" in word)
            wanted = {"train_durations": "model=durations", "train_priority": "model=priority"}
            if config in wanted and wanted[config] not in words:
                raise InputError(f"{name}: give {wanted[config]}")
            if config == "train_cluster" and not chosen.get("env", "").startswith("cluster"):
                message = "trains no schedulers: name a recipe, or env=cluster_mixed"
                raise InputError(f"{name}: {message}")
            yield Check(name, config, JOBS[config].schema, words)

    def _stages(self, folder: Path, seed: int) -> Iterator[tuple[str, AppCell]]:
        """The runs and their configs; the last words, of training two, are the study's own."""
        used = " ".join(
            [*self.training, *(x for one in self.recipes.values() for x in one["overrides"])]
        )
        before: dict[int, tuple[AppCell, ...]] = dict.fromkeys(self.seeds, ())
        posterior, weights = (
            {one: folder / kind / f"seed_{one}" for one in self.seeds}
            for kind in (DURATIONS, PRIORITY)
        )
        path = {one: quoted(posterior[one] / DURATIONS) for one in self.seeds}
        for one in self.seeds if DURATIONS_VARIABLE in used or PRIORITY_VARIABLE in used else ():
            name, words = f"posterior of durations, seed {one}", (*self.durations, f"seed={one}")
            cell = AppCell(name, "train", words, posterior[one])
            before[one] = (cell,)
            yield "train_durations", cell
        for one in self.seeds if PRIORITY_VARIABLE in used else ():
            words = (*self.weights, f"agent.priority.path={path[one]}", f"seed={one}")
            name = f"weights of the priority, seed {one}"
            cell = AppCell(name, "train", words, weights[one], before[one])
            before[one] += (cell,)
            yield "train_priority", cell
        for recipe, told in self.recipes.items():
            trainings = {one: folder / recipe / f"seed_{one}" for one in self.seeds}
            needs = []
            for one, own in trainings.items():
                sought = quoted(weights[one] / WEIGHTS_FILE)
                words = tuple(
                    word.replace(DURATIONS_VARIABLE, path[one]).replace(PRIORITY_VARIABLE, sought)
                    for word in (*told["overrides"], *self.training)
                )
                words = (*words, f"training.budget_s={self.budget_s}", f"seed={one}")
                name = f"{recipe}, seed {one}"
                needs.append(AppCell(name, "train", words, own, before[one], resumable=True))
                yield "train_cluster", needs[-1]
            runs = ",".join(map(quoted, trainings.values()))
            words = (*self.curves, f"runs=[{runs}]", f"seed={seed}")
            name, drawn = f"{recipe}, learning curves", folder / recipe / "curves"
            yield "cluster_curves", AppCell(name, "plot", words, drawn, tuple(needs))
            checkpoints = ",".join(quoted(x / CHECKPOINT_FOLDER) for x in trainings.values())
            for split, given in self.splits.items():
                words = (
                    *given, *self.generalise, f"information={told['information']}",
                    f"checkpoints=[{checkpoints}]", f"seed={seed}",
                )  # fmt: skip
                name = f"{recipe}, test windows of {split}"
                tested = folder / recipe / f"test_{split}"
                yield "generalise", AppCell(name, "generalise", words, tested, tuple(needs))

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        documents = {cell.name: document for cell, document in found.items()}
        folders = {cell.name: cell.folder for cell in found}
        recipes = {recipe: self._numbers(recipe, documents) for recipe in self.recipes}
        files = [
            (cell.name, str(cell.folder / (WEIGHTS_FILE if kind == PRIORITY else DURATIONS)))
            for cell in found
            if (kind := cell.folder.parent.name) in (DURATIONS, PRIORITY)
        ]
        for name, numbers in recipes.items():
            files.append((f"{name}: learning curves", numbers["curves"]["picture"]))
            files += [(f"{name}: {x}", test["picture"]) for x, test in numbers["tests"].items()]
            for seed in self.seeds:
                cell = f"{name}, seed {seed}"
                files.append((f"{cell}: checkpoint", str(folders[cell] / CHECKPOINT_FOLDER)))
        tables = [
            Table("Test windows", TEST_COLUMNS, _test_rows(recipes)),
            Table("Training", TRAINING_COLUMNS, _training_rows(recipes)),
            Table("Files", FILE_COLUMNS, files),
        ]
        return Report(tables, {}, {"recipes": recipes}, caption=CAPTION)

    def _numbers(self, recipe: str, documents: Mapping[str, Document]) -> dict[str, Any]:
        reported = (
            "iterations", "steps", "untrained_score", "best_score", "best_iteration", "seconds",
            "checkpoint",
        )  # fmt: skip
        trainings = []
        for seed in self.seeds:
            result = documents[f"{recipe}, seed {seed}"]
            trainings.append({"seed": seed, **{key: result[key] for key in reported}})
        curves = documents[f"{recipe}, learning curves"]
        tests = {}
        for split in self.splits:
            result = documents[f"{recipe}, test windows of {split}"]
            keys = (
                "best_overall", "best_published", "ratios", "mean_gap_to_bound", "table", "picture",
            )  # fmt: skip
            tests[split] = {"windows": len(result["windows"]), **{x: result[x] for x in keys}}
        return {
            "information": self.recipes[recipe]["information"],
            "trainings": trainings,
            "curves": {key: curves[key] for key in ("steps", "interquartile_mean", "picture")},
            "tests": tests,
        }


def _test_rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, recipe in found.items():
        for split, test in recipe["tests"].items():
            kinds = {OVERALL: test["best_overall"], OVERALL_PUBLISHED: test["best_published"]}
            for yardstick, ratios in test["ratios"].items():
                kind_names = [kind for kind, best in kinds.items() if best == yardstick]
                against = f"{yardstick} ({', '.join(kind_names)})" if kind_names else yardstick
                texts = [Interval(**ratios[measure]).text() for measure in MEASURES]
                rows.append((name, split, str(test["windows"]), against, *texts))
    return rows


def _training_rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            name, str(one["seed"]), f"{one['iterations']:,}", f"{one['steps']:,}",
            _score(one["untrained_score"]), _score(one["best_score"]), str(one["best_iteration"]),
            f"{one['seconds']:,.0f}",
        )
        for name, recipe in found.items()
        for one in recipe["trainings"]
    ]  # fmt: skip


def _score(score: float | None) -> str:
    """Of an exam; infinities are null in a result."""
    return "given up" if score is None else f"{score:.3f}"
