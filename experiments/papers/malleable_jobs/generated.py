"""Malleable jobs by random numbers, or from windows of a trace of gangs; a toy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le, MinLen

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.workload.slicing import at_most_gpus, to_offered_load
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.papers.malleable_jobs.problem import (
    AllocationProblem,
    Jobs,
    LayeredSpeed,
    LinearUtility,
    LogUtility,
    MalleableJob,
    ParameterServerSpeed,
    RingSpeed,
    SigmoidUtility,
    Slots,
    SpeedModel,
    Utility,
    check_size,
)

SpeedName = Literal["ring", "parameter_server", "layered"]
UtilityName = Literal["linear", "sigmoid", "log", "mixed"]
Workers = Annotated[int, Ge(1), Le(1_000)]  # with servers, a job has the square of this in sizes
INSIDE = 1.6e10  # bytes/s between workers of one machine: 16 lanes of PCIe 3
_GIB = 2.0**30


@bounded
def random_problem(
    rng: np.random.Generator,
    speed: SpeedName = "ring",
    utility: UtilityName = "mixed",
    jobs: Jobs = 5,
    machines: Count = 2,
    slots: Slots = 5,
    *,
    gpus: Workers | None = None,
    most_workers: Workers = 4,
    slot_s: Positive = 600.0,
) -> AllocationProblem:
    """Few jobs on few machines, with GPUs, cores and NICs scarce enough that all of them matter.

    A machine has `gpus`, or else 2 or 3, with 3 or 4 cores and 32 GiB each, and a NIC of 10 to 40
    Gb/s. A job's samples fill its most workers for 0.4 to 1.5 slots per 2 slots of its window.

    Raises:
        InputError: a number is out of bounds, or a name is unknown.
    """
    check_size(slots, jobs, machines)
    gpu = rng.integers(2, 4, machines) if gpus is None else np.full(machines, gpus)
    capacity = _machines(gpu, rng.integers(3, 5, machines), rng.choice([10, 25, 40], machines))
    made = []
    for number in range(jobs):
        arrival = int(rng.integers(0, max(1, slots // 3 + 1)))
        window = int(rng.integers(2, max(2, slots - arrival) + 1))
        most = int(rng.integers(min(2, most_workers), most_workers + 1))
        busy = slot_s * window / 2.0 * rng.uniform(0.4, 1.5)
        worth = _utility(rng, utility, (window / 2.0, window))
        until = (arrival, arrival + window)
        made.append(_job(rng, f"job{number}", speed, worth, until, most, (most, busy)))
    return AllocationProblem(tuple(made), capacity, INSIDE, slots, slot_s)


@bounded
def problem_of_trace(
    trace: Trace,
    rng: np.random.Generator,
    speed: SpeedName = "ring",
    utility: UtilityName = "mixed",
    machines: Count = 16,
    slots: Slots = 120,
    *,
    gpus: Workers = 8,
    slot_s: Positive = 1800.0,
    growth: Workers = 4,
) -> tuple[AllocationProblem, dict[str, int]]:
    """The jobs that a trace submits within `slots` slots of its first, made malleable.

    A job may have up to `growth` times the GPUs of its gang; its samples are those that the gang
    trains in the job's duration. Its deadline is 2.25 to 6 times that duration after its arrival,
    and at least two slots. What the trace does not say, models, utilities and weights, is drawn.
    Also, by the first reason, how many jobs make none.

    Raises:
        InputError: no job is left, or a name is unknown.
    """
    late = trace.submit_s - trace.submit_s[:1] >= slots * slot_s
    out: dict[str, BoolArray] = {
        f"slots={slots} of {slot_s:g} s": late,
        "no GPU": ~late & (trace.num_gpus == 0),
        f"machines={machines} of {gpus} GPUs": ~late & (trace.num_gpus > machines * gpus),
    }
    kept = np.flatnonzero(~np.any(list(out.values()), axis=0))
    check_size(slots, max(len(kept), 1), machines)
    capacity = _machines(np.full(machines, gpus), np.full(machines, 4), np.full(machines, 50))
    made = []
    for number, job in zip(kept, trace.take(kept), strict=True):
        gang, seconds = job.num_gpus, float(job.duration_s)
        arrival = int((job.submit_s - trace.submit_s[0]) // slot_s)
        takes = seconds / slot_s
        window = max(2, int(np.ceil(takes * 3.0 * rng.uniform(0.75, 2.0))))
        worth = _utility(rng, utility, (max(2.0, takes), float(window)))
        most = min(gang * growth, machines * gpus)
        until, name = (arrival, arrival + window), f"{number}:{job.job_id}"
        made.append(_job(rng, name, speed, worth, until, most, (gang, seconds)))
    if not made:
        raise InputError("no job fits into the machines and slots", file=trace.name)
    problem = AllocationProblem(tuple(made), capacity, INSIDE, slots, slot_s)
    return problem, {reason: int(jobs.sum()) for reason, jobs in out.items() if jobs.any()}


def _machines(gpus: IntArray, cores: IntArray, gigabits: IntArray) -> FloatArray:
    """(M, R), of GPUs, of cores of each GPU, of Gb/s."""
    return np.column_stack([gpus, gpus * cores, gpus * 32.0 * _GIB, gigabits * 1.25e8])


def _job(
    rng: np.random.Generator, name: str, speed: SpeedName, utility: Utility,
    window: tuple[int, int], most: int, work: tuple[int, float],
) -> MalleableJob:  # fmt: skip
    """`work`: it trains in so many seconds with so many workers and as many servers, together."""
    batch, compute = int(2 ** rng.integers(4, 9)), float(rng.uniform(0.1, 0.8))
    gradient = float(np.exp(rng.uniform(np.log(5e7), np.log(2e9))))
    model: SpeedModel
    if speed == "ring":
        model = RingSpeed(batch, compute, gradient, float(rng.uniform(0.0, 0.05)))
    elif speed == "parameter_server":
        model = ParameterServerSpeed(batch, compute, gradient)
    else:
        time, size = rng.dirichlet(np.ones(rng.integers(2, 6)), 2)
        layers = (compute / 3.0 * time, compute / 1.5 * time, gradient * size)
        model = LayeredSpeed(batch, *map(tuple, layers))
    servers = int(rng.integers(1, most + 1)) if model.needs_servers else 0
    worker = (1.0, float(rng.integers(2, 5)), float(rng.integers(8, 33)) * _GIB)
    server = (0.0, float(rng.integers(1, 4)), 8.0 * _GIB) if servers else (0.0, 0.0, 0.0)
    reserved = float(rng.choice([0.25, 0.5, 1.0])) * 1.25e9
    workers, seconds = work
    together = np.array([workers]), np.array([min(servers, workers)])
    samples = seconds * model.samples_per_s(*together, reserved, INSIDE)
    return MalleableJob(
        name, *window, samples, 1, most, servers, worker, server, reserved, model, utility
    )


def _utility(
    rng: np.random.Generator, utility: UtilityName, patience: tuple[float, float]
) -> Utility:
    """`patience`: slots between which a job's worth falls."""
    weight = float(rng.uniform(1.0, 10.0))
    chosen = str(rng.choice(["linear", "sigmoid", "log"])) if utility == "mixed" else utility
    if chosen == "linear":
        return LinearUtility(weight, float(rng.uniform(*patience)) + 1.0)
    if chosen == "sigmoid":
        return SigmoidUtility(weight, float(rng.uniform(0.2, 4.0)), float(rng.uniform(*patience)))
    return LogUtility(weight, float(rng.uniform(0.05, 1.0)))


@bounded
@dataclass(eq=False)
class TraceProblems:
    """Consecutive jobs of a random trace from a random one on, made malleable.

    Raises:
        InputError: no trace has that many jobs.
    """

    traces: Sequence[Trace]  # their jobs; those with fewer than a window are left out
    _: KW_ONLY
    # models of speed, of which each problem has one
    speeds: Annotated[Sequence[SpeedName], MinLen(1)] = ("ring", "parameter_server", "layered")
    machines: tuple[int, int] = (4, 4)  # least and most of a problem, of `gpus` each
    gpus: Count = 8  # of a machine
    # least and most offered load that the window is stretched to, by the jobs' own GPUs
    load: tuple[float, float] = (1.5, 4.0)
    jobs: Count = 180  # of a window, before those that the slots do not reach are cut off
    slots: Count = 60  # of a problem
    slot_s: Positive = 1800.0  # seconds of a slot

    def __post_init__(self) -> None:
        fitting = [at_most_gpus(trace, self.machines[0] * self.gpus) for trace in self.traces]
        self.traces = [trace for trace in fitting if len(trace) >= self.jobs]
        if not self.traces:
            most = max(map(len, fitting), default=0)
            raise InputError(f"no trace has {self.jobs}, the most of them {most}", field="jobs")
        self._last: tuple[Any, AllocationProblem, Any] | None = None

    def __call__(self, rng: np.random.Generator) -> AllocationProblem:
        """A problem; the one before again where the generator is where it was then."""
        before = rng.bit_generator.state
        if self._last is None or self._last[0] != before:
            problem = self._drawn(rng)
            self._last = before, problem, rng.bit_generator.state
        rng.bit_generator.state = self._last[2]
        return self._last[1]

    def _drawn(self, rng: np.random.Generator) -> AllocationProblem:
        trace = self.traces[int(rng.integers(len(self.traces)))]
        machines = int(rng.integers(self.machines[0], self.machines[1] + 1))
        first = int(rng.integers(len(trace) - self.jobs + 1))
        window = trace.take(slice(first, first + self.jobs)).canonical()
        window = to_offered_load(window, float(rng.uniform(*self.load)), machines * self.gpus)
        speed = self.speeds[int(rng.integers(len(self.speeds)))]
        return problem_of_trace(
            window, rng, speed, machines=machines, slots=self.slots, gpus=self.gpus,
            slot_s=self.slot_s,
        )[0]  # fmt: skip
