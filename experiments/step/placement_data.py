"""Draw placement problems at random and label them with a planner, shard by shard, for imitation.

python -m experiments.train labels=<dataset folder> problems=2000
python -m experiments.train labels=<dataset folder> agent@teacher=learned \\
    teacher.checkpoint=any_step

The same command goes on where it was stopped. `env=labelled_problems env.folder=<dataset folder>`
learns from the folder.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from agents.placement.labelling import (
    Dataset,
    LabelledProblem,
    describe,
    label,
    read_dataset,
    shard_path,
    write_shard,
)
from agents.solver import Budget
from agents.step.problems import Planner, StepPlanning
from envs.bounds import Count, Positive, Share
from envs.errors import InputError
from envs.placement.generator import TrainingProblems, toy_pipeline
from envs.step.problem import StepProblem
from experiments.config.targets import build_as
from experiments.run.artifacts import to_json
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import text_hash
from experiments.run.threads import one_thread_each

WARM_UP_S = 0.2
SHORTEST_S = 0.2  # budget of the smallest problems, where that of the largest is not less
LARGE = 0.5  # share of the problems of the last stage; the others are of all stages alike
LOOKED_AT = 200  # problems, for the gain over cheap plans
NO_DATA = ("labels", "problems", "processes", "json")  # what no problem or label depends on


@dataclass(kw_only=True)
class PlacementDataConfig:
    """`conf/placement_data.yaml`; groups are objects by `_target_`."""

    distribution: Any
    teacher: Any
    labels: str  # of the dataset; what is missing there is made, what is there is kept
    problems: Count = 2000  # to draw
    shard_size: Count = 20  # problems in one file
    # of the curriculum in size; half of the problems are drawn evenly from it on
    first_stage: Share = 0.0
    last_stage: Share = 1.0  # ... up to this one, the other half are of this one
    budget_s: Positive = 2.0  # wall time of the teacher for a large problem
    # and for every piece (an operator of the fused graph) of a smaller one
    piece_s: Positive = 0.001
    processes: Annotated[int, Ge(1), Le(256)] = 2  # that label side by side, one thread each
    seed: int
    json: bool


def placement_data(config: PlacementDataConfig, run: Run) -> Result:
    """Write the shards that are missing in the folder, and say what stands there."""
    with ProgressDisplay(run.console) as display:
        found = labelled(config, display)
    gains = [min(item.single_s, item.split_s) / item.seconds for item in found[:LOOKED_AT]]
    values = {
        "folder": config.labels,
        "problems": len(found),
        "without_a_label": config.problems - len(found),
        "median_gain_over_cheap_plans": float(np.median(gains)) if gains else None,
    }
    made_from = text_hash(to_json({"from": config.distribution, "by": config.teacher}))
    return Result(values, run.provenance.with_inputs(labelling=made_from))


def labelled(config: PlacementDataConfig, display: ProgressDisplay) -> Dataset:
    """The dataset in the folder, once the shards that were missing there are written.

    Raises:
        InputError: another dataset stands there, or from the distribution or teacher.
    """
    if config.first_stage > config.last_stage:
        raise InputError(f"{config.first_stage} is above last_stage", field="first_stage")
    worker, shards = _Worker(config), -(-config.problems // config.shard_size)
    made_from = {key: value for key, value in vars(config).items() if key not in NO_DATA}
    describe(Path(config.labels), shards, config.shard_size, made_from)
    missing = [n for n in range(shards) if not shard_path(Path(config.labels), n).exists()]
    task = display.begin(f"{len(missing)} of {shards} shards", len(missing))
    for done, _ in enumerate(_written(worker, missing), start=1):
        display.update(task, done, f"{done} shards")
    display.end(task, "")
    return read_dataset(config.labels)


def _written(worker: _Worker, missing: list[int]) -> Iterator[None]:
    if worker.config.processes == 1 or len(missing) < 2:
        yield from map(worker.write, missing)
        return
    context = multiprocessing.get_context("spawn")
    given = (worker.config.processes, context, _begin, (worker.config,))
    with one_thread_each(), ProcessPoolExecutor(*given) as pool:
        running = [pool.submit(_write, shard) for shard in missing]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """Draws and labels in one process."""

    def __init__(self, config: PlacementDataConfig) -> None:
        self.config = config
        self.teacher = build_as(Planner, config.teacher, "teacher", "planner of a step")
        node = config.distribution
        self.source = build_as(TrainingProblems, node, "distribution", "distribution")

    def write(self, shard: int) -> None:
        """Write one shard."""
        config, first = self.config, shard * self.config.shard_size
        found: dict[int, LabelledProblem] = {}
        for number in range(first, min(first + config.shard_size, config.problems)):
            problem = self._problem(number)
            wanted_s = max(SHORTEST_S, config.piece_s * problem.graph.num_operators)
            item = label(number, problem, self._warm, min(config.budget_s, wanted_s))
            if item is not None:
                found[number - first] = item
        write_shard(shard_path(Path(config.labels), shard), found)

    def _problem(self, number: int) -> StepProblem:
        rng, config = np.random.default_rng([self.config.seed, number]), self.config
        stage = float(rng.uniform(config.first_stage, config.last_stage))
        return self.source(rng, config.last_stage if rng.random() < LARGE else stage)

    @cached_property
    def _warm(self) -> Planner:
        """The teacher, its kernels compiled."""
        self.teacher.solve(StepPlanning(toy_pipeline()), Budget(WARM_UP_S))
        return self.teacher


_mine: list[_Worker] = []  # of a process of the pool


def _begin(config: PlacementDataConfig) -> None:
    _mine[:] = [_Worker(config)]


def _write(shard: int) -> None:
    _mine[0].write(shard)
