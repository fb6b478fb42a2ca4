"""A study as it is written in YAML: problems x solvers x budgets x seeds of one job, and its cells.

A cell is one run of a job, named by a hash of all it depends on. Parts of a study share what they
do not say themselves; one part may read what the cells of another have left.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MinLen

from envs.bounds import Count, NonNegative, Positive
from envs.errors import InputError, refused_in, require_one_of
from experiments.config.command_words import quoted, with_recipes
from experiments.config.composing import check_words
from experiments.config.verbs import COMMANDS, Job, chosen_job, expanded
from experiments.run.provenance import content_hash, text_hash

VERSION = 1  # of what a cell leaves: raise it where the same words come to something else
DATA_VARIABLE = "MESHWRIGHT_DATA"  # the folder of published data
BEST_PER_PROBLEM, BEST_OVERALL = "best_per_problem", "best_overall"
STUDY_KEY = "config key 'study'"
OWN = ("seed=", "json=", "hydra.", "resume=")  # words of a cell that the study sets
# In a word: a file of a cell's folder, or of the folders of all seeds.
_CELL = re.compile(r"\$CELLS?\(([^)]*)\)((?:/[\w.-]+)*)")
Levels = Mapping[str, Sequence[str]]
Factor = dict[str, list[str]] | list[str]  # label: words; of a list, labels that are options


@dataclass(kw_only=True)
class Part:
    """What is crossed; None: as in the study. Words are those of the job's command line."""

    verb: str | None = None  # plan, evaluate, train, ...
    problems: dict[str, Factor] | None = None  # by factor; of a list each option is a level
    problem_sets: dict[str, dict[str, Factor]] | None = None  # several of the kind, by any name
    solvers: Factor | None = None  # a list: names of agents
    variants: dict[str, Factor] | None = None  # of each solver; tables show the best one of each
    budgets: list[Positive] | None = None
    budget_key: str | None = None  # of the job, which sets its budget
    seeds: Count | None = None  # the study's seed, and those after it
    words: list[str] | None = None  # of every cell, before those of levels and solvers


@dataclass(kw_only=True)
class Study:
    """`conf/study/*.yaml`.

    In a word `$MESHWRIGHT_DATA` is the folder of published data: levels that need it are left out
    where it is not set. `$CELL(solver)/file` is what that solver's cell has left, of the same seed
    and the same levels of the factors that both parts have; with `$CELLS(solver)/file` those of all
    its cells, as a list without brackets.
    """

    title: str
    verb: str = "plan"
    problems: dict[str, Factor] = field(default_factory=dict)
    problem_sets: dict[str, dict[str, Factor]] = field(default_factory=dict)
    solvers: Factor = field(default_factory=list)
    variants: dict[str, Factor] = field(default_factory=dict)
    budgets: list[Positive] = field(default_factory=list)
    budget_key: str = "budget_s"
    seeds: Count = 1
    words: list[str] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)  # none: the study is its only one
    # figures of the cells' results in the tables; ratios are of the first
    metrics: Annotated[list[str], MinLen(1)] = field(default_factory=lambda: ["objective"])
    sense: Literal["min", "max"] = "min"
    # what ratios are to: best_per_problem, best_overall, a solver, or factor=level; the first is
    # that of most tables
    against: Annotated[list[str], MinLen(1)] = field(default_factory=lambda: ["best_per_problem"])
    yardsticks: list[str] | None = None  # solvers that the best is chosen of; null: all
    # shares of the best known: how long others take to come so near, over the time of the yardstick
    within: list[NonNegative] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)  # problem: the best value published
    samples: Count = 2000  # of the bootstrap
    note: str = ""  # below the tables

    def __post_init__(self) -> None:
        for part in self.whole_parts.values():
            require_one_of(part.verb, COMMANDS, file="config key 'study.verb'")

    @cached_property
    def whole_parts(self) -> dict[str, Part]:
        """Every part with what it takes from the study."""
        own = {name: getattr(self, name) for name in Part.__dataclass_fields__}
        found = {}
        for name, part in (self.parts or {"": Part()}).items():
            said = {key: x for key, x in vars(part).items() if x is not None}
            found[name] = Part(**{**own, **said})
        return found

    def left_out(self) -> list[str]:
        """Levels that need published data where there is none."""
        factors = [
            factor
            for part in self.whole_parts.values()
            for named in (*_sets(part), part.variants or {}, {"solver": part.solvers or []})
            for factor in named.values()
        ]
        return list(dict.fromkeys(
            label for factor in factors if isinstance(factor, dict)
            for label, words in factor.items() if _lacks_data(words)
        ))  # fmt: skip

    def cells(self, seed: int, common: Sequence[str] = ()) -> list[Cell]:
        """All cells, none before those whose folders it reads; `common` are words of each.

        Raises:
            InputError: a level or a cell stands twice, a word is the study's own, or a cell reads
                one that there is not before it.
        """
        made: dict[str, Cell] = {}
        for part in self.whole_parts.values():
            for cell in _crossed(part, seed, common):
                with refused_in(STUDY_KEY, cell.name):
                    check_words([word for word in cell.words if word not in common])
                whole = cell.reading(list(made.values()))
                made.setdefault(whole.key, whole)
        if not made:
            raise InputError("has no cells to run", file=STUDY_KEY)
        found = list(made.values())
        solvers = list(dict.fromkeys(cell.solver for cell in found))
        levels = {f"{factor}={level}" for cell in found for factor, level in cell.factors.items()}
        for name in self.yardsticks or ():
            require_one_of(name, solvers, file="config key 'study.yardsticks'")
        for name in self.against:
            known = [BEST_PER_PROBLEM, BEST_OVERALL, "factor=level", *solvers]
            if name not in levels:
                require_one_of(name, known, file="config key 'study.against'")
        return found


@dataclass(frozen=True)
class Cell:
    """One run of a job.

    Attributes:
        verb: of its command.
        factors: the level of each factor of the problem.
        solver, variant, budget, seed: what runs.
        words: of its command line, without run folder; `$CELL(key)` is the folder of that cell.
        reads: the keys of cells whose folders it reads.
    """

    verb: str
    factors: Mapping[str, str]
    solver: str
    variant: str
    budget: float | None
    seed: int
    words: tuple[str, ...]
    reads: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """A hash of the words, and of what the files hold that they name."""
        files = [word.partition("=")[2].strip("'\"") for word in self.words]
        held = {path: content_hash(path) for path in files if path and os.path.isfile(path)}
        return text_hash(json.dumps([VERSION, self.verb, self.words, held]))[:24]

    @property
    def job(self) -> Job:
        """What the words mean."""
        verb, words = expanded(self.verb, self.words)
        return chosen_job(verb, with_recipes(words))

    @property
    def problem(self) -> str:
        return ", ".join(self.factors.values())

    @property
    def name(self) -> str:
        """For a reader."""
        budget = "" if self.budget is None else f"{self.budget:g} s"
        parts = (self.problem, self.solver, self.variant, budget, f"seed {self.seed}")
        return ": ".join(filter(None, parts))

    def command(self, folder: Path) -> list[str]:
        """Its words, cells lying in `folder`."""
        own = folder / self.key
        there = _CELL.sub
        return [
            *(there(lambda x: quoted(f"{folder}/{x[1]}{x[2]}"), word) for word in self.words),
            f"hydra.run.dir={quoted(own)}",
        ]

    def reading(self, others: Sequence[Cell]) -> Cell:
        """The same with the keys of cells in place of the names of their solvers.

        Raises:
            InputError: there is no such cell.
        """
        reads: list[str] = []

        def keys(found: re.Match[str]) -> str:
            several = found[0].startswith("$CELLS")
            same = [
                other.key
                for other in others
                if other.solver == found[1]
                and (several or other.seed == self.seed)
                and all(self.factors.get(x, level) == level for x, level in other.factors.items())
            ]
            if not same or (len(same) > 1 and not several):
                reason = f"reads {len(same)} cells of {found[1]!r}, which are to be one"
                raise InputError(reason, file=STUDY_KEY, record=self.name)
            reads.extend(same)
            return ",".join(f"$CELL({key}){found[2]}" for key in same)

        words = tuple(_CELL.sub(keys, word) for word in self.words)
        return self if not reads else Cell(
            self.verb, self.factors, self.solver, self.variant, self.budget, self.seed, words,
            tuple(dict.fromkeys(reads)),
        )  # fmt: skip


def _sets(part: Part) -> list[dict[str, Factor]]:
    sets = [*(part.problem_sets or {}).values()]
    return [*sets, *([part.problems or {}] if part.problems or not sets else [])]


def _crossed(part: Part, seed: int, common: Sequence[str]) -> Iterator[Cell]:
    solvers = _levels("agent", part.solvers or {"": []})
    others = [_levels(name, levels) for name, levels in (part.variants or {}).items()]
    budgets: list[float | None] = list(part.budgets or []) or [None]
    seeds = range(seed, seed + (part.seeds or 1))
    for problems in _sets(part):
        factors = [_levels(name, levels) for name, levels in problems.items()]
        axes = (product(*factors), solvers, product(*others), budgets, seeds)
        for levels, solver, variant, budget, one in product(*axes):
            named = zip([*factors, *others], [*levels, *variant], strict=True)
            about = [word for x, level in named for word in x[level]]
            words = _last_of_each([*(part.words or ()), *about, *solvers[solver], *common])
            for word in words:
                if word.lstrip("+~").startswith(OWN):
                    raise InputError(f"{word!r} is the study's own", file=STUDY_KEY, record=solver)
            if budget is not None:
                words.append(f"{part.budget_key}={budget:g}")
            yield Cell(
                str(part.verb), dict(zip(problems, levels, strict=True)), solver,
                "/".join(variant), budget, one, (*words, f"seed={one}"),
            )  # fmt: skip


def _last_of_each(words: Sequence[str]) -> list[str]:
    """Of words that give one key the last."""
    last = {word.partition("=")[0]: word for word in words if "=" in word}
    return [word for word in words if last.get(word.partition("=")[0], word) is word]


def _levels(name: str, factor: Factor) -> Levels:
    """Words by label, those left out that need data which is not there."""
    if isinstance(factor, list):
        factor = {label: [f"{name}={label}"] for label in factor}
    folder = os.environ.get(DATA_VARIABLE, "")
    return {
        label: [word.replace(f"${DATA_VARIABLE}", folder) for word in words]
        for label, words in factor.items()
        if not _lacks_data(words)
    }


def _lacks_data(words: Sequence[str]) -> bool:
    return not os.environ.get(DATA_VARIABLE) and any(f"${DATA_VARIABLE}" in x for x in words)
