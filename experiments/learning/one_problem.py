"""Policies that learn on one graph and one topology, to place or to share the network.

Training is a search: the best they meet is the plan. `train_step` trains one; `main_job` puts a
shipped policy and all planners beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.placement.shipped import placer_folder
from agents.rllib.config import Training
from agents.solver import Result as Found
from agents.step.problems import require_fit
from envs.bounds import Positive
from envs.compilation import clock
from envs.errors import InputError
from envs.placement.episodes import WholeProblem
from envs.step.plans import Placement, Plan
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from experiments.config.composing import plain_config
from experiments.config.targets import no_such_thing
from experiments.learning.exporting import (
    CHECKPOINT_FOLDER,
    card_of,
    title_of,
    verify_placement,
)
from experiments.learning.outcome import Outcome, by_step_time
from experiments.learning.replay import PLANS, tokens
from experiments.learning.tracking import Tracking
from experiments.learning.trainer import Row
from experiments.learning.training import CURVE_FILE, PolicyConfig, Trained, begun, trained
from experiments.pictures.learning import Curve, draw_learning_curve
from experiments.reporting.tables import write_markdown
from experiments.run.artifacts import METRICS_FILE, read_metrics, write_figure
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance
from experiments.step.comparison import Comparison, row_of
from experiments.step.evaluate_step import evaluation_values
from experiments.step.objectives import Makespan, learnable, placement_task
from experiments.step.plan_file import write_plan
from experiments.step.planning import ask_in_turn, ask_side_by_side, compile_beside
from experiments.step.plot import write_gantt
from experiments.step.problem import BUILDING, ProblemConfig, communication_of
from experiments.step.tasks import LearnedTask, StepTask

if TYPE_CHECKING:
    from models.step.decoding import Network

LEARNER, MET = "ppo", "met"  # the best plan of training, in tables and on consoles
TRAINED, UNTRAINED = "trained", "untrained"  # policies' most probable plans
OWN = (LEARNER, MET, TRAINED, UNTRAINED)
NO_PLAN = "no plan met in training fits"
BEST_MET = "best plan in training"
LEARNED, SEARCHED = "learned", "learned_search"  # the shipped policy, alone and searched on from
SHIPPED = "shipped"  # its most probable plan
SHOWN = (
    "graph", "topology", "iterations", "steps", "episodes", "seconds", "step_time_s",
    "lower_bound_s", "times_lower_bound", "peak_memory_bytes", "feasible", "resumed", "checkpoint",
)  # fmt: skip
WORDS = {  # of baselines, as `conf/main.yaml` has them
    "heft": "HEFT, list scheduler",
    "contiguous_speed": "split by speed",
    "single_device": "best single device",
    "shipped": "shipped, best of 8",
}


@dataclass(kw_only=True)
class OneProblemConfig(ProblemConfig, PolicyConfig):
    """What is learned on; groups are objects by `_target_`."""

    communication: Any


@dataclass(frozen=True, eq=False)
class Learned:
    """Trained policies, the best that was decided in training, and how it got there."""

    training: Trained
    found: Found[Plan]
    curve: Curve
    outcome: Outcome

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user is to know."""
        return (*self.outcome.warnings, *self.training.warnings)

    @property
    def evaluation(self) -> dict[str, object]:
        """Seconds of the most probable plan, before training and of the policy exported."""
        before, after = self.outcome.untrained, self.outcome.best
        return {"untrained_s": list(before.outcomes), "trained_s": list(after.outcomes)}


def learn(
    config: OneProblemConfig, tracking: Tracking, training: Training, task: LearnedTask, run: Run,
    display: ProgressDisplay, provenance: Provenance,
) -> Learned:  # fmt: skip
    """Train on `task`, as `experiments.learning.training.trained`."""
    found = trained(
        config, tracking, training, task.rl_task(training), run, display, provenance, news, LEARNER,
    )  # fmt: skip
    measure = "its most probable plan, simulated on groups of operators and not on each, takes"
    outcome = Outcome.of(run.folder, measure, by_step_time, training.model)
    curve = read_curve(run.folder / METRICS_FILE, outcome)
    result: Found[Plan] = Found(
        None,
        "limit",
        seconds=found.seconds,
        evaluations=found.steps,
        reason=NO_PLAN,
        history=curve.improvements,
    )
    if found.best is not None:
        plan = task.plan_of(found.best)
        evaluation = task.judge(plan).evaluation
        assert evaluation is not None
        time_s = evaluation.step_time
        result = replace(result, solution=plan, status="feasible", value=time_s, reason="")
    return Learned(found, result, curve, outcome)


def news(row: Row) -> str:
    """One iteration in a few words."""
    return (
        f"mean {row['charts/step_time_s_mean'] * 1e3:.1f} ms, "
        f"best {row['charts/best_objective'] * 1e3:.1f} ms, {row['charts/SPS']:.0f} steps/s"
    )


def draw_curve(
    run: Run, learned: Learned, comparison: Comparison, title: str, provenance: Provenance
) -> None:
    """Write the learning curve; what is of the training itself is no baseline in it."""
    rows = [row for row in comparison.rows if row.method not in OWN]
    words = comparison.words
    baselines = {words.get(row.method, row.method): row.step_time for row in rows}
    figure = draw_learning_curve(learned.curve, baselines, comparison.lower_bound, title)
    write_figure(run.folder / CURVE_FILE, figure, provenance)


def read_curve(path: Path, outcome: Outcome) -> Curve:
    """The learning curve of a run, all its sessions together, from its metrics.

    It begins with the first evaluation, before training; that of the policy exported may be the
    last, after the last row.
    """
    rows = read_metrics(path)
    if outcome.best.iteration:
        rows[outcome.best.iteration - 1]["evaluation/outcome"] = str(np.mean(outcome.best.outcomes))
    return Curve(
        seconds=[float(row["charts/seconds"]) for row in rows],
        mean=[float(row["charts/step_time_s_mean"]) for row in rows],
        best=[float(row["charts/best_objective"]) for row in rows],
        own=[
            (0.0, float(np.mean(outcome.untrained.outcomes))),
            *((float(row["charts/seconds"]), float(row["evaluation/outcome"])) for row in rows),
        ],
        begun=outcome.begun,
    )


def own_words(fresh: bool) -> dict[str, str]:
    """What the rows of `own_plans` and training are; `fresh`: it began with nothing."""
    begun = "from nothing" if fresh else "further"
    return {
        LEARNER: f"training {begun}",
        TRAINED: f"trained {begun}",
        UNTRAINED: "untrained twin" if fresh else "policy it began with",
    }


def own_plans(found: Trained, task: LearnedTask, run_folder: Path) -> dict[str, Found[Plan]]:
    """The most probable plans of the policy and of what it was before; none of other policies."""
    from agents.rllib import restore
    from models.step.placer import PlacerPolicy, PresentNetwork

    ((module, policy),) = found.policies.items()
    if not isinstance(policy, PlacerPolicy):
        return {}
    twin = copy.deepcopy(policy)
    restore.load_best(run_folder, {module: twin}, restore.UNTRAINED)
    return {
        method: most_probable(PresentNetwork(one), policy.config.sweeps, task)
        for method, one in ((TRAINED, policy), (UNTRAINED, twin))
    }


def most_probable(network: Network, kinds: Sequence[str], task: LearnedTask) -> Found[Plan]:
    """The plan a policy makes when nothing is placed, order and all, without a search."""
    import torch

    torch.set_num_threads(1)  # as planners have it
    start = clock()
    source = task.env(task.step, sweeps=len(kinds))
    asked: WholeProblem = source.evaluation(0)
    seen = {name: array[None] for name, array in asked.observation.items()}
    made = tokens(network, kinds, seen)
    device, order = asked.tokens.plan(made[: len(made) // PLANS], asked.fusion.num_groups)
    rule = asked.pricer.price(device, order).rule
    placed = asked.fusion.expand(device)
    plan = Plan(Placement(placed), Pricer(task.step).price(placed, (rule,)).order)
    return Found(plan, "feasible", seconds=clock() - start)


@dataclass(kw_only=True)
class TrainConfig(OneProblemConfig):
    """`conf/task/one_problem.yaml`; groups are objects by `_target_`."""

    baselines: dict[str, Any]
    baseline_budget_s: Positive = 80.0  # wall time of each baseline, and of the placer
    placer: Any


def train_step(config: TrainConfig, run: Run) -> Result:
    """Train (on), then write what was found, the learning curve and the table."""
    from models.export.placer import export_placer
    from models.step.placer import PlacerPolicy

    config, tracking = begun(config, run)
    run.begin(BUILDING)
    loaded = config.load()
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    bound = require_fit(problem)
    training = config.training_run()
    objective, task = learnable(
        config.env,
        problem,
        communication_of(config.communication),
        config.placer,
        config.baseline_budget_s,
    )
    task.rl_task(training).architectures(training.model)  # before the baselines take their time
    words = {**WORDS, **own_words(not hasattr(training.model, "checkpoint"))}
    budget_s = config.baseline_budget_s
    with ProgressDisplay(run.console, words) as display:
        found = ask_in_turn(config.baselines, "baselines", objective, task, budget_s, display)
        learned = learn(config, tracking, training, task, run, display, provenance)
    run.begin("drawing and exporting")
    result, met = learned.training, learned.found
    found |= {LEARNER: met, **own_plans(result, task, run.folder)}
    rows = sorted((row_of(*item, task) for item in found.items()), key=lambda row: row.step_time)
    names = {**words, LEARNER: BEST_MET}
    comparison = Comparison(tuple(rows), None, bound.seconds, names)
    name = f"{problem.graph.name} on {problem.topology.name}"
    title = f"{name}: a policy learns by PPO ({objective.name})"
    draw_curve(run, learned, comparison, title, provenance)
    summary = learned.outcome.sentence
    if len(rows) > 1:
        run.console.print(comparison.rich(name))
        write_markdown(run, name, [comparison.markdown(), f"{summary}."], provenance)
    run.console.say(summary)
    policy, checkpoint = next(iter(result.policies.values())), None
    if isinstance(policy, PlacerPolicy):
        card = card_of(title_of(problem), summary, plain_config(config), provenance)
        checkpoint = export_placer(policy, run.folder.resolve() / CHECKPOINT_FOLDER, card)
    values: dict[str, object] = {
        "graph": problem.graph.name,
        "topology": problem.topology.name,
        "iterations": result.iterations,
        "steps": result.steps,
        "episodes": result.episodes,
        "seconds": result.seconds,
        "evaluation": learned.evaluation,
        "lower_bound_s": bound.seconds,
        "methods": comparison.document(),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "resumed": config.resume is not None,
    }
    evaluation = next(row.evaluation for row in rows if row.method == LEARNER)
    if met.solution is None or evaluation is None:
        run.console.say(met.reason)
        unplaced = dict.fromkeys(("step_time_s", "times_lower_bound", "peak_memory_bytes"))
        values |= {**unplaced, "feasible": False}
    else:
        task.write(run.folder, met.solution, provenance)
        values |= evaluation_values(evaluation, bound)
    return Result(values, provenance, SHOWN, learned.warnings)


@dataclass(kw_only=True)
class MainConfig(OneProblemConfig):
    """`conf/main.yaml`; groups are objects by `_target_`."""

    quick: dict[str, Any]
    searching: dict[str, Any]
    single_device: str = "single_device"  # the quick agent that is the first yardstick
    budget_s: Positive = 30.0  # seconds of each searching planner, and of training
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
                f"config key 'single_device': {self.single_device!r} is no quick agent "
                f"({', '.join(self.quick)})"
            )


def main_job(config: MainConfig, run: Run) -> Result:
    """Run every method on one problem and write everything a reader may want to see."""
    compiling = compile_beside(config.searching, "searching")
    from models.export.placer import OnnxPlacer, export_placer
    from models.step.placer import PlacerConfig, PlacerPolicy

    config, tracking = begun(config, run)
    console = run.console
    run.begin(BUILDING)
    loaded = config.load()
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    communication = communication_of(config.communication)
    bound = require_fit(problem)
    training = config.training_run()
    task = placement_task(config.env, problem, communication)
    task.rl_task(training).architectures(training.model)  # before the planners take their time
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
        alone = StepTask(problem)
        found = ask_in_turn(config.quick, "quick", Makespan(), alone, config.budget_s, display)
        learned = learn(config, tracking, training, task, run, display, provenance)
        run.begin("compiling what searches need")
        compiling.join()
        searched = ask_side_by_side(
            config.searching, "searching", problem, config.budget_s, display
        )
    (policy,) = learned.training.policies.values()
    assert isinstance(policy, PlacerPolicy)
    found |= {MET: learned.found, **searched, **own_plans(learned.training, task, run.folder)}
    found[SHIPPED] = most_probable(shipped, shipped.sweeps, task)
    rows = sorted((row_of(*item, task) for item in found.items()), key=lambda row: row.step_time)
    comparison = Comparison(tuple(rows), config.single_device, bound.seconds, words)
    times = {row.method: row.step_time for row in rows}
    named = ", ".join(words[method] for method in (TRAINED, UNTRAINED, SHIPPED))
    notes = (
        "Step times are simulated on every operator; search time is what a method took, "
        f"a search had {config.budget_s:g} s. No plan is faster than the lower bound.",
        f"{named}: the most probable plan of a policy, without search. Exported is what was "
        f"{words[TRAINED]}; the {words[SHIPPED]} is "
        f"{'faster' if times[SHIPPED] < times[TRAINED] else 'not faster'} here.",
        f"{learned.outcome.sentence}.",
    )
    run.begin("writing plans and pictures")
    _write_plans(run, problem, comparison, name, provenance)
    draw_curve(run, learned, comparison, f"{name}: a policy learns by PPO", provenance)
    write_markdown(run, name, [comparison.markdown(), *notes], provenance)
    run.begin("exporting the policy, asking it again in a process without ray, PyG and torch")
    text = "\n\n".join((comparison.markdown(), *notes))
    card = card_of(title_of(problem), text, plain_config(config), provenance)
    checkpoint = export_placer(policy, run.folder.resolve() / CHECKPOINT_FOLDER, card)
    seen = task.env(problem, sweeps=len(policy.config.sweeps)).evaluation(0).observation
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
            "instances": {  # as a study reads them
                row.method: {"step_time_s": row.step_time, "search_s": row.seconds}
                for row in comparison.rows
                if row.feasible
            },
            "best": None if best is None else words.get(best.method, best.method),
            "best_method": None if best is None else best.method,
            "best_step_time_s": None if best is None else best.step_time,
            "iterations": learned.outcome.iterations,
            "untrained_step_time_s": times[UNTRAINED],
            "trained_step_time_s": times[TRAINED],
            "shipped_step_time_s": times[SHIPPED],
            "learned_step_time_s": times[LEARNED],
            "learned_search_step_time_s": times[SEARCHED],
            "evaluation": learned.evaluation,
            "checkpoint": str(checkpoint),
            "verification": verification.document(),
            "seconds": run.seconds,
        },
        provenance,
        (
            "best", "best_step_time_s", "untrained_step_time_s", "trained_step_time_s",
            "shipped_step_time_s", "lower_bound_s", "seconds",
        ),
        learned.warnings,
    )  # fmt: skip


def _write_plans(
    run: Run, problem: StepProblem, comparison: Comparison, name: str, provenance: Provenance
) -> None:
    """Every plan; of the best one a chart and a trace."""
    for row in comparison.rows:
        if row.evaluation is not None:
            path = run.folder / "plans" / f"{row.method}.json"
            write_plan(path, row.evaluation.plan, problem, provenance)
    best = comparison.best
    if best is not None and best.evaluation is not None:
        what = comparison.words.get(best.method, best.method)
        title = f"{name}: {what}, one step takes {best.step_time * 1e3:.1f} ms"
        write_gantt(run, best.evaluation, title, provenance)
