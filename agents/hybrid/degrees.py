"""The fastest way to train a transformer on so many devices: degrees, batch and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Literal

import numpy as np

from agents.hybrid.uniform import step_of, uniform_plan
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
        choices: what is decided, of `CHOICES`.
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
        own = self.row.run
        powers = [2**power for power in range(self.devices.bit_length())]
        open_to = {
            "tensor": [t for t in powers if t <= self.row.servers.per_server],
            "pipeline": [p for p in range(1, self.devices + 1) if self.devices % p == 0],
            "micro_batch": [b for b in powers if b <= own.global_batch],
            "recompute": ["none", "selective", "full"],
            "zero": [0, 1, 2, 3],
            "sequence_parallel": [False, True],
        }
        kept = [open_to[name] if name in self.choices else [getattr(own, name)] for name in CHOICES]
        for values in product(*kept):
            given = dict(zip(CHOICES, values, strict=True))
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
                replace(self.row, run=run).stages  # noqa: B018 - stages that do not divide
            except InputError:
                continue
            yield run


class DegreeSearch(DirectSolver[TrainingProblem, TrainingRun]):
    """Every run is estimated; those with the least estimates are simulated.

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
        estimates = [
            (*estimate(replace(problem.row, run=run)), number, run)
            for number, run in enumerate(problem.runs())
        ]
        fitting = sorted((seconds, number, run) for seconds, fits, number, run in estimates if fits)
        priced: list[tuple[float, int, float, TrainingRun]] = []
        for _, number, run in fitting:
            if len(priced) == self.simulated:
                break
            if not problem.violations(run):
                price = problem.price(run)
                peak = price["peak_memory_bytes"]
                priced.append((price[problem.objective], number, peak, run))
        return [(seconds, peak, run) for seconds, _, peak, run in sorted(priced)]


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
    saved = [row.saved_bytes(part) for part in row.parts]
    held = 0.0
    for rank, own in enumerate(held_by):
        kept = min(run.micro_batches, run.pipeline - rank) if run.schedule == "1f1b" else 1
        held = max(held, sum(states[layer] + kept * saved[layer] for layer in own))
    need = held + row.working_bytes() + constants.framework_bytes
    update = most(row.update_s().tolist())
    return turns * most(seconds) + data + update, need <= row.servers.device.memory_bytes
