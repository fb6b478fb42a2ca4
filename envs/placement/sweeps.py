"""Groups decided one after another or all at once: what each device would mean for a group.

A *sweep* passes over all groups once. In a sequential one every group is decided given those
decided before it in this sweep and where the later ones stand (nowhere, in a first sweep); in a
parallel one all are decided given where all the others stood before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.placement.whole import HIGH, LOW, UNPLACED, PlacementFacts, WholeLayout

FeatureArray = NDArray[np.float32]

CANDIDATE = 26  # width of the features of a group on a device
STATE_FITS = 8  # of them, the one that says whether the state fits


class Boards(NamedTuple):
    """B problems, padded to G groups, D devices, E edges, L link classes."""

    groups: IntArray  # (B,)
    devices: IntArray  # (B,)
    seconds: FloatArray  # (B, G, D)
    able: NDArray[np.bool_]  # (B, G, D)
    state: FloatArray  # (B, G)
    live: FloatArray  # (B, G)
    capacity: FloatArray  # (B, D)
    begin: FloatArray  # (B, D)
    end: FloatArray  # (B, D)
    place: FloatArray  # (B, G)
    edge_seconds: FloatArray  # (B, E, L)
    edge_forward: NDArray[np.bool_]  # (B, E)
    incident_ptr: IntArray  # (B, G + 1)
    incident: IntArray  # (B, 2 E, 3)
    link_class: IntArray  # (B, D, D)
    send_port: IntArray  # (B, D, D)
    receive_port: IntArray  # (B, D, D)
    server: IntArray  # (B, D)
    micro_batches: IntArray  # (B,)
    ports: int


_ARRAYS = tuple(name for name in Boards._fields if name in WholeLayout().shapes)


class Standing(NamedTuple):
    """Where the groups of S samples stand and what that comes to."""

    problem: IntArray  # (S,) of the boards
    device: IntArray  # (S, G)
    load: FloatArray  # (S, D)
    state: FloatArray  # (S, D)
    live: FloatArray  # (S, D)
    port: FloatArray  # (S, P)
    many: IntArray  # (S, D) groups
    visits: IntArray  # (S, D) runs of groups
    depth: IntArray  # (S, G) device changes on a forward path to it
    traffic: FloatArray  # (S, D) scratch
    into: FloatArray  # (S, D) scratch
    out: FloatArray  # (S, D) scratch


def side_by_side(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """(B, ...) all of them, each with zeros behind it up to the largest size of every axis."""
    shape = np.max([array.shape for array in arrays], axis=0)
    found = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for row, array in zip(found, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = array
    return found


def boards(facts: Sequence[PlacementFacts]) -> Boards:
    """The problems side by side."""
    sizes = {"groups": "num_groups", "devices": "num_devices", "micro_batches": "micro_batches"}
    return Boards(
        ports=max(one.num_ports for one in facts),
        **{name: np.array([getattr(one, size) for one in facts]) for name, size in sizes.items()},
        **{name: side_by_side([getattr(one, name) for one in facts]) for name in _ARRAYS},
    )


def boards_of(arrays: Mapping[str, NDArray[Any]]) -> Boards:
    """B observations, stacked, for the sweeps: cut to the largest real sizes."""
    sizes = arrays["sizes"]
    groups, devices, edges, classes = (int(sizes[:, k].max()) for k in range(1, 5))
    shapes = WholeLayout(groups, devices, max(edges, 1), max(classes, 1)).shapes
    found: dict[str, Any] = {}
    for name in _ARRAYS:
        cut = arrays[name][(slice(None), *(slice(size) for size in shapes[name]))]
        kind = {"float32": np.float64, "int8": np.bool_}.get(cut.dtype.name, np.int64)
        found[name] = np.ascontiguousarray(cut, dtype=kind)
    counts = {"groups": sizes[:, 1], "devices": sizes[:, 2], "micro_batches": sizes[:, 6]}
    found.update({name: count.copy() for name, count in counts.items()})
    return Boards(ports=int(sizes[:, 5].max()), **found)


def standing(given: Boards, problem: IntArray, device: IntArray | None = None) -> Standing:
    """As many samples as `problem` (S,) has, groups at `device` (S, G); None: nothing placed."""
    samples, (_, groups, devices) = len(problem), given.seconds.shape

    def zeros(width: int, kind: type = np.float64) -> Any:
        return np.zeros((samples, width), kind)

    now = Standing(
        problem=np.ascontiguousarray(problem, dtype=np.int64),
        device=np.full((samples, groups), UNPLACED, dtype=np.int64),
        load=zeros(devices), state=zeros(devices), live=zeros(devices), port=zeros(given.ports),
        many=zeros(devices, np.int64), visits=zeros(devices, np.int64),
        depth=zeros(groups, np.int64), traffic=zeros(devices), into=zeros(devices),
        out=zeros(devices),
    )  # fmt: skip
    if device is not None:
        put_all(given, now, np.ascontiguousarray(device))
    return now


@compiled_inner
def _run_begins(device: IntArray, group: int, groups: int) -> int:
    """1 where a run of groups on one device begins at `group`, which is placed."""
    if group >= groups or device[group] < 0:
        return 0
    return 1 if group == 0 or device[group - 1] != device[group] else 0


@compiled_inner
def _shift(given: Boards, now: Standing, s: int, group: int, sign: int) -> None:
    """Add what `group` of sample `s` comes to where it stands, or take it away."""
    b = now.problem[s]
    d = now.device[s, group]
    now.load[s, d] += sign * given.seconds[b, group, d]
    now.state[s, d] += sign * given.state[b, group]
    now.live[s, d] += sign * given.live[b, group]
    now.many[s, d] += sign
    for k in range(given.incident_ptr[b, group], given.incident_ptr[b, group + 1]):
        other, edge, sends = given.incident[b, k]
        e = now.device[s, other]
        if e < 0 or e == d:
            continue
        source, target = (d, e) if sends else (e, d)
        moved = sign * given.edge_seconds[b, edge, given.link_class[b, source, target]]
        now.port[s, given.send_port[b, source, target]] += moved
        now.port[s, given.receive_port[b, source, target]] += moved


@compiled_inner
def _place(given: Boards, now: Standing, s: int, group: int, d: int) -> None:
    """Put `group` of sample `s` on `d`; `UNPLACED` takes it away."""
    b = now.problem[s]
    device, groups = now.device[s], given.groups[b]
    for at in (group, group + 1):
        if _run_begins(device, at, groups):
            now.visits[s, device[at]] -= 1
    if device[group] >= 0:
        _shift(given, now, s, group, -1)
    device[group] = d
    if d >= 0:
        _shift(given, now, s, group, 1)
        now.depth[s, group] = _depth(given, now, s, group, d)
    for at in (group, group + 1):
        if _run_begins(device, at, groups):
            now.visits[s, device[at]] += 1


@compiled_inner
def _depth(given: Boards, now: Standing, s: int, group: int, d: int) -> int:
    b = now.problem[s]
    deepest = 0
    for k in range(given.incident_ptr[b, group], given.incident_ptr[b, group + 1]):
        other, edge, sends = given.incident[b, k]
        if not sends and given.edge_forward[b, edge] and now.device[s, other] >= 0:
            deepest = max(deepest, now.depth[s, other] + (1 if now.device[s, other] != d else 0))
    return deepest


@compiled_inner
def _hear(given: Boards, now: Standing, s: int, group: int) -> float:
    """Sum up the traffic of `group` of sample `s`, standing nowhere, with what is placed.

    `now.into` and `now.out` (D,) get what it would receive and send on each device, `now.traffic`
    (D,) what it exchanges with those that stand there, on the mean device; the sum of that is
    returned.
    """
    b = now.problem[s]
    devices = given.devices[b]
    traffic, into, out = now.traffic[s], now.into[s], now.out[s]
    traffic[:], into[:], out[:] = 0.0, 0.0, 0.0
    known = 0.0
    for k in range(given.incident_ptr[b, group], given.incident_ptr[b, group + 1]):
        other, edge, sends = given.incident[b, k]
        e = now.device[s, other]
        if e < 0:
            continue
        mean = 0.0
        for d in range(devices):
            if d == e:
                continue
            source, target = (d, e) if sends else (e, d)
            moved = given.edge_seconds[b, edge, given.link_class[b, source, target]]
            mean += moved / max(devices - 1, 1)
            if sends:
                out[d] += moved
            else:
                into[d] += moved
        traffic[e] += mean
        known += mean
    return known


@compiled_inner
def _crowd(given: Boards, now: Standing, s: int, group: int, d: int) -> float:
    """The busiest of the ports that `group` of sample `s` would use on device `d`."""
    b = now.problem[s]
    crowded = 0.0
    for k in range(given.incident_ptr[b, group], given.incident_ptr[b, group + 1]):
        other, _, sends = given.incident[b, k]
        e = now.device[s, other]
        if e >= 0 and e != d:
            source, target = (d, e) if sends else (e, d)
            crowded = max(crowded, now.port[s, given.send_port[b, source, target]])
            crowded = max(crowded, now.port[s, given.receive_port[b, source, target]])
    return crowded


@compiled_inner
def _features(
    given: Boards, now: Standing, s: int, group: int, parallel: bool, x: FeatureArray
) -> None:
    """Write (D, CANDIDATE) features of `group` of sample `s` on each device.

    Times are in ideal steps, bytes in capacities of the device; n is the number of devices.

    | | |
    |---|---|
    | 0 | its seconds x n |
    | 1, 2 | seconds standing there, before and after |
    | 3 | what that exceeds the busiest device by, x n |
    | 4 | seconds after, beyond the mean of the devices |
    | 5 | state after |
    | 6, 7 | state and activations after: of as many micro-batches as 1F1B has there, of all |
    | 8 | 1: the state fits |
    | 9, 10 | seconds of transfers from, to the groups that are placed, x n |
    | 11 | share of that traffic with those that stand there |
    | 12 | seconds of its transfers |
    | 13 | the busiest of the ports they use |
    | 14, 15 | 1: the group before, after it stands there |
    | 16 | 1: some group stands there |
    | 17 | runs of groups there / 4 |
    | 18 | device changes on a forward path to it / n |
    | 19 | 1: in the server of the group before |
    | 20 | 1: it stood there before |
    | 21 | 1: there by a split by speed |
    | 22 | distance from the middle of the device's part of that split |
    | 23 | the busiest port of all |
    | 24, 25 | 1: a parallel sweep; it stood somewhere |
    """
    b = now.problem[s]
    device, devices, groups = now.device[s], given.devices[b], given.groups[b]
    stood = device[group]
    if stood >= 0:
        _place(given, now, s, group, UNPLACED)
    known = _hear(given, now, s, group)
    traffic, into, out = now.traffic[s], now.into[s], now.out[s]
    busiest, port = now.load[s].max(), now.port[s].max()
    done = now.load[s].sum()
    before = device[group - 1] if group > 0 else UNPLACED
    after = device[group + 1] if group + 1 < groups else UNPLACED
    place, all_of_them = given.place[b, group], given.micro_batches[b]
    for d in range(devices):
        own, load, row = given.seconds[b, group, d], now.load[s, d], x[d]
        state = (now.state[s, d] + given.state[b, group]) / given.capacity[b, d]
        live = (now.live[s, d] + given.live[b, group]) / given.capacity[b, d]
        depth = _depth(given, now, s, group, d)
        row[0] = own * devices
        row[1] = load
        row[2] = load + own
        row[3] = max(load + own - busiest, 0.0) * devices
        row[4] = load + own - (done + own) / devices
        row[5] = state
        row[6] = state + live * min(all_of_them, max(devices - depth, 1))
        row[7] = state + live * all_of_them
        row[STATE_FITS] = 1.0 if state <= 1.0 else 0.0
        row[9] = into[d] * devices
        row[10] = out[d] * devices
        row[11] = traffic[d] / known if known > 0.0 else 0.0
        row[12] = into[d] + out[d]
        row[13] = _crowd(given, now, s, group, d)
        row[14] = 1.0 if before == d else 0.0
        row[15] = 1.0 if after == d else 0.0
        row[16] = 1.0 if now.many[s, d] > 0 else 0.0
        row[17] = now.visits[s, d] / 4
        row[18] = depth / devices
        row[19] = 1.0 if before >= 0 and given.server[b, before] == given.server[b, d] else 0.0
        row[20] = 1.0 if stood == d else 0.0
        row[21] = 1.0 if given.begin[b, d] <= place < given.end[b, d] else 0.0
        row[22] = (place - (given.begin[b, d] + given.end[b, d]) / 2) * min(devices, 8)
        row[23] = port
        row[24] = 1.0 if parallel else 0.0
        row[25] = 1.0 if stood >= 0 else 0.0
        for f in range(CANDIDATE):
            row[f] = min(max(row[f], LOW), HIGH)
    if stood >= 0:
        _place(given, now, s, group, stood)


@compiled
def look(given: Boards, now: Standing, group: int, x: FeatureArray) -> None:
    """Features (S, D, CANDIDATE) of one group of every sample, in a sequential sweep."""
    for s in range(len(now.problem)):
        b = now.problem[s]
        if group < given.groups[b]:
            _features(given, now, s, group, False, x[s])


@compiled
def put(given: Boards, now: Standing, group: int, device: IntArray) -> None:
    """Put one group of every sample on `device` (S,)."""
    for s in range(len(now.problem)):
        if group < given.groups[now.problem[s]]:
            _place(given, now, s, group, device[s])


@compiled
def look_at_all(given: Boards, now: Standing, x: FeatureArray) -> None:
    """Features (S, G, D, CANDIDATE) of all groups, given where the others stand."""
    for s in range(len(now.problem)):
        for group in range(given.groups[now.problem[s]]):
            _features(given, now, s, group, True, x[s, group])


@compiled
def put_all(given: Boards, now: Standing, device: IntArray) -> None:
    """Put all groups on `device` (S, G); `UNPLACED` takes them away."""
    for s in range(len(now.problem)):
        for group in range(given.groups[now.problem[s]]):
            _place(given, now, s, group, device[s, group])


@compiled
def replay(given: Boards, now: Standing, device: IntArray, x: FeatureArray) -> None:
    """A sequential sweep that decides `device` (S, G): its features (S, G, D, CANDIDATE)."""
    for s in range(len(now.problem)):
        for group in range(given.groups[now.problem[s]]):
            _features(given, now, s, group, False, x[s, group])
            _place(given, now, s, group, device[s, group])
