"""Whether a line of devices can hold all items with no load above a limit: the compiled search.

Ideals are visited by rising size. An ideal that devices in use can hold is a *source*: from it
every larger ideal is reached whose difference, the next device's stage, keeps to the limit. The
devices in use are a vector of counts per class; all vectors known for an ideal are one word of
bits.

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

and a list of the sources that no other source excels, in compute(I) - cut(I) and in state, replaces
the search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.partition.ideals.lattice import BitArray, holds
from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.step.kernel import IndexArray

SignedArray = NDArray[np.int32]


class Line(NamedTuple):
    """The facts: P ideals, n items, M messages, K device classes, S vectors of counts."""

    ptr: IndexArray  # (P + 1,) covers of each ideal
    item: IndexArray  # (covers,)
    upper: IndexArray  # (covers,)
    bits: BitArray  # (P, words)
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
    spare: BitArray  # (K,) the vectors from which a device of the class may come next, as bits
    skip: bool  # devices come in a fixed order, and one may be left out
    need: FloatArray  # (R, P) weighed seconds of the items outside the ideal
    supply: FloatArray  # (R, S) weighed devices left: need / supply bounds the limit from below


class Work(NamedTuple):
    """What a search writes."""

    reach: BitArray  # (P,) vectors of devices that can hold the ideal, as bits
    source: SignedArray  # (P, S) the ideal before the last stage
    last: NDArray[np.int8]  # (P, S) the class of the last stage, -1: a device left out
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
    best_value: FloatArray  # (K, S, F) sources by falling value and rising state
    best_state: FloatArray  # (K, S, F)
    best_ideal: IntArray  # (K, S, F)
    best_count: IntArray  # (K, S)
    listed: BitArray  # (K,) the vectors with a source in the list, as bits
    tally: IntArray  # (4,) ideals listed, pairs and ideals visited, 1: lists are full, 1: all held
    above: FloatArray  # (1,) the smallest load that was refused


@compiled
def prefix_sums(
    bits: BitArray,
    parent: IntArray,
    grown: IntArray,
    seconds: FloatArray,  # (n, K)
    state: FloatArray,  # (n,)
    message_ptr: IntArray,  # (n + 1,) messages of each item
    message: IntArray,
    member_ptr: IntArray,
    member: IntArray,
    weight: FloatArray,
    item_need: FloatArray,  # (R, n)
    compute: FloatArray,  # (P, K) out
    cut: FloatArray,  # (P, K) out
    held: FloatArray,  # (P,) out
    need: FloatArray,  # (R, P) out
) -> tuple[IntArray, IntArray]:
    """The columns of `Line` that add up along parents; returns `open_ptr` and `open`."""
    open_ptr = np.zeros(len(parent) + 1, dtype=np.int64)
    opened = np.zeros(4 * len(parent), dtype=np.int64)
    count = 0
    for r in range(len(item_need)):
        need[r, 0] = item_need[r].sum()
    for j in range(1, len(parent)):
        i, v = parent[j], grown[j]
        held[j] = held[i] + state[v]
        compute[j] = compute[i] + seconds[v]
        for r in range(len(item_need)):
            need[r, j] = need[r, i] - item_need[r, v]
        open_ptr[j] = count
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
    return open_ptr, opened[:count].copy()


@compiled_inner
def _outside(bits: BitArray, j: int, member_ptr: IntArray, member: IntArray, m: int) -> int:
    """How many members of message m are outside ideal j."""
    outside = 0
    for a in range(member_ptr[m], member_ptr[m + 1]):
        if not holds(bits, j, member[a]):
            outside += 1
    return outside


@compiled
def advance(line: Line, work: Work, limit: float, begin: int, end: int) -> None:
    """Make the ideals begin..end-1 sources, in turn; stop when all items are held."""
    full = len(line.held) - 1
    for i in range(begin, end):
        past = min(line.behind[i], i - 1) + 1
        while work.tally[0] < past and not work.tally[2]:
            if work.reach[work.tally[0]]:
                _list(line, work, work.tally[0])
            work.tally[0] += 1
        if work.tally[2]:
            return
        work.tally[1] += 1
        if past > 0:
            _pull(line, work, limit, i)
        if line.skip:
            _leave_out(work, i)
        if i > 0 and work.reach[i]:
            _drop_hopeless(line, work, limit, i)
        if work.reach[full]:
            work.tally[3] = 1
            return
        if work.reach[i]:
            _push(line, work, limit, i)


@compiled_inner
def _leave_out(work: Work, i: int) -> None:
    """Reach at ideal i the vectors that leave out the next devices of a fixed order."""
    for s in range(work.source.shape[1] - 1):
        if work.reach[i] >> np.uint64(s) & np.uint64(1):
            _reached(work, i, np.uint64(1) << np.uint64(s + 1), i, -1)


@compiled_inner
def _drop_hopeless(line: Line, work: Work, limit: float, i: int) -> None:
    """Forget the vectors whose devices left cannot compute the items left."""
    if i == len(line.held) - 1:
        return
    for s in range(work.source.shape[1]):
        bit = np.uint64(1) << np.uint64(s)
        if not work.reach[i] & bit:
            continue
        least = 0.0
        for r in range(len(line.need)):
            supply, need = line.supply[r, s], line.need[r, i]
            if supply > 0.0:
                least = max(least, need / supply)
            elif need > line.need[r, 0] * 1e-9:
                least = np.inf
        least *= 1.0 - 1e-9
        if least > limit:
            work.reach[i] &= ~bit
            work.above[0] = min(work.above[0], least)


@compiled_inner
def _reached(work: Work, j: int, bits: int, i: int, k: int) -> None:
    """Note that a device of class k leads from ideal i to ideal j with the vectors `bits`."""
    fresh = bits & ~work.reach[j]
    if not fresh:
        return
    work.reach[j] |= fresh
    for s in range(work.source.shape[1]):
        if fresh >> np.uint64(s) & np.uint64(1):
            work.source[j, s] = i
            work.last[j, s] = k


@compiled_inner
def _push(line: Line, work: Work, limit: float, i: int) -> None:
    """Reach from ideal i every ideal before `apart[i]` whose stage keeps to the limit."""
    classes = len(line.capacity)
    reach = work.reach[i]
    depth = next_above(line, work, i, line.apart[i], -1, False)
    while depth >= 0:
        j = work.node[depth + 1]
        state = line.held[j] - line.held[i]
        alive = False
        for k in range(classes):
            usable = reach & line.spare[k]
            if not usable or state > line.capacity[k]:
                continue
            floor = line.compute[j, k] - line.compute[i, k] + work.path_in[depth + 1, k]
            if floor > limit:
                work.above[0] = min(work.above[0], floor)
                continue
            alive = True
            load = floor + line.cut[j, k] - line.cut[i, k] + work.path_done[depth + 1, k]
            if load <= limit:
                _reached(work, j, usable << np.uint64(line.stride[k]), i, k)
            else:
                work.above[0] = min(work.above[0], load)
        depth = next_above(line, work, i, line.apart[i], depth, alive)


@compiled_inner
def next_above(line: Line, work: Work, i: int, end: int, depth: int, alive: bool) -> int:
    """Go on through the ideals before `end` that one stage leads to from ideal i.

    The last ideal stands in `work.node` at depth + 1, and so do the sums of its stage; above it
    others are looked at if it is `alive`. Returns the depth of the next; before the first, and
    after the last, the depth is -1.
    """
    if depth < 0:
        _open_stage(line, work, i)
        work.node[0], work.cursor[0] = i, line.ptr[i]
        work.path_in[0] = 0.0
        work.path_done[0] = 0.0
        depth = 0
    elif alive:
        depth += 1
    else:
        _leave_stage(work, work.added[depth + 1])
    while True:
        c = work.cursor[depth]
        if c == line.ptr[work.node[depth] + np.uint32(1)]:
            if depth == 0:
                _close_stage(line, work, i)
                return -1
            _leave_stage(work, work.added[depth])
            depth -= 1
            continue
        work.cursor[depth] = c + np.uint32(1)
        j, v = line.upper[c], line.item[c]
        if j >= end or work.stamp[j] == i:
            continue
        work.stamp[j] = i
        work.tally[1] += 1
        work.node[depth + 1], work.cursor[depth + 1], work.added[depth + 1] = j, line.ptr[j], v
        _enter_stage(line, work, v, depth)
        return depth


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
        usable = work.listed[k] & line.spare[k] & ~(work.reach[j] >> np.uint64(line.stride[k]))
        if not usable:
            continue
        least = line.compute[j, k] + line.cut[j, k] - limit
        held = line.held[j] - line.capacity[k]
        for s in range(work.source.shape[1]):
            if not usable >> np.uint64(s) & np.uint64(1):
                continue
            count = work.best_count[k, s]
            values, states = work.best_value[k, s], work.best_state[k, s]
            after = _first_below(values, count, least)
            if after > 0 and states[after - 1] >= held:
                bit = np.uint64(1) << np.uint64(s + line.stride[k])
                _reached(work, j, bit, work.best_ideal[k, s, after - 1], k)
                continue
            while after < count and states[after] < held:
                after += 1
            if after < count:
                refused = line.compute[j, k] + line.cut[j, k] - values[after]
                work.above[0] = min(work.above[0], refused)


@compiled_inner
def _first_below(values: FloatArray, count: int, least: float) -> int:
    """The first of `count` falling values that is below `least`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if values[middle] >= least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_inner
def _list(line: Line, work: Work, i: int) -> None:
    """Put source i among the sources that `_pull` looks at."""
    room = work.best_value.shape[2]
    for k in range(len(line.capacity)):
        value, state = line.compute[i, k] - line.cut[i, k], line.held[i]
        for s in range(work.source.shape[1]):
            if not work.reach[i] >> np.uint64(s) & np.uint64(1):
                continue
            values, states = work.best_value[k, s], work.best_state[k, s]
            ideals, count = work.best_ideal[k, s], work.best_count[k, s]
            place = _first_below(values, count, value)
            if place > 0 and states[place - 1] >= state:
                continue
            beaten = place
            while beaten < count and states[beaten] <= state:
                beaten += 1
            shift = 1 - (beaten - place)
            if count + shift > room:
                work.tally[2] = 1
                return
            if shift > 0:
                for x in range(count - 1, beaten - 1, -1):
                    values[x + 1], states[x + 1], ideals[x + 1] = values[x], states[x], ideals[x]
            elif shift < 0:
                for x in range(beaten, count):
                    values[x + shift], states[x + shift] = values[x], states[x]
                    ideals[x + shift] = ideals[x]
            values[place], states[place], ideals[place] = value, state, i
            work.best_count[k, s] = count + shift
            work.listed[k] |= np.uint64(1) << np.uint64(s)
