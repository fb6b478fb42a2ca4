"""Ask one planner for one plan: the fastest step, the best partition, the best bandwidth.

python -m experiments.plan agent=heft graph=bert_large topology=mixed_v100_p100 json=true
python -m experiments.plan agent=dp problem=max_load problem.contiguous=true graph=<graph file>
python -m experiments.plan agent=convex problem=bandwidth problem.plan=plan.json topology=planes_4x1
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.base import PlannerResult
from envs.errors import InputError
from experiments.run.app import Result, Run, run_app
from experiments.run.targets import build, no_such_thing
from experiments.step.evaluation import DecidingPlanner
from experiments.step.objectives import Objective, Search
from experiments.step.problem import load_problem
from experiments.step.search import WARM_UP_S

SHOWN = (
    "graph", "operators", "topology", "devices", "problem", "agent", "status", "reason",
    "objective", "lower_bound", "unit", "gap", "feasible", "seconds", "evaluations",
    "peak_memory_bytes", "plan",
)  # fmt: skip
ANSWERS = {  # methods of agents, and the problems they are asked for
    "plan": "makespan", "partition": "max_load, latency", "allocate": "bandwidth",
    "plan_jointly": "joint", "improve": "shared",
}  # fmt: skip
_ROUNDING = 1e-6  # relative; a claimed bound may exceed the objective by as much


@dataclass
class PlanConfig:
    """`conf/plan.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    problem: Any
    graph: Any
    topology: Any
    cost: Any
    budget_s: float
    deterministic_limit: int | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < float("inf"):
            raise InputError(f"config key 'budget_s': {self.budget_s} is not positive and finite")
        if self.deterministic_limit is not None and self.deterministic_limit < 1:
            raise InputError(
                f"config key 'deterministic_limit': {self.deterministic_limit} is below 1"
            )


def plan(config: PlanConfig, run: Run) -> Result:
    """Search a plan, judge it, write it."""
    objective = build(config.problem)
    if not isinstance(objective, Objective):
        raise no_such_thing("problem", config.problem, "objective of a plan")
    agent = agent_of(config.agent, config.env)
    warm_up = objective.rehearsal().search(agent)
    if warm_up is None:
        raise InputError(
            f"config key 'agent': {config.agent.get('_target_')} does not plan "
            f"problem={objective.name}{_instead(agent)}"
        )
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    provenance = loaded.stamp_on(run.provenance).with_inputs(**objective.inputs())
    step, unit = loaded.problem, loaded.time_unit
    task = objective.of(step)
    bound = task.bound()
    warm_up(WARM_UP_S, None)
    search = task.search(agent)
    assert search is not None
    found, seconds = _timed(search, config)
    if found.plan is None and np.isinf(found.lower_bound):
        place = f"graph {step.graph.name!r} on topology {step.topology.name!r}"
        raise InputError(f"{place}: {found.reason}")
    bound = max(bound, found.lower_bound)
    values: dict[str, object] = {
        "problem": objective.name,
        "agent": run.choice("agent", config.agent),
        "graph": step.graph.name,
        "topology": step.topology.name,
        "operators": step.graph.num_operators,
        "devices": step.topology.num_devices,
        "budget_s": config.budget_s,
        "deterministic_limit": config.deterministic_limit,
        "seconds": seconds,
        "status": found.status,
        "reason": found.reason,
        "evaluations": found.evaluations,
        "unit": unit.name,
        "unit_s": unit.seconds,
        "lower_bound": unit.of(bound),
        "lower_bound_s": bound,
        "trajectory": [[at, unit.of(best)] for at, best in found.trajectory],
    }
    if found.plan is None:
        names = ("objective", "objective_s", "gap", "peak_memory_bytes", "plan")
        values |= {**dict.fromkeys(names), "feasible": False, "violations": []}
        return Result(values, provenance, SHOWN)
    verdict = task.judge(found.plan, found.allocation)
    if verdict.objective < bound * (1.0 - _ROUNDING):
        raise InputError(
            f"config key 'agent': {config.agent.get('_target_')} claims a lower bound of {bound} s "
            f"for a plan that takes {verdict.objective} s"
        )
    values |= {
        "objective": unit.of(verdict.objective),
        "objective_s": verdict.objective,
        "gap": verdict.objective / bound - 1.0 if bound > 0 else None,
        "peak_memory_bytes": verdict.peak_memory,
        "feasible": not verdict.violations,
        "violations": list(verdict.violations),
        "plan": str(task.write(run.folder, found.plan, found.allocation, provenance)),
    }
    for violation in verdict.violations:
        run.console.print(f"violated: {violation}", highlight=False, markup=False, soft_wrap=True)
    return Result(values, provenance, SHOWN)


def _instead(agent: object) -> str:
    """What an agent plans in place of what it was asked for."""
    names = [name for method, name in ANSWERS.items() if hasattr(agent, method)]
    return f"; it plans problem={', '.join(names)}" if names else ""


def agent_of(agent: Mapping[str, Any], env: Mapping[str, Any]) -> Any:
    """The object that `agent` describes; one that acts plans by one episode in `env`."""
    built = build(agent)
    if hasattr(built, "act") and not hasattr(built, "plan"):
        return DecidingPlanner(built, env)
    return built


def _timed(search: Search, config: PlanConfig) -> tuple[PlannerResult, float]:
    """What the search finds, and its wall time in seconds."""
    start = time.perf_counter()
    found = search(config.budget_s, config.deterministic_limit)
    return found, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(run_app("plan", PlanConfig, plan))
