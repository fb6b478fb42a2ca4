"""Learn to give workers to malleable jobs, slot by slot: a policy, or weights of a planner.

meshwright train env=allocation +split@splits.itp=itp training.budget_s=300
meshwright train env=allocation +split@splits.itp=itp training.cloning.iterations=20 \\
    'teacher={_target_: experiments.papers.malleable_jobs.gadget.Gadget}' model.head_start=0
meshwright train env=allocation +split@splits.itp=itp evaluation_window=test \\
    'policies=[<run folder>/checkpoint]'
meshwright train task=gains +split@splits.itp=itp

The policy of the best evaluation becomes a folder, <run folder>/checkpoint, which
`LearnedAllocation` follows. A score is the rule's utility over that of the policy.

With `task=gains` it is learned how GADGET weighs the gains of jobs in a slot, by whole plans. The
best few of a search are checked on validation problems beside GADGET's own weights, its untrained
twin; `gains.json` in the run folder is what `Gadget(weights=<file>)` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from agents.cluster.rule_numbers import Numbers, NumberSearch
from agents.rllib.config import Training
from agents.solver import Budget
from envs.arrays import FloatArray
from envs.bounds import Count
from envs.errors import InputError
from experiments.cluster.split_windows import Split
from experiments.config.targets import build, build_as
from experiments.learning.train_rule import NumberTask, searched
from experiments.learning.training import PolicyConfig, WindowsConfig, begun, learned
from experiments.papers.malleable_jobs.env import AllocationEnv, AllocationParallelEnv
from experiments.papers.malleable_jobs.gadget import OWN, Gadget, Smd
from experiments.papers.malleable_jobs.generated import TraceProblems
from experiments.papers.malleable_jobs.learned import AllocationRLTask, LearnedAllocation
from experiments.papers.malleable_jobs.planners import BASELINES
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.slots import AllocationSolver
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.statistics import bootstrap
from models.cluster.pairs import PairsConfig

RULE, GAINS_FILE = "rule", "gains.json"


@dataclass(kw_only=True)
class ProblemsConfig(WindowsConfig):
    """Settings of trainings on problems of traces."""

    problems: Any

    def sources(self) -> list[TraceProblems]:
        """Problems to train on, and for evaluations, from all traces of the splits.

        Raises:
            InputError: naming the config key.
        """
        parts = [part for one in self.splits.values() for part in Split(one).traces.values()]
        found = []
        for name in (self.window, self.evaluation_window):
            make = build(self.problems, "problems")
            try:
                found.append(make([part.windows[name].trace.canonical() for part in parts]))
            except InputError as error:
                message = f"config key 'problems.{error.field}': {error.message}"
                raise InputError(message) from error
        return found

    def drawn(self, source: TraceProblems, count: int) -> list[AllocationProblem]:
        """The first problems of the seed."""
        return [source(np.random.default_rng((self.seed, number))) for number in range(count)]


@dataclass(kw_only=True)
class TrainAllocationConfig(ProblemsConfig, PolicyConfig):
    """`conf/task/allocation.yaml`; groups are objects by `_target_`."""

    env: Any
    # checkpoint folders of earlier runs that are compared on evaluation_window; []: one is
    # trained
    policies: Sequence[str] = ()
    windows: Count = 12  # problems on which they are
    teacher: Any = None  # a planner whose plans are imitated, by _target_; null: the rule


def task_of(config: TrainAllocationConfig) -> tuple[Training, AllocationRLTask]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key.
    """
    training, teacher = config.training_run(), None
    build_as(PairsConfig, config.training["model"], "model", "policy over pairs: take model=pairs")
    if config.teacher is not None:
        teacher = build_as(AllocationSolver, config.teacher, "teacher", "planner")
    make = build(config.env, "env")
    first, evaluation = (partial(_queues, make, source) for source in config.sources())
    return training, AllocationRLTask(first, evaluation, teacher)


def _queues(make: Callable[[TraceProblems], Any], source: TraceProblems) -> AllocationParallelEnv:
    made = make(source)
    found = made.parallel if isinstance(made, AllocationEnv) else made
    if not isinstance(found, AllocationParallelEnv):
        raise InputError(f"config key 'env': {type(made).__name__} gives no workers to jobs")
    return found


def train_allocation(config: TrainAllocationConfig, run: Run) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the evaluations say."""
    return compared(config, run) if config.policies else learned(config, run, task_of)


def utilities(
    planners: Iterable[AllocationSolver], problems: Sequence[AllocationProblem], seed: int
) -> FloatArray:
    """(N, K) of N planners in K problems."""
    budget = Budget(seed=seed)
    return np.array([[p.solve(one, budget).value for one in problems] for p in planners])


def compared(config: TrainAllocationConfig, run: Run) -> Result:
    """Policies and all that decide online, on the same problems from the window of evaluations."""
    problems = config.drawn(config.sources()[1], config.windows)
    policies: dict[str, AllocationSolver] = {
        path: Gadget(weights=path) if path.endswith(".json") else LearnedAllocation(path)
        for path in config.policies
    }
    published: dict[str, AllocationSolver] = {name: make() for name, make in BASELINES.items()}
    published |= {"gadget": Gadget(), "smd": Smd()}
    planners = {**published, RULE: LearnedAllocation(), **policies}
    found = utilities(planners.values(), problems, config.seed)
    utility = dict(zip(planners, found, strict=True))
    best = max(published, key=lambda name: sum(utility[name]))

    def over(names: Iterable[str], other: str) -> str:
        own = np.array([utility[name] for name in names]).T
        return bootstrap(own / utility[other][:, None], 10_000, 0).text()

    rows = [(name, f"{own.mean():.1f}", over([name], best)) for name, own in utility.items()]
    table = Table("", ("planner", "mean utility", f"of {best}"), rows)
    write_tables(run, "Online planners on later windows", [table], run.provenance)
    values: dict[str, object] = {
        "best": best,
        "jobs": [len(problem.jobs) for problem in problems],
        "of_best": over(policies, best),
        "of_rule": over(policies, RULE),
        "utility": utility,
    }
    return Result(values, run.provenance, ("best", "of_best", "of_rule"))


@dataclass(kw_only=True)
class TrainGainsConfig(ProblemsConfig):
    """`conf/task/gains.yaml`; the search and the problems are objects by `_target_`."""

    model: Any
    windows: Count = 8  # problems of the search, the same for all weights
    evaluation_windows: Count = 8  # problems on which the best are checked
    evaluations: Count = 3  # of the best that are


def train_gains(config: TrainGainsConfig, run: Run) -> Result:
    """Search, evaluate the best beside GADGET's own weights, and save the best of them."""
    config, tracking = begun(config, run)
    search = build_as(NumberSearch, config.model, "model", "search for numbers")
    before = asdict(OWN)
    sources = zip(config.sources(), (config.windows, config.evaluation_windows), strict=True)
    training, judging = (config.drawn(source, count) for source, count in sources)

    def tried(numbers: Sequence[Numbers], problems: Sequence[AllocationProblem]) -> FloatArray:
        return utilities([Gadget(weights=one) for one in numbers], problems, config.seed)

    def costs(numbers: Sequence[Numbers]) -> FloatArray:
        ratios: FloatArray = (tried(numbers, training) / own).mean(axis=1)
        return -np.log(ratios)

    own = tried([before], training)[0]
    caption = "Utility over that with GADGET's own weights: mean over problems, 95 % bootstrap."
    return searched(
        config, tracking, run, NumberTask(search, before, costs, config.seed),
        lambda numbers: tried(numbers, judging), config.evaluations, GAINS_FILE, "Learned gains",
        caption, more=True,
    )  # fmt: skip
