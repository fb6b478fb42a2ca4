"""The search for a partition of least max-load or latency by CP-SAT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from agents.placement.constraint_program.partition import LatencyModel, MaxLoadModel, PartitionModel
from agents.placement.constraint_program.scaling import TimeScale
from agents.placement.constraint_program.solver import CpSettings, CpSolver, Outcome
from agents.placement.partitioning.incumbent import PartitionIncumbent
from envs.errors import InputError
from envs.partition.latency import LatencyProblem
from envs.partition.max_load import MaxLoadProblem
from envs.partition.problem import PartitionProblem

IntArray = NDArray[np.int64]

_RESOLUTION = 2.0**30  # units in the horizon, at most; see `CpSolver.search`

ModelOf = Callable[[TimeScale, int, int], PartitionModel]


class CpPartitionSearch:
    """CP-SAT on the model of a partition problem; every solution is evaluated and offered.

    A solution that violates something is ruled out, and the search begins again.

    Args:
        incumbent: takes what is found; a placement it has is where the search begins.
        settings: of CP-SAT.
        budget_s: seconds of the incumbent's clock.
        limit: CP-SAT's deterministic seconds; None: no limit.
    """

    def __init__(
        self,
        incumbent: PartitionIncumbent,
        settings: CpSettings,
        budget_s: float,
        limit: float | None,
    ) -> None:
        self._incumbent = incumbent
        self._problem = incumbent.problem
        self._settings = settings
        self._budget_s = budget_s
        self._left = limit
        self._model = _model_of(incumbent.problem)
        self._forbidden: list[IntArray] = []
        self.impossible = ""  # why there is no placement, once that is proved

    def run(self) -> None:
        """Search until the optimum is proved, until the budget or the deterministic limit."""
        outcome = Outcome.AGAIN
        while outcome is Outcome.AGAIN and self._goes_on():
            with CpSolver() as solver:
                outcome = self._solve(solver)

    def _goes_on(self) -> bool:
        in_time = self._incumbent.seconds < self._budget_s
        return in_time and not self._incumbent.optimal and (self._left is None or self._left > 0.0)

    def _solve(self, solver: CpSolver) -> Outcome:
        incumbent = self._incumbent
        known = incumbent.device is not None
        longest = incumbent.objective if known else _serial_seconds(self._problem)
        times = [self._problem.step.op_seconds, self._problem.traffic.seconds]
        scale = TimeScale.of(times, longest, _RESOLUTION)
        horizon = int(scale.units(np.array(longest))) + int(not known)
        model = self._model(scale, horizon, int(incumbent.bound / float(scale.unit)))
        for device in self._forbidden:
            model.forbid(device)
        if incumbent.device is not None:
            model.set_hint(incumbent.device)
        status, used = "", 1.0  # a search that is broken off counts one deterministic second
        for event in solver.search(
            model.program,
            model.watched,
            self._settings,
            seconds=self._budget_s - incumbent.seconds,
            deterministic_limit=self._left,
        ):
            if event.status:
                status, used = event.status, event.deterministic_time
            if event.values is not None:
                device = model.devices(event.values)
                incumbent.offer(device)
                if self._problem.violations(device):
                    self._forbidden.append(device)
                    status = "VIOLATED"
                    break
            if event.bound is not None:
                incumbent.prove(scale.bound(event.bound))
        if self._left is not None:
            self._left -= used
        if status == "VIOLATED":
            return Outcome.AGAIN
        if status == "INFEASIBLE" and known:
            incumbent.prove(scale.bound(horizon))
        elif status == "INFEASIBLE":
            self.impossible = "CP-SAT proved that no placement is feasible"
        return Outcome.DONE


def _serial_seconds(problem: PartitionProblem) -> float:
    """Seconds that no objective exceeds: all work and all traffic one after the other."""
    seconds = problem.step.op_seconds
    work = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1).sum()
    able = np.where(np.isfinite(problem.traffic.seconds), problem.traffic.seconds, 0.0)
    return float(work + 2.0 * able.sum())


def _model_of(problem: PartitionProblem) -> ModelOf:
    if isinstance(problem, MaxLoadProblem):
        return lambda scale, horizon, lower: MaxLoadModel(problem, scale, horizon, lower)
    if isinstance(problem, LatencyProblem):
        return lambda scale, horizon, lower: LatencyModel(problem, scale, horizon, lower)
    raise InputError(f"cp_sat does not solve a {type(problem).__name__}", field="problem")
