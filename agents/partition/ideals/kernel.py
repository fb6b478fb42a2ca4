"""Lines of stages within a limit: the compiled dynamic program over ideals.

An ideal that devices in use can hold is a *source*: from it every larger ideal is reached whose
difference, the next device's stage, keeps to the limit. The devices in use are a vector of counts
per class. Ideals are visited by rising size. Either no load of a stage may exceed the limit, or no
sum of the stages of a line, between which the host runs items one by one.

A stage is the difference J \\ I of two ideals. It pays for the messages of which some members, not
all, are in J \\ I. Let cut(X) be the seconds of the messages that have members in X and outside,
and call those of cut(I) open. With in(I, J) the seconds of the open messages that have a member in
J \\ I, and done(I, J) those of the open messages that have none outside J,

    load(J \\ I) = compute(J) - compute(I) + cut(J) - cut(I) + in(I, J) + done(I, J)

A message that is not open counts in cut(J) and nowhere else. An open one with a member outside J
cancels in cut(J) - cut(I), and counts in `in` if it has a member in the stage; one with none
outside J counts in `in` and in `done`, less once in cut(I). `in` can only grow with J, like compute
and state: the three prune the search. So J is searched depth first from I along covers, each J
once.

When every open message has all its members in J, the load separates,

    load(J \\ I) = [compute(J) + cut(J)] - [compute(I) - cut(I)]

and where no load may exceed the limit, a list of the sources that no other source excels, in
compute(I) - cut(I) and in state, replaces the search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.partition.ideals.lattice import ByteArray, holds
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.step.kernel import IndexArray

SignedArray = NDArray[np.int32]

LEFT_OUT, ON_HOST = -1, -2  # in the place of a class: how else a line goes on


class Line(NamedTuple):
    """The facts: P ideals, n items, M messages, K device classes, S vectors of counts."""

    ptr: IndexArray  # (P + 1,) covers of each ideal
    item: IndexArray  # (covers,)
    upper: IndexArray  # (covers,)
    bits: ByteArray  # (P, bytes)
    compute: FloatArray  # (P, K) seconds of the ideal's items
    cut: FloatArray  # (P, K) seconds of the messages between the ideal and the rest
    held: FloatArray  # (P,) bytes of state
    apart: IntArray  # (P,) the ideals from this one on have no message in common with it
    behind: IntArray  # (P,) the ideals up to this one have no message in common with it; -1: none
    open_ptr: IntArray  # (P + 1,)
    open: IntArray  # messages that are in the cut of each ideal
    capacity: FloatArray  # (K,) bytes
    member_ptr: IntArray  # (M + 1,) items of each message
    member: IntArray
    weight: FloatArray  # (M, K) seconds
    stride: IntArray  # (K,) what one more device of the class adds to a vector's number
    following: BoolArray  # (K, S) whether a device of the class may come next
    skip: bool  # devices come in a fixed order, and one may be left out
    summed: bool  # whether the limit is on the sum of the loads, not on each
    host: FloatArray  # (n,) seconds of an item between two stages, inf: no item may be there
    need: FloatArray  # (R, P) weighed seconds of the items outside the ideal
    supply: FloatArray  # (R, S) weighed devices left: need / supply is no more than what is to come


class Work(NamedTuple):
    """What a search writes."""

    value: FloatArray  # (P, S) the smallest sum that holds the ideal, inf: none; 0: not summed
    source: SignedArray  # (P, S) the ideal before the last stage
    last: NDArray[np.int8]  # (P, S) the class of the last stage, `LEFT_OUT` or `ON_HOST`
    stamp: SignedArray  # (P,) the last source that reached the ideal
    outside: IntArray  # (M,) members of the message outside the source
    missing: IntArray  # (M,) members of the message outside the stage and its source
    link: IntArray  # (n,) first of the item's open messages, -1: none
    link_message: IntArray  # (links,) the message
    link_next: IntArray  # (links,) the item's next, -1: none
    node: IndexArray  # (n + 1,) the path from the source: ideals
    cursor: IndexArray  # (n + 1,) the next cover
    added: IndexArray  # (n + 1,) the item that was added
    path_in: FloatArray  # (n + 2, K) seconds of the open messages with a member in the stage
    path_done: FloatArray  # (n + 2, K) seconds of those with no member outside stage and source
    best_value: FloatArray  # (K, S, F) cut - compute of sources, rising
    best_state: FloatArray  # (K, S, F) rising
    best_ideal: IntArray  # (K, S, F)
    best_count: IntArray  # (K, S)
    tally: IntArray  # (4,) ideals listed, pairs and ideals visited, 1: lists are full, 1: all held
    above: FloatArray  # (1,) the smallest load that was refused


@compiled
def prefix_sums(
    bits: ByteArray,
    parent: IntArray,
    grown: IntArray,
    table: FloatArray,  # (n, C)
    message_ptr: IntArray,  # (n + 1,) messages of each item
    message: IntArray,
    member_ptr: IntArray,
    member: IntArray,
    weight: FloatArray,
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """(P, C) sums of the rows of `table` in each ideal; `cut`, `open_ptr`, `open` of `Line`."""
    total = np.zeros((len(parent), table.shape[1]))
    cut = np.zeros((len(parent), weight.shape[1]))
    open_ptr = np.zeros(len(parent) + 1, dtype=np.int64)
    opened = np.zeros(4 * len(parent), dtype=np.int64)
    count = 0
    for j in range(1, len(parent)):
        i, v = parent[j], grown[j]
        total[j] = total[i] + table[v]
        most = count + open_ptr[i + 1] - open_ptr[i] + message_ptr[v + 1] - message_ptr[v]
        if most > len(opened):
            opened = np.concatenate((opened, np.zeros(most, np.int64)))
        for q in range(open_ptr[i], open_ptr[i + 1]):
            if _outside(bits, j, member_ptr, member, opened[q]) > 0:
                opened[count] = opened[q]
                count += 1
        for q in range(message_ptr[v], message_ptr[v + 1]):
            m = message[q]
            if _outside(bits, j, member_ptr, member, m) == member_ptr[m + 1] - member_ptr[m] - 1:
                opened[count] = m
                count += 1
        open_ptr[j + 1] = count
        for q in range(open_ptr[j], count):
            cut[j] += weight[opened[q]]
    return total, cut, open_ptr, opened[:count].copy()


@compiled_inner
def _outside(bits: ByteArray, j: int, member_ptr: IntArray, member: IntArray, m: int) -> int:
    """How many members of message m are outside ideal j."""
    outside = 0
    for a in range(member_ptr[m], member_ptr[m + 1]):
        if not holds(bits, j, member[a]):
            outside += 1
    return outside


@compiled
def advance(  # noqa: PLR0912 - one loop, compiled
    line: Line, work: Work, limit: float, begin: int, end: int
) -> None:
    """Make the ideals begin..end-1 sources, in turn; stop when all items are held within a limit.

    A limit on the sum is for the smallest: then nothing stops before the last ideal.
    """
    classes, vectors = line.following.shape
    least = np.empty(classes)  # the smallest value before a device of the class
    for i in range(begin, end):
        past = min(line.behind[i], i - 1) + 1
        while work.tally[0] < past and not work.tally[2]:
            _list(line, work, work.tally[0])
            work.tally[0] += 1
        if work.tally[2]:
            return
        if not line.summed:
            work.tally[1] += 1
        if past > 0:
            _pull(line, work, limit, i)
        if line.skip:
            for s in range(vectors - 1):
                _reach(work, i, s + 1, work.value[i, s], i, LEFT_OUT)
        least[:] = np.inf
        for s in range(vectors):
            ahead = (line.need[:, i] / line.supply[:, s]).max()
            # for loads the bound of all items is known: those refused further on say more
            if (i > 0 or line.summed) and work.value[i, s] + ahead > limit:
                if work.value[i, s] < np.inf:
                    work.above[0] = min(work.above[0], ahead)
                work.value[i, s] = np.inf
            for k in range(classes):
                if line.following[k, s]:
                    least[k] = min(least[k], work.value[i, s])
        if not line.summed and work.value[-1].min() < np.inf:
            work.tally[3] = 1
            return
        for c in range(line.ptr[i], line.ptr[i + 1]):
            for s in range(vectors):
                total = work.value[i, s] + line.host[line.item[c]]
                _reach(work, line.upper[c], s, total, i, ON_HOST)
        if (least if line.summed else work.value[i]).min() < np.inf:
            _push(line, work, limit, i, least)


@compiled_inner
def _reach(work: Work, j: int, s: int, value: float, i: int, k: int) -> None:
    """Note that a device of class k leads from ideal i to ideal j, if that is the smallest yet."""
    if value < work.value[j, s]:
        work.value[j, s] = value
        work.source[j, s] = i
        work.last[j, s] = k


@compiled_inner
def _push(
    line: Line,
    work: Work,
    limit: float,
    i: int,
    least: FloatArray,  # (K,)
) -> None:
    """Reach from ideal i every ideal before `apart[i]` whose stage keeps to the limit."""
    _open_stage(line, work, i)
    work.node[0], work.cursor[0] = i, line.ptr[i]
    work.path_in[0] = 0.0
    work.path_done[0] = 0.0
    depth = 0
    while True:
        c = work.cursor[depth]
        if c == line.ptr[work.node[depth] + np.uint32(1)]:
            if depth == 0:
                break
            _leave_stage(work, work.added[depth])
            depth -= 1
            continue
        work.cursor[depth] = c + np.uint32(1)
        j, v = line.upper[c], line.item[c]
        if j >= line.apart[i] or work.stamp[j] == i:
            continue
        work.stamp[j] = i
        work.tally[1] += 1
        work.node[depth + 1], work.cursor[depth + 1], work.added[depth + 1] = j, line.ptr[j], v
        _enter_stage(line, work, v, depth)
        alive = False
        for k in range(len(least)):
            if least[k] == np.inf or line.held[j] - line.held[i] > line.capacity[k]:
                continue
            around = least[k] + line.need[0, j] if line.summed else 0.0
            floor = line.compute[j, k] - line.compute[i, k] + work.path_in[depth + 1, k]
            if around + floor > limit:
                work.above[0] = min(work.above[0], floor)
                continue
            alive = True
            load = floor + line.cut[j, k] - line.cut[i, k] + work.path_done[depth + 1, k]
            if around + load > limit:
                work.above[0] = min(work.above[0], load)
                continue
            added = load if line.summed else 0.0
            for s in range(line.supply.shape[1]):
                value, after = work.value[i, s] + added, s + line.stride[k]
                if line.following[k, s] and value < work.value[j, after]:  # rarely: a call is slow
                    _reach(work, j, after, value, i, k)
        if alive:
            depth += 1
        else:
            _leave_stage(work, v)
    _close_stage(line, work, i)


@compiled_inner
def _open_stage(line: Line, work: Work, i: int) -> None:
    """Note at every item outside ideal i the messages it shares with the ideal."""
    link = 0
    for q in range(line.open_ptr[i], line.open_ptr[i + 1]):
        m = line.open[q]
        work.outside[m] = 0
        for a in range(line.member_ptr[m], line.member_ptr[m + 1]):
            v = line.member[a]
            if not holds(line.bits, i, v):
                work.outside[m] += 1
                work.link_message[link], work.link_next[link] = m, work.link[v]
                work.link[v] = link
                link += 1
        work.missing[m] = work.outside[m]


@compiled_inner
def _close_stage(line: Line, work: Work, i: int) -> None:
    """Undo `_open_stage`."""
    for q in range(line.open_ptr[i], line.open_ptr[i + 1]):
        m = line.open[q]
        for a in range(line.member_ptr[m], line.member_ptr[m + 1]):
            work.link[line.member[a]] = -1


@compiled_inner
def _enter_stage(line: Line, work: Work, v: int, depth: int) -> None:
    """Add item v to the stage; the sums with it stand at depth + 1."""
    for k in range(len(line.capacity)):
        work.path_in[depth + 1, k] = work.path_in[depth, k]
        work.path_done[depth + 1, k] = work.path_done[depth, k]
    link = work.link[v]
    while link >= 0:
        m = work.link_message[link]
        if work.missing[m] == work.outside[m]:
            for k in range(len(line.capacity)):
                work.path_in[depth + 1, k] += line.weight[m, k]
        work.missing[m] -= 1
        if work.missing[m] == 0:
            for k in range(len(line.capacity)):
                work.path_done[depth + 1, k] += line.weight[m, k]
        link = work.link_next[link]


@compiled_inner
def _leave_stage(work: Work, v: int) -> None:
    """Take item v out of the stage; the sums of the depth before still stand."""
    link = work.link[v]
    while link >= 0:
        work.missing[work.link_message[link]] += 1
        link = work.link_next[link]


@compiled_inner
def _pull(line: Line, work: Work, limit: float, j: int) -> None:
    """Reach ideal j from the sources that have no message in common with it."""
    for k in range(len(line.capacity)):
        most = limit - (line.compute[j, k] + line.cut[j, k])
        held = line.held[j] - line.capacity[k]
        for s in range(work.source.shape[1]):
            count = work.best_count[k, s] if line.following[k, s] else 0
            if count == 0 or work.value[j, s + line.stride[k]] < np.inf:
                continue
            values, states = work.best_value[k, s], work.best_state[k, s]
            after = np.searchsorted(values[:count], most, side="right")
            if after > 0 and states[after - 1] >= held:
                _reach(work, j, s + line.stride[k], 0.0, work.best_ideal[k, s, after - 1], k)
                continue
            while after < count and states[after] < held:
                after += 1
            if after < count:
                refused = line.compute[j, k] + line.cut[j, k] + values[after]
                work.above[0] = min(work.above[0], refused)


@compiled_inner
def _list(line: Line, work: Work, i: int) -> None:
    """Put source i among the sources that `_pull` looks at."""
    room = work.best_value.shape[2]
    for k in range(len(line.capacity)):
        value, state = line.cut[i, k] - line.compute[i, k], line.held[i]
        for s in range(work.source.shape[1]):
            if work.value[i, s] == np.inf:
                continue
            values, states = work.best_value[k, s], work.best_state[k, s]
            ideals, count = work.best_ideal[k, s], work.best_count[k, s]
            place = np.searchsorted(values[:count], value, side="right")
            if place > 0 and states[place - 1] >= state:
                continue
            beaten = place
            while beaten < count and states[beaten] <= state:
                beaten += 1
            shift = 1 - (beaten - place)
            if count + shift > room:
                work.tally[2] = 1
                return
            values[place + 1 : count + shift] = values[beaten:count].copy()
            states[place + 1 : count + shift] = states[beaten:count].copy()
            ideals[place + 1 : count + shift] = ideals[beaten:count].copy()
            values[place], states[place], ideals[place] = value, state, i
            work.best_count[k, s] = count + shift
