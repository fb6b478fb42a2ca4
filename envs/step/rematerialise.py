"""What becomes of saved activations: kept, computed again, or moved to the host and back.

All of it is a change of the graph. What is computed again is a second operator, what is moved
passes through an operator of the host; simulators, peak memory and checks apply as they stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.hardware.servers import with_hosts
from envs.step.problem import StepProblem


class Residence(IntEnum):
    """What becomes of what a forward operator computed, until its backward pass reads it."""

    KEEP = 0
    RECOMPUTE = 1
    OFFLOAD = 2


@dataclass(frozen=True, eq=False)
class Rematerialised:
    """A step in which some activations are computed again or moved to the host and back.

    Its operators are numbered in the order in which they run: `order` is 0, 1, 2, ...
    """

    problem: StepProblem  # N' operators; after the D devices the hosts that are used
    device: IntArray  # (N',)
    of: IntArray  # (N',) the operator that each is, computes again, or fetches the output of
    position: IntArray  # (N,) where each original operator is
    owners: IntArray  # (H,) the devices that the hosts belong to

    @property
    def order(self) -> IntArray:
        """(N',)."""
        return np.arange(len(self.of), dtype=np.int64)


def rematerialised(
    problem: StepProblem,
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    residence: IntArray,  # (N,) Residence of forward operators, KEEP of others
    *,
    named: bool = True,
) -> Rematerialised:
    """The step of a placement and an order when saved activations are treated as `residence` says.

    Only what backward (and optimizer) operators read on the operator's own device changes; what
    another device has received it keeps.

    * KEEP: the output stays until its last consumer has ended.
    * RECOMPUTE: a second run of the operator, of the backward phase, feeds those consumers and the
      second runs of other operators. It stands in the order right before the first operator that
      needs it, and waits for the operator before that one. Its inputs are read where they are:
      kept, computed again or fetched.
    * OFFLOAD: the output is sent to the host when it is there, and back when an operator of the
      host, the fetch, has run. A fetch takes no time and waits for an operator of the device:
      the last that ends early enough, by the seconds of the device's operators, for all its
      fetches to come one after the other just in time.

    Captured backward passes begin with operators that wait for no gradient, such as parts of the
    derivative of an activation. Those that read what is not kept stand in the order right before
    the first operator of their device that needs them.

    A second run takes as long as the first and the parameters it reads are there already. Where
    names of operators are not needed, `named=False` numbers them, which is faster.
    """
    graph = problem.graph
    n, t = graph.num_operators, graph.num_tensors
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    late = _postponed(graph.use_ptr, graph.use_op, graph.phase, device, place, residence)
    order = order[np.lexsort((late[order] == place[order], late[order]))]
    place[order] = np.arange(n)
    again, need, tensor_need = _needs(
        graph.use_ptr, graph.uses, graph.phase, device, place, residence, t
    )
    producer = graph.producer
    fetched = np.flatnonzero((residence[producer] == Residence.OFFLOAD) & (tensor_need < n))
    copied = np.flatnonzero(again)
    owners, host = np.unique(device[producer[fetched]], return_inverse=True)
    topology = with_hosts(problem.topology, owners) if len(owners) else problem.topology
    first_class = len(problem.topology.class_names)
    classes = topology.class_latency[first_class:], topology.class_bandwidth[first_class:]
    sizes = graph.tensor_bytes[:, None]
    to_host = np.where(sizes > 0, classes[0] + sizes / classes[1], 0.0)  # (T, new classes)
    hosts = problem.topology.num_devices + host.reshape(-1)
    way = topology.link_class[device[producer[fetched]], hosts] - first_class
    trigger = _triggers(
        device, order, problem.op_seconds[np.arange(n), device], copied, need, fetched,
        producer[fetched], tensor_need, place, to_host[fetched, way], topology.num_devices,
    )  # fmt: skip
    # in the order: second runs before the operator that needs them, fetches after their trigger
    at = np.concatenate([place, need[copied], place[trigger]])
    turn = np.concatenate(
        [np.full(n, 1), np.zeros(len(copied), np.int64), np.full(len(fetched), 2)]
    )
    then = np.concatenate([np.zeros(n, np.int64), place[copied], tensor_need[fetched]])
    by_time = np.lexsort((then, turn, at))
    number = np.empty(len(at), dtype=np.int64)
    number[by_time] = np.arange(len(at))
    of = np.concatenate([np.arange(n), copied, producer[fetched]])[by_time]
    made = _Numbers(
        again=number[n : n + len(copied)], fetch=number[n + len(copied) :], first=number[:n]
    )
    where = np.concatenate([device, device[copied], hosts])[by_time]
    expanded, tensor_of = _graph(
        graph, device, order, of, made, copied, fetched, need, trigger, named
    )
    real = tensor_of != NONE
    moved = np.concatenate([problem.transfer_seconds, to_host], axis=1)
    seconds = np.concatenate([problem.op_seconds[of], np.full((len(of), len(owners)), np.inf)], 1)
    seconds[made.fetch] = np.inf
    seconds[made.fetch, hosts] = 0.0
    capacity = [topology.devices[d].spec.memory_bytes for d in range(
        problem.topology.num_devices, topology.num_devices)]  # fmt: skip
    return Rematerialised(
        problem=replace(
            problem,
            graph=expanded,
            topology=topology,
            op_seconds=seconds,
            transfer_seconds=np.where(real[:, None], moved[tensor_of], 0.0),
            capacity=np.append(problem.capacity, capacity),
        ),
        device=where,
        of=of,
        position=made.first,
        owners=owners,
    )


def run_again(graph: OpGraph, device: IntArray, residence: IntArray) -> NDArray[np.bool_]:
    """(N,) the operators that are run a second time; the order does not matter."""
    place = np.arange(graph.num_operators)
    again: NDArray[np.bool_] = _needs(
        graph.use_ptr, graph.uses, graph.phase, device, place, residence, graph.num_tensors
    )[0]
    return again


@dataclass(frozen=True, eq=False)
class _Numbers:
    """The operators of the new graph."""

    first: IntArray  # (N,) of the original ones
    again: IntArray  # second runs
    fetch: IntArray  # fetches


def _graph(
    graph: OpGraph,
    device: IntArray,
    order: IntArray,
    of: IntArray,
    made: _Numbers,
    copied: IntArray,
    fetched: IntArray,
    need: IntArray,
    trigger: IntArray,
    named: bool,
) -> tuple[OpGraph, IntArray]:
    """The graph, and (T',) the tensor that each of its tensors has the bytes of, NONE: no bytes."""
    n, t = graph.num_operators, graph.num_tensors
    second = np.full(n, NONE, dtype=np.int64)
    second[copied] = made.again
    produced = np.flatnonzero(second[graph.producer] != NONE)  # tensors with a second run
    fresh = np.arange(t)  # the tensor that is read late, on its own device
    fresh[produced] = t + np.arange(len(produced))
    fresh[fetched] = t + len(produced) + np.arange(len(fetched))
    u, c, tensor = graph.edges.T
    own = (device[u] == device[c]) & (graph.phase[u] == Phase.FORWARD)
    late = own & (graph.phase[c] != Phase.FORWARD)
    reading = second[c] != NONE  # second runs read what their first runs read
    # a run of second runs waits for the operator of its device before the one that needs them
    before = _before(device, order)
    waits = before[order[need[copied]]]
    runs = np.flatnonzero(waits != NONE)
    gates, gate = np.unique(need[copied[runs]], return_inverse=True)
    gate_of = np.empty(len(gates), dtype=np.int64)
    gate_of[gate] = waits[runs]
    gate_tensor = t + len(produced) + len(fetched)
    trigger_tensor = gate_tensor + len(gates)
    count = trigger_tensor + len(fetched)
    reader = np.concatenate([
        made.first[c], second[c[reading]], made.fetch, made.again[runs], made.fetch,
    ])  # fmt: skip
    read = np.concatenate([
        np.where(late, fresh[tensor], tensor),
        np.where(own[reading], fresh[tensor[reading]], tensor[reading]),
        fetched, gate_tensor + gate.reshape(-1), trigger_tensor + np.arange(len(fetched)),
    ])  # fmt: skip
    sorting = np.lexsort((reader, read))
    tensor_of = np.concatenate(
        [np.arange(t), produced, fetched, np.full(len(gates) + len(fetched), NONE)]
    )
    producer = np.concatenate([
        made.first[graph.producer], second[graph.producer[produced]], made.fetch,
        made.first[gate_of], made.first[trigger],
    ])  # fmt: skip
    is_fetch, is_again = np.zeros((2, len(of)), dtype=np.bool_)
    is_fetch[made.fetch], is_again[made.again] = True, True
    new = is_fetch | is_again
    names = _numbers(1 << len(of).bit_length())[: len(of)]
    if named:
        name = [graph.op_names[op] for op in of.tolist()]
        for op in made.again.tolist():
            name[op] += "/again"
        for op, what in zip(made.fetch.tolist(), fetched.tolist(), strict=True):
            name[op] += f"/fetch{what}"
        names = tuple(name)
    mirror = np.where(graph.mirror[of] == NONE, NONE, made.first[graph.mirror[of]])
    real = tensor_of != NONE
    expanded = replace(
        graph,
        op_names=names,
        kind=np.where(is_fetch, int(Kind.DATA_MOVEMENT), graph.kind[of]),
        phase=np.where(new, int(Phase.BACKWARD), graph.phase[of]),
        micro_batch=graph.micro_batch[of],
        replica=graph.replica[of],
        flop=np.where(is_fetch, 0.0, graph.flop[of]),
        bytes_read=np.where(is_fetch, 0.0, graph.bytes_read[of]),
        bytes_written=np.where(is_fetch, 0.0, graph.bytes_written[of]),
        op_dtype=graph.op_dtype[of],
        colocation=np.where(is_fetch, NONE, graph.colocation[of]),
        mirror=np.where(new, made.first[of], mirror),
        tensor_bytes=np.where(real, graph.tensor_bytes[tensor_of], 0.0),
        tensor_dtype=graph.tensor_dtype[np.maximum(tensor_of, 0)],
        producer=producer,
        consumer_ptr=np.searchsorted(read[sorting], np.arange(count + 1)).astype(np.int64),
        consumer=reader[sorting],
        parameter_owner=made.first[graph.parameter_owner],
        profile_classes=(),  # the seconds are worked out
        profile_seconds=np.zeros((0, 0)),
        link_classes=(),
        link_seconds=np.zeros((0, 0)),
    )
    return expanded, tensor_of


@cache
def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


@compiled
def _postponed(
    use_ptr: IntArray,  # (N + 1,)
    use_op: IntArray,  # (C,)
    phase: IntArray,  # (N,)
    device: IntArray,  # (N,)
    place: IntArray,  # (N,) position in the order
    residence: IntArray,  # (N,)
) -> IntArray:
    """(N,) the position right before which each operator runs; its own where nothing changes.

    A gradient begins at the loss: where a forward operator feeds no other one.
    """
    n = len(device)
    gradient, reads = np.zeros((2, n), dtype=np.bool_)
    for u in range(n):
        forward = phase[u] == Phase.FORWARD
        last = forward
        for k in range(use_ptr[u], use_ptr[u + 1]):
            last = last and phase[use_op[k]] != Phase.FORWARD
        for k in range(use_ptr[u], use_ptr[u + 1]):
            c = use_op[k]
            if phase[c] != Phase.FORWARD:
                gradient[c] |= last if forward else gradient[u]
                lost = residence[u] != 0 if forward else reads[u]
                reads[c] |= lost and device[c] == device[u]
    late = place.copy()
    for u in range(n - 1, -1, -1):
        if not reads[u] or gradient[u]:
            continue
        first = n
        for k in range(use_ptr[u], use_ptr[u + 1]):
            c = use_op[k]
            first = min(first, late[c] if device[c] == device[u] else -1)
        if place[u] < first < n:
            late[u] = first
    return late


@compiled
def _needs(
    use_ptr: IntArray,  # (N + 1,)
    uses: IntArray,  # (C, 3) consumer, tensor, slot
    phase: IntArray,  # (N,)
    device: IntArray,  # (N,)
    place: IntArray,  # (N,) position in the order
    residence: IntArray,  # (N,)
    num_tensors: int,
) -> tuple[NDArray[np.bool_], IntArray, IntArray]:
    """(N,) what is run again; (N,) and (T,) the first position that needs it, N: none."""
    n = len(device)
    again = np.zeros(n, np.bool_)
    need, tensor_need = np.full(n, n), np.full(num_tensors, n)
    for u in range(n - 1, -1, -1):
        if residence[u] == 0 or phase[u] != Phase.FORWARD:
            continue
        for k in range(use_ptr[u], use_ptr[u + 1]):
            c = uses[k, 0]
            if device[c] != device[u]:
                continue
            first = n
            if phase[c] != Phase.FORWARD:
                first = place[c]
            elif again[c]:
                first = need[c]
            tensor_need[uses[k, 1]] = min(tensor_need[uses[k, 1]], first)
            need[u] = min(need[u], first)
        again[u] = residence[u] == Residence.RECOMPUTE and need[u] < n
    return again, need, tensor_need


@compiled
def _before(device: IntArray, order: IntArray) -> IntArray:
    """(N,) the operator before each on its device, NONE before the first."""
    before = np.full(len(order), NONE)
    last = np.full(device.max() + 1, NONE)
    for op in order:
        before[op] = last[device[op]]
        last[device[op]] = op
    return before


@compiled
def _triggers(
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    seconds: FloatArray,  # (N,)
    copied: IntArray,  # operators run again
    need: IntArray,  # (N,)
    fetched: IntArray,  # (F,) tensors
    source: IntArray,  # (F,) their producers
    tensor_need: IntArray,  # (T,)
    place: IntArray,  # (N,)
    travel: FloatArray,  # (F,) seconds from the host
    devices: int,
) -> IntArray:
    """(F,) the operator each fetch waits for: one of its device, not before the tensor's producer.

    Walks back from the fetch that is needed last.
    """
    n = len(order)
    extra = np.zeros(n)
    for op in copied:
        extra[need[op]] += seconds[op]
    clock = np.zeros(devices)
    end, before = np.empty(n), np.full(n, NONE)  # by position: of the operator, and before it
    last = np.full(devices, NONE)
    for p in range(n):
        d = device[order[p]]
        before[p], last[d] = last[d], p
        clock[d] += extra[p] + seconds[order[p]]
        end[p] = clock[d]
    begin = np.full(devices, np.inf)
    trigger = np.empty(len(fetched), dtype=np.int64)
    for f in np.argsort(-tensor_need[fetched], kind="mergesort"):
        d, p = device[source[f]], before[tensor_need[fetched[f]]]
        begin[d] = min(begin[d], end[p]) - travel[f]
        while p > place[source[f]] and end[p] > begin[d]:
            p = before[p]
        trigger[f] = order[p]
    return trigger
