"""Gradients summed over a network by trees: planned, checked, executed, timed, drawn.

python -m experiments.synchronise agent=ring topology=dgx1 bytes=100MB json=true
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.synchronisation.optimum import optimum
from agents.synchronisation.ways import Synchroniser
from envs.units import parse_bytes, read_quantity
from experiments.config.targets import build_as
from experiments.network.forest_study import study
from experiments.network.plan_file import write_plan
from experiments.network.synchronising import Asked, judge
from experiments.run.app import main_of
from experiments.run.artifacts import to_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import text_hash

PLAN_FILE = "plan.json"
SHOWN = (
    "agent", "topology", "participants", "status", "reason", "time_s", "algorithm_bandwidth",
    "busiest_link_bandwidth", "optimum", "of_optimum", "trees", "chunk", "largest_error", "seconds",
    "plan", "picture", "trace",
)  # fmt: skip
STUDY = ("networks", "slower", "least_gain", "median_gain", "largest_gain", "gain", "gain_on")


@dataclass(kw_only=True)
class SynchroniseConfig(Asked):
    """`conf/synchronise.yaml`; groups are objects by `_target_`."""

    agent: Any
    chunk: Any = None  # bytes sent in one piece; null: the planner's choice
    summing: Any = 0  # seconds to add one byte: 3 passes at 1.6e12 bytes/s are 1.875e-12
    overhead: Any = 0  # seconds that a connection spends on each chunk before it sends
    optimum: bool = True  # the exact highest algorithm bandwidth beside that of the plan
    # instead: forests against ring, double_tree and hierarchical, on the published networks
    # and on so many random uneven ones
    study: int | None = None
    json: bool


def synchronise(config: SynchroniseConfig, run: Run) -> Result:
    """Ask the planner, execute and time its plan, put the exact optimum beside it."""
    if config.study is not None:
        size = read_quantity(parse_bytes, config.bytes, key="bytes")
        return Result(study(config.study, size), run.provenance, STUDY)
    agent = build_as(Synchroniser, config.agent, "agent", "planner of synchronisation")
    problem = config.problem()
    topology = problem.network.name
    provenance = run.provenance.with_inputs(**{topology: text_hash(to_json(config.topology))})
    found = agent.solve(problem)
    values: dict[str, object] = {
        "agent": run.choice("agent", config.agent),
        "topology": topology,
        "participants": len(problem.network.participants),
        "primitive": config.primitive,
        "bytes": problem.size,
        "status": found.status,
        "reason": found.reason,
        "seconds": found.seconds,
        "figures": dict(found.figures),
    }
    warnings = []
    if found.solution is not None:
        settings = {key: getattr(config, key) for key in ("chunk", "summing", "overhead")}
        judged = judge(problem, found.solution, settings)
        best = optimum(problem) if config.optimum else None
        values |= judged.values(best)
        dense = float("inf") if best is None else problem.size / float(best)
        if judged.played is None and judged.seconds > dense:  # a plan that leaves out zeros
            told = f"{judged.seconds * 1e3:.4g} ms, where the best dense plan needs"
            warnings.append(f"the plan takes {told} {dense * 1e3:.4g} ms: leaving out zeros loses")
        write_plan(run.folder / PLAN_FILE, problem, judged.plan, provenance)
        values |= {"plan": str(run.folder / PLAN_FILE), **judged.write(run.folder, provenance)}
    return Result(values, provenance, [key for key in SHOWN if key in values], warnings)


main = main_of("synchronise")
