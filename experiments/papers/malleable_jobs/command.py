"""Workers for malleable jobs, slot by slot, beside what no plan can be worth more than.

meshwright allocate agent=gadget speed=parameter_server
meshwright allocate problem=trace trace.path=cluster04.csv.gz trace.format=itp
meshwright allocate study=300

With `study=<instances>` every planner stands beside as many proved optima.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import polars as pl

from agents.solver import Budget
from agents.solver import Result as Found
from envs.bounds import Count, Positive
from envs.cluster.workload.slicing import submitted_between
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, require_one_of
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace
from experiments.papers.malleable_jobs.baselines import (
    BASELINES,
    Fifo,
)
from experiments.papers.malleable_jobs.exact import ExactAllocation
from experiments.papers.malleable_jobs.gadget import Gadget
from experiments.papers.malleable_jobs.generated import (
    SpeedName,
    UtilityName,
    Workers,
    left_out,
    problem_of_trace,
    random_problem,
)
from experiments.papers.malleable_jobs.problem import (
    AllocationPlan,
    AllocationProblem,
    Jobs,
    Slots,
    play,
)
from experiments.papers.malleable_jobs.relaxation import relaxed
from experiments.papers.malleable_jobs.rounding import Draws, RandomisedRounding
from experiments.papers.malleable_jobs.sizes import AllocationSolver
from experiments.papers.malleable_jobs.smd import Smd
from experiments.pictures.studies import draw_workers
from experiments.reporting.tables import Columns, Table, write_tables
from experiments.run.one_run import Result, Run
from experiments.run.statistics import bootstrap

PLANNERS: Mapping[str, Callable[[], AllocationSolver]] = {
    **BASELINES,
    "gadget": Gadget,
    "rounding": RandomisedRounding,
    "smd": Smd,
    "exact": ExactAllocation,
}
ALL, RANDOM, TRACE = "all", "random", "trace"
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
class AllocateConfig:
    """`conf/allocate.yaml`."""

    # a planner, or all but exact: fifo, equal_share, drf, tetris, optimus, primal_dual,
    # gadget, rounding, smd, exact
    agent: str = "all"
    problem: str = "random"  # random: drawn from the seed; trace: the jobs of trace, made malleable
    speed: SpeedName = "ring"  # ring, parameter_server, layered
    # of jobs: linear or sigmoid in the slot in which they end, log of what is done; mixed
    utility: UtilityName = "mixed"
    jobs: Jobs = 20  # of problem=random
    machines: Count = 4
    gpus: Workers = 8  # of a machine
    most_workers: Workers = 8  # of a job of problem=random
    growth: Workers = 4  # of problem=trace: most workers of a job, over the GPUs that it asks for
    slots: Slots = 40
    slot_s: Positive = 1800.0  # seconds of a slot
    bound_s: Positive = 30.0  # seconds for the bound
    trace: TraceConfig
    seed: int
    json: bool

    def __post_init__(self) -> None:
        for key, value, known in (
            ("agent", self.agent, (ALL, *PLANNERS)),
            ("problem", self.problem, (RANDOM, TRACE)),
        ):
            require_one_of(value, known, file=f"config key '{key}'")


def allocate(config: AllocateConfig, run: Run) -> Result:
    """One problem under one planner, or under all, each plan checked and played."""
    problem, loaded = _problem(config)
    provenance = run.provenance
    if loaded is not None:
        provenance = provenance.with_inputs(**loaded.inputs)
        loaded.tell_changes(run.console)
    bound = relaxed(problem, config.bound_s).bound
    names = [name for name in PLANNERS if name != "exact"]
    found: dict[str, Found[AllocationPlan]] = {}
    online: dict[str, bool] = {}
    for name in names if config.agent == ALL else [config.agent]:
        planner = PLANNERS[name]()
        if isinstance(planner, Fifo) and config.problem == TRACE:
            planner = Fifo(1.0 / config.growth)  # as the trace asks
        found[name], online[name] = planner.solve(problem, Budget(seed=config.seed)), planner.online
        bound = min(bound, found[name].bound)
    documents: list[dict[str, Any]] = []
    for name, result in found.items():
        assert result.solution is not None
        assert not problem.violations(result.solution)
        done = int((play(problem, result.solution).finished < problem.slots).sum())
        share = result.value / bound if bound > 0.0 else 1.0
        documents.append(
            {"planner": name, "status": result.status, "utility": result.value, "of_bound": share,
             "done": done, "online": online[name], "seconds": result.seconds, **result.figures}
        )  # fmt: skip
    best = max(documents, key=lambda document: document["utility"])
    title = f"{len(problem.jobs)} malleable jobs on {problem.machines} machines: {best['planner']}"
    table = Table.of("Planners", COLUMNS, documents)
    plan = found[best["planner"]].solution
    assert plan is not None
    ended, capacity = play(problem, plan).finished < problem.slots, problem.capacity[:, 0].sum()
    drawn = draw_workers(plan.workers.sum(axis=2).T, ended, float(capacity), title)
    write_tables(run, title, [table], provenance, figures={PICTURE_FILE: drawn})
    return Result(
        {
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
        },
        provenance,
        ("utility", "upper_bound", "of_bound", "picture"),
    )


def _of_trace(
    config: AllocateConfig | StudyConfig, jobs: Trace, rng: np.random.Generator, speed: SpeedName
) -> tuple[AllocationProblem, Mapping[str, int]]:
    """Jobs of a trace made malleable, and how many are left out for which reason."""
    problem = problem_of_trace(
        jobs, rng, speed, config.utility, config.machines, config.slots,
        gpus=config.gpus, slot_s=config.slot_s, growth=config.growth,
    )  # fmt: skip
    return problem, left_out(
        jobs, config.machines, config.slots, gpus=config.gpus, slot_s=config.slot_s
    )


def _problem(config: AllocateConfig) -> tuple[AllocationProblem, LoadedTrace | None]:
    rng = np.random.default_rng(config.seed)
    try:
        if config.problem == RANDOM:
            problem = random_problem(
                rng, config.speed, config.utility, config.jobs, config.machines, config.slots,
                gpus=config.gpus, most_workers=config.most_workers, slot_s=config.slot_s,
            )  # fmt: skip
            return problem, None
        if config.trace.path is None:
            raise InputError("config key 'trace.path' is missing: give trace.path=<file>")
        loaded = load_trace(config.trace)
        problem, others = _of_trace(config, loaded.trace, rng, config.speed)
        return problem, replace(loaded, left_out={**loaded.left_out, **others})
    except InputError as error:
        if error.file is None and error.record is None and error.field is not None:
            raise InputError(f"config key '{error.field}': {error.message}") from error
        raise


OWN: Mapping[SpeedName, str] = {
    "ring": "gadget", "parameter_server": "rounding", "layered": "smd"
}  # fmt: skip
SCALES = (0.5, 0.7, 0.9, 1.0)  # of the rounding, beside the safe one
_CLOSE = 1e-6  # what the optimum is proved to
_DRAWS = 2_000
Row = dict[str, object]


class BrokenGuaranteeError(Exception):
    """A plan breaks what is proved of its planner: one of the two is wrong."""


@dataclass(kw_only=True)
class StudyConfig:
    """`conf/allocation_study.yaml`."""

    study: Count  # random instances with a proved optimum
    windows: Count = 6  # of the trace, disjoint, evenly over it
    jobs: Jobs = 300  # of a window, evenly from those submitted in it
    utility: UtilityName = "mixed"  # of the windows: linear, sigmoid, log, mixed
    machines: Count = 8
    gpus: Workers = 8  # of a machine
    growth: Workers = 4  # most workers of a job, over the GPUs that it asks for
    slots: Slots = 120
    slot_s: Positive = 1800.0  # seconds of a slot
    bound_s: Positive = 8.0  # seconds for the bound of a window
    trace: TraceConfig
    seed: int
    json: bool


def study(config: StudyConfig, run: Run) -> Result:
    """Ratios to optima, violations of rounding, and with a trace, windows of it."""
    provenance, windows = run.provenance, []
    planners = {name: make() for name, make in PLANNERS.items() if name != "exact"}
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
) -> Found[AllocationPlan]:
    found = planner.solve(problem, Budget(seed=seed))
    assert found.solution is not None
    if wrong := problem.violations(found.solution):
        raise BrokenGuaranteeError(f"{name}: {'; '.join(wrong)}")
    if found.value > min(most, found.bound) * (1.0 + _CLOSE):
        raise BrokenGuaranteeError(f"{name}: {found.value:g} is above a bound")
    return found


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
        problem = random_problem(rng, speed, utility, int(rng.integers(3, 6)), 2, 5)
        best = ExactAllocation().solve(problem)
        if best.status != "optimal" or best.value <= 0.0:
            continue
        proved += 1
        for name, planner in planners.items():
            found = _checked(name, planner, problem, best.value, number)
            ratio, least = found.value / best.value, found.figures.get("guarantee", 0.0)
            if found.bound < best.value * (1.0 - _CLOSE) or ratio < least - _CLOSE:
                raise BrokenGuaranteeError(f"{name}, seed {seed}, instance {number}: {ratio:g}")
            rows.append({"utility": utility, "planner": name, "ratio": ratio, "least": least})
    reached = pl.col("ratio")
    found_by = pl.DataFrame(rows).group_by("utility", "planner", maintain_order=True)
    table = found_by.agg(
        instances=pl.len(), mean=reached.mean(), worst=reached.min(),
        optimal=(reached > 1.0 - _CLOSE).mean(), proved=pl.col("least").min(),
    )  # fmt: skip
    return table.to_dicts()


def on_windows(config: StudyConfig, trace: Trace, speed: SpeedName) -> list[Row]:
    """The planner of a speed model, GADGET and rules; FIFO gives what a job asks for.

    Raises:
        InputError: windows overlap, or no job of one fits.
    """
    length = config.slots * config.slot_s
    starts = trace.submit_s[
        (2 * np.arange(config.windows) + 1) * len(trace) // (2 * config.windows)
    ]
    if np.any(np.diff(starts, append=trace.submit_s[-1]) < length):
        raise InputError("config key 'windows': so many of the trace overlap")
    own: dict[str, AllocationSolver] = {
        "fifo": Fifo(1.0 / config.growth),
        "rounding": RandomisedRounding(time_limit=config.bound_s),
    }
    names = (OWN[speed], "gadget", "fifo", "drf", "equal_share")
    planners = {name: own.get(name) or PLANNERS[name]() for name in names}
    worth = np.zeros((len(planners), config.windows))
    bound, others = np.zeros(config.windows), 0
    for k, start in enumerate(starts):
        jobs = submitted_between(trace, float(start), float(start) + length)
        jobs = jobs.take(np.unique(np.linspace(0, len(jobs) - 1, config.jobs).astype(np.int64)))
        rng = np.random.default_rng((config.seed, k))
        problem, without = _of_trace(config, jobs, rng, speed)
        others += sum(without.values())
        bound[k] = relaxed(problem, config.bound_s).bound
        for i, (name, planner) in enumerate(planners.items()):
            worth[i, k] = _checked(name, planner, problem, bound[k], k).value
    return [
        {"speed": speed, "planner": name, "of_bound": float((worth[i] / bound).mean()),
         "worst_of_bound": float((worth[i] / bound).min()),
         "own over it": bootstrap((worth[0] / worth[i])[:, None], 10_000, 0).text(),
         "left_out_jobs": others}
        for i, name in enumerate(planners)
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
    for scale in (drawn.safe_scale(0.5), *SCALES):
        row: Row = {"scale": scale}
        most, seen = drawn.bounds(scale, 0.5), drawn.measured(scale, 0.5, _DRAWS, seed)
        for name in ("packing", "covering"):
            bound, counted = getattr(most, name), getattr(seen, name)
            if np.any(counted > bound + 4.0 * np.sqrt(bound / _DRAWS) + 4.0 / _DRAWS):
                raise BrokenGuaranteeError(f"scale {scale:g}: {name} is above its bound")
            row |= {f"{name}, measured": float(counted.max()), f"{name}, bound": float(bound.max())}
        found.append(row)
    return found
