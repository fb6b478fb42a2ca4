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

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.compilation import unchecked, unchecked_inner
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
    """The state of J jobs of up to L layers; pass p of l layers is of layer p or 2 l - 1 - p."""

    racks: int  # links 0 to racks - 1 are their ports
    links: IntArray  # (J, K) the job's ports, and NICs of its own where it has fewer
    layers: IntArray  # (J,)
    size: FloatArray  # (J, L) bytes
    update: FloatArray  # (J, L) s
    took: FloatArray  # (J, 2 L) s of passes: all forward, then all backward
    due: FloatArray  # (J, L) when a layer is updated; inf: its gradient is under way
    left: FloatArray  # (J, L) bytes of its gradient
    ready: FloatArray  # (J, L) when the gradient was there
    stop: FloatArray  # (J,) bytes of the tensor that is sent left when another may go first
    since: FloatArray  # (J,) s, when it began to wait
    idle: FloatArray  # (J,) s that it has waited
    busy: FloatArray  # (J,) when its pass ends; inf: waits, or does not run
    end: FloatArray  # (J,) s; inf before
    iterations: IntArray  # (J,) that are left
    position: IntArray  # (J,) its pass
    current: IntArray  # (J,) the layer that is sent, -1: none


# The jobs that send, (k,), to their priorities, the smallest first: of the state and the clock.
Ranks = Callable[[Tenancy, IntArray, float], IntArray]


@dataclass(frozen=True)
class Sending:
    """How gradients are sent."""

    ranks: Ranks
    front: bool  # front tensors; otherwise in the order of backward passes
    chunk: float  # bytes after which another tensor may go first
    compression: float = 1.0  # how many times smaller tensors are sent
    compressed: float = 0.0  # of this share of the jobs, those of least priority


def play_tenants(
    jobs: Sequence[Tenant], cluster: Racks, sending: Sending, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """(J,) s when each job began and ended; they wait for slots, which are drawn at random."""
    n, state = len(jobs), _tenancy(jobs, cluster.racks)
    capacity = np.full(cluster.racks + state.links.size, cluster.nic)
    capacity[: cluster.racks] = cluster.port
    work = filling(len(capacity), state.links.size)
    free, held = np.repeat(np.arange(cluster.racks), cluster.slots), dict[int, IntArray]()
    begin, clock, priority = np.full(n, np.inf), 0.0, np.zeros(n, np.int64)
    line = sorted(range(n), key=lambda j: jobs[j].arrival)
    fresh, whole = state.size > 0.0, state.size.copy()
    while line or held:
        while line and jobs[line[0]].arrival <= clock and jobs[line[0]].workers <= len(free):
            j = line.pop(0)
            taken = rng.choice(len(free), jobs[j].workers, replace=False)
            held[j], free = free[taken], np.delete(free, taken)
            racks = np.unique(held[j])
            if len(racks) > 1:
                state.links[j, : len(racks)] = racks
            begin[j] = clock
            state.busy[j] = clock + state.took[j, 0]
        running = np.array([*held], np.int64)
        senders = running[state.current[running] >= 0]
        if len(senders):
            priority[senders] = sending.ranks(state, senders, clock)
            senders = senders[np.argsort(priority[senders], kind="stable")]
        if len(senders) and sending.compression > 1.0:
            # Of the jobs of least priority those tensors shrink of which nothing was sent.
            late = senders[int(np.ceil(len(senders) * (1.0 - sending.compressed))) :]
            at = late, state.current[late]
            shrinks = fresh[at] & (state.left[at] == state.size[at])
            for held_bytes in (state.left, state.size):
                held_bytes[at] /= np.where(shrinks, sending.compression, 1.0)
            fresh[senders, state.current[senders]] = False
        until = jobs[line[0]].arrival if line else np.inf
        until = until if until > clock else np.inf  # it waits for slots
        clock = advance(
            state, running, senders, priority, capacity, work, clock, until, sending.front,
            sending.chunk,
        )  # fmt: skip
        for j in running[state.end[running] < np.inf].tolist():
            free = np.append(free, held.pop(j))
        if sending.compression > 1.0:
            summed = (state.left == 0.0) & (whole > 0.0)
            fresh |= summed
            np.copyto(state.size, whole, where=summed)
    return begin, state.end


def _tenancy(jobs: Sequence[Tenant], racks: int) -> Tenancy:
    n, most = len(jobs), max(job.model.num_layers for job in jobs)
    size, update = np.zeros((2, n, most))
    took = np.zeros((n, 2 * most))
    for j, job in enumerate(jobs):
        own = job.model
        size[j, : own.num_layers], update[j, : own.num_layers] = own.sizes, own.update
        took[j, : 2 * own.num_layers] = np.append(own.forward, own.backward[::-1])
    width = 1 + min(racks, max(job.workers for job in jobs))
    nics = racks + np.arange(n * width).reshape(n, width)
    layers, iterations = np.array([(job.model.num_layers, job.iterations) for job in jobs]).T
    others = [
        *np.zeros((3, n, most)), *np.zeros((3, n)), *np.full((2, n), np.inf), iterations.copy(),
        np.zeros(n, np.int64), np.full(n, -1),
    ]  # fmt: skip
    return Tenancy(racks, nics, layers.copy(), size, update, took, *others)


@unchecked
def advance(
    state: Tenancy,
    running: IntArray,
    senders: IntArray,  # by priority
    priority: IntArray,
    capacity: FloatArray,
    work: Filling,
    now: float,
    until: float,
    front: bool,
    chunk: float,
) -> float:
    """Plays until `until`, until other tensors are sent, or a job ends; returns the time."""
    jobs, width = state.links.shape
    rate = np.zeros(jobs)
    fill(
        senders, len(senders), np.arange(jobs + 1) * width, state.links.ravel(), np.ones(jobs),
        priority, capacity, rate, work,
    )  # fmt: skip
    changed = False
    while not changed and now < until:
        at = until
        for j in running:
            at = min(at, state.busy[j])
        for j in senders:
            at = min(at, now + (state.left[j, state.current[j]] - state.stop[j]) / rate[j])
        for j in senders:
            layer = state.current[j]
            rest = (state.left[j, layer] - state.stop[j]) / rate[j]
            if now + rest > at * (1.0 + 1e-14):  # later, and not by rounding
                state.left[j, layer] -= rate[j] * (at - now)
                continue
            state.left[j, layer] = state.stop[j]
            changed = True
            if state.stop[j] == 0.0:
                state.due[j, layer] = at + state.update[j, layer]
                if state.position[j] == layer and state.busy[j] == np.inf:
                    _begin(j, state.since[j], state)
            _choose(j, front, state)
            if state.iterations[j] == 0 and state.current[j] < 0:
                state.end[j] = state.due[j].max()
        now = at
        for j in running:
            if state.busy[j] <= now:
                changed |= _pass_ends(j, now, front, chunk, state)
    return now


@unchecked_inner
def _choose(j: int, front: bool, state: Tenancy) -> None:
    """The next tensor of job j, of those that are ready."""
    waiting = np.flatnonzero(state.left[j] > 0.0)
    state.current[j], state.stop[j] = -1, 0.0
    if len(waiting):
        state.current[j] = waiting[0 if front else -1]


@unchecked_inner
def _begin(j: int, at: float, state: Tenancy) -> None:
    """The next pass of job j, which is free from `at` on; a forward pass waits for its update."""
    position, start = state.position[j], at
    if position < state.layers[j]:
        start = max(at, state.due[j, position])
    state.busy[j] = start + state.took[j, position]
    if start < np.inf:
        state.idle[j] += start - at
    else:
        state.since[j] = at


@unchecked_inner
def _pass_ends(j: int, now: float, front: bool, chunk: float, state: Tenancy) -> bool:
    """What follows when a pass of job j has ended; whether another tensor is sent now."""
    layers, position, current = state.layers[j], state.position[j], state.current[j]
    started = False
    if position >= layers:  # a backward pass
        layer = 2 * layers - 1 - position
        state.left[j, layer], state.due[j, layer] = state.size[j, layer], np.inf
        state.ready[j, layer] = now
        if current < 0:
            _choose(j, front, state)
            started = True
        elif front:
            state.stop[j] = np.floor(state.left[j, current] / chunk) * chunk
    state.position[j] = (position + 1) % (2 * layers)
    if state.position[j] == 0:
        state.iterations[j] -= 1
    if state.iterations[j] > 0:
        _begin(j, now, state)
    else:
        state.position[j], state.busy[j] = -1, np.inf
    return started
