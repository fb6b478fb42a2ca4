"""Hybrid plans asked of one planner, and judged by the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agents.hybrid.machines import PREDICTED
from agents.hybrid.sharding import sharding_of
from agents.solver import Budget
from envs.bounds import Count, bounded
from envs.compilation import clock
from envs.errors import InputError
from envs.graphs.op_graph import Phase
from envs.hybrid.layers import hybrid_problem, layers_of, profiled_layers
from envs.hybrid.plan import unshared
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import simulate
from envs.step.problem import StepProblem
from envs.synchronisation.planned import PlannedSums, Synchroniser
from experiments.pictures.step import draw_stages
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.step.hybrid_file import assigned, write_hybrid_plan
from experiments.step.problem import SECOND, LoadedProblem, ProblemConfig
from experiments.step.tasks import solver_of

PLAN_FILE, PICTURE_FILE = "hybrid_plan.json", "hybrid_plan.png"
MOST_DRAWN = 32  # devices
SHOWN = (
    "graph", "topology", "devices", "agent", "status", "reason", "predicted_s", "objective_s",
    "lower_bound_s", "gap", "feasible", "seconds", "peak_memory_bytes", "plan", "picture",
)  # fmt: skip


@bounded
@dataclass(frozen=True)
class Pipeline:
    """The time of one step of stages, replicas and shards of the graph's layers."""

    name: ClassVar[str] = "pipeline"
    layers: Count = 64  # into which a captured graph is divided, at most
    micro_batches: Count | None = 8  # of a step, each like the graph's first; None: the graph's own
    degrees: Sequence[int] = (2, 4, 8)  # of tensor shards that a plan may have, beside 1
    # how replicas sum gradients; None: by rings
    synchronisation: Synchroniser | None = None
    aggregation: bool = False  # whether switches between servers add them

    def load(self, config: ProblemConfig) -> LoadedProblem:
        """The step of a graph; a file with a forward pass alone is read as training, if it can be.

        Raises:
            InputError: as `load_problem`, or the graph has no backward pass.
        """
        loaded = config.load()
        if (loaded.problem.graph.phase == Phase.BACKWARD).any():
            return loaded
        if config.graph.get("micro_batches", 1) is not None:
            raise InputError("has no backward pass", file=f"graph {loaded.problem.graph.name}")
        return replace(config, graph={**config.graph, "micro_batches": 1}).load()

    def of(self, step: StepProblem) -> HybridProblem:
        """The layers of `step`.

        Raises:
            InputError: the graph has no forward pass.
        """
        profile = bool(step.graph.profile_classes)
        layer = profiled_layers(step.graph) if profile else layers_of(step, self.layers)
        count = int(layer.max()) + 1
        sharding = unshared(count)
        if not profile:
            sharding = sharding_of(step.graph, layer, count, (1, *self.degrees))
        micro_batches = self.micro_batches or step.graph.num_micro_batches
        sums = None
        if self.synchronisation is not None:
            sums = PlannedSums(self.synchronisation, self.aggregation)
        return replace(hybrid_problem(step, layer, micro_batches, sharding), sums=sums)


def plan_hybrid(
    agent: object, target: object, objective: Pipeline, loaded: LoadedProblem, budget: Budget,
    run: Run,
) -> Result:  # fmt: skip
    """The plan of `agent`, which the config calls `target`: written, drawn, its stages printed.

    It is judged by the problem and the simulator, never by its maker.

    Raises:
        InputError: the agent does not plan pipelines.
    """
    planner = solver_of(agent, HybridProblem, objective.name, target)
    problem = objective.of(loaded.problem)
    run.begin(f"searching, budget {budget.seconds:g} s")
    start = clock()
    found = planner.solve(problem, budget)
    seconds = clock() - start
    run.begin("judging and drawing")
    plan, bound = found.solution, max(found.bound, problem.bound())
    provenance = loaded.stamp_on(run.provenance)
    values: dict[str, object] = {
        "problem": objective.name,
        **loaded.facts(),
        "budget_s": budget.seconds,
        "deterministic_limit": budget.evaluations,
        "status": found.status,
        "reason": found.reason,
        "seconds": seconds,
        "evaluations": found.evaluations,
        "layers": problem.num_layers,
        "micro_batches": problem.micro_batches,
        PREDICTED: found.figures.get(PREDICTED),
        "formula": {key: x for key, x in found.figures.items() if key != PREDICTED},
        "lower_bound_s": bound,
        "unit": SECOND.name,
        "unit_s": SECOND.seconds,
        "trajectory": [],
        "objective_s": None,
        "feasible": False,
        "violations": [],
    }
    if plan is None:
        return Result(values, provenance, SHOWN)
    violations, step, names = problem.violations(plan), simulate(problem, plan), problem.layer_names
    stages: list[dict[str, Any]] = [
        {
            "layers": [stage.first, stage.end],
            "first_layer": names[stage.first],
            "last_layer": names[stage.end - 1],
            "replicas": stage.replicas,
            **assigned(stage, problem),
        }
        for stage in plan.stages
    ]
    columns = ["stage", "layers", "from", "to", "devices", "replicas x shards", "recompute"]
    rows = [
        [
            str(number), "{}-{}".format(*row["layers"]), row["first_layer"], row["last_layer"],
            _shortened(row["devices"]), f"{row['replicas']} x {row['shards']}",
            "yes" if row["recompute"] else "",
        ]
        for number, row in enumerate(stages)
    ]  # fmt: skip
    title = f"{problem.name} on {problem.topology.name}"
    write_tables(run, title, [Table("Stages", columns, rows)], provenance)
    file, picture = run.folder / PLAN_FILE, run.folder / PICTURE_FILE
    times = {PREDICTED: found.figures[PREDICTED], "step_time_s": step.step_time}
    write_hybrid_plan(file, plan, problem, provenance, loaded.model, **times)
    values |= {
        "objective_s": step.step_time,
        "gap": step.step_time / bound - 1.0 if bound > 0 else None,
        "peak_memory_bytes": float(step.peak_memory.max()),
        "feasible": not violations,
        "violations": list(violations),
        "stages": stages,
        "plan": str(file),
    }
    if problem.num_devices <= MOST_DRAWN:
        figure = draw_stages(step, f"{title}: one step takes {step.step_time * 1e3:.1f} ms")
        write_figure(picture, figure, provenance)
        values["picture"] = str(picture)
    return Result(values, provenance, SHOWN)


def _shortened(names: list[str]) -> str:
    """The first and the last of a group, and how many there are."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"
