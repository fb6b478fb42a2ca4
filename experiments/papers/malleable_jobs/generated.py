"""Malleable jobs by random numbers, or from a window of a trace of gangs; a toy."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.papers.malleable_jobs.problem import (
    AllocationProblem,
    Jobs,
    MalleableJob,
    Slots,
    check_size,
)
from experiments.papers.malleable_jobs.speeds import (
    LayeredSpeed,
    LinearUtility,
    LogUtility,
    ParameterServerSpeed,
    RingSpeed,
    SigmoidUtility,
    SpeedModel,
    Utility,
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
        patience = (window / 2.0, window)
        worth = _utility(rng, utility, patience)
        made.append(
            _job(rng, f"job{number}", speed, worth, (arrival, arrival + window), most, (most, busy))
        )
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
    slack: Annotated[float, Ge(1.0)] = 3.0,
) -> AllocationProblem:
    """The jobs that a trace submits within `slots` slots of its first, made malleable.

    A job may have up to `growth` times the GPUs of its gang; its samples are those that the gang
    trains in the job's duration. Its deadline is up to twice `slack` times that duration after its
    arrival, and at least two slots. What the trace does not say, models, utilities and weights, is
    drawn. `left_out` counts the jobs of which none is made.

    Raises:
        InputError: no job is left, or a name is unknown.
    """
    others = list(_reasons(trace, machines, slots, gpus, slot_s).values())
    kept = np.flatnonzero(~np.any(others, axis=0))
    check_size(slots, max(len(kept), 1), machines)
    capacity = _machines(np.full(machines, gpus), np.full(machines, 4), np.full(machines, 50))
    made = []
    for number, job in zip(kept, trace.take(kept), strict=True):
        gang = job.num_gpus
        arrival = int((job.submit_s - trace.submit_s[0]) // slot_s)
        takes = job.duration_s / slot_s
        window = max(2, int(np.ceil(takes * slack * rng.uniform(0.75, 2.0))))
        worth = _utility(rng, utility, (max(2.0, takes), float(window)))
        most = min(gang * growth, machines * gpus)
        until = (arrival, arrival + window)
        name = f"{number}:{job.job_id}"
        made.append(_job(rng, name, speed, worth, until, most, (gang, float(job.duration_s))))
    if not made:
        raise InputError("no job fits into the machines and slots", file=trace.name)
    return AllocationProblem(tuple(made), capacity, INSIDE, slots, slot_s)


def left_out(
    trace: Trace, machines: int, slots: int, *, gpus: int, slot_s: float
) -> dict[str, int]:
    """How many jobs of a trace `problem_of_trace` makes no job of, by the first reason."""
    reasons = _reasons(trace, machines, slots, gpus, slot_s)
    return {reason: int(jobs.sum()) for reason, jobs in reasons.items() if jobs.any()}


def _reasons(
    trace: Trace, machines: int, slots: int, gpus: int, slot_s: float
) -> dict[str, BoolArray]:
    """(J,) the jobs that make no malleable ones, by why."""
    late = trace.submit_s - trace.submit_s[:1] >= slots * slot_s
    return {
        f"slots={slots} of {slot_s:g} s": late,
        "no GPU": ~late & (trace.num_gpus == 0),
        f"machines={machines} of {gpus} GPUs": ~late & (trace.num_gpus > machines * gpus),
    }


def _machines(gpus: IntArray, cores: IntArray, gigabits: IntArray) -> FloatArray:
    """(M, R), of GPUs, of cores of each GPU, of Gb/s."""
    return np.column_stack([gpus, gpus * cores, gpus * 32.0 * _GIB, gigabits * 1.25e8]).astype(
        np.float64
    )


def _job(
    rng: np.random.Generator,
    name: str,
    speed: SpeedName,
    utility: Utility,
    window: tuple[int, int],
    most: int,
    work: tuple[int, float],
) -> MalleableJob:
    """`work`: it trains in so many seconds with so many workers and as many servers, together."""
    batch, compute = int(2 ** rng.integers(4, 9)), float(rng.uniform(0.1, 0.8))
    gradient = float(np.exp(rng.uniform(np.log(5e7), np.log(2e9))))
    model: SpeedModel
    if speed == "ring":
        model = RingSpeed(batch, compute, gradient, float(rng.uniform(0.0, 0.05)))
    elif speed == "parameter_server":
        model = ParameterServerSpeed(batch, compute, gradient)
    else:
        layers = int(rng.integers(2, 6))
        parts = rng.dirichlet(np.ones(layers), 2)
        forward, backward = compute / 3.0 * parts[0], compute / 1.5 * parts[0]
        model = LayeredSpeed(batch, *(tuple(p) for p in (forward, backward, gradient * parts[1])))
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


TOY_OPTIMUM = 7.892789260714373  # tests try all plans


def toy_problem(rng: np.random.Generator | None = None) -> AllocationProblem:
    """On three GPUs: a job that must begin at once, one that pays later, one that can wait."""

    def job(name: str, first: int, last: int, slots: float, worth: Utility) -> MalleableJob:
        speed = RingSpeed(1, 1.0, 5e8)
        return MalleableJob(
            name, first, last, 60.0 * slots, 1, 2, 0, (1.0, 1.0, 0.0), (0.0,) * 3, 1e9, speed, worth
        )

    jobs = (
        job("urgent", 0, 2, 3.0, LinearUtility(4.0, 8.0)),
        job("large", 0, 3, 5.0, LinearUtility(9.0, 6.0)),
        job("patient", 1, 3, 4.0, LogUtility(3.0, 0.5)),
    )
    return AllocationProblem(jobs, np.array([[3.0, 3.0, 1.0, 1e9]]), 1e10, 3, 60.0)
