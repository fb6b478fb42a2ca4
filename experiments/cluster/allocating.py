"""What `experiments.allocate` does with malleable jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from agents.cluster.allocation.baselines import BASELINES, Fifo
from agents.cluster.allocation.exact import ExactAllocation
from agents.cluster.allocation.gadget import Gadget
from agents.cluster.allocation.placing import AllocationSolver
from agents.cluster.allocation.relaxation import relaxed
from agents.cluster.allocation.rounding import RandomisedRounding
from agents.cluster.allocation.smd import Smd
from agents.solver import Budget
from agents.solver import Result as Found
from envs.bounds import Count, Positive
from envs.cluster.allocation.generated import (
    SpeedName,
    UtilityName,
    Workers,
    left_out,
    problem_of_trace,
    random_problem,
)
from envs.cluster.allocation.problem import AllocationPlan, AllocationProblem, Jobs, Slots, play
from envs.errors import InputError, require_one_of
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace
from experiments.pictures.studies import draw_workers
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.study.tables import Table, write_tables

PLANNERS: Mapping[str, Callable[[], AllocationSolver]] = {
    **BASELINES,
    "gadget": Gadget,
    "rounding": RandomisedRounding,
    "smd": Smd,
    "exact": ExactAllocation,
}
ALL, RANDOM, TRACE = "all", "random", "trace"
COLUMNS = ("planner", "utility", "of the bound", "jobs done", "knows", "seconds")


@dataclass(kw_only=True)
class AllocateConfig:
    """`conf/allocate.yaml`."""

    # a planner, or all but exact: fifo, equal_share, drf, tetris, optimus, primal_dual,
    # gadget, rounding, smd, exact
    agent: str = "all"
    problem: str = "random"  # random: drawn from the seed; trace: the jobs of trace, made malleable
    speed: str = "ring"  # ring, parameter_server, layered
    # of jobs: linear or sigmoid in the slot in which they end, log of what is done; mixed
    utility: str = "mixed"
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
        for line in loaded.changes():
            run.console.say(line)
    bound = relaxed(problem, config.bound_s).bound
    names = (
        [name for name in PLANNERS if name != "exact"] if config.agent == ALL else [config.agent]
    )
    found: dict[str, Found[AllocationPlan]] = {}
    for name in names:
        planner = PLANNERS[name]()
        if isinstance(planner, Fifo) and config.problem == TRACE:
            planner = Fifo(1.0 / config.growth)  # as the trace asks
        found[name] = planner.solve(problem, Budget(seed=config.seed))
        bound = min(bound, found[name].bound)
    rows: list[tuple[str, ...]] = []
    documents: list[dict[str, object]] = []
    for name, result in found.items():
        assert result.solution is not None
        assert not problem.violations(result.solution)
        done = int((play(problem, result.solution).finished < problem.slots).sum())
        share, online = result.value / bound if bound > 0.0 else 1.0, PLANNERS[name]().online
        documents.append(
            {"planner": name, "status": result.status, "utility": result.value, "of_bound": share,
             "done": done, "online": online, "seconds": result.seconds, **result.figures}
        )  # fmt: skip
        knows = "what has arrived" if online else "all jobs"
        cells = f"{result.value:.4g}", f"{share:.3f}", str(done), knows, f"{result.seconds:.2f}"
        rows.append((name, *cells))
    best = max(found, key=lambda name: found[name].value)
    title = f"{len(problem.jobs)} malleable jobs on {problem.machines} machines: {best}"
    write_tables(run, title, [Table("Planners", COLUMNS, rows)], provenance)
    picture, plan = run.folder / "workers.png", found[best].solution
    assert plan is not None
    ended, capacity = play(problem, plan).finished < problem.slots, problem.capacity[:, 0].sum()
    figure = draw_workers(plan.workers.sum(axis=2).T, ended, float(capacity), title)
    write_figure(picture, figure, provenance)
    values = {
        **(loaded.counts() if loaded is not None else {}),
        "jobs": len(problem.jobs),
        "machines": problem.machines,
        "slots": problem.slots,
        "best": best,
        "utility": found[best].value,
        "upper_bound": bound,
        "of_bound": found[best].value / bound if bound > 0.0 else 1.0,
        "planners": documents,
        "picture": str(picture),
    }
    return Result(values, provenance, ("utility", "upper_bound", "of_bound", "picture"))


def _problem(config: AllocateConfig) -> tuple[AllocationProblem, LoadedTrace | None]:
    rng = np.random.default_rng(config.seed)
    names = cast(SpeedName, config.speed), cast(UtilityName, config.utility)
    try:
        if config.problem == RANDOM:
            problem = random_problem(
                rng, *names, config.jobs, config.machines, config.slots,
                gpus=config.gpus, most_workers=config.most_workers, slot_s=config.slot_s,
            )  # fmt: skip
            return problem, None
        if config.trace.path is None:
            raise InputError("config key 'trace.path' is missing: give trace.path=<file>")
        loaded = load_trace(config.trace)
        problem = problem_of_trace(
            loaded.trace, rng, *names, config.machines, config.slots,
            gpus=config.gpus, slot_s=config.slot_s, growth=config.growth,
        )  # fmt: skip
        others = left_out(
            loaded.trace, config.machines, config.slots, gpus=config.gpus, slot_s=config.slot_s
        )
        return problem, replace(loaded, left_out={**loaded.left_out, **others})
    except InputError as error:
        if error.file is None and error.record is None and error.field is not None:
            raise InputError(f"config key '{error.field}': {error.message}") from error
        raise
