"""The compiled search of partitions: loads kept up to date while atoms change devices.

Every function here is array code without Python objects. An *atom* is a co-location group or a
free operator; a *parcel* is what one atom sends to one set of other atoms (`PartitionAtoms`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, joined, joined_inner
from envs.step.kernel import IndexArray

_ANY_EXCESS = 0.005  # of all state: what any excess counts beside its bytes
_CHEAPEST, _DEAREST = 10.0, 1e5  # cost of all state in excess
_RISE, _FALL = 1.001, 0.9999  # factors of that cost per move while there is excess, and while not
_NOTHING = 1e-300  # keeps the logarithm of loads that are all zero finite
_SINGLE, _EXCHANGE, _CLUSTER, _CLUSTERS = 0.6, 0.8, 0.95, 0.999  # cumulative shares of the moves
_NEIGHBOUR = 0.7  # share of the moves to the device of an atom with which a parcel is exchanged


class Traffic(NamedTuple):
    """A partition for kernels: A atoms, H parcels, D devices."""

    seconds: FloatArray  # (A, D) compute
    state: FloatArray  # (A,) bytes
    all_state: float  # bytes, at least 1
    allowed: BoolArray  # (A, D)
    room: FloatArray  # (D,) bytes
    parcel_seconds: FloatArray  # (H, D) between the device and the host
    sender: IndexArray  # (H,) atom
    reader_ptr: IndexArray  # (H + 1,) rows of `reader`
    reader: IndexArray  # (R,) atoms, unique in a row, never the sender
    sent_ptr: IndexArray  # (A + 1,) rows of `sent`
    sent: IndexArray  # (H,) parcels by sender
    read_ptr: IndexArray  # (A + 1,) rows of `read`
    read: IndexArray  # (R,) parcels by reader
    after_ptr: IndexArray  # (A + 1,) rows of `after`
    after: IndexArray  # (P,) atoms that must not be before the atom; empty: no contiguity
    before_ptr: IndexArray  # (A + 1,) rows of `before`
    before: IndexArray  # (P,) atoms that must not be behind the atom


class Loads(NamedTuple):
    """Where the atoms are, and what follows from it."""

    device: IndexArray  # (A,)
    readers: IntArray  # (H, D) atoms on each device that read the parcel
    load: FloatArray  # (D,) seconds of compute and communication
    used: FloatArray  # (D,) bytes
    arcs: IntArray  # (D, D) pairs of atoms that put the row's device before the column's


class Proposal(NamedTuple):
    """Working memory of one move."""

    member: IndexArray  # (A,) atoms that move
    goal: IndexArray  # (A,) where each goes
    origin: IndexArray  # (A,) where each was
    mark: IntArray  # (A,) ticket of the last cluster that an atom was in
    ticket: IntArray  # (1,)


@joined
def settle(traffic: Traffic, loads: Loads) -> None:
    """Work out everything from `loads.device`, free of the rounding of many moves."""
    loads.readers[:] = 0
    loads.load[:] = 0.0
    loads.used[:] = 0.0
    loads.arcs[:] = 0
    for a in range(len(loads.device)):
        d = loads.device[a]
        loads.load[d] += traffic.seconds[a, d]
        loads.used[d] += traffic.state[a]
        for k in range(traffic.after_ptr[a], traffic.after_ptr[a + 1]):
            loads.arcs[d, loads.device[traffic.after[k]]] += 1
    for h in range(len(traffic.sender)):
        for k in range(traffic.reader_ptr[h], traffic.reader_ptr[h + 1]):
            loads.readers[h, loads.device[traffic.reader[k]]] += 1
        home = loads.device[traffic.sender[h]]
        away = False
        for d in range(len(loads.load)):
            if d != home and loads.readers[h, d] > 0:
                away = True
                loads.load[d] += traffic.parcel_seconds[h, d]
        if away:
            loads.load[home] += traffic.parcel_seconds[h, home]


@joined_inner
def change(traffic: Traffic, loads: Loads, a: int, e: int) -> tuple[float, float]:
    """Seconds by which the loads of a's device and of device e change if atom `a` moves to `e`.

    No other load changes: a parcel that `a` reads still leaves a third device, and those that `a`
    sends still arrive there.
    """
    d = loads.device[a]
    parcel_seconds, readers = traffic.parcel_seconds, loads.readers
    here, there = -traffic.seconds[a, d], traffic.seconds[a, e]
    for k in range(traffic.sent_ptr[a], traffic.sent_ptr[a + 1]):
        h = traffic.sent[k]
        total = traffic.reader_ptr[h + 1] - traffic.reader_ptr[h]
        at_d, at_e = readers[h, d], readers[h, e]
        here += parcel_seconds[h, d] * ((at_d > 0) - (at_d < total))
        there += parcel_seconds[h, e] * ((at_e < total) - (at_e > 0))
    for k in range(traffic.read_ptr[a], traffic.read_ptr[a + 1]):
        h = traffic.read[k]
        home = loads.device[traffic.sender[h]]
        at_d, at_e = readers[h, d], readers[h, e]
        total = traffic.reader_ptr[h + 1] - traffic.reader_ptr[h]
        if home == d:
            here += parcel_seconds[h, d] * (at_d == total)
        else:
            here -= parcel_seconds[h, d] * (at_d == 1)
        if home == e:
            there -= parcel_seconds[h, e] * (at_e + 1 == total)
        else:
            there += parcel_seconds[h, e] * (at_e == 0)
    return here, there


@joined
def move(traffic: Traffic, loads: Loads, a: int, e: int) -> None:
    """Move atom `a` to device `e`, which is another than its own."""
    d = loads.device[a]
    here, there = change(traffic, loads, a, e)
    loads.load[d] += here
    loads.load[e] += there
    loads.used[d] -= traffic.state[a]
    loads.used[e] += traffic.state[a]
    for k in range(traffic.read_ptr[a], traffic.read_ptr[a + 1]):
        h = traffic.read[k]
        loads.readers[h, d] -= 1
        loads.readers[h, e] += 1
    for k in range(traffic.after_ptr[a], traffic.after_ptr[a + 1]):
        f = loads.device[traffic.after[k]]
        loads.arcs[d, f] -= 1
        loads.arcs[e, f] += 1
    for k in range(traffic.before_ptr[a], traffic.before_ptr[a + 1]):
        f = loads.device[traffic.before[k]]
        loads.arcs[f, d] -= 1
        loads.arcs[f, e] += 1
    loads.device[a] = e


@joined
def in_line(arcs: IntArray) -> bool:
    """Whether the devices can be put in a line along which all arcs go forward."""
    devices = len(arcs)
    placed = np.zeros(devices, np.bool_)
    for _ in range(devices):
        found = False
        for d in range(devices):
            if placed[d]:
                continue
            free = True
            for f in range(devices):
                free = free and (f == d or placed[f] or arcs[f, d] == 0)
            if free:
                placed[d] = True
                found = True
        if not found:
            break
    return bool(placed.all())


@joined_inner
def norm(load: FloatArray, scale: float) -> float:
    """The logarithm of the 16-norm of the loads (D,) in units of `scale`: what the walk minimises.

    The norm is within 13 % of the largest load for 7 devices, and the largest loads count most, but
    the others guide the walk where the largest does not change.
    """
    total = _NOTHING
    for d in range(len(load)):
        x = load[d] / scale
        x *= x
        x *= x
        x *= x
        total += x * x
    return float(np.log(total) / 16.0)


@joined_inner
def overflow(traffic: Traffic, used: FloatArray) -> float:
    """How much state (bytes of `used` (D,)) does not fit, as a part of all; with a fixed part."""
    excess = 0.0
    for d in range(len(used)):
        if used[d] > traffic.room[d]:
            excess += used[d] - traffic.room[d]
    return _ANY_EXCESS + excess / traffic.all_state if excess > 0.0 else 0.0


@joined_inner
def adapt(charge: FloatArray, excess: float) -> None:
    """Raise the charge for state that does not fit with every move while some does not."""
    charge[0] *= _RISE if excess > 0.0 else _FALL
    charge[0] = min(max(charge[0], _CHEAPEST), _DEAREST)


@joined_inner
def pick(count: int, random: np.random.Generator) -> int:
    """One of 0..count-1."""
    return int(random.random() * count)


@joined_inner
def target(traffic: Traffic, device: IndexArray, a: int, random: np.random.Generator) -> int:
    """A device for atom `a`: mostly that of an atom with which it exchanges a parcel."""
    sent = traffic.sent_ptr[a + 1] - traffic.sent_ptr[a]
    total = sent + traffic.read_ptr[a + 1] - traffic.read_ptr[a]
    if total == 0 or random.random() >= _NEIGHBOUR:
        return int(pick(len(traffic.room), random))
    k = pick(total, random)
    if k < sent:
        h = traffic.sent[traffic.sent_ptr[a] + k]
    else:
        h = traffic.read[traffic.read_ptr[a] + k - sent]
        if random.random() < _NEIGHBOUR:
            return int(device[traffic.sender[h]])
    first = traffic.reader_ptr[h]
    return int(device[traffic.reader[first + pick(traffic.reader_ptr[h + 1] - first, random)]])


@joined_inner
def join(b: int, d: int, e: int, count: int, device: IndexArray, trial: Proposal) -> int:
    """Have atom `b` of device d go to e with the cluster, if it does not yet; the new number."""
    if device[b] != d or trial.mark[b] == trial.ticket[0]:
        return count
    trial.mark[b] = trial.ticket[0]
    trial.member[count], trial.goal[count] = b, e
    return count + 1


@joined_inner
def cluster(
    traffic: Traffic,
    device: IndexArray,  # (A,)
    trial: Proposal,
    begin: int,  # members already there
    seed: int,
    e: int,
    size: int,
    random: np.random.Generator,
) -> int:
    """Have atoms around `seed`, joined to it by parcels on its device, go to device `e`.

    Atoms join in random order until there are `size`; a parcel's last readers may exceed it.
    Returns the members now there.
    """
    d = device[seed]
    trial.ticket[0] += 1
    count: int = join(seed, d, e, begin, device, trial)
    done = begin
    while done < count and count - begin < size:
        i = done + pick(count - done, random)
        a = trial.member[i]
        trial.member[i], trial.member[done] = trial.member[done], a
        done += 1
        for k in range(traffic.sent_ptr[a], traffic.sent_ptr[a + 1]):
            h = traffic.sent[k]
            for j in range(traffic.reader_ptr[h], traffic.reader_ptr[h + 1]):
                count = join(traffic.reader[j], d, e, count, device, trial)
        for k in range(traffic.read_ptr[a], traffic.read_ptr[a + 1]):
            h = traffic.read[k]
            count = join(traffic.sender[h], d, e, count, device, trial)
            for j in range(traffic.reader_ptr[h], traffic.reader_ptr[h + 1]):
                count = join(traffic.reader[j], d, e, count, device, trial)
    return count


@joined
def propose(
    traffic: Traffic,
    device: IndexArray,  # (A,)
    trial: Proposal,
    largest: int,  # atoms of a cluster
    random: np.random.Generator,
) -> int:
    """Draw a move; returns the number of atoms that change devices, 0 where it is not allowed."""
    kind = random.random()
    a = pick(len(device), random)
    d, e = device[a], target(traffic, device, a, random)
    count = 1
    trial.member[0], trial.goal[0] = a, e
    if kind >= _CLUSTERS:  # two devices change places
        count = 0
        for b in range(len(device)):
            if device[b] == d or device[b] == e:
                trial.member[count] = b
                trial.goal[count] = e if device[b] == d else d
                count += 1
    elif kind >= _EXCHANGE:  # a cluster, or two that change places
        size = int(2.0 ** (random.random() * np.log2(largest)) + 1.0)
        b = pick(len(device), random)
        if kind >= _CLUSTER:
            e = device[b]
        if d != e:
            count = cluster(traffic, device, trial, 0, a, e, size, random)
            if kind >= _CLUSTER:
                count = cluster(traffic, device, trial, count, b, d, size, random)
    elif kind >= _SINGLE:
        b = pick(len(device), random)
        e = device[b]
        trial.goal[0] = e
        trial.member[1], trial.goal[1] = b, d
        count = 2
    if d == e:
        return 0
    for i in range(count):
        if not traffic.allowed[trial.member[i], trial.goal[i]]:
            return 0
    return count


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


@compiled
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


@compiled
def anneal(  # noqa: PLR0912 - one loop, compiled
    traffic: Traffic,
    calls: Calls,
    loads: Loads,  # in and out: where the walk stands
    trial: Proposal,
    timed: bool,  # whether the objective is the latency, not the largest load
    balance: float,  # weight of all work beside the latency
    scale: float,  # seconds, a typical load or latency
    charge: FloatArray,  # (1,) in and out: cost of all state in excess, or all on circles
    temperature: float,  # relative change of the norm of the loads, or of the latency
    steps: int,
    largest: int,  # atoms of a cluster
    random: np.random.Generator,
    best: IndexArray,  # (A,) in and out
    least: FloatArray,  # (1,) in and out: seconds of `best`
) -> None:
    """`steps` proposed moves at one temperature, keeping the best placement that fits.

    The walk minimises the norm of the loads; or the latency plus `balance` times the work on all
    devices, which guides it where the latency does not change.
    """
    settle(traffic, loads)
    contiguous = len(traffic.after) > 0
    load, used = loads.load, loads.used
    seconds, excess = load.max(), overflow(traffic, used)
    now = norm(load, scale)
    if timed:
        seconds, stuck = latency(calls, loads.device, load)
        now, excess = (seconds + balance * load.sum()) / scale, excess + stuck
    if excess == 0.0 and seconds < least[0] and (not contiguous or in_line(loads.arcs)):
        least[0] = seconds
        best[:] = loads.device
    for _ in range(steps):
        adapt(charge, excess)
        count = propose(traffic, loads.device, trial, largest, random)
        if count == 0:
            continue
        limit = now + charge[0] * excess - temperature * np.log(1.0 - random.random())
        if count == 1 and not timed:  # most moves are refused: they need not be made
            a, e = trial.member[0], trial.goal[0]
            d, state = loads.device[a], traffic.state[a]
            here, there = change(traffic, loads, a, e)
            load_d, load_e, used_d, used_e = load[d], load[e], used[d], used[e]
            load[d], load[e] = load_d + here, load_e + there
            used[d], used[e] = used_d - state, used_e + state
            then = norm(load, scale) + charge[0] * overflow(traffic, used)
            load[d], load[e], used[d], used[e] = load_d, load_e, used_d, used_e
            if then > limit:
                continue
        for i in range(count):
            trial.origin[i] = loads.device[trial.member[i]]
            move(traffic, loads, trial.member[i], trial.goal[i])
        then, beyond = norm(load, scale), overflow(traffic, used)
        if timed:
            seconds = 0.0
            for d in range(len(load)):
                if d != calls.host and load[d] > seconds:
                    seconds = load[d]
            then = (seconds + balance * load.sum()) / scale
            if then + charge[0] * beyond <= limit:  # else the latency, no less, is refused, too
                seconds, stuck = latency(calls, loads.device, load)
                then = (seconds + balance * load.sum()) / scale
                beyond += stuck
        if then + charge[0] * beyond > limit or (contiguous and not in_line(loads.arcs)):
            for i in range(count - 1, -1, -1):
                move(traffic, loads, trial.member[i], trial.origin[i])
            continue
        now, excess = then, beyond
        seconds = seconds if timed else load.max()
        if excess == 0.0 and seconds < least[0]:
            least[0] = seconds
            best[:] = loads.device
