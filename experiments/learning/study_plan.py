"""What a study runs: `conf/study.yaml` as stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.errors import InputError
from experiments.cluster.baselines import check_class
from experiments.cluster_curves import CurvesConfig
from experiments.generalise import GeneraliseConfig
from experiments.learning.exporting import CHECKPOINT_FOLDER
from experiments.learning.train_cluster import TrainClusterConfig, is_about_clusters
from experiments.learning.train_durations import DURATIONS, TrainDurationsConfig
from experiments.learning.train_priority import WEIGHTS_FILE, TrainPriorityConfig
from experiments.run.overrides import CONFIG_FILE, check_command_line, with_recipes
from experiments.run.stages import Stage, quoted
from experiments.run.targets import SEEDS

PRIORITY = "priority"  # folder of the searches
DURATIONS_VARIABLE = "$DURATIONS"  # in overrides: the folder of the posterior of the same seed
PRIORITY_VARIABLE = "$PRIORITY"  # the weights that were sought with it
OWN = ("training.budget_s=", "seed=", "json=", "hydra.")  # keys that the study sets itself


@dataclass
class RecipeConfig:
    """What is trained, and the class of baselines it is compared with."""

    information: str
    overrides: list[str]

    def __post_init__(self) -> None:
        check_class(self.information, "recipes.information")


@dataclass
class StudyConfig:
    """`conf/study.yaml`."""

    recipes: dict[str, RecipeConfig]
    seeds: list[int]
    budget_s: float
    splits: dict[str, list[str]]
    durations: list[str]
    weights: list[str]
    training: list[str]
    curves: list[str]
    generalise: list[str]
    resume: str | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.resume is not None:
            if not (Path(self.resume) / CONFIG_FILE).is_file():
                raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=self.resume)
            return
        for key in ("recipes", "splits"):
            names = getattr(self, key)
            if not names:
                raise InputError(f"config key '{key}': there is none")
            for name in names:
                if name in ("", ".", "..", DURATIONS, PRIORITY) or "/" in name:
                    raise InputError(f"config key '{key}': {name!r} cannot be the name of a folder")
        if len(self.seeds) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"config key 'seeds': {self.seeds} are not two or more different ones")
        for seed in self.seeds:
            if not 0 <= seed < SEEDS:
                raise InputError(f"config key 'seeds': {seed} is not in 0..{SEEDS - 1}")
        if not 0 < self.budget_s < np.inf:
            raise InputError(f"config key 'budget_s': {self.budget_s} is not positive and finite")
        self._check_stages()

    def _check_stages(self) -> None:
        """Compose every kind of stage once: a fault is told before hours of training."""
        given = [("durations", self.durations), ("weights", self.weights),
                 ("training", self.training), ("curves", self.curves),
                 ("generalise", self.generalise)]  # fmt: skip
        given += [(f"recipes.{name}", x.overrides) for name, x in self.recipes.items()]
        given += [(f"splits.{name}", overrides) for name, overrides in self.splits.items()]
        for key, overrides in given:
            for override in overrides:
                if override.lstrip("+~").startswith(OWN):
                    told = f"{override!r} is not for a stage: the study sets it itself"
                    raise InputError(f"config key '{key}': {told}")
        plan = StudyPlan.of(self, Path(DURATIONS))
        for stage in plan.kinds():
            try:
                _check(stage)
            except InputError as error:
                raise InputError(f"stage {stage.name!r}: {error}") from error


@dataclass(frozen=True)
class RecipePlan:
    """The stages of one recipe."""

    name: str
    trainings: tuple[Stage, ...]  # by seed
    curves: Stage
    tests: Mapping[str, Stage]  # by split

    def stages(self) -> Iterator[Stage]:
        """All of them, in turn."""
        yield from self.trainings
        yield self.curves
        yield from self.tests.values()


@dataclass(frozen=True)
class StudyPlan:
    """All stages of a study."""

    durations: tuple[Stage, ...]  # by seed; none: no recipe asks for a posterior
    priorities: tuple[Stage, ...]  # by seed; none: no recipe asks for weights
    recipes: tuple[RecipePlan, ...]

    @classmethod
    def of(cls, config: StudyConfig, folder: Path) -> StudyPlan:
        """The stages below `folder`."""
        asked = [config.training, *(recipe.overrides for recipe in config.recipes.values())]
        weighted = any(PRIORITY_VARIABLE in override for each in asked for override in each)
        needed = weighted or any(DURATIONS_VARIABLE in text for each in asked for text in each)
        durations = tuple(
            Stage(
                f"posterior of durations, seed {seed}",
                "train",
                (*config.durations, f"seed={seed}"),
                _posterior(folder, seed),
            )
            for seed in config.seeds
        )
        priorities = tuple(
            Stage(
                f"weights of the priority, seed {seed}",
                "train",
                (
                    *config.weights,
                    f"agent.priority.path={quoted(_posterior(folder, seed) / DURATIONS)}",
                    f"seed={seed}",
                ),
                _priority(folder, seed),
            )
            for seed in config.seeds
        )
        recipes = tuple(_planned(config, name, folder) for name in config.recipes)
        return cls(durations if needed else (), priorities if weighted else (), recipes)

    def stages(self) -> list[Stage]:
        """All of them, in turn."""
        first = [*self.durations, *self.priorities]
        return [*first, *(stage for recipe in self.recipes for stage in recipe.stages())]

    def kinds(self) -> list[Stage]:
        """One of each kind: of the seeds the first."""
        first = [*self.durations[:1], *self.priorities[:1]]
        for recipe in self.recipes:
            first += [recipe.trainings[0], recipe.curves, *recipe.tests.values()]
        return first


def _posterior(folder: Path, seed: int) -> Path:
    return folder / DURATIONS / f"seed_{seed}"


def _priority(folder: Path, seed: int) -> Path:
    return folder / PRIORITY / f"seed_{seed}"


def _planned(config: StudyConfig, name: str, folder: Path) -> RecipePlan:
    recipe = config.recipes[name]

    def asked(seed: int) -> list[str]:
        posterior = quoted(_posterior(folder, seed) / DURATIONS)
        weights = quoted(_priority(folder, seed) / WEIGHTS_FILE)
        given = (*recipe.overrides, *config.training)
        return [
            text.replace(DURATIONS_VARIABLE, posterior).replace(PRIORITY_VARIABLE, weights)
            for text in given
        ]

    trainings = tuple(
        Stage(
            f"{name}, seed {seed}",
            "train",
            (*asked(seed), f"training.budget_s={config.budget_s}", f"seed={seed}"),
            folder / name / f"seed_{seed}",
            resumable=True,
        )
        for seed in config.seeds
    )
    runs = ",".join(quoted(stage.folder) for stage in trainings)
    checkpoints = ",".join(quoted(stage.folder / CHECKPOINT_FOLDER) for stage in trainings)
    shared = (f"information={recipe.information}", f"checkpoints=[{checkpoints}]")
    tests = {
        split: Stage(
            f"{name}, test windows of {split}",
            "generalise",
            (*overrides, *config.generalise, *shared, f"seed={config.seed}"),
            folder / name / f"test_{split}",
        )
        for split, overrides in config.splits.items()
    }
    curves = Stage(
        f"{name}, learning curves",
        "cluster_curves",
        (*config.curves, f"runs=[{runs}]", f"seed={config.seed}"),
        folder / name / "curves",
    )
    return RecipePlan(name, trainings, curves, tests)


def _check(stage: Stage) -> None:
    """Compose what a stage is asked for.

    Raises:
        InputError: it does not compose, or a training is about something else.
    """
    overrides = list(stage.overrides)
    if stage.app == "generalise":
        check_command_line(overrides, "generalise", GeneraliseConfig)
    elif stage.app == "cluster_curves":
        check_command_line(overrides, "cluster_curves", CurvesConfig)
    elif stage.resumable:
        check_command_line(overrides, "train_cluster", TrainClusterConfig)
        if not is_about_clusters(with_recipes(overrides)):
            raise InputError("trains no schedulers: name a recipe, or env=cluster_mixed")
    elif "model=priority" in overrides:
        check_command_line(overrides, "train_priority", TrainPriorityConfig)
    else:
        if "model=durations" not in overrides:
            raise InputError("trains no posterior: give model=durations, or model=priority")
        check_command_line(overrides, "train_durations", TrainDurationsConfig)
