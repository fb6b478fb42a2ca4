"""Jobs that train data-parallel in one cluster, their gradients summed in its switches.

R racks have slots for workers. A worker's NIC and a rack's port to the core carry a gradient once
each way: rack switches add up the workers below them, the core the racks, and the sum comes back
the same way. So a gradient is one flow over its job's NICs and, where the job has several racks,
their ports, at one rate on all of them; ports are what jobs share.

A job computes forward passes from its first layer on, each waiting for the layer's update, then
backward passes from the last layer on, each leaving a gradient. It sends one at a time: the one
that the next forward pass needs soonest (the *front tensor*), changed between chunks, or in the
order of backward passes, each whole. Between jobs a strict priority holds in every NIC and port.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.compilation import unchecked
from envs.network.max_min import Filling, fill, filling
from envs.synchronisation.layerwise import LayeredModel


@bounded
@dataclass(frozen=True)
class Racks:
    """R racks of as many slots, one worker each."""

    racks: Count
    slots: Count
    nic: Positive  # bytes/s of a worker, each way
    port: Positive  # bytes/s of a rack to the core, each way


@bounded
@dataclass(frozen=True, eq=False)
class Tenant:
    """A job that is to run."""

    model: LayeredModel
    workers: Count
    iterations: Count
    arrival: Annotated[float, Ge(0.0)]  # s


class Tenancy(NamedTuple):
    """The state of J jobs of up to L layers; a position is a forward pass, then a backward pass."""

    layers: IntArray  # (J,)
    size: FloatArray  # (J, L) bytes
    forward: FloatArray  # (J, L) s
    backward: FloatArray  # (J, L) s
    update: FloatArray  # (J, L) s
    links: IntArray  # (J, K) the job's ports, -1 where it has fewer, and a link of its own
    iterations: IntArray  # (J,) that are left
    position: IntArray  # (J,)
    busy: FloatArray  # (J,) when it has been computed; inf: waits, or does not run
    due: FloatArray  # (J, L) when a layer is updated; inf: its gradient is under way
    left: FloatArray  # (J, L) bytes of its gradient
    ready: FloatArray  # (J, L) when the gradient was there
    current: IntArray  # (J,) the layer that is sent, -1: none
    stop: FloatArray  # (J,) bytes of it left when another may go first
    since: FloatArray  # (J,) s, when it began to wait
    idle: FloatArray  # (J,) s that it has waited
    end: FloatArray  # (J,) s; inf before


# The jobs that send, (k,), to their priorities, the smallest first: of the state and the clock.
Ranks = Callable[[Tenancy, IntArray, float], IntArray]


@dataclass(frozen=True)
class Sending:
    """How gradients are sent."""

    ranks: Ranks
    front: bool  # front tensors; otherwise in the order of backward passes
    chunk: float  # bytes after which another tensor may go first
    compression: float = 1.0  # bytes of a tensor over those of it when it is compressed:
    compressed: float = (
        0.0  # this share of the sending jobs, those of least priority, where sent first
    )


def play_tenants(
    jobs: Sequence[Tenant], cluster: Racks, sending: Sending, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """(J,) s when each job began and ended; they wait for slots, which are drawn at random."""
    n = len(jobs)
    state = _tenancy(jobs, cluster.racks)
    capacity = np.full(cluster.racks + n, cluster.nic)
    capacity[: cluster.racks] = cluster.port
    work = filling(len(capacity), state.links.size)
    free = np.repeat(np.arange(cluster.racks), cluster.slots)
    held: dict[int, IntArray] = {}
    begin = np.full(n, np.inf)
    line = sorted(range(n), key=lambda j: jobs[j].arrival)
    clock, priority = 0.0, np.zeros(n, np.int64)
    fresh, whole = state.size > 0.0, state.size.copy()
    running = np.zeros(0, np.int64)
    while line or held:
        while line and jobs[line[0]].arrival <= clock and jobs[line[0]].workers <= len(free):
            j = line.pop(0)
            taken = rng.choice(len(free), jobs[j].workers, replace=False)
            held[j], free = free[taken], np.delete(free, taken)
            racks = np.unique(held[j])
            if len(racks) > 1:
                state.links[j, : len(racks)] = racks
            begin[j] = clock
            state.position[j], state.busy[j] = 0, clock + state.forward[j, 0]
            running = np.append(running, j)
        senders = running[state.current[running] >= 0]
        if len(senders):
            priority[senders] = sending.ranks(state, senders, clock)
            if sending.compression > 1.0:
                _compress(state, senders, priority[senders], sending, fresh)
        until = jobs[line[0]].arrival if line else np.inf
        until = until if until > clock else np.inf  # it waits for slots
        clock = advance(
            state, running, priority, capacity, work, clock, until, sending.front, sending.chunk
        )
        ended = state.end[running] < np.inf
        if ended.any():
            free = np.concatenate([free, *(held.pop(int(j)) for j in running[ended])])
            running = running[~ended]
        if sending.compression > 1.0:
            summed = (state.left == 0.0) & (whole > 0.0)
            fresh |= summed
            np.copyto(state.size, whole, where=summed)
    return begin, state.end


def _compress(
    state: Tenancy,
    senders: IntArray,
    priority: IntArray,
    sending: Sending,
    fresh: NDArray[np.bool_],
) -> None:
    """Tensors of which nothing was sent shrink, where their jobs come late."""
    late = senders[np.argsort(priority, kind="stable")]
    late = late[int(np.ceil(len(late) * (1.0 - sending.compressed))) :]
    layer = state.current[late]
    first = fresh[late, layer] & (state.left[late, layer] == state.size[late, layer])
    for held in (state.left, state.size):
        held[late[first], layer[first]] /= sending.compression
    fresh[senders, state.current[senders]] = False


def _tenancy(jobs: Sequence[Tenant], racks: int) -> Tenancy:
    n, most = len(jobs), max(job.model.num_layers for job in jobs)
    ports = min(racks, max(job.workers for job in jobs))
    table = np.zeros((4, n, most))
    for j, job in enumerate(jobs):
        own = job.model
        table[:, j, : own.num_layers] = own.sizes, own.forward, own.backward, own.update
    links = np.full((n, ports + 1), -1)
    links[:, -1] = racks + np.arange(n)
    return Tenancy(
        layers=np.array([job.model.num_layers for job in jobs]),
        size=table[0], forward=table[1], backward=table[2], update=table[3], links=links,
        iterations=np.array([job.iterations for job in jobs]),
        position=np.zeros(n, np.int64),
        busy=np.full(n, np.inf),
        due=np.zeros((n, most)),
        left=np.zeros((n, most)),
        ready=np.zeros((n, most)),
        current=np.full(n, -1),
        stop=np.zeros(n),
        since=np.zeros(n),
        idle=np.zeros(n),
        end=np.full(n, np.inf),
    )  # fmt: skip


@unchecked
def advance(
    state: Tenancy,
    running: IntArray,
    priority: IntArray,
    capacity: FloatArray,
    work: Filling,
    now: float,
    until: float,
    front: bool,
    chunk: float,
) -> float:
    """Plays until `until`, until other tensors are sent, or a job ends; returns the time."""
    senders = running[state.current[running] >= 0]
    senders = senders[np.argsort(priority[senders], kind="mergesort")]
    sending = len(senders)
    rate = np.zeros(sending)
    if sending:
        ptr = np.zeros(sending + 1, np.int64)
        links = np.zeros(sending * state.links.shape[1], np.int64)
        for k in range(sending):
            ptr[k + 1] = ptr[k]
            for link in state.links[senders[k]]:
                if link >= 0:
                    links[ptr[k + 1]] = link
                    ptr[k + 1] += 1
        fill(
            np.arange(sending), sending, ptr, links, np.ones(sending), priority[senders], capacity,
            rate, work,
        )  # fmt: skip
    changed = False
    while not changed and now < until:
        at = until
        for j in running:
            at = min(at, state.busy[j])
        for k in range(sending):
            j = senders[k]
            at = min(at, now + (state.left[j, state.current[j]] - state.stop[j]) / rate[k])
        for k in range(sending):
            j, layer = senders[k], state.current[senders[k]]
            rest = (state.left[j, layer] - state.stop[j]) / rate[k]
            if now + rest > at * (1.0 + 1e-14):  # later, and not by rounding
                state.left[j, layer] -= rate[k] * (at - now)
                continue
            state.left[j, layer] = state.stop[j]
            changed = True
            if state.stop[j] == 0.0:
                state.due[j, layer] = at + state.update[j, layer]
                if state.position[j] == layer and state.busy[j] == np.inf:
                    state.idle[j] += state.due[j, layer] - state.since[j]
                    state.busy[j] = state.due[j, layer] + state.forward[j, layer]
            _choose(j, front, state)
            if state.iterations[j] == 0 and state.current[j] < 0:
                state.end[j] = state.due[j].max()
        now = at
        for j in running:
            if state.busy[j] <= now:
                changed |= _compute(j, now, front, chunk, state)
    return now


@unchecked
def _choose(j: int, front: bool, state: Tenancy) -> None:
    """The next tensor of job j, of those that are ready."""
    state.current[j], state.stop[j] = -1, 0.0
    for k in range(state.layers[j]):
        layer = k if front else state.layers[j] - 1 - k
        if state.left[j, layer] > 0.0:
            state.current[j] = layer
            return


@unchecked
def _compute(j: int, now: float, front: bool, chunk: float, state: Tenancy) -> bool:
    """A pass of job j has ended: what follows; whether another tensor is sent now."""
    layers, position = state.layers[j], state.position[j]
    started = False
    if position >= layers:  # a backward pass
        layer = 2 * layers - 1 - position
        state.left[j, layer], state.due[j, layer] = state.size[j, layer], np.inf
        state.ready[j, layer] = now
        current = state.current[j]
        if current < 0:
            _choose(j, front, state)
            started = True
        elif front:
            state.stop[j] = np.floor(state.left[j, current] / chunk) * chunk
    state.position[j] = position = (position + 1) % (2 * layers)
    state.busy[j] = np.inf
    if position == 0:
        state.iterations[j] -= 1
        if state.iterations[j] == 0:
            state.position[j] = -1
            return started
    if position >= layers:
        state.busy[j] = now + state.backward[j, 2 * layers - 1 - position]
    elif state.due[j, position] < np.inf:
        state.idle[j] += max(state.due[j, position] - now, 0.0)
        state.busy[j] = max(now, state.due[j, position]) + state.forward[j, position]
    else:
        state.since[j] = now
    return started
