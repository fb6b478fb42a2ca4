"""Hybrid plans asked of one planner, and judged by the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from agents.hybrid.machines import PREDICTED
from agents.hybrid.sharding import sharding_of
from agents.solver import Budget, Solver
from agents.solver import Result as Found
from envs.bounds import Count, bounded
from envs.compilation import clock
from envs.errors import InputError
from envs.graphs.op_graph import Phase
from envs.hybrid.layers import hybrid_problem, layers_of, profiled_layers
from envs.hybrid.plan import HybridPlan
from envs.hybrid.problem import HybridProblem, Sharding
from envs.hybrid.simulation import HybridStep, simulate
from envs.step.problem import StepProblem
from envs.synchronisation.planned import PlannedSums, Synchroniser
from experiments.pictures.step import draw_stages
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance
from experiments.step.hybrid_file import write_hybrid_plan
from experiments.step.problem import SECOND, LoadedProblem, Node, load_problem
from experiments.step.tasks import solver_of
from experiments.study.tables import Table, write_tables

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

    def load(self, env: Node, graph: Node, topology: Node, cost: Node) -> LoadedProblem:
        """The step of a graph; a file with a forward pass alone is read as training, if it can be.

        Raises:
            InputError: as `load_problem`, or the graph has no backward pass.
        """
        loaded = load_problem(env, graph, topology, cost)
        if (loaded.problem.graph.phase == Phase.BACKWARD).any():
            return loaded
        if graph.get("micro_batches", 1) is not None:
            raise InputError("has no backward pass", file=f"graph {loaded.problem.graph.name}")
        return load_problem(env, {**graph, "micro_batches": 1}, topology, cost)

    def of(self, step: StepProblem) -> HybridProblem:
        """The layers of `step`.

        Raises:
            InputError: the graph has no forward pass.
        """
        profile = bool(step.graph.profile_classes)
        layer = profiled_layers(step.graph) if profile else layers_of(step, self.layers)
        rule = _unshared if profile else partial(sharding_of, degrees=(1, *self.degrees))
        micro_batches = self.micro_batches or step.graph.num_micro_batches
        sums = None
        if self.synchronisation is not None:
            sums = PlannedSums(self.synchronisation, self.aggregation)
        return replace(hybrid_problem(step, layer, micro_batches, rule), sums=sums)


def _unshared(graph: object, layer: object, count: int) -> Sharding:
    return Sharding.none(count)


@dataclass(frozen=True, eq=False)
class PlannedHybrid:
    """What a planner found, and what the simulator says of it."""

    problem: HybridProblem
    found: Found[HybridPlan]
    step: HybridStep | None  # None: there is no plan
    violations: tuple[str, ...]
    seconds: float  # wall time of the search

    def document(self) -> dict[str, object]:
        """The figures, for `result.json`; seconds."""
        found, step = self.found, self.step
        bound = max(found.bound, self.problem.bound())
        values: dict[str, object] = {
            "status": found.status,
            "reason": found.reason,
            "seconds": self.seconds,
            "evaluations": found.evaluations,
            "layers": self.problem.num_layers,
            "micro_batches": self.problem.micro_batches,
            PREDICTED: found.figures.get(PREDICTED),
            "formula": {key: x for key, x in found.figures.items() if key != PREDICTED},
            "lower_bound_s": bound,
            "unit": SECOND.name,
            "unit_s": SECOND.seconds,
            "trajectory": [],
        }
        if step is None or found.solution is None:
            return {**values, "objective_s": None, "feasible": False, "violations": []}
        return {
            **values,
            "objective_s": step.step_time,
            "gap": step.step_time / bound - 1.0 if bound > 0 else None,
            "peak_memory_bytes": float(step.peak_memory.max()),
            "feasible": not self.violations,
            "violations": list(self.violations),
            "stages": self.stages(),
        }

    def stages(self) -> list[dict[str, Any]]:
        """One row a stage."""
        if self.found.solution is None:
            return []
        names = self.problem.layer_names
        devices = self.problem.topology.devices
        return [
            {
                "layers": [stage.first, stage.end],
                "first_layer": names[stage.first],
                "last_layer": names[stage.end - 1],
                "devices": [devices[number].name for number in stage.devices],
                "replicas": stage.replicas,
                "shards": stage.shards,
                "shares": None if stage.shares is None else list(stage.shares),
                "recompute": stage.recompute,
            }
            for stage in self.found.solution.stages
        ]

    def write(
        self,
        run: Run,
        title: str,
        provenance: Provenance,
        model: Mapping[str, object] | None,
    ) -> dict[str, str]:
        """The plan file and, of few devices, the picture of the step; their paths by name."""
        if self.step is None or self.found.solution is None:
            return {}
        path = run.folder / PLAN_FILE
        seconds = {PREDICTED: self.found.figures[PREDICTED], "step_time_s": self.step.step_time}
        write_hybrid_plan(path, self.found.solution, self.problem, provenance, model, **seconds)
        if self.problem.num_devices > MOST_DRAWN:
            return {"plan": str(path)}
        picture = run.folder / PICTURE_FILE
        title += f": one step takes {self.step.step_time * 1e3:.1f} ms"
        figure = draw_stages(self.step, title)
        write_figure(picture, figure, provenance)
        return {"plan": str(path), "picture": str(picture)}


def ask_hybrid(
    planner: Solver[HybridProblem, HybridPlan], problem: HybridProblem, budget: Budget
) -> PlannedHybrid:
    """What `planner` finds, judged by the problem and the simulator, never by itself."""
    start = clock()
    found = planner.solve(problem, budget)
    seconds = clock() - start
    plan = found.solution
    if plan is None:
        return PlannedHybrid(problem, found, None, (), seconds)
    violations = tuple(problem.violations(plan))
    return PlannedHybrid(problem, found, simulate(problem, plan), violations, seconds)


def plan_hybrid(
    agent: object, target: object, objective: Pipeline, loaded: LoadedProblem, budget: Budget,
    run: Run,
) -> Result:  # fmt: skip
    """The plan of `agent`, which the config calls `target`: written, drawn, its stages printed.

    Raises:
        InputError: the agent does not plan pipelines.
    """
    planner = solver_of(agent, HybridProblem, objective.name, target)
    problem = objective.of(loaded.problem)
    run.begin(f"searching, budget {budget.seconds:g} s")
    planned = ask_hybrid(planner, problem, budget)
    run.begin("judging and drawing")
    provenance = loaded.stamp_on(run.provenance)
    for violation in planned.violations:
        run.console.print(f"violated: {violation}", highlight=False, markup=False, soft_wrap=True)
    columns = ["stage", "layers", "from", "to", "devices", "replicas x shards", "recompute"]
    rows = [
        [
            str(number), "{}-{}".format(*row["layers"]), row["first_layer"], row["last_layer"],
            shortened_devices(row["devices"]), f"{row['replicas']} x {row['shards']}",
            "yes" if row["recompute"] else "",
        ]
        for number, row in enumerate(planned.stages())
    ]  # fmt: skip
    title = f"{problem.name} on {problem.topology.name}"
    if rows:
        write_tables(run, title, [Table("Stages", columns, rows)], provenance)
    values = {
        "problem": objective.name,
        "graph": problem.name,
        "topology": problem.topology.name,
        "operators": loaded.problem.graph.num_operators,
        "devices": problem.num_devices,
        "budget_s": budget.seconds,
        "deterministic_limit": budget.evaluations,
        **planned.document(),
        **planned.write(run, title, provenance, loaded.model),
    }
    return Result(values, provenance, SHOWN)


def shortened_devices(names: list[str]) -> str:
    """The first and the last of a group, and how many there are."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"
