"""The main job: a policy trained on one problem, a shipped one and all planners beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.placement.shipped import placer_folder
from agents.step.problems import require_fit
from envs.bounds import Positive
from envs.errors import InputError
from envs.step.problem import StepProblem
from experiments.config.composing import plain_config
from experiments.config.targets import build, no_such_thing
from experiments.learning.exporting import (
    CHECKPOINT_FOLDER,
    card_of,
    title_of,
    verify_placement,
)
from experiments.learning.one_problem import (
    BEST_MET,
    MET,
    TRAINED,
    UNTRAINED,
    Learned,
    OneProblemConfig,
    draw_curve,
    learn,
    most_probable,
    own_plans,
    own_words,
)
from experiments.learning.training import begun
from experiments.pictures.step import draw_gantt, trace_document
from experiments.run.artifacts import write_figure, write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, stamp
from experiments.step.comparison import Comparison, row_of
from experiments.step.objectives import placement_task
from experiments.step.plan_file import write_plan
from experiments.step.problem import BUILDING, communication_of, load_problem
from experiments.step.search import search_in_turn, search_side_by_side
from experiments.study.display import ProgressDisplay
from experiments.study.tables import write_markdown

LEARNED, SEARCHED = "learned", "learned_search"  # the shipped policy, alone and searched on from
SHIPPED = "shipped"  # its most probable plan


@dataclass(kw_only=True)
class MainConfig(OneProblemConfig):
    """`conf/main.yaml`; groups are objects by `_target_`."""

    quick: dict[str, Any]
    searching: dict[str, Any]
    single_device: str = "single_device"  # the quick agent that is the first yardstick
    budget_s: Positive = 50.0  # seconds of each searching planner, and of training
    shipped: str = "any_step"  # the policy that stands beside: a shipped one, or the folder of one
    # what rows of the table are; others have their names
    words: dict[str, str] = field(
        default_factory=lambda: {
            "learned": "shipped, best of 8",
            "learned_search": "shipped, searched on",
            "local_search": "local search",
            "fusion_milp": "MILP on groups",
            "heft": "HEFT, list scheduler",
            "contiguous": "equal split",
            "contiguous_speed": "split by speed",
            "single_device": "best single device",
            "random": "random, best of 16",
            "random_one": "random placement",
        }
    )

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
    from models.export.placer import OnnxPlacer, export_placer
    from models.step.placer import PlacerConfig, PlacerPolicy

    start = time.perf_counter()
    config, tracking = begun(config, run)
    console = run.console
    run.begin(BUILDING)
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    communication = communication_of(config.communication)
    bound = require_fit(problem)
    training = build(config.training, "training")
    task = placement_task(config.env, problem, communication)
    task.subject(training).architectures(training.model)  # before the planners take their time
    shipped = OnnxPlacer(placer_folder(config.shipped))
    own = own_words(fresh=isinstance(training.model, PlacerConfig))
    words = {**own, MET: BEST_MET, SHIPPED: "shipped policy", **config.words}
    name = f"{problem.graph.name} on {problem.topology.name}"
    console.print(
        f"{name}: {problem.graph.num_operators:,} operators, {problem.graph.num_tensors:,} "
        f"tensors, {problem.topology.num_devices} devices, "
        f"lower bound {bound.seconds * 1e3:.1f} ms",
        highlight=False,
        soft_wrap=True,
    )
    with ProgressDisplay(console, words) as display:
        found = search_in_turn(config.quick, problem, config.budget_s, display)
        learned = learn(config, tracking, training, task, run, display, provenance)
        searched = search_side_by_side(config.searching, problem, config.budget_s, display)
    (policy,) = learned.training.policies.values()
    assert isinstance(policy, PlacerPolicy)
    found |= {MET: learned.found, **searched, **own_plans(learned.training, task, run.folder)}
    found[SHIPPED] = most_probable(shipped, shipped.sweeps, task)
    rows = sorted((row_of(*item, task) for item in found.items()), key=lambda row: row.step_time)
    comparison = Comparison(tuple(rows), config.single_device, bound.seconds, words)
    times = {row.method: row.step_time for row in rows}
    notes = (f"{learned.outcome.sentence}.", _policies(words, times))
    _write(run, problem, comparison, learned, provenance, name, notes)
    run.begin("exporting the policy, asking it again in a process without ray, PyG and torch")
    text = "\n\n".join((comparison.markdown(), *notes))
    card = card_of(title_of(problem), text, plain_config(config), provenance)
    checkpoint = export_placer(policy, run.folder.resolve() / CHECKPOINT_FOLDER, card)
    seen = task.env(problem, sweeps=len(policy.config.sweeps)).exam(0).observation
    verification = verify_placement(policy, checkpoint, seen, run.folder, provenance)
    console.print(comparison.rich(name))
    for note in notes:
        console.say(note)
    console.say(f"checkpoint: {checkpoint}")
    console.print(
        f"without ray, torch_geometric and torch it decides "
        f"{'identically' if verification.passed else 'DIFFERENTLY'}: {verification.identical} of "
        f"{verification.decisions} decisions are the same ({', '.join(verification.runtimes)})",
        soft_wrap=True,
        highlight=False,
    )
    best = comparison.best
    return Result(
        {
            "graph": problem.graph.name,
            "topology": problem.topology.name,
            "communication": communication.name,
            "operators": problem.graph.num_operators,
            "lower_bound_s": bound.seconds,
            "budget_s": config.budget_s,
            "methods": comparison.document(),
            "best": None if best is None else words.get(best.method, best.method),
            "best_method": None if best is None else best.method,
            "best_step_time_s": None if best is None else best.step_time,
            "iterations": learned.outcome.iterations,
            "untrained_step_time_s": times[UNTRAINED],
            "trained_step_time_s": times[TRAINED],
            "shipped_step_time_s": times[SHIPPED],
            "learned_step_time_s": times[LEARNED],
            "learned_search_step_time_s": times[SEARCHED],
            "exam": learned.exam,
            "checkpoint": str(checkpoint),
            "verification": verification.document(),
            "seconds": time.perf_counter() - start,
        },
        provenance,
        (
            "best", "best_step_time_s", "untrained_step_time_s", "trained_step_time_s",
            "shipped_step_time_s", "lower_bound_s", "seconds",
        ),
        learned.warnings,
    )  # fmt: skip


def _policies(words: Mapping[str, str], times: Mapping[str, float]) -> str:
    """What the rows of policies are, and which of them is exported."""
    named = ", ".join(words[method] for method in (TRAINED, UNTRAINED, SHIPPED))
    slower = times[SHIPPED] < times[TRAINED]
    return (
        f"{named}: the most probable plan of a policy, without any search, on every operator. "
        f"Exported is what was {words[TRAINED]}; the {words[SHIPPED]} is "
        f"{'faster' if slower else 'not faster'} here."
    )


def _write(
    run: Run,
    problem: StepProblem,
    comparison: Comparison,
    learned: Learned,
    provenance: Provenance,
    name: str,
    notes: Sequence[str],
) -> None:
    """Plans, charts, trace and table; what is not of the training stands beside its curve."""
    run.begin("writing plans and pictures")
    words = comparison.words
    for row in comparison.rows:
        if row.evaluation is not None:
            path = run.folder / "plans" / f"{row.method}.json"
            write_plan(path, row.evaluation.plan, problem, provenance)
    best = comparison.best
    if best is not None and best.evaluation is not None:
        timeline, played = best.evaluation.timeline, best.evaluation.problem
        what = words.get(best.method, best.method)
        title = f"{name}: {what}, one step takes {best.step_time * 1e3:.1f} ms"
        write_figure(run.folder / "gantt.png", draw_gantt(played, timeline, title), provenance)
        trace = trace_document(played, timeline)
        write_json(run.folder / "trace.json", stamp(trace, provenance, kind="trace"))
    draw_curve(run, learned, comparison, f"{name}: a policy learns by PPO", provenance)
    write_markdown(run, name, [comparison.markdown(), *notes], provenance)
