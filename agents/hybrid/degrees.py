"""The fastest way to train a transformer on so many devices: degrees, batch and memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import chain, product
from typing import ClassVar, Literal

import numpy as np

from agents.hybrid.uniform import planned_step, step_of, uniform_plan
from agents.solver import Budget, DirectSolver, Result
from envs.errors import InputError
from envs.hybrid.training_run import TrainingRun
from envs.hybrid.transformer_row import TransformerRow

CHOICES = ("tensor", "pipeline", "micro_batch", "recompute", "zero", "sequence_parallel")


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """Train a model on all devices of equal servers with a given batch.

    Knows:
        The seconds of every kernel, what collectives take, the memory of a device. It decides the
        degrees of parallelism and the other `choices`; what is not chosen stays as in `row`.

    Args:
        row: a run, of which the choices are open.
        devices: how many are to be used.
        choices: what is decided, of `CHOICES`; `recompute` decides of how many blocks, too.
    """

    row: TransformerRow
    devices: int
    choices: Sequence[str] = CHOICES

    objective: ClassVar[str] = "step_time_s"
    sense: ClassVar[Literal["min"]] = "min"

    def price(self, run: TrainingRun) -> dict[str, float]:
        """What the simulator says of a run."""
        seconds, peak = step_of(replace(self.row, run=run))
        return {self.objective: seconds, "peak_memory_bytes": peak}

    def violations(self, run: TrainingRun) -> list[str]:
        """What is wrong with a run, a sentence each."""
        try:
            row = replace(self.row, run=run)
            found = uniform_plan(row).violations(row.problem())
        except InputError as error:
            return [str(error)]
        if run.devices != self.devices:
            found.append(f"it uses {run.devices} devices, not {self.devices}")
        return found

    def bound(self) -> float:
        """Seconds no run can beat: the products' FLOP at the peaks of all devices."""
        run = replace(self.row.run, tensor=1, pipeline=1, data=1, expert=1, micro_batch=1)
        row = replace(self.row, run=replace(run, layers_per_stage=()))
        flop = sum(row.flop(part) for part in row.parts) * self.row.run.global_batch
        device = self.row.servers.device
        return float(flop / device.peak_flops[row.execution(device).rate] / self.devices)

    def runs(self) -> Iterator[TrainingRun]:
        """All that are open, each possible one once."""
        return chain.from_iterable(self.families())

    def families(self) -> Iterator[list[TrainingRun]]:
        """The same in lists, along which ever more blocks are computed again.

        Time rises along a list, and memory falls from the second run on: where the first one keeps
        few micro-batches, it may need less than the one block that comes back in the others.
        """
        own = self.row.run
        powers = [2**power for power in range(self.devices.bit_length())]
        open_to = {
            "tensor": [t for t in powers if t <= self.row.servers.per_server],
            "pipeline": [p for p in range(1, self.devices + 1) if self.devices % p == 0],
            "micro_batch": [b for b in powers if b <= own.global_batch],
            "recompute": ["none", "selective"],
            "zero": [0, 1, 2, 3],
            "sequence_parallel": [False, True],
        }
        kept = [open_to[name] if name in self.choices else [getattr(own, name)] for name in CHOICES]
        for values in product(*kept):
            given = dict(zip(CHOICES, values, strict=True))
            if "recompute" in self.choices:
                given["recompute_layers"] = None
            data, rest = divmod(self.devices, given["tensor"] * given["pipeline"])
            useless = (
                rest
                or (given["sequence_parallel"] and given["tensor"] == 1)
                or (given["zero"] and data == 1)
                or (given["zero"] > 1 and given["pipeline"] > 1)  # gradients are kept for a step
                or (given["recompute"] == "selective" and own.fused_attention)  # keeps no scores
            )
            if useless:
                continue
            try:
                run = replace(own, data=data, layers_per_stage=(), **given)
                stages = replace(self.row, run=run).stages
            except InputError:
                continue
            family = [run]
            if run.recompute == "none" and "recompute" in self.choices:
                blocks = (sum(stages) - 2) // len(stages)
                family += [
                    replace(run, recompute="full", recompute_layers=layers)
                    for layers in (*range(1, blocks), None)
                ]
            yield family


class DegreeSearch(DirectSolver[TrainingProblem, TrainingRun]):
    """Runs are estimated; those with the least estimates are simulated.

    Of runs that differ in how many blocks are computed again, the first that fits counts alone.

    The estimate is that of a pipeline without transfers: (micro-batches + (devices of a pipeline
    - 1) / chunks) times the slowest device, sums over replicas and the update behind it; and of
    1F1B the memory, of other orders the least that they keep.

    Guarantees:
        The best of the runs that are simulated, none of which needs more memory than there is.
    Source:
        Narayanan et al., SC 2021, whose rules of thumb it replaces by a search.
    Args:
        simulated: how many.
    """

    name = "degrees"
    solves = (TrainingProblem,)

    def __init__(self, simulated: int = 12) -> None:
        self.simulated = simulated

    def _solve(self, problem: TrainingProblem, budget: Budget) -> Result[TrainingRun]:
        ranking = self.ranking(problem)
        if not ranking:
            return Result(None, "infeasible", reason="no run fits into the memory")
        value, _, best = ranking[0]
        return Result(best, "feasible", value, bound=problem.bound(), evaluations=len(ranking))

    def ranking(self, problem: TrainingProblem) -> list[tuple[float, float, TrainingRun]]:
        """(seconds, bytes of the fullest device, run) of the best runs that fit, fastest first."""

        @cache
        def estimated(run: TrainingRun) -> tuple[float, bool]:
            return estimate(replace(problem.row, run=run))

        queue = []  # (estimate, number, runs of a family that may fit)
        for number, family in enumerate(problem.families()):
            runs = family
            if not estimated(family[0])[1]:
                runs = _fitting(family[1:], lambda run: estimated(run)[1])
            if runs:
                queue.append((estimated(runs[0])[0], number, runs))
        heapify(queue)
        priced: list[tuple[float, int, float, TrainingRun]] = []
        while queue and len(priced) < self.simulated:
            _, number, runs = heappop(queue)
            if step := _step_that_fits(replace(problem.row, run=runs[0])):
                priced.append((step[0], number, step[1], runs[0]))
            elif runs := _fitting(runs[1:], lambda run: not problem.violations(run)):
                heappush(queue, (estimated(runs[0])[0], number, runs))
        return [(seconds, peak, run) for seconds, _, peak, run in sorted(priced)]


def _fitting(runs: list[TrainingRun], fits: Callable[[TrainingRun], bool]) -> list[TrainingRun]:
    """Runs along which memory falls, from the first one that fits on."""
    return runs[bisect_left(runs, True, key=fits) :] if runs and fits(runs[-1]) else []


def _step_that_fits(row: TransformerRow) -> tuple[float, float] | None:
    """As `step_of`; None: it does not fit, or is too long to simulate."""
    try:
        problem, plan = row.problem(), uniform_plan(row)
    except InputError:
        return None
    return None if plan.violations(problem) else planned_step(row, problem, plan)


def estimate(row: TransformerRow) -> tuple[float, bool]:
    """(seconds, whether it can fit), without simulating."""
    run, stages, constants = row.run, row.stages, row.constants
    latency, per_byte = row.servers.all_reduce([range(run.tensor)])
    seconds = [
        max(part.forward_s + part.experts_s, gathered)
        + max(part.backward_s + part.experts_s, gathered) + constants.collective * (
            (part.messages_forward + part.messages_backward) * latency
            + (part.sums_forward + part.sums_backward) * per_byte
        )
        for part, gathered in zip(row.priced, row.gathering_s(), strict=True)
    ]  # fmt: skip
    ends = np.cumsum(stages).tolist()
    layers = [range(end - n, end) for end, n in zip(ends, stages, strict=True)]
    held_by = [
        [layer for stage in layers[rank :: run.pipeline] for layer in stage]
        for rank in range(run.pipeline)
    ]

    def most(values: Sequence[float]) -> float:
        """Of what devices have of these."""
        return max(sum(values[layer] for layer in own) for own in held_by)

    turns = run.micro_batches + (run.pipeline - 1) / run.chunks
    data = 0.0
    if run.data > 1:
        latency, per_byte = row.servers.all_reduce(run.rings(run.data))
        summed = most([row.summed(part) for part in row.parts])
        data = latency + row.summed_bytes() * summed * per_byte * constants.data
    states = [sum(row.states(part)) for part in row.parts]
    saved = row.saved
    held = 0.0
    for rank, own in enumerate(held_by):
        kept = min(run.micro_batches, run.pipeline - rank) if run.schedule == "1f1b" else 1
        held = max(held, sum(states[layer] + kept * saved[layer] for layer in own))
    need = held + row.working_bytes() + constants.framework_bytes
    update = most(row.update_s().tolist())
    return turns * most(seconds) + data + update, need <= row.servers.device.memory_bytes
