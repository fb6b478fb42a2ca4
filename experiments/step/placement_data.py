"""Labelled placement problems: drawn, or those of another dataset again, shard by shard."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.base import Planner
from agents.placement.labelled import (
    Dataset,
    LabelledProblem,
    describe,
    missing_shards,
    read_dataset,
    write_shard,
)
from agents.placement.labelling import label
from envs.errors import InputError
from envs.placement.distribution import TrainingProblems
from envs.placement.toy import toy_pipeline
from envs.step.problem import StepProblem
from experiments.run.display import ProgressDisplay
from experiments.run.targets import build_as
from experiments.run.threads import one_thread_each

Node = Mapping[str, Any]
WARM_UP_S = 0.2
LARGE = 0.5  # share of the problems of the last stage; the others are of all stages alike


@dataclass(frozen=True)
class Labelling:
    """What is labelled, by whom, for how long; plain values, so that a process can be told.

    Args:
        distribution: where problems are drawn from, as a config node.
        teacher: a planner, likewise.
        problems: how many are drawn.
        stages: (first, last) between which the stage of the curriculum is drawn.
        budget_s: of the teacher for the largest problems.
        piece_s: of the teacher for every piece of a smaller one.
        improve: folder of a dataset whose problems are labelled again; None: they are drawn.
        plans: `.npz` file of devices (G,) or (K, G) by the number of the problem, to start from.
    """

    distribution: Node
    teacher: Node
    problems: int
    stages: tuple[float, float]
    budget_s: float
    piece_s: float
    shard_size: int
    seed: int
    improve: str | None
    plans: str | None

    @property
    def shards(self) -> int:
        return -(-self.problems // self.shard_size)


def labelled(
    asked: Labelling, folder: Path, processes: int, display: ProgressDisplay, provenance: Node
) -> Dataset:
    """The dataset in `folder`, once the shards that were missing there are written.

    Raises:
        InputError: another dataset stands there, or from the distribution, teacher or plans.
    """
    _Worker(asked)
    describe(folder, asked.shards, asked.shard_size, provenance)
    missing = missing_shards(folder, asked.shards)
    task = display.begin(f"{len(missing)} of {asked.shards} shards", len(missing))
    for done, _ in enumerate(_written(asked, folder, missing, processes), start=1):
        display.update(task, done, f"{done} shards")
    display.end(task, "")
    return read_dataset(folder)


def _written(asked: Labelling, folder: Path, missing: list[int], processes: int) -> Iterator[int]:
    if processes == 1 or len(missing) < 2:
        worker = _Worker(asked)
        for shard in missing:
            yield worker.write(folder, shard)
        return
    context = multiprocessing.get_context("spawn")
    with (
        one_thread_each(),
        ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(asked,)) as pool,
    ):
        running = [pool.submit(_write, folder, shard) for shard in missing]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """Draws and labels in one process."""

    def __init__(self, asked: Labelling) -> None:
        self.asked = asked
        self.teacher = build_as(Planner, asked.teacher, "teacher", "planner of a step")
        self.draw: Callable[[int], StepProblem]
        self.known: Callable[[int], list[NDArray[np.int64]]] = lambda number: []
        if asked.improve is None:
            source = build_as(TrainingProblems, asked.distribution, "distribution", "distribution")
            self.draw = lambda number: _draw(source, asked, number)
        else:
            given = read_dataset(asked.improve)
            places = {item: place for place, item in enumerate(given.numbers)}
            plans = _plans(asked.plans)
            self.draw = lambda number: given[places[number]].problem
            self.known = lambda number: [given[places[number]].device, *plans.get(number, [])]
            self.numbers = frozenset(places)
        self.warm = False

    def write(self, folder: Path, shard: int) -> int:
        """Write one shard; its number."""
        asked = self.asked
        if not self.warm:
            self.teacher.plan(toy_pipeline(), WARM_UP_S)
            self.warm = True
        first = shard * asked.shard_size
        found: dict[int, LabelledProblem] = {}
        for number in range(first, min(first + asked.shard_size, asked.problems)):
            if asked.improve is not None and number not in self.numbers:
                continue
            problem = self.draw(number)
            pieces = problem.graph.num_operators
            budget_s = min(asked.budget_s, max(0.2, asked.piece_s * pieces))
            item = label(number, problem, self.teacher, budget_s, self.known(number))
            if item is not None:
                found[number - first] = item
        write_shard(folder, shard, found)
        return shard


def _draw(source: TrainingProblems, asked: Labelling, number: int) -> StepProblem:
    rng = np.random.default_rng([asked.seed, number])
    stage = asked.stages[1] if rng.random() < LARGE else float(rng.uniform(*asked.stages))
    return source(rng, stage)


def _plans(path: str | None) -> dict[int, list[NDArray[np.int64]]]:
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {
                int(name): list(np.atleast_2d(archive[name]).astype(np.int64))
                for name in archive.files
            }
    except Exception as error:  # zipfile and numpy raise many kinds on damaged archives
        raise InputError(f"is no file of plans ({error})", file=path) from error


_mine: list[_Worker] = []  # of a process of the pool


def _begin(asked: Labelling) -> None:
    _mine[:] = [_Worker(asked)]


def _write(folder: Path, shard: int) -> int:
    return _mine[0].write(folder, shard)
