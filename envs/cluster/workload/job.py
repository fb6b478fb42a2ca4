"""One job of a trace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A gang: it runs on all of its GPUs at once, or not at all."""

    job_id: str  # as the trace calls it
    submit_s: int
    duration_s: int  # alone, on the GPUs it asks for
    num_gpus: int
    gpu_milli: int  # thousandths of each GPU; below 1000 only for jobs on one GPU
    user: str | None
    queue: str | None  # virtual cluster
    gpu_type: str | None  # permitted GPU types, separated by "|"; None: any
    model: str | None  # what it trains: the name of a profile
    cpu_milli: int
    memory_mib: int
