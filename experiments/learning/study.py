"""`suite=study`: learned schedulers from nothing to their table.

A posterior of durations for every seed, and the weights of a priority that are sought with it;
every recipe with every seed; its learning curves; its checkpoints, beside all policies of their
class, on the test windows of every split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.bounds import Positive, bounded
from envs.errors import InputError
from experiments.cluster.baselines import check_class
from experiments.cluster.generalising import MEASURES, OVERALL, OVERALL_PUBLISHED
from experiments.config.command_words import with_recipes
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
LEARNED = "experiments.learning"
SCHEMAS = {
    "train_durations": f"{LEARNED}.train_durations.TrainDurationsConfig",
    "train_priority": f"{LEARNED}.train_priority.TrainPriorityConfig",
    "train_cluster": f"{LEARNED}.train_cluster.TrainClusterConfig",
    "cluster_curves": f"{LEARNED}.train_cluster.CurvesConfig",
    "generalise": "experiments.cluster.generalising.GeneraliseConfig",
}

WORDS = ("durations", "weights", "training", "curves", "generalise")  # lists of overrides

Words = tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """What is trained: overrides of experiments.train, and the class of its baselines."""

    name: str
    information: str
    overrides: Words


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
        for key, names in (("recipes", self.recipes), ("splits", self.splits)):
            if not names:
                raise InputError("there is none", field=key)
            if not isinstance(names, Mapping):
                raise InputError(f"{names!r} is no mapping of names", field=key)
            for name in names:
                if not isinstance(name, str):
                    raise InputError(f"{name!r} is no text", field=key)
                if name in ("", ".", "..", DURATIONS, PRIORITY) or "/" in name:
                    raise InputError(f"{name!r} cannot be the name of a folder", field=key)
        for name, recipe in self.recipes.items():
            if not isinstance(recipe, Mapping) or set(recipe) != {"information", "overrides"}:
                message = "is not of the form {information: .., overrides: [..]}"
                raise InputError(message, field=f"recipes.{name}")
            check_class(recipe["information"], f"suite.recipes.{name}.information")
        lists = {name: recipe["overrides"] for name, recipe in self.recipes.items()}
        lists |= {**self.splits, **{key: getattr(self, key) for key in WORDS}}
        for name, words in lists.items():
            if not (isinstance(words, list | tuple) and all(isinstance(x, str) for x in words)):
                raise InputError(f"{words!r} is no list of overrides", field=name)

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        posteriors = [self._posterior(folder, one) for one in self.seeds]
        weights = [
            self._weights(folder, one, posterior)
            for one, posterior in zip(self.seeds, posteriors, strict=True)
        ]
        cells = [*posteriors] if self._asks_for(DURATIONS_VARIABLE, PRIORITY_VARIABLE) else []
        cells += weights if self._asks_for(PRIORITY_VARIABLE) else []
        for recipe in self._recipes():
            trainings = [
                AppCell(
                    f"{recipe.name}, seed {one}",
                    "train",
                    (*self._trained(recipe, folder, one), *self._given(one)),
                    folder / recipe.name / f"seed_{one}",
                    needs=tuple(cell for cell in cells if cell.folder.name == f"seed_{one}"
                                and cell.folder.parent.name in (DURATIONS, PRIORITY)),
                    resumable=True,
                )
                for one in self.seeds
            ]  # fmt: skip
            cells += trainings
            cells.append(
                AppCell(
                    f"{recipe.name}, learning curves",
                    "plot",
                    (*self._drawn(recipe, folder), f"seed={seed}"),
                    folder / recipe.name / "curves",
                    needs=tuple(trainings),
                )
            )
            cells += [
                AppCell(
                    f"{recipe.name}, test windows of {split}",
                    "generalise",
                    (*self._tested(recipe, split, folder), f"seed={seed}"),
                    folder / recipe.name / f"test_{split}",
                    needs=tuple(trainings),
                )
                for split in self.splits
            ]
        return cells

    def checks(self) -> Iterator[Check]:
        folder, seed = Path(DURATIONS), self.seeds[0]
        if self._asks_for(DURATIONS_VARIABLE, PRIORITY_VARIABLE):
            yield self._check("posterior of durations", "train_durations", tuple(self.durations))
        if self._asks_for(PRIORITY_VARIABLE):
            words = self._sought(folder, seed)
            yield self._check("weights of the priority", "train_priority", words)
        for recipe in self._recipes():
            words = self._trained(recipe, folder, seed)
            yield self._check(recipe.name, "train_cluster", words)
            words = self._drawn(recipe, folder)
            yield self._check(f"{recipe.name}, learning curves", "cluster_curves", words)
            for split in self.splits:
                words = self._tested(recipe, split, folder)
                yield self._check(f"{recipe.name}, {split}", "generalise", words)

    def _check(self, name: str, config: str, words: Words) -> Check:
        chosen = dict(word.split("=", 1) for word in with_recipes(words) if "=" in word)
        wanted = {"train_durations": "model=durations", "train_priority": "model=priority"}
        if config in wanted and wanted[config] not in words:
            raise InputError(f"stage {name!r}: give {wanted[config]}")
        if config == "train_cluster" and not chosen.get("env", "").startswith("cluster"):
            message = "trains no schedulers: name a recipe, or env=cluster_mixed"
            raise InputError(f"stage {name!r}: {message}")
        return Check(f"stage {name!r}", config, SCHEMAS[config], words)

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        documents = {cell.name: document for cell, document in found.items()}
        folders = {cell.name: cell.folder for cell in found}
        recipes = {recipe.name: self._numbers(recipe, documents) for recipe in self._recipes()}
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

    def _numbers(self, recipe: Recipe, documents: Mapping[str, Document]) -> dict[str, Any]:
        reported = (
            "iterations", "steps", "untrained_score", "best_score", "best_iteration", "seconds",
            "checkpoint",
        )  # fmt: skip
        trainings = []
        for seed in self.seeds:
            result = documents[f"{recipe.name}, seed {seed}"]
            trainings.append({"seed": seed, **{key: result[key] for key in reported}})
        curves = documents[f"{recipe.name}, learning curves"]
        tests = {}
        for split in self.splits:
            result = documents[f"{recipe.name}, test windows of {split}"]
            keys = (
                "best_overall", "best_published", "ratios", "mean_gap_to_bound", "table", "picture",
            )  # fmt: skip
            tests[split] = {"windows": len(result["windows"]), **{x: result[x] for x in keys}}
        return {
            "information": recipe.information,
            "trainings": trainings,
            "curves": {key: curves[key] for key in ("steps", "interquartile_mean", "picture")},
            "tests": tests,
        }

    def _recipes(self) -> list[Recipe]:
        return [
            Recipe(name, recipe["information"], tuple(recipe["overrides"]))
            for name, recipe in self.recipes.items()
        ]

    def _asks_for(self, *variables: str) -> bool:
        asked = [*self.training, *(word for one in self._recipes() for word in one.overrides)]
        return any(variable in word for variable in variables for word in asked)

    def _posterior(self, folder: Path, seed: int) -> AppCell:
        return AppCell(
            f"posterior of durations, seed {seed}",
            "train",
            (*self.durations, f"seed={seed}"),
            folder / DURATIONS / f"seed_{seed}",
        )

    def _weights(self, folder: Path, seed: int, posterior: AppCell) -> AppCell:
        return AppCell(
            f"weights of the priority, seed {seed}",
            "train",
            (*self._sought(folder, seed), f"seed={seed}"),
            folder / PRIORITY / f"seed_{seed}",
            needs=(posterior,),
        )

    def _sought(self, folder: Path, seed: int) -> Words:
        posterior = quoted(folder / DURATIONS / f"seed_{seed}" / DURATIONS)
        return (*self.weights, f"agent.priority.path={posterior}")

    def _trained(self, recipe: Recipe, folder: Path, seed: int) -> Words:
        posterior = quoted(folder / DURATIONS / f"seed_{seed}" / DURATIONS)
        weights = quoted(folder / PRIORITY / f"seed_{seed}" / WEIGHTS_FILE)
        return tuple(
            word.replace(DURATIONS_VARIABLE, posterior).replace(PRIORITY_VARIABLE, weights)
            for word in (*recipe.overrides, *self.training)
        )

    def _given(self, seed: int) -> Words:
        return (f"training.budget_s={self.budget_s}", f"seed={seed}")

    def _drawn(self, recipe: Recipe, folder: Path) -> Words:
        runs = ",".join(quoted(folder / recipe.name / f"seed_{seed}") for seed in self.seeds)
        return (*self.curves, f"runs=[{runs}]")

    def _tested(self, recipe: Recipe, split: str, folder: Path) -> Words:
        folders = (folder / recipe.name / f"seed_{seed}" for seed in self.seeds)
        checkpoints = ",".join(quoted(one / CHECKPOINT_FOLDER) for one in folders)
        shared = (f"information={recipe.information}", f"checkpoints=[{checkpoints}]")
        return (*self.splits[split], *self.generalise, *shared)


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
