"""A whole placement problem, in numbers without units, as one observation: read at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray, mean_able, sums_before
from envs.bounds import Count, bounded
from envs.graphs.contraction import Fusion
from envs.graphs.op_graph import Phase
from envs.hardware.topology import Topology
from envs.placement.types import Groups, GroupTraffic, group_live_bytes, waves
from envs.spaces import check_sizes
from envs.step.problem import StepProblem

FeatureArray = NDArray[np.float32]

_WAVES = 4  # wavelengths of the positional encoding, each half of the one before
LOW, HIGH = -2.0, 6.0  # bounds of all features
STARTS, UNPLACED = 10, -1
GIVEN = STARTS  # the number of a start that is a plan made before
NODE, NODE_DEVICE, DEVICE, LINK, WHOLE = 13 + 2 * _WAVES, 2, 7, 4, 8  # widths of features


@dataclass(frozen=True, eq=False)
class PlacementFacts:
    """G groups and D devices of a fused problem.

    Times are in units of the *ideal* step, that of all devices computing without a pause, each in
    proportion to its speed; bytes of a group in units of the capacity of a device in the mean.

    | node_features (G, 21) | |
    |---|---|
    | 0, 1, 2 | mean seconds over devices in forward, backward, optimizer |
    | 3, 4 | state, activations of all micro-batches under way |
    | 5, 6 | log of seconds of transfers in, out on the mean link x devices |
    | 7 | share of the work before the middle of the group |
    | 8 | forward pieces per micro-batch - 1: how often the step returns to the group |
    | 9 | share of its work that is weight gradients |
    | 10 | share of devices that can run it |
    | 11, 12 | edges in, out / 8 |
    | 13 + 2k, 14 + 2k | sin, cos of 2^k pi x feature 7 |

    | node_device_features (G, D, 2) | |
    |---|---|
    | 0 | seconds / mean seconds of the group - 1 |
    | 1 | seconds x devices |

    | device_features (D, 7) | |
    |---|---|
    | 0 | log of speed, relative to the mean of the devices |
    | 1 | capacity / mean capacity |
    | 2, 3 | where its part begins and ends in a split by speed |
    | 4 | devices of its server / devices |
    | 5 | log of what the step's traffic would take, on the mean of its links |
    | 6 | share of the devices with which it shares a port to send |

    | link_features (D, D, 4) | |
    |---|---|
    | 0 | log of what the step's traffic would take |
    | 1 | 1: same server |
    | 2, 3 | 1: some of their transfers leave through one port, arrive through one port |

    | whole_features (8,) | |
    |---|---|
    | 0, 1, 2 | log of micro-batches, groups, devices |
    | 3, 4 | state, state and activations / capacity of all devices |
    | 5 | log of all transfers on the mean link |
    | 6 | share of the work that is the forward pass |
    | 7 | fastest speed / mean speed - 1 |
    """

    node_features: FeatureArray
    node_device_features: FeatureArray
    device_features: FeatureArray
    link_features: FeatureArray
    whole_features: FeatureArray
    flow: FeatureArray  # (G, G) seconds of transfers from group to group, mean link
    seconds: FloatArray  # (G, D) ideal steps; 0 where not able
    able: BoolArray  # (G, D)
    state: FloatArray  # (G,) mean capacities
    live: FloatArray  # (G,) mean capacities, of one micro-batch
    capacity: FloatArray  # (D,) mean capacities
    begin: FloatArray  # (D,) where its part of a split by speed begins, as a share of the work
    end: FloatArray  # (D,) and ends
    place: FloatArray  # (G,) share of the work before the middle of the group
    starts: IntArray  # (STARTS, G) devices to begin from, `UNPLACED`: nowhere
    edge_seconds: FloatArray  # (E, L) ideal steps
    edge_forward: BoolArray  # (E,) carries something of the forward pass to a later group
    incident_ptr: IntArray  # (G + 1,) rows of `incident`
    incident: IntArray  # (2 E, 3) of each group: neighbour, edge, 1: it sends, 0: it receives
    link_class: IntArray  # (D, D)
    send_port: IntArray  # (D, D)
    receive_port: IntArray  # (D, D)
    server: IntArray  # (D,)
    num_ports: int
    micro_batches: int
    ideal_s: float  # seconds of the ideal step

    @property
    def num_groups(self) -> int:
        return len(self.seconds)

    @property
    def num_devices(self) -> int:
        return int(self.seconds.shape[1])

    @classmethod
    def of(cls, fused: StepProblem, fusion: Fusion) -> PlacementFacts:
        """Of the pieces `fused` of the groups of `fusion`."""
        graph, topology = fused.graph, fused.topology
        parts = Groups(fused, fusion)
        raw, able, traffic = parts.seconds, parts.able, parts.traffic
        groups, devices = able.shape
        mean = mean_able(raw)  # (G,) seconds
        filled = np.where(able, raw, mean[:, None])
        rate = 1.0 / np.maximum(filled.sum(axis=0), 1e-300)  # (D,) steps per second
        ideal_s = 1.0 / float(rate.sum())
        ideal_s = ideal_s if 0.0 < ideal_s < np.inf else 1.0
        speed = rate / rate.mean()
        moved = traffic.seconds / ideal_s  # (E, L)
        on_mean = mean_able(moved[:, 1:])
        state, live = parts.state_bytes, group_live_bytes(fused, fusion)
        micro_batches = max(graph.num_micro_batches, 1)
        kept = state + micro_batches * live
        capacity = np.where(np.isinf(fused.capacity), max(kept.sum(), 1.0), fused.capacity)
        unit = max(float(capacity.mean()), 1.0)
        flow = np.zeros((groups, groups), dtype=np.float32)
        flow[traffic.source, traffic.target] = on_mean
        line = _line(topology.server, speed)
        share = np.cumsum(speed[line]) / speed.sum()
        begin, end = np.empty((2, devices))
        end[line], begin[line] = share, np.concatenate([[0.0], share[:-1]])
        whole_s = max(float(mean.sum()), 1e-300)
        place = (np.cumsum(mean) - mean / 2) / whole_s
        nodes = _node_features(parts, flow, place)
        nodes[:, :3] /= ideal_s
        nodes[:, 3], nodes[:, 4] = state / unit, micro_batches * live / unit
        nodes[:, 10] = able.mean(axis=1)
        both = np.stack([filled / np.maximum(mean, 1e-300)[:, None] - 1, filled / ideal_s], axis=2)
        both[~able] = HIGH
        by_class = moved.sum(axis=0)  # (L,)
        links = _link_features(topology, by_class)
        own = np.zeros((devices, DEVICE))
        own[:, 0], own[:, 1] = np.log(speed), capacity / unit
        own[:, 2], own[:, 3] = begin, end
        own[:, 4] = np.bincount(topology.server)[topology.server] / devices
        own[:, 5] = _log(by_class[topology.link_class].sum(axis=1) / max(devices - 1, 1))
        own[:, 6] = links[:, :, 2].mean(axis=1)
        overall = np.zeros(WHOLE)
        overall[:3] = np.log(micro_batches), np.log(groups) / 2, np.log(devices)
        overall[3], overall[4] = state.sum() / capacity.sum(), kept.sum() / capacity.sum()
        overall[5] = _log(on_mean.sum())
        overall[6] = nodes[:, Phase.FORWARD].sum() * ideal_s / whole_s
        overall[7] = speed.max() - 1
        seconds = np.where(able, raw, 0.0) / ideal_s
        starts = _starts(np.argsort(end), speed, capacity, place, kept, able, seconds)
        ptr, incident = _incident(traffic, groups)
        return cls(
            node_features=_clip(nodes), node_device_features=_clip(both),
            device_features=_clip(own), link_features=_clip(links), whole_features=_clip(overall),
            flow=flow, seconds=seconds, able=able, state=state / unit,
            live=live / unit, capacity=capacity / unit, begin=begin, end=end, place=place,
            starts=starts,
            edge_seconds=np.where(np.isfinite(moved), moved, 1e3),
            edge_forward=(traffic.forward_share > 0) & (traffic.source < traffic.target),
            incident_ptr=ptr, incident=incident, link_class=topology.link_class.astype(np.int64),
            send_port=topology.send_port.astype(np.int64),
            receive_port=topology.receive_port.astype(np.int64), server=topology.server,
            num_ports=topology.num_ports, micro_batches=micro_batches, ideal_s=ideal_s,
        )  # fmt: skip


def _node_features(parts: Groups, flow: FeatureArray, place: FloatArray) -> FloatArray:
    """(G, NODE) without those of memory and ability, times in seconds."""
    graph, (groups, devices) = parts.fused.graph, parts.able.shape
    nodes = np.zeros((groups, NODE))
    for phase in Phase:
        nodes[:, phase] = parts.mean_seconds(graph.phase == phase)
    late = parts.mean_seconds(graph.weight_gradient)
    nodes[:, 5], nodes[:, 6] = _log(flow.sum(axis=0) * devices), _log(flow.sum(axis=1) * devices)
    nodes[:, 7], nodes[:, 8] = place, parts.returns
    nodes[:, 9] = late / np.maximum(nodes[:, :3].sum(axis=1), 1e-300)
    for column, ends in ((11, parts.traffic.target), (12, parts.traffic.source)):
        nodes[:, column] = np.bincount(ends, minlength=groups) / 8
    nodes[:, 13:] = waves(place, _WAVES)
    return nodes


def _link_features(topology: Topology, by_class: FloatArray) -> FloatArray:
    """(D, D, LINK); `by_class` (L,) is what all traffic would take on a class of links."""
    devices = topology.num_devices
    links = np.zeros((devices, devices, LINK))
    links[:, :, 0] = _log(by_class[topology.link_class])
    links[:, :, 1] = topology.server[:, None] == topology.server[None, :]
    off = ~np.eye(devices, dtype=np.bool_)
    for feature, port in ((2, topology.send_port), (3, topology.receive_port.T)):
        uses = np.zeros((devices, max(topology.num_ports, 1)), dtype=np.bool_)
        uses[np.nonzero(off)[0], port[off]] = True
        links[:, :, feature] = uses.astype(np.float64) @ uses.T > 0
    return links


def _log(values: FloatArray | float) -> FloatArray:
    return np.log1p(np.where(np.isfinite(values), values, 1e3))


def _clip(values: FloatArray) -> FeatureArray:
    return np.nan_to_num(np.clip(values, LOW, HIGH), nan=HIGH).astype(np.float32)


def _starts(
    line: IntArray,
    speed: FloatArray,
    capacity: FloatArray,
    place: FloatArray,
    kept: FloatArray,
    able: BoolArray,
    seconds: FloatArray,
) -> IntArray:
    """(STARTS, G) nothing, then contiguous splits over the `line` of devices.

    Of the work evenly, of the work by speed, of what is kept in memory by capacity; each along the
    line, twice along it, and there and back. A group that cannot run there: where it is fastest.
    """
    groups = len(place)
    found = np.full((STARTS, groups), UNPLACED)
    fastest = np.where(able, seconds, np.inf).argmin(axis=1)
    before = (np.cumsum(kept) - kept / 2) / max(float(kept.sum()), 1e-300)
    number = 1
    for share, where in (
        (np.ones(len(line)), place), (speed, place), (capacity, before if kept.any() else place)
    ):  # fmt: skip
        for path in (line, np.tile(line, 2), np.concatenate([line, line[::-1]])):
            ends = np.cumsum(share[path]) / share[path].sum()
            part = np.minimum(np.searchsorted(ends, where, side="right"), len(path) - 1)
            device = path[part]
            found[number] = np.where(able[np.arange(groups), device], device, fastest)
            number += 1
    return found


def _line(server: IntArray, speed: FloatArray) -> IntArray:
    """(D,) devices server by server, the server with the fastest one and the fastest first."""
    best = np.zeros(int(server.max()) + 1)
    np.maximum.at(best, server, speed)
    return np.lexsort((-speed, server, -best[server]))


def _incident(traffic: GroupTraffic, groups: int) -> tuple[IntArray, IntArray]:
    """Row pointer (G + 1,) and rows (2 E, 3): neighbour, edge, whether the group sends."""
    source, target, edges = traffic.source, traffic.target, np.arange(traffic.num_edges)
    sends = np.stack([target, edges, np.ones_like(edges)], axis=1)
    receives = np.stack([source, edges, np.zeros_like(edges)], axis=1)
    owner = np.concatenate([source, target])
    rows = np.concatenate([sends, receives])[np.argsort(owner, kind="stable")]
    return sums_before(np.bincount(owner, minlength=groups)), rows


FEATURES = (
    "node_features", "node_device_features", "flow", "device_features", "link_features",
    "whole_features",
)  # fmt: skip
SIZES = (
    "problem", "groups", "devices", "edges", "classes", "ports", "micro_batches", "start",
)  # fmt: skip
_WHOLE_NUMBERS = (
    "incident_ptr", "incident", "link_class", "send_port", "receive_port", "server",
)  # fmt: skip
_FLAGS = ("able", "edge_forward")
_KINDS = {"float64": np.float32, "bool": np.int8}
_MOST = 1e9


@bounded
@dataclass(frozen=True)
class WholeLayout:
    """The shapes of an observation of G groups, D devices, E edges, L link classes at most.

    `sizes` (8,) int64 holds what `SIZES` names: the number of the problem, the real sizes, the
    micro-batches, and the number of the start; `stands` (G,) int64 the devices that groups stand at
    then; everything else is an array of `PlacementFacts` by name, zero beyond them.
    """

    groups: Count = 64
    devices: Count = 32
    edges: Count = 1024
    classes: Count = 64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every array but `sizes` and `stands`."""
        g, d, e, c = self.groups, self.devices, self.edges, self.classes
        return {
            "node_features": (g, NODE), "node_device_features": (g, d, NODE_DEVICE),
            "flow": (g, g), "device_features": (d, DEVICE), "link_features": (d, d, LINK),
            "whole_features": (WHOLE,), "seconds": (g, d), "able": (g, d), "state": (g,),
            "live": (g,), "capacity": (d,), "begin": (d,), "end": (d,), "place": (g,),
            "edge_seconds": (e, c), "edge_forward": (e,), "incident_ptr": (g + 1,),
            "incident": (2 * e, 3), "link_class": (d, d), "send_port": (d, d),
            "receive_port": (d, d), "server": (d,),
        }  # fmt: skip

    def space(self) -> spaces.Dict:
        """The Gymnasium space of such observations."""
        boxes: dict[str, spaces.Space[Any]] = {
            "sizes": spaces.Box(0, 2**62, (len(SIZES),), np.int64),
            "stands": spaces.Box(UNPLACED, 2**31, (self.groups,), np.int64),
        }
        for name, shape in self.shapes.items():
            if name in FEATURES and name != "flow":
                boxes[name] = spaces.Box(LOW, HIGH, shape, np.float32)
            elif name in _WHOLE_NUMBERS:
                boxes[name] = spaces.Box(-1, 2**31, shape, np.int64)
            elif name in _FLAGS:
                boxes[name] = spaces.Box(0, 1, shape, np.int8)
            else:
                boxes[name] = spaces.Box(-_MOST, _MOST, shape, np.float32)
        return spaces.Dict(boxes)

    def check(self, facts: PlacementFacts) -> None:
        """Raise where a problem does not fit.

        Raises:
            InputError: naming the size that is too small.
        """
        edges, classes = facts.edge_seconds.shape
        check_sizes(
            self, None, groups=facts.num_groups, devices=facts.num_devices, edges=edges,
            classes=classes,
        )  # fmt: skip

    def observe(
        self,
        facts: PlacementFacts,
        problem: int = 0,
        start: int = 0,
        stands: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The observation of a problem with that number, at one of its starts: fresh arrays.

        `stands` (G,) are the devices of a start that is given.

        Raises:
            InputError: the problem does not fit; naming the size that is too small.
        """
        self.check(facts)
        edges, classes = facts.edge_seconds.shape
        sizes = (
            problem, facts.num_groups, facts.num_devices, edges, classes, facts.num_ports,
            facts.micro_batches, start,
        )  # fmt: skip
        found: dict[str, NDArray[Any]] = {
            "sizes": np.array(sizes, dtype=np.int64),
            "stands": np.full(self.groups, UNPLACED, dtype=np.int64),
        }
        found["stands"][: facts.num_groups] = facts.starts[start] if stands is None else stands
        for name, shape in self.shapes.items():
            own = getattr(facts, name)
            kind = _KINDS.get(own.dtype.name, own.dtype)
            found[name] = np.zeros(shape, dtype=kind)
            found[name][tuple(slice(size) for size in own.shape)] = own
        return found
