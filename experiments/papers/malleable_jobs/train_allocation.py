"""Train a policy that gives workers to malleable jobs, slot by slot.

meshwright train env=allocation +split@splits.itp=itp training.budget_s=300
meshwright train env=allocation +split@splits.itp=itp training.cloning.iterations=20 \\
    'teacher={_target_: experiments.papers.malleable_jobs.gadget.Gadget}' model.head_start=0
meshwright train env=allocation +split@splits.itp=itp evaluation_window=test \\
    'policies=[<run folder>/checkpoint]'

The policy of the best evaluation becomes a folder, <run folder>/checkpoint, which
`LearnedAllocation` follows. A score is the rule's utility over that of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.rllib.config import Training
from agents.solver import Budget
from envs.bounds import Count
from envs.errors import InputError
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.config.targets import build, build_as
from experiments.learning.training import PolicyConfig, WindowsConfig, learned, training_of_pairs
from experiments.papers.malleable_jobs.baselines import BASELINES
from experiments.papers.malleable_jobs.env import AllocationEnv
from experiments.papers.malleable_jobs.gadget import Gadget
from experiments.papers.malleable_jobs.learned import LearnedAllocation
from experiments.papers.malleable_jobs.parallel_env import AllocationParallelEnv
from experiments.papers.malleable_jobs.sizes import AllocationSolver
from experiments.papers.malleable_jobs.smd import Smd
from experiments.papers.malleable_jobs.windows import TraceProblems
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.statistics import bootstrap

if TYPE_CHECKING:
    from experiments.papers.malleable_jobs.rl_task import AllocationRLTask

RULE = "rule"


@dataclass(kw_only=True)
class TrainAllocationConfig(WindowsConfig, PolicyConfig):
    """`conf/task/allocation.yaml`; groups are objects by `_target_`."""

    env: Any
    problems: Any
    # checkpoint folders of earlier runs that are compared on evaluation_window; []: one is
    # trained
    policies: Sequence[str] = ()
    windows: Count = 12  # problems on which they are
    teacher: Any = None  # a planner whose plans are imitated, by _target_; null: the rule


def problems_of(
    splits: dict[str, SplitConfig], window: str, evaluation_window: str, problems: Any
) -> list[TraceProblems]:
    """Problems to train on, and for evaluations, from all traces of the splits.

    Raises:
        InputError: naming the config key.
    """
    parts = [part for one in splits.values() for part in Split(one).traces.values()]
    found = []
    for name in (window, evaluation_window):
        made = build(problems, "problems")
        try:
            found.append(made([part.windows[name].trace.canonical() for part in parts]))
        except InputError as error:
            told = f"config key 'problems.{error.field}': {error.message}"
            raise InputError(told) from error
    return found


def task_of(config: TrainAllocationConfig) -> tuple[Training, AllocationRLTask]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key.
    """
    from experiments.papers.malleable_jobs.rl_task import AllocationRLTask

    training = training_of_pairs(config)
    teacher = None
    if config.teacher is not None:
        teacher = build_as(AllocationSolver, config.teacher, "teacher", "planner")
    make = build(config.env, "env")
    sources = problems_of(config.splits, config.window, config.evaluation_window, config.problems)
    first, evaluation = (partial(_queues, make, source) for source in sources)
    return training, AllocationRLTask(first, evaluation, teacher)


def _queues(make: Callable[[TraceProblems], Any], source: TraceProblems) -> AllocationParallelEnv:
    made = make(source)
    found = made.parallel if isinstance(made, AllocationEnv) else made
    if not isinstance(found, AllocationParallelEnv):
        raise InputError(f"config key 'env': {type(made).__name__} gives no workers to jobs")
    return found


def train_allocation(config: TrainAllocationConfig, run: Run) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the evaluations say."""
    if config.policies:
        return compared(config, run)
    return learned(config, run, task_of)


def compared(config: TrainAllocationConfig, run: Run) -> Result:
    """Policies and all that decide online, on the same problems from the window of evaluations."""
    _, source = problems_of(config.splits, config.window, config.evaluation_window, config.problems)
    policies: dict[str, AllocationSolver] = {
        path: Gadget(weights=path) if path.endswith(".json") else LearnedAllocation(path)
        for path in config.policies
    }
    published: dict[str, AllocationSolver] = {name: make() for name, make in BASELINES.items()}
    published |= {"gadget": Gadget(), "smd": Smd()}
    planners = {**published, RULE: LearnedAllocation(), **policies}
    numbers = range(config.windows)
    problems = [source(np.random.default_rng((config.seed, number))) for number in numbers]
    budget = Budget(seed=config.seed)
    utility = {
        name: np.array([planner.solve(problem, budget).value for problem in problems])
        for name, planner in planners.items()
    }
    best = max(published, key=lambda name: sum(utility[name]))

    def over(names: Iterable[str], other: str) -> str:
        own = np.array([utility[name] for name in names]).T
        return bootstrap(own / utility[other][:, None], 10_000, 0).text()

    rows = [(name, f"{own.mean():.1f}", over([name], best)) for name, own in utility.items()]
    columns = ("planner", "mean utility", f"of {best}")
    write_tables(
        run, "Online planners on later windows", [Table("", columns, rows)], run.provenance
    )
    values: dict[str, object] = {
        "best": best,
        "jobs": [len(problem.jobs) for problem in problems],
        "of_best": over(policies, best),
        "of_rule": over(policies, RULE),
        "utility": utility,
    }
    return Result(values, run.provenance, ("best", "of_best", "of_rule"))
