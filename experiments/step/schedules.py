"""The schedule of a pipeline by name, by search under a memory limit, or the proved optimum.

python -m experiments.plan problem=schedule name=zb_v ranks=4 micro_batches=8 memory_limit=half
python -m experiments.plan problem=schedule name=exact ranks=3 micro_batches=4
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from agents.constraint_program.solver import CpSettings
from agents.pipeline.exact import optimum
from agents.pipeline.published import PUBLISHED, looped, v_shaped
from agents.pipeline.zero_bubble import Memory, zero_bubble
from envs.bounds import Count, NonNegative, Positive
from envs.errors import InputError
from envs.step.pipeline import Overlap, Pipeline, PlayedPipeline, Work, play
from experiments.pictures.step import draw_pipeline
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run

Name = Literal[
    "gpipe", "1f1b", "looped_bfs", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe_v", "exact"
]  # fmt: skip
Duration = NonNegative | Sequence[NonNegative]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
Change = Finite | Sequence[Finite]
SEARCHED = frozenset({"zb_h1", "zb_h2", "zb_v", "exact"})  # under a limit of memory
V_SHAPED = frozenset({"zb_v", "dualpipe_v"})
ONE_CHUNK = frozenset({"gpipe", "1f1b", "zb_h2"})
PICTURE_FILE = "schedule.png"
SHOWN = ("makespan", "max_rank_span", "work_per_rank", "method", "status", "lower_bound", "picture")
MOST_TASKS = 100_000  # stages times micro-batches


@dataclass
class MemoryConfig:
    """What an action adds to its rank, a number or one per stage."""

    forward: Change = 2
    input_gradient: Change = -1
    weight_gradient: Change = -1


@dataclass(kw_only=True)
class ScheduleConfig:
    """`conf/schedule.yaml`; durations are a number or one per stage."""

    # gpipe, 1f1b, looped_bfs, interleaved, zb_h1, zb_h2, zb_v, dualpipe_v, or exact: the
    # optimum
    name: Name = "1f1b"
    ranks: Count = 4  # devices in a row
    micro_batches: Count = 8
    chunks: Count | None = None  # stages a rank; null: 2 in a V (zb_v, dualpipe_v), else 1
    forward: Duration = 1
    input_gradient: Duration = 1  # a whole backward pass takes both gradients
    weight_gradient: Duration = 1
    communication: NonNegative = 0  # from rank to rank: a latency that occupies no rank
    # of dualpipe_v's pairs: serial, one after the other; atomic, as one action
    overlap: Overlap = "serial"
    memory_limit: NonNegative | str | None = None
    # what an action adds to its rank, a number or one per stage
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    # of a search: span (the longest of a rank) or makespan; null: span, of exact makespan
    objective: Literal["span", "makespan"] | None = None
    # orders that a search under a limit looks at; 0: the best of its starts
    tries: Annotated[int, Ge(0)] = 200000
    # linear, loop (stage s on rank s mod ranks), v, or bidirectional: two pipelines,
    # Chimera
    shape: Literal["linear", "loop", "v", "bidirectional"] = "linear"
    split_backward: bool = True  # whether the gradient of weights is an action of its own
    budget_s: Positive = 30.0  # wall time of CP-SAT
    workers: Count = 1  # its threads
    seed: int
    json: bool


def schedule(config: ScheduleConfig, run: Run) -> Result:
    """Play the schedule, draw it."""
    start = time.perf_counter()
    found = schedule_of(config)
    seconds = time.perf_counter() - start
    if not math.isfinite(found.played.makespan):
        raise InputError("config key 'forward': the times of actions have no finite sum")
    title = (
        f"{config.name}: {config.micro_batches} micro-batches on {config.ranks} ranks take "
        f"{found.played.makespan:g}, the longest span of a rank {found.played.max_rank_span:g}"
    )
    picture = run.folder / PICTURE_FILE
    write_figure(picture, draw_pipeline(found.played, found.pipeline, title), run.provenance)
    columns = ["rank", "first start", "last end", "span", "busy", "live until W", "live until I"]
    write_tables(run, title, [Table("Ranks", columns, found.rows())], run.provenance)
    return Result(
        {
            "name": config.name,
            "ranks": config.ranks,
            "micro_batches": config.micro_batches,
            **found.document(),
            "picture": str(picture),
            "seconds": seconds,
        },
        run.provenance,
        SHOWN,
    )


@dataclass(frozen=True)
class Schedule:
    """A schedule and how it came about; `bound`: no order's objective is smaller."""

    pipeline: Pipeline
    played: PlayedPipeline
    chunks: int
    method: str
    status: str
    objective: str
    bound: float

    def document(self) -> dict[str, object]:
        """The keys of `result.json`."""
        work = max(self.pipeline.work)
        makespan, span = self.played.makespan, self.played.max_rank_span
        return {
            "makespan": makespan,
            "max_rank_span": span,
            "peak_live_until_w": self.played.peak_live(Work.WEIGHT),
            "peak_live_until_i": self.played.peak_live(Work.INPUT),
            "work_per_rank": work,
            "bubble_fraction": (makespan - work) / makespan if makespan else 0.0,
            "span_bubble_fraction": (span - work) / span if span else 0.0,
            "chunks": self.chunks,
            "method": self.method,
            "status": self.status,
            "objective": self.objective,
            "lower_bound": self.bound,
        }

    def rows(self) -> list[list[str]]:
        """A row per rank, as texts."""
        rows = []
        live = zip(
            self.played.peak_live(Work.WEIGHT), self.played.peak_live(Work.INPUT), strict=True
        )
        for rank, (bars, peaks) in enumerate(zip(self.played.bars, live, strict=True)):
            first, last = bars[0].start, max(bar.finish for bar in bars)
            busy = self.pipeline.work[rank] / (last - first) if last > first else 0.0
            times = [f"{value:g}" for value in (first, last, last - first)]
            rows.append([str(rank), *times, f"{busy:.1%}", *map(str, peaks)])
        return rows


def schedule_of(config: ScheduleConfig) -> Schedule:
    """The schedule that is asked for, played.

    Raises:
        InputError: a key has no such value, or does not go with the name.
    """
    name = config.name
    objective = config.objective or ("makespan" if name == "exact" else "span")
    weight = float(objective == "makespan")
    chunks = _chunks(config)
    pipeline = _pipeline(config, chunks)
    memory = _memory(config, pipeline, chunks)
    bound: float = max(pipeline.work)
    if name == "exact":
        proved = optimum(
            pipeline,
            memory,
            split=config.split_backward,
            span=objective == "span",
            seconds=config.budget_s,
            settings=CpSettings(config.workers, config.seed),
        )
        found = pipeline, proved.played, chunks
        return Schedule(*found, "cp_sat", proved.status, objective, proved.bound)
    published = PUBLISHED.get(name)
    lists = published(config.ranks, config.micro_batches, chunks) if published is not None else None
    method = "published"
    if memory is not None:
        lists = zero_bubble(pipeline, memory, lists, config.tries, config.seed, weight)
        method = "search"
    assert lists is not None
    played = play(pipeline, lists, config.overlap)
    value = played.makespan if weight else played.max_rank_span
    status = "optimal" if value <= bound else "feasible"
    return Schedule(pipeline, played, chunks, method, status, objective, bound)


def _chunks(config: ScheduleConfig) -> int:
    """Stages a rank."""
    two = _turns(config)
    one = config.name in ONE_CHUNK or (config.name == "exact" and config.shape == "linear")
    chunks = config.chunks if config.chunks is not None else 2 if two else 1
    if (two and chunks != 2) or (one and chunks != 1):
        asked = config.name if config.name != "exact" else f"shape={config.shape}"
        raise InputError(f"config key 'chunks': {asked} takes {1 + two}, not {chunks}")
    if config.ranks * chunks * config.micro_batches > MOST_TASKS:
        raise InputError(
            f"config key 'micro_batches': {config.micro_batches} through {config.ranks * chunks} "
            f"stages are more than {MOST_TASKS} passes"
        )
    return chunks


def _pipeline(config: ScheduleConfig, chunks: int) -> Pipeline:
    ranks, stages = config.ranks, config.ranks * chunks
    rank = v_shaped(ranks) if _turns(config) else looped(ranks, chunks)
    chains: tuple[tuple[int, ...], ...] = (tuple(range(stages)),)
    if config.name == "exact" and config.shape == "bidirectional":
        if config.micro_batches % 2:
            raise InputError(
                f"config key 'micro_batches': {config.micro_batches} do not divide into two "
                "directions"
            )
        chains = tuple(range(ranks)), tuple(range(ranks, stages))
    return Pipeline(
        rank,
        config.micro_batches,
        _per_stage("forward", config.forward, stages),
        _per_stage("input_gradient", config.input_gradient, stages),
        _per_stage("weight_gradient", config.weight_gradient, stages),
        config.communication,
        chains,
    )


def _turns(config: ScheduleConfig) -> bool:
    """Whether a rank's second stage is passed on the way back."""
    if config.name == "exact":
        return config.shape in {"v", "bidirectional"}
    return config.name in V_SHAPED


def _memory(config: ScheduleConfig, pipeline: Pipeline, chunks: int) -> Memory | None:
    """What a search has to keep to; None: the published lists, or no limit."""
    limit, ranks = config.memory_limit, config.ranks
    if limit is None and config.name != "zb_h2":
        return None
    if limit is not None and config.name not in SEARCHED:
        raise InputError(
            f"config key 'memory_limit': {config.name} is a fixed order; "
            f"{', '.join(sorted(SEARCHED))} search under a limit"
        )
    stages = len(pipeline.rank)
    taken = {
        key: _per_stage(f"memory.{key}", value, stages)
        for key, value in asdict(config.memory).items()
    }
    one = max(taken["forward"]) * chunks  # what a rank takes of one micro-batch
    named = {"full": ranks * one, "double": (2 * ranks - 1) * one}
    if chunks == 2:  # Qi et al. (2024): V-Half and V-Min
        named["half"] = (ranks // 2 + 1) * one
        named["min"] = (1.5 if ranks == 2 else -(-(ranks - 1) // 3) + 1) * one
    if limit is None:
        limit = "double"
    if isinstance(limit, str) and limit not in named:
        raise InputError(
            f"config key 'memory_limit': {limit!r} is no number and none of {', '.join(named)}"
        )
    most = named[limit] if isinstance(limit, str) else limit
    for rank in range(ranks):
        mine = [taken["forward"][s] for s, r in enumerate(pipeline.rank) if r == rank]
        needed = sum(mine) if len(pipeline.chains) == 1 else max(mine)
        if most < needed:
            raise InputError(
                f"config key 'memory_limit': {most:g} does not hold one micro-batch, "
                f"which takes {needed:g} on rank {rank}"
            )
    return Memory(**taken, limit=most)


def _per_stage(key: str, value: Change, stages: int) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * stages
    if len(values) != stages:
        raise InputError(f"config key '{key}': {len(values)} values for {stages} stages")
    return values
