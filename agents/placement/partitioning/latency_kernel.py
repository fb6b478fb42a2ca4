"""The compiled latency search: every candidate's calls and host operators are timed anew.

Every function here is array code without Python objects; atoms, parcels and moves are those of
`kernel`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from agents.placement.partitioning.kernel import (
    FloatArray,
    IndexArray,
    IntArray,
    Loads,
    Proposal,
    Traffic,
    adapt,
    move,
    overflow,
    propose,
    settle,
)


class Calls(NamedTuple):
    """What times a placement beside its loads; a block is an accelerator or a host operator."""

    atom: IndexArray  # (N,) of each operator
    host_seconds: FloatArray  # (N,) of each operator on the host
    use_ptr: IndexArray  # (N + 1,) rows of `use` by producing operator
    use: IndexArray  # (C,) consuming operators
    host: int  # device, or D: none is
    block: IndexArray  # (N,) scratch
    following: IntArray  # (N,) scratch: next operator of the same accelerator
    first: IntArray  # (D + 1,) scratch: first operator of each accelerator
    waiting: IntArray  # (D + N,) scratch: inputs of each block that are not yet there
    start: FloatArray  # (D + N,) scratch
    stack: IndexArray  # (D + N,) scratch


@numba.njit(cache=True, nogil=True)
def latency(  # noqa: PLR0912, PLR0915 - one loop, compiled
    calls: Calls, device: IndexArray, load: FloatArray
) -> tuple[float, float]:
    """Seconds until the last block ends, and the part of the blocks on or behind a circle.

    Where blocks wait for each other in a circle, the seconds are those of the others, and then of
    these one after another.
    """
    n, devices = len(calls.atom), len(load)
    block, waiting, start, stack = calls.block, calls.waiting, calls.start, calls.stack
    calls.first[:] = -1
    waiting[:] = 0
    start[:] = 0.0
    blocks, ready, done = 0, 0, 0
    for u in range(n):
        d = device[calls.atom[u]]
        if d == calls.host:
            block[u] = devices + u
            blocks += 1
        else:
            block[u] = d
            blocks += calls.first[d] < 0
            calls.following[u] = calls.first[d]
            calls.first[d] = u
    for u in range(n):
        b = block[u]
        for k in range(calls.use_ptr[u], calls.use_ptr[u + 1]):
            c = block[calls.use[k]]
            if c != b:
                waiting[c] += 1
    for d in range(devices):
        if calls.first[d] >= 0 and waiting[d] == 0:
            stack[ready] = d
            ready += 1
    for u in range(n):
        if block[u] >= devices and waiting[block[u]] == 0:
            stack[ready] = block[u]
            ready += 1
    last = 0.0
    while ready > 0:
        ready -= 1
        done += 1
        b = stack[ready]
        if b < devices:
            end = start[b] + load[b]
            u = calls.first[b]
        else:
            u = int(b) - devices
            end = start[b] + calls.host_seconds[u]
        last = max(last, end)
        while u >= 0:
            for k in range(calls.use_ptr[u], calls.use_ptr[u + 1]):
                c = block[calls.use[k]]
                if c != b:
                    start[c] = max(start[c], end)
                    waiting[c] -= 1
                    if waiting[c] == 0:
                        stack[ready] = c
                        ready += 1
            u = calls.following[u] if b < devices else -1
    if done == blocks:
        return last, 0.0
    for d in range(devices):
        if waiting[d] > 0:
            last += load[d]
    for u in range(n):
        if waiting[devices + u] > 0:
            last += calls.host_seconds[u]
    return last, (blocks - done) / blocks


@numba.njit(cache=True, nogil=True)
def anneal_latency(
    traffic: Traffic,
    calls: Calls,
    loads: Loads,  # in and out: where the walk stands
    trial: Proposal,
    balance: float,  # weight of all work
    scale: float,  # seconds, a typical latency
    charge: FloatArray,  # (1,) in and out: cost of all state in excess, or all on circles
    temperature: float,  # in units of `scale`
    steps: int,
    largest: int,  # atoms of a cluster
    random: np.random.Generator,
    best: IndexArray,  # (A,) in and out
    least: FloatArray,  # (1,) in and out: seconds of `best`
) -> None:
    """`steps` proposed moves at one temperature, keeping the best placement that fits.

    The walk minimises the latency plus `balance` times the work on all devices, which guides it
    where the latency does not change.
    """
    settle(traffic, loads)
    load, used = loads.load, loads.used
    seconds, stuck = latency(calls, loads.device, load)
    now, excess = (seconds + balance * load.sum()) / scale, overflow(traffic, used) + stuck
    if excess == 0.0 and seconds < least[0]:
        least[0] = seconds
        best[:] = loads.device
    for _ in range(steps):
        adapt(charge, excess)
        count = propose(traffic, loads.device, trial, largest, random)
        if count == 0:
            continue
        limit = now + charge[0] * excess - temperature * np.log(1.0 - random.random())
        for i in range(count):
            trial.origin[i] = loads.device[trial.member[i]]
            move(traffic, loads, trial.member[i], trial.goal[i])
        beyond = overflow(traffic, used)
        seconds = 0.0
        for d in range(len(load)):
            if d != calls.host and load[d] > seconds:
                seconds = load[d]
        then = (seconds + balance * load.sum()) / scale
        if then + charge[0] * beyond <= limit:  # else the latency, no less, is refused, too
            seconds, stuck = latency(calls, loads.device, load)
            then = (seconds + balance * load.sum()) / scale
            beyond += stuck
        if then + charge[0] * beyond > limit:
            for i in range(count - 1, -1, -1):
                move(traffic, loads, trial.member[i], trial.origin[i])
            continue
        now, excess = then, beyond
        if excess == 0.0 and seconds < least[0]:
            least[0] = seconds
            best[:] = loads.device
