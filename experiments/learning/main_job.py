"""The main job: planners and the shipped policy on one problem, which it is fine-tuned on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from envs.bounds import Positive
from envs.errors import InputError
from envs.step.problem import StepProblem
from experiments.learning.exporting import (
    CHECKPOINT_FOLDER,
    card_of,
    title_of,
    verify_placement,
)
from experiments.learning.one_problem import Learned, learn
from experiments.learning.tracking import tracking_of
from experiments.pictures.learning import draw_learning_curve
from experiments.pictures.step import draw_gantt, trace_document
from experiments.run.artifacts import METRICS_FILE, write_figure, write_json, write_sidecar
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.overrides import plain_config
from experiments.run.provenance import Provenance, stamp
from experiments.run.tables import write_markdown
from experiments.run.targets import build, no_such_thing
from experiments.step.comparison import Comparison, Row, row_of
from experiments.step.evaluation import require_fit
from experiments.step.objectives import placement_task
from experiments.step.plan_file import write_plan
from experiments.step.problem import communication_of, load_problem
from experiments.step.search import search_in_turn, search_side_by_side

LEARNED, FINE_TUNED, SEARCHED = "learned", "learned_fine_tuned", "learned_search"


@dataclass
class MainConfig:
    """`conf/main.yaml`; groups are objects by `_target_`."""

    env: Any
    graph: Any
    topology: Any
    cost: Any
    communication: Any
    model: Any
    agent: Any
    training: Any
    quick: dict[str, Any]
    searching: dict[str, Any]
    learner: Any
    tracking: Any
    ray: Any
    single_device: str
    budget_s: Positive
    seed: int
    json: bool

    def __post_init__(self) -> None:
        for group in ("quick", "searching"):
            for name, node in getattr(self, group).items():
                if not isinstance(node, dict) or "_target_" not in node:
                    raise no_such_thing(f"{group}.{name}", node, "agent by _target_")
        for group, name in (("quick", LEARNED), ("searching", SEARCHED)):
            if name not in getattr(self, group):
                raise InputError(f"config key '{group}.{name}' is missing: the shipped policy")
        if self.single_device not in self.quick:
            raise InputError(
                f"config key 'single_device': {self.single_device!r} is none of the quick agents "
                f"({', '.join(self.quick)})"
            )


def main_job(config: MainConfig, run: Run) -> Result:
    """Run every method on one problem and write everything a reader may want to see."""
    from models.export.placer import export_placer
    from models.step.placer import PlacerPolicy

    start = time.perf_counter()
    console = run.console
    console.print("building the problem (the first capture of a model takes a while)")
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    communication = communication_of(config.communication)
    bound = require_fit(problem)
    training = build(config.training, "training")
    tracking = tracking_of(config.tracking)
    task = placement_task(config.env, problem, communication)
    task.subject(training).architectures(training.model)  # before the planners take their time
    name = f"{problem.graph.name} on {problem.topology.name}"
    console.print(
        f"{name}: {problem.graph.num_operators:,} operators, {problem.graph.num_tensors:,} "
        f"tensors, {problem.topology.num_devices} devices, "
        f"lower bound {bound.seconds * 1e3:.1f} ms",
        highlight=False,
        soft_wrap=True,
    )
    with ProgressDisplay(console) as display:
        found = search_in_turn(config.quick, problem, config.budget_s, display)
        learned = learn(task, training, run.folder, display, provenance, tracking=tracking)
        found[FINE_TUNED] = learned.found
        found |= search_side_by_side(config.searching, problem, config.budget_s, display)
    comparison = Comparison(
        rows=tuple(row_of(method, x, task) for method, x in found.items()),
        single_device=config.single_device,
        lower_bound=bound.seconds,
    )
    _write(run, problem, comparison, learned, provenance, name)
    console.print("exporting the policy, asking it again in a process without ray, PyG and torch")
    (policy,) = learned.training.policies.values()
    assert isinstance(policy, PlacerPolicy)
    gains = gains_of(comparison)
    text = f"{comparison.markdown()}\n\n{gains}\n\n{learned.exam.sentence()}"
    card = card_of(title_of(problem), text, plain_config(config), provenance)
    checkpoint = export_placer(policy, run.folder.resolve() / CHECKPOINT_FOLDER, card)
    seen = task.env(problem, sweeps=len(policy.config.sweeps)).exam(0).observation
    verification = verify_placement(policy, checkpoint, seen, run.folder, provenance)
    console.print(comparison.rich(name))
    console.print(gains, highlight=False, soft_wrap=True)
    console.print(learned.exam.sentence(), highlight=False)
    console.print(f"checkpoint: {checkpoint}", soft_wrap=True, highlight=False)
    console.print(
        f"without ray, torch_geometric and torch it decides "
        f"{'identically' if verification.passed else 'DIFFERENTLY'}: {verification.identical} of "
        f"{verification.decisions} decisions are the same ({', '.join(verification.runtimes)})",
        soft_wrap=True,
        highlight=False,
    )
    best, times = comparison.best, {row.method: row.step_time for row in comparison.rows}
    return Result(
        {
            "graph": problem.graph.name,
            "topology": problem.topology.name,
            "communication": communication.name,
            "operators": problem.graph.num_operators,
            "lower_bound_s": bound.seconds,
            "budget_s": config.budget_s,
            "methods": comparison.document(),
            "best_method": None if best is None else best.method,
            "best_step_time_s": None if best is None else best.step_time,
            "learned_step_time_s": times[LEARNED],
            "fine_tuned_step_time_s": times[FINE_TUNED],
            "learned_search_step_time_s": times[SEARCHED],
            "exam": learned.exam.document(),
            "checkpoint": str(checkpoint),
            "verification": verification.document(),
            "seconds": time.perf_counter() - start,
        },
        provenance,
        shown=(
            "best_method", "best_step_time_s", "learned_step_time_s", "fine_tuned_step_time_s",
            "learned_search_step_time_s", "lower_bound_s", "seconds",
        ),
    )  # fmt: skip


def gains_of(comparison: Comparison) -> str:
    """What the shipped policy comes to, and what fine-tuning and a search add to it."""
    rows = {row.method: row for row in comparison.rows}
    alone = rows[LEARNED]
    told = [_told("the shipped policy alone", alone)]
    for what, method in (
        ("fine-tuned on this problem", FINE_TUNED),
        ("searched on from its plans", SEARCHED),
    ):
        row = rows[method]
        gain = 1.0 - row.step_time / alone.step_time if alone.feasible and row.feasible else 0.0
        told.append(_told(what, row) + (f" ({gain:.1%} less)" if gain > 0.0 else ""))
    return "; ".join(told)


def _told(what: str, row: Row) -> str:
    step = f"{row.step_time * 1e3:.1f} ms" if row.feasible else row.reason
    return f"{what}: {step} after {row.seconds:.1f} s"


def _write(
    run: Run,
    problem: StepProblem,
    comparison: Comparison,
    learned: Learned,
    provenance: Provenance,
    name: str,
) -> None:
    """Plans, charts, trace and table."""
    for row in comparison.rows:
        if row.evaluation is not None:
            path = run.folder / "plans" / f"{row.method}.json"
            write_plan(path, row.evaluation.plan, problem, provenance)
    best = comparison.best
    if best is not None and best.evaluation is not None:
        timeline, played = best.evaluation.timeline, best.evaluation.problem
        title = f"{name}: {best.method}, one step takes {best.step_time * 1e3:.1f} ms"
        write_figure(run.folder / "gantt.png", draw_gantt(played, timeline, title), provenance)
        trace = trace_document(played, timeline)
        write_json(run.folder / "trace.json", stamp(trace, provenance, kind="trace"))
    baselines = {row.method: row.step_time for row in comparison.rows if row.method != FINE_TUNED}
    figure = draw_learning_curve(
        learned.curve, baselines, comparison.lower_bound, f"{name}: fine-tuning"
    )
    write_figure(run.folder / "learning_curve.png", figure, provenance)
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    write_markdown(run, name, [comparison.markdown(), gains_of(comparison)], provenance)
