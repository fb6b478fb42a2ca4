"""One planner asked for one plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agents.solver import Budget
from envs.bounds import Count, NonNegative, Positive
from experiments.config.targets import build, build_as
from experiments.run.one_run import Result, Run
from experiments.step.hybrid import Pipeline, plan_hybrid
from experiments.step.objectives import Objective
from experiments.step.planning import ask, warm_up
from experiments.step.problem import BUILDING, ProblemConfig

SHOWN = (
    "graph", "operators", "topology", "devices", "problem", "agent", "status", "reason",
    "objective", "span", "order", "lower_bound", "unit", "gap", "feasible", "seconds",
    "evaluations", "peak_memory_bytes", "plan",
)  # fmt: skip


@dataclass(kw_only=True)
class PlanConfig(ProblemConfig):
    """`conf/plan.yaml`; groups are objects by `_target_`."""

    agent: Any
    problem: Any
    budget_s: Positive = 30.0  # wall time of the search, for agents that use it
    # work in the agent's own units, so that two runs agree; null: no limit
    deterministic_limit: Count | None = None
    # a search of so many seconds before, on a copy of the problem, so that all is warm
    warm_s: NonNegative = 0.0
    seed: int
    json: bool


def plan(config: PlanConfig, run: Run) -> Result:
    """Search a plan, judge it, write it."""
    agent, target = build(config.agent, "agent"), config.agent.get("_target_")
    asked = build(config.problem, "problem")
    budget = Budget(config.budget_s, config.deterministic_limit)
    if isinstance(asked, Pipeline):
        run.begin(BUILDING)
        layers = asked.load(config)
        return _told(plan_hybrid(agent, target, asked, layers, budget, run), config, run)
    objective = build_as(Objective, config.problem, "problem", "objective of a plan")
    run.begin("searching on a toy, to compile")
    solver = warm_up(agent, objective, target)
    run.begin(BUILDING)
    loaded = config.load()
    provenance = loaded.stamp_on(run.provenance).with_inputs(**objective.inputs())
    run.begin(f"searching, budget {config.budget_s:g} s")
    if config.warm_s:
        ask(solver, objective, loaded.unseen(), Budget(min(config.warm_s, config.budget_s)), target)
        loaded = loaded.unseen()
    planned = ask(solver, objective, loaded, budget, target)
    run.begin("judging and drawing")
    path = planned.write(run.folder, provenance)
    values = {
        "problem": objective.name,
        **loaded.facts(),
        "budget_s": config.budget_s,
        "deterministic_limit": config.deterministic_limit,
        **planned.document(),
        "plan": None if path is None else str(path),
    }
    return _told(Result(values, provenance, SHOWN), config, run)


def _told(result: Result, config: PlanConfig, run: Run) -> Result:
    """What is wrong with the plan is printed; who made it stands in the result."""
    found: Any = result.values["violations"]
    for violation in found:
        run.console.print(f"violated: {violation}", highlight=False, markup=False, soft_wrap=True)
    return replace(result, values={"agent": run.choice("agent", config.agent), **result.values})
