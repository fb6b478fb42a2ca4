"""Evaluate an agent, or re-simulate anybody's plan, on one graph and one topology.

python -m experiments.evaluate agent=heft graph=bert_large topology=mixed_v100_p100 json=true
python -m experiments.evaluate plan=plan.json graph=bert_large topology=mixed_v100_p100

A plan file with bandwidth is simulated through pipes of its rates. With `env=cluster` a trace of
jobs is replayed under a scheduling policy; `env=cluster --help` shows an example and the keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.base import Planner
from envs.errors import InputError
from experiments.cluster.evaluate_cluster import EvaluateClusterConfig, evaluate_cluster
from experiments.run.app import Result, Run, Variant, run_app
from experiments.run.provenance import file_hash
from experiments.run.targets import build
from experiments.step.evaluation import (
    DecidingPlanner,
    evaluate_plan,
    evaluation_values,
    require_fit,
)
from experiments.step.plan_file import plan_communication, read_bandwidth, read_plan, write_plan
from experiments.step.problem import load_problem, order_rule_of

VARIANTS = {
    "env=cluster": Variant(
        "evaluate_cluster",
        EvaluateClusterConfig,
        evaluate_cluster,
        renamed={"agent=checkpoint": "agent=cluster_checkpoint"},  # one name for what was exported
    )
}


@dataclass
class EvaluateConfig:
    """`conf/evaluate.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    graph: Any
    topology: Any
    cost: Any
    communication: Any
    order: Any
    plan: str | None
    budget_s: float
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < float("inf"):
            raise InputError(f"config key 'budget_s': {self.budget_s} is not positive and finite")


def evaluate(config: EvaluateConfig, run: Run) -> Result:
    """Search (or read) a plan, simulate it, write `plan.json`."""
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem = loaded.problem
    provenance = loaded.stamp_on(run.provenance)
    allocation = None
    if config.plan is not None:
        allocation = read_bandwidth(config.plan, problem.topology.network)
    communication = plan_communication(config.communication, allocation, run.overrides)
    values: dict[str, object] = {
        "env": run.choice("env", config.env),
        "agent": None if config.plan else run.choice("agent", config.agent),
        "graph": problem.graph.name,
        "topology": problem.topology.name,
        "communication": communication.name,
        "operators": problem.graph.num_operators,
        "devices": problem.topology.num_devices,
    }
    bound = require_fit(problem)
    start = time.perf_counter()
    if config.plan is not None:
        rule = order_rule_of(config.order)
        plan = read_plan(config.plan, problem, rule)
        provenance = provenance.with_inputs(plan=file_hash(config.plan))
        values["plan"] = config.plan
    else:
        found = planner_of(config.agent, config.env).plan(problem, config.budget_s)
        values |= {"status": found.status, "reason": found.reason, "seconds": found.seconds}
        values["evaluations"] = found.evaluations
        if found.plan is None:
            unplaced = {"step_time_s": None, "lower_bound_s": bound.seconds}
            unplaced |= {"peak_memory_bytes": None, "feasible": False}
            return Result({**values, **unplaced}, provenance)
        plan = found.plan
    evaluation = evaluate_plan(problem, plan, communication)
    values.setdefault("seconds", time.perf_counter() - start)
    write_plan(run.folder / "plan.json", plan, problem, provenance, allocation)
    return Result({**values, **evaluation_values(problem, evaluation, bound)}, provenance)


def planner_of(agent: Mapping[str, Any], env: Mapping[str, Any]) -> Planner:
    """The planner that `agent` describes; an agent that acts plans by one episode in `env`.

    Raises:
        InputError: the object neither plans nor acts.
    """
    built: Any = build(agent)
    if hasattr(built, "plan"):
        planner: Planner = built
        return planner
    if hasattr(built, "act"):
        return DecidingPlanner(built, env)
    if hasattr(built, "decide"):
        raise InputError(
            f"config key 'agent': {agent.get('_target_')} schedules the jobs of a cluster: give "
            "env=cluster and a trace"
        )
    for method, problem in (
        ("allocate", "bandwidth"), ("plan_jointly", "joint"), ("improve", "shared"),
    ):  # fmt: skip
        if hasattr(built, method):
            raise InputError(
                f"config key 'agent': {agent.get('_target_')} plans problem={problem}: ask "
                f"experiments.plan for problem={problem}, and evaluate the plan file it writes"
            )
    raise InputError(
        f"config key 'agent': {agent.get('_target_')} neither plans nor acts; what learns is "
        "trained by experiments.train and evaluated as agent=checkpoint"
    )


def main(arguments: list[str] | None = None) -> int:
    """The app; `env=cluster` has a config of its own."""
    return run_app("evaluate", EvaluateConfig, evaluate, arguments, VARIANTS)


if __name__ == "__main__":
    sys.exit(main())
