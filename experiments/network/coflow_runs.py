"""What `experiments.coflows` does with a file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from agents.coflows.orders import FAIR, ORDERS, lower_bound
from envs.coflows.coflowsim import quantised, simulate_coflowsim
from envs.coflows.simulation import CoflowProblem, CoflowTimes, Rates, simulate, simulate_fair
from envs.coflows.trace import CoflowTrace, read_coflows
from envs.errors import InputError, require_one_of
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash

SHOWN = ("coflows", "ports", "semantics", "mean_cct_ms", "sum_cct_ms", "lower_bound_ms", "gap")
OFFLINE, ONLINE, COFLOWSIM = "offline", "online", "coflowsim"


@dataclass(kw_only=True)
class CoflowsConfig:
    """`conf/coflows.yaml`."""

    input: str  # the trace: in the coflow-benchmark or the UPWS form, plain or .gz
    # fifo, sebf, scf, ncf, lcf, bssi: an order; fair: max-min fair flows, without one
    agent: str = "bssi"
    # madd: a coflow's flows end together; greedy: flow after flow gets all it can
    rates: str = "madd"
    # online: coflows arrive; offline: all are there; coflowsim: as that program; null: by
    # form
    semantics: str | None = None
    coflows: int | None = None  # of the file, the first so many; null: all
    seed: int
    json: bool

    def __post_init__(self) -> None:
        for key, value, known in (
            ("agent", self.agent, (*ORDERS, FAIR)),
            ("rates", self.rates, get_args(Rates)),
            ("semantics", self.semantics, (None, OFFLINE, ONLINE, COFLOWSIM)),
        ):
            require_one_of(value, known, file=f"config key '{key}'")
        if self.coflows is not None and self.coflows < 1:
            raise InputError(f"config key 'coflows': {self.coflows} is below 1")


def coflows(config: CoflowsConfig, run: Run) -> Result:
    """Replay the coflows of a file under one order; the bound holds for every schedule."""
    path = Path(config.input)
    trace = read_coflows(path)
    if config.coflows is not None:
        trace = trace.first(config.coflows)
    semantics = config.semantics or (OFFLINE if trace.shuffles is None else ONLINE)
    _replayed(config, trace.first(1), semantics)  # whose kernels are compiled, or read, here
    start = time.perf_counter()
    problem, times = _replayed(config, trace, semantics)
    simulated = time.perf_counter()
    total, bound = float(times.completion.sum()), lower_bound(problem)
    values: dict[str, object] = {
        "coflows": problem.num_coflows,
        "ports": problem.ports,
        "flows": len(problem.size),
        "agent": config.agent,
        "rates": config.rates,
        "semantics": semantics,
        "cct_ms": times.completion,
        "sum_cct_ms": total,
        "mean_cct_ms": total / problem.num_coflows,
        "lower_bound_ms": min(bound, total),  # they are equal where the schedule is optimal
        "gap": total / bound - 1.0 if bound > 0.0 else 0.0,
        "events": times.events,
        "simulation_seconds": simulated - start,
    }
    return Result(values, run.provenance.with_inputs(**{path.name: file_hash(path)}), SHOWN)


def _replayed(
    config: CoflowsConfig, trace: CoflowTrace, semantics: str
) -> tuple[CoflowProblem, CoflowTimes]:
    if semantics == COFLOWSIM:
        if config.rates != "madd":
            raise InputError("config key 'rates': CoflowSim has madd only")
        try:
            found = quantised(trace)
            return found.problem, simulate_coflowsim(found, trace.arrival, config.agent)
        except InputError as error:
            raise InputError(f"config key '{error.field}': {error.message}") from error
    problem = trace.problem.offline() if semantics == OFFLINE else trace.problem
    if config.agent == FAIR:
        return problem, simulate_fair(problem)
    return problem, simulate(problem, ORDERS[config.agent], cast(Rates, config.rates))
