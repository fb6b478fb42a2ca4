"""The state of a live cluster as plain data.

The schema is that of the types here (JSON Schema, draft 2020-12); what a schema cannot say is
checked by `agents.cluster.live`.
"""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.decision import Name, form
from envs.cluster.workload.trace import WHOLE_GPU

Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]
Gpus = Annotated[int, Field(ge=0, le=1024)]
Gang = Annotated[int, Field(ge=0, le=65_536)]
Amount = Annotated[int, Field(ge=0, le=10**15)]


@form
class LiveNode(TypedDict):
    """A server."""

    id: Name
    gpu_type: Name
    num_gpus: Gpus
    """in all, whoever holds them"""
    rack: NotRequired[Annotated[int, Field(ge=0, le=65_535)]]
    """number of its rack; 0 if left out"""
    free_gpus: NotRequired[Gpus]
    """that a job can have now; left out: all that the jobs of this state do not hold"""
    up: NotRequired[bool]
    """whether jobs can run there; else true"""
    cpu_milli: NotRequired[Amount]
    """thousandths of a core; left out: no limit"""
    memory_mib: NotRequired[Amount]
    """MiB; left out: no limit"""


@form
class LiveJob(TypedDict):
    """A job that waits, runs (`holds`) or has finished (`finish_s`), as much as is known of it."""

    id: Name
    submit_s: Seconds
    num_gpus: Gang
    """of its gang: all of them at once, or none"""
    gpu_milli: NotRequired[Annotated[int, Field(ge=1, le=WHOLE_GPU)]]
    """thousandths of its one GPU; else 1000"""
    gpu_types: NotRequired[Annotated[list[Name], Field(min_length=1)]]
    """permitted; left out: all"""
    user: NotRequired[Name]
    queue: NotRequired[Name]
    """virtual cluster, or group"""
    cpu_milli: NotRequired[Amount]
    """thousandths of a core in all"""
    memory_mib: NotRequired[Amount]
    """MiB in all"""
    speed: NotRequired[dict[Name, Speed]]
    """its own speed by GPU type, where it is not that of `gpu_types`"""
    holds: NotRequired[Annotated[dict[Name, Gpus], Field(min_length=1)]]
    """a running job's GPUs by node, in the order of taking"""
    shared_gpu: NotRequired[Name]
    """the GPU that a running fractional job is on"""
    since_s: NotRequired[Seconds]
    """when it began to run, or last began to wait; must be given of running jobs, else its
    submission"""
    held_s: NotRequired[Seconds]
    """for which it has held its GPUs so far; else 0"""
    attained_s: NotRequired[Seconds]
    """of work done, at speed 1; left out: as long as `held_s`"""
    preemptions: NotRequired[Annotated[int, Field(ge=0, le=10**6)]]
    rate: NotRequired[Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]]
    """work per second of a running job; left out: its slowest GPU's speed"""
    ready_s: NotRequired[Seconds]
    """when a job that restarts begins to progress; else at once"""
    finish_s: NotRequired[Seconds]
    """when it finished"""


@form
class LiveJobWithDuration(LiveJob):
    """A job of which it is known how long it takes."""

    duration_s: NotRequired[Annotated[Seconds, Field(gt=0)]]
    """of work in all, at speed 1"""
    remaining_s: NotRequired[Seconds]
    """of work left; left out: the duration less what is attained"""
    end_s: NotRequired[Seconds]
    """when it will finish; left out: what is left at its present rate"""


@form
class LiveCluster(TypedDict):
    """A cluster at one instant."""

    now_s: Seconds
    nodes: Annotated[list[LiveNode], Field(min_length=1)]
    jobs: list[LiveJob]
    """all that wait or run, and those that have finished as far back as they shall be learned
    from; of jobs submitted at once the first comes first"""
    waiting: NotRequired[list[Name]]
    """ids of the waiting jobs in the order of the queue; left out: by `since_s`"""
    running: NotRequired[list[Name]]
    """ids of the running jobs in the order of their starts; left out: by `since_s`"""
    gpu_types: NotRequired[Annotated[dict[Name, Speed], Field(min_length=1, max_length=62)]]
    """speed of jobs on each GPU type, 1 where durations hold; left out: 1, in the order in which
    nodes name them"""
    restart_s: NotRequired[Seconds]
    """for which a job that was stopped holds its GPUs before it progresses; left out: as in the
    training"""
    closed: NotRequired[bool]
    """true: no job will come any more, so that where nothing runs the scheduler may not wait if
    it can start something"""


@form
class LiveClusterWithDurations(LiveCluster):
    """A cluster at one instant, and how long its jobs take."""

    jobs: list[LiveJobWithDuration]  # type: ignore[misc]  # narrower
