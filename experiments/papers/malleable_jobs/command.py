"""Workers for malleable jobs, slot by slot, beside what no plan can be worth more than.

meshwright allocate agent=gadget speed=parameter_server
meshwright allocate problem=trace trace.path=cluster04.csv.gz trace.format=itp
meshwright allocate study=300

With `study=<instances>` every planner stands beside as many proved optima.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from agents.solver import Budget
from agents.solver import Result as Found
from envs.bounds import Count, Positive
from envs.cluster.workload.slicing import submitted_between
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, require_one_of
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace
from experiments.papers.malleable_jobs.exact import CLOSE, ExactAllocation
from experiments.papers.malleable_jobs.gadget import Smd
from experiments.papers.malleable_jobs.generated import (
    SpeedName,
    UtilityName,
    Workers,
    problem_of_trace,
    random_problem,
)
from experiments.papers.malleable_jobs.planners import PLANNERS, Draws, RandomisedRounding
from experiments.papers.malleable_jobs.problem import (
    AllocationPlan,
    AllocationProblem,
    Jobs,
    Slots,
    play,
)
from experiments.papers.malleable_jobs.relaxation import relaxed
from experiments.papers.malleable_jobs.slots import AllocationSolver, Fifo
from experiments.pictures.style import LIMIT, colour, mixed_with_white, picture
from experiments.reporting.tables import Columns, Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.statistics import bootstrap

ALL = [name for name in PLANNERS if name != "exact"]
PICTURE_FILE = "workers.png"
COLUMNS: Columns = {
    "planner": "{planner}",
    "utility": "{utility:.4g}",
    "of the bound": "{of_bound:.3f}",
    "jobs done": "{done}",
    "knows": lambda row: "what has arrived" if row["online"] else "all jobs",
    "seconds": "{seconds:.2f}",
}


@dataclass(kw_only=True)
class ClusterConfig:
    """What problems of both commands have."""

    # of jobs: linear or sigmoid in the slot in which they end, log of what is done; mixed
    utility: UtilityName = "mixed"
    machines: Count
    gpus: Workers = 8  # of a machine
    growth: Workers = 4  # of a trace: most workers of a job, over the GPUs that it asks for
    slots: Slots
    slot_s: Positive = 1800.0  # seconds of a slot
    bound_s: Positive  # seconds for a bound
    trace: TraceConfig
    seed: int
    json: bool

    def of_trace(
        self, jobs: Trace, rng: np.random.Generator, speed: SpeedName
    ) -> tuple[AllocationProblem, dict[str, int]]:
        """Jobs of a trace made malleable, and how many are left out for which reason."""
        return problem_of_trace(
            jobs, rng, speed, self.utility, self.machines, self.slots,
            gpus=self.gpus, slot_s=self.slot_s, growth=self.growth,
        )  # fmt: skip


@dataclass(kw_only=True)
class AllocateConfig(ClusterConfig):
    """`conf/allocate.yaml`."""

    # a planner, or all but exact: fifo, equal_share, drf, tetris, optimus, primal_dual,
    # gadget, rounding, smd, exact
    agent: str = "all"
    # random: drawn from the seed; trace: the jobs of trace, made malleable
    problem: Literal["random", "trace"] = "random"
    speed: SpeedName = "ring"  # ring, parameter_server, layered
    jobs: Jobs = 20  # of problem=random
    most_workers: Workers = 8  # of a job of problem=random
    machines: Count = 4
    slots: Slots = 40
    bound_s: Positive = 30.0  # seconds for the bound

    def __post_init__(self) -> None:
        require_one_of(self.agent, ("all", *PLANNERS), file="config key 'agent'")


def allocate(config: AllocateConfig, run: Run) -> Result:
    """One problem under one planner, or under all, each plan checked and played."""
    problem, loaded = _problem(config)
    provenance = run.provenance
    if loaded is not None:
        provenance = provenance.with_inputs(**loaded.inputs)
        loaded.tell_changes(run.console)
    bound = relaxed(problem, config.bound_s).bound
    planners = {x: PLANNERS[x]() for x in (ALL if config.agent == "all" else [config.agent])}
    if "fifo" in planners and loaded is not None:
        planners["fifo"] = Fifo(1.0 / config.growth)  # as the trace asks
    found = {x: _checked(x, one, problem, np.inf, config.seed) for x, one in planners.items()}
    bound = min(bound, *(result.bound for _, result in found.values()))
    documents: list[dict[str, Any]] = [
        {
            "planner": name,
            "status": result.status,
            "utility": result.value,
            "of_bound": result.value / bound if bound > 0.0 else 1.0,
            "done": int(play(problem, plan).finished.sum()),
            "online": planners[name].online,
            "seconds": result.seconds,
            **result.figures,
        }
        for name, (plan, result) in found.items()
    ]
    best = max(documents, key=lambda document: document["utility"])
    title = f"{len(problem.jobs)} malleable jobs on {problem.machines} machines: {best['planner']}"
    plan, _ = found[best["planner"]]
    table = Table.of("Planners", COLUMNS, documents)
    write_tables(
        run, title, [table], provenance, figures={PICTURE_FILE: draw_workers(problem, plan, title)}
    )
    values = {
        **(loaded.counts() if loaded is not None else {}),
        "jobs": len(problem.jobs),
        "machines": problem.machines,
        "slots": problem.slots,
        "best": best["planner"],
        "utility": best["utility"],
        "upper_bound": bound,
        "of_bound": best["of_bound"],
        "planners": documents,
        "picture": str(run.folder / PICTURE_FILE),
    }
    return Result(values, provenance, ("utility", "upper_bound", "of_bound", "picture"))


def draw_workers(problem: AllocationProblem, plan: AllocationPlan, title: str) -> Figure:
    """Workers of every job over slots, one above the other; light: of those that are not done."""
    figure, (axes,) = picture(title, 8.0, 3.6, grid="y")
    base, finished = np.zeros(problem.slots), play(problem, plan).finished
    for job, row in enumerate(plan.workers.sum(axis=2).T):
        shade = mixed_with_white(colour(job), 0.0 if finished[job] else 0.6)
        axes.stairs(base + row, baseline=base, fill=True, color=shade)
        base = base + row
    axes.axhline(problem.total[0], **LIMIT)
    axes.set(xlabel="slot", ylabel="workers", xlim=(0, len(base)))
    return figure


def _problem(config: AllocateConfig) -> tuple[AllocationProblem, LoadedTrace | None]:
    rng = np.random.default_rng(config.seed)
    try:
        if config.problem == "random":
            problem = random_problem(
                rng, config.speed, config.utility, config.jobs, config.machines, config.slots,
                gpus=config.gpus, most_workers=config.most_workers, slot_s=config.slot_s,
            )  # fmt: skip
            return problem, None
        if config.trace.path is None:
            raise InputError("config key 'trace.path' is missing: give trace.path=<file>")
        loaded = load_trace(config.trace)
        problem, others = config.of_trace(loaded.trace, rng, config.speed)
        return problem, replace(loaded, left_out={**loaded.left_out, **others})
    except InputError as error:
        if error.file is None and error.record is None and error.field is not None:
            raise InputError(f"config key '{error.field}': {error.message}") from error
        raise


OWN: Mapping[SpeedName, str] = {
    "ring": "gadget", "parameter_server": "rounding", "layered": "smd"
}  # fmt: skip
SCALES = (0.5, 0.7, 0.9, 1.0)  # of the rounding, beside the safe one
_DRAWS = 2_000
Row = dict[str, object]


class BrokenGuaranteeError(Exception):
    """A plan breaks what is proved of its planner: one of the two is wrong."""


@dataclass(kw_only=True)
class StudyConfig(ClusterConfig):
    """`conf/allocation_study.yaml`; random instances, and with a trace, windows of it."""

    study: Count  # random instances with a proved optimum
    windows: Count = 6  # of the trace, disjoint, evenly over it
    jobs: Jobs = 300  # of a window, evenly from those submitted in it
    machines: Count = 8
    slots: Slots = 120
    bound_s: Positive = 8.0  # seconds for the bound of a window


def study(config: StudyConfig, run: Run) -> Result:
    """Ratios to optima, violations of rounding, and with a trace, windows of it."""
    provenance, windows = run.provenance, []
    planners = {name: PLANNERS[name]() for name in ALL}
    planners["smd, exact"] = Smd(exact=True)
    ratios = beside_optima(config.study, config.seed, planners)
    if config.trace.path is not None:
        loaded = load_trace(config.trace)
        provenance = provenance.with_inputs(**loaded.inputs)
        windows = [row for speed in OWN for row in on_windows(config, loaded.trace, speed)]
    parts = {"ratios": ratios, "violations": violated(config.seed), "windows": windows}
    tables = [Table.plain(name, rows, 4) for name, rows in parts.items() if rows]
    write_tables(run, f"{config.study} proved optima of malleable jobs", tables, provenance)
    return Result({"proved": config.study, **parts}, provenance, ("proved",))


def _checked(
    name: str, planner: AllocationSolver, problem: AllocationProblem, most: float, seed: int
) -> tuple[AllocationPlan, Found[AllocationPlan]]:
    """A plan that is feasible, and worth no more than `most` and its planner's bound."""
    found = planner.solve(problem, Budget(seed=seed))
    assert found.solution is not None
    if wrong := problem.violations(found.solution):
        raise BrokenGuaranteeError(f"{name}: {'; '.join(wrong)}")
    if found.value > min(most, found.bound) * (1.0 + CLOSE):
        raise BrokenGuaranteeError(f"{name}: {found.value:g} is above a bound")
    return found.solution, found


def beside_optima(instances: int, seed: int, planners: Mapping[str, AllocationSolver]) -> list[Row]:
    """On random instances of every speed model and utility in turn, until so many are proved.

    Raises:
        BrokenGuaranteeError: a plan is infeasible, better than the optimum, or worse than what is
            proved of it; or a bound is below the optimum.
    """
    kinds = [(s, u) for u in get_args(UtilityName) for s in get_args(SpeedName)]
    rows: list[Row] = []
    number = proved = 0
    while proved < instances:
        speed, utility = kinds[number % len(kinds)]
        rng = np.random.default_rng((seed, number))
        number += 1
        problem = random_problem(rng, speed, utility, int(rng.integers(3, 6)))
        best = ExactAllocation().solve(problem)
        if best.status != "optimal" or best.value <= 0.0:
            continue
        proved += 1
        for name, planner in planners.items():
            _, found = _checked(name, planner, problem, best.value, number)
            ratio, least = found.value / best.value, found.figures.get("guarantee", 0.0)
            if found.bound < best.value * (1.0 - CLOSE) or ratio < least - CLOSE:
                raise BrokenGuaranteeError(f"{name}, seed {seed}, instance {number}: {ratio:g}")
            rows.append({"utility": utility, "planner": name, "ratio": ratio, "least": least})
    reached = pl.col("ratio")
    found_by = pl.DataFrame(rows).group_by("utility", "planner", maintain_order=True)
    table = found_by.agg(
        instances=pl.len(), mean=reached.mean(), worst=reached.min(),
        optimal=(reached > 1.0 - CLOSE).mean(), proved=pl.col("least").min(),
    )  # fmt: skip
    return table.to_dicts()


def on_windows(config: StudyConfig, trace: Trace, speed: SpeedName) -> list[Row]:
    """The planner of a speed model, GADGET and rules; FIFO gives what a job asks for.

    Raises:
        InputError: windows overlap, or no job of one fits.
    """
    length, count = config.slots * config.slot_s, config.windows
    starts = trace.submit_s[(2 * np.arange(count) + 1) * len(trace) // (2 * count)]
    if np.any(np.diff(starts, append=trace.submit_s[-1]) < length):
        raise InputError("config key 'windows': so many of the trace overlap")
    planners = {x: PLANNERS[x]() for x in (OWN[speed], "gadget", "fifo", "drf", "equal_share")}
    planners["fifo"] = Fifo(1.0 / config.growth)
    if "rounding" in planners:
        planners["rounding"] = RandomisedRounding(time_limit=config.bound_s)
    of_bound, others = np.zeros((len(planners), count)), 0
    for k, start in enumerate(starts):
        jobs = submitted_between(trace, float(start), float(start) + length)
        jobs = jobs.take(np.unique(np.linspace(0, len(jobs) - 1, config.jobs).astype(np.int64)))
        problem, without = config.of_trace(jobs, np.random.default_rng((config.seed, k)), speed)
        others += sum(without.values())
        bound = relaxed(problem, config.bound_s).bound
        for i, (name, planner) in enumerate(planners.items()):
            of_bound[i, k] = _checked(name, planner, problem, bound, k)[1].value / bound
    return [
        {"speed": speed, "planner": name, "of_bound": own.mean(),
         "worst_of_bound": own.min(),
         "own over it": bootstrap((of_bound[0] / own)[:, None], 10_000, 0).text(),
         "left_out_jobs": others}
        for name, own in zip(planners, of_bound, strict=True)
    ]  # fmt: skip


def violated(seed: int) -> list[Row]:
    """Measured frequencies of broken rows beside Chernoff's bounds, from the safe scale on.

    Raises:
        BrokenGuaranteeError: a frequency is above its bound by more than four standard errors.
    """
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, "parameter_server", "log", 40, 8, 10)
    drawn = Draws(problem, relaxed(problem))
    found: list[Row] = []
    for scale in (drawn.safe_scale(), *SCALES):
        row: Row = {"scale": scale}
        most, seen = drawn.bounds(scale), drawn.measured(scale, _DRAWS, seed)
        for name, bound, counted in zip(most._fields, most, seen, strict=True):
            if np.any(counted > bound + 4.0 * np.sqrt(bound / _DRAWS) + 4.0 / _DRAWS):
                raise BrokenGuaranteeError(f"scale {scale:g}: {name} is above its bound")
            row |= {f"{name}, measured": counted.max(), f"{name}, bound": bound.max()}
        found.append(row)
    return found
