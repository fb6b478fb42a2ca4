"""What a scheduler may do with the jobs of its window and its servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from annotated_types import Gt

from envs.bounds import NonNegative, bounded
from envs.cluster.environment.instance import ClusterBounds
from envs.errors import InputError

QUEUE, SERVICE, REMAINING_TIME, REMAINING_SERVICE = 0, 1, 2, 3  # codes of the keys


class WindowOrder(Protocol):
    """A key by which pending jobs are ordered; ties by the queue."""

    code: int
    needs_durations: bool


class QueueOrder:
    """As they stand in the queue: by arrival, and again at the tail after each preemption."""

    code, needs_durations = QUEUE, False


class LeastService:
    """GPU-seconds held so far, ascending."""

    code, needs_durations = SERVICE, False


class ShortestRemainingTime:
    """Seconds of work left, ascending."""

    code, needs_durations = REMAINING_TIME, True


class SmallestRemainingService:
    """Seconds of work left times GPUs, ascending."""

    code, needs_durations = REMAINING_SERVICE, True


NEVER_S = np.inf


class ActionTable(NamedTuple):
    """How actions are numbered; plain numbers for compiled code."""

    window: int  # W
    groups: int  # G = N + R + 1
    servers: int  # N
    peers: int  # F: other schedulers that jobs can be forwarded to
    preemptible: int  # P: running jobs that can be preempted, 0 without preemption
    offer_servers: int  # 1: single servers are server groups
    offer_racks: int
    offer_all: int
    least_run_s: float  # seconds a job runs before it can be preempted, inf without preemption
    longest_wait_s: float

    @property
    def size(self) -> int:
        return self.window * (self.groups + self.peers) + self.preemptible + 1


@bounded
@dataclass(frozen=True)
class ClusterActions:
    """The server groups on offer, preemption, and how long a wait lasts.

    Actions, with N, R and F the bounds of servers, racks and other schedulers, W the window, P the
    running jobs shown where there is preemption and 0 elsewhere, and G = N + R + 1:

    | action | |
    |---|---|
    | w G + g | start job w of the window on server group g |
    | W G + w F + f | forward job w of the window to the f-th other scheduler |
    | W (G + F) + p | preempt the p-th running job shown |
    | W (G + F) + P | wait; always the last |

    Server group g < N is server g, N + r is all servers of rack r, N + R all servers. A job goes to
    a group in a *consolidated* way. Its room on a server is how many of its GPUs could go there
    now: the free ones, if they are of a permitted type; and where processor or memory do not last
    for the whole job, no more than they last for. Where a server has room for all that is left, the
    one with the least room takes it; otherwise the one with the most room is filled, and the same
    is asked for the rest. Of equals the first is taken. A job that asks for fractions of its GPUs
    has room for all of it, too, on a server with a set of exactly so many shared GPUs that have
    enough left. It takes the set with the least left that is enough; where there is none, free GPUs
    of the server with the fewest. Where no server has room for all of it, it goes to free GPUs in
    the consolidated way, and on each server they are a set that others may join.

    A job is offered a server where it has room for all of it. A rack or all servers are offered
    where their room is enough and no smaller group on offer inside has it.

    Attributes:
        servers: whether single servers are on offer.
        racks: whether racks are.
        all_servers: whether all servers together are.
        preempt_after_s: seconds for which a job has run, more than 0, before it can be preempted;
            None: there is no preemption.
        longest_wait_s: a wait ends with the next event or after so many seconds; None: only with
            the next event.

    Raises:
        InputError: no group is on offer.
    """

    servers: bool = True
    racks: bool = True
    all_servers: bool = True
    preempt_after_s: NonNegative | None = None
    longest_wait_s: Annotated[float, Gt(0.0)] | None = None

    def __post_init__(self) -> None:
        if not (self.servers or self.racks or self.all_servers):
            raise InputError("no server group is on offer", field="servers")

    def table(self, bounds: ClusterBounds, window: int, running: int, peers: int) -> ActionTable:
        """The numbering for W = `window`, F = `peers` and at most `running` running jobs shown."""
        return ActionTable(
            window=window,
            groups=bounds.servers + bounds.racks + 1,
            servers=bounds.servers,
            peers=peers,
            preemptible=0 if self.preempt_after_s is None else running,
            offer_servers=int(self.servers),
            offer_racks=int(self.racks),
            offer_all=int(self.all_servers),
            least_run_s=np.inf if self.preempt_after_s is None else float(self.preempt_after_s),
            longest_wait_s=float(self.longest_wait_s or NEVER_S),
        )
