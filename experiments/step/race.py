"""Several budgets of one search, each a run of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envs.bounds import Positive
from envs.errors import InputError
from experiments.config.targets import build, build_as, unknown_key
from experiments.run.one_run import Result, Run
from experiments.step.objectives import Objective
from experiments.step.planning import ask_warm
from experiments.step.problem import ProblemConfig
from experiments.study.display import ProgressDisplay


@dataclass(kw_only=True)
class RaceConfig(ProblemConfig):
    """`conf/race.yaml`; groups are objects by `_target_`."""

    problem: Any
    # who plans, in turn: +agent@entrants.<label>=<name>
    entrants: dict[str, Any] = field(default_factory=dict)
    budget_s: Positive = 30.0  # wall time of the search of an entrant ...
    # ... that has none of its own here: +budgets_s.<label>=<seconds>
    budgets_s: dict[str, Positive] = field(default_factory=dict)
    # a search of so many seconds before, on a copy of the problem, for warmth
    warm_s: Positive = 0.3
    seed: int
    json: bool


def race(config: RaceConfig, run: Run) -> Result:
    """What each entrant found when; each begins with a problem that nobody has looked at."""
    if not config.entrants:
        raise InputError("config key 'entrants' is empty: give +agent@entrants.<label>=<name>")
    for label in config.budgets_s:
        if label not in config.entrants:
            raise InputError(unknown_key(f"budgets_s.{label}", config.entrants))
    objective = build_as(Objective, config.problem, "problem", "objective of a plan")
    agents = {label: build(node, f"entrants.{label}") for label, node in config.entrants.items()}
    loaded = config.load()
    found: dict[str, object] = {}
    with ProgressDisplay(run.console) as display:
        for label, agent in agents.items():
            target = config.entrants[label].get("_target_")
            budget_s = config.budgets_s.get(label, config.budget_s)
            task = display.begin(label, budget_s)
            planned = ask_warm(
                agent, objective, loaded, budget_s, config.warm_s, target, f"entrants.{label}"
            )
            found[label] = {"budget_s": budget_s, **planned.document()}
            display.end(task, f"{planned.seconds:.2f} s")
    return Result(
        {"problem": objective.name, **loaded.facts(), "entrants": found},
        loaded.stamp_on(run.provenance).with_inputs(**objective.inputs()),
    )
