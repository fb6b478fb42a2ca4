"""What an episode holds and shows: groups of operators, where they stand, what is seen of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from envs.arrays import BoolArray, FloatArray, IntArray, mean_able
from envs.errors import InputError
from envs.graphs.contraction import Fusion, sum_rows
from envs.graphs.op_graph import Phase
from envs.spaces import FeatureWidths, PaddedGraph, PaddedGraphLayout
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem


class Groups:
    """G groups of a fused problem on D devices: what no decision changes."""

    def __init__(self, fused: StepProblem, fusion: Fusion) -> None:
        self.fused, self.fusion, self.capacity = fused, fusion, fused.capacity
        # (G, D) compute seconds of each group's pieces, inf where the device cannot run one
        self.seconds: FloatArray = self._summed(fused.op_seconds)
        self.able: BoolArray = np.isfinite(self.seconds)  # (G, D)
        # (G,) bytes of parameters, gradients and optimizer state
        self.state_bytes: FloatArray = self._summed(fused.graph.state_bytes)

    def _summed(self, values: FloatArray) -> FloatArray:
        return sum_rows(values, self.fusion.piece_group, self.fusion.num_groups)

    def mean_seconds(self, pieces: BoolArray) -> FloatArray:
        """(G,) seconds of those of `pieces` (N,), in the mean of the devices that run them."""
        return self._summed(np.where(pieces, mean_able(self.fused.op_seconds), 0.0))

    @property
    def returns(self) -> IntArray:
        """(G,) how often the forward pass of a micro-batch comes back to each group."""
        graph = self.fused.graph
        first = (graph.phase == Phase.FORWARD) & (graph.micro_batch == 0) & (graph.replica == 0)
        pieces = np.bincount(self.fusion.piece_group[first], minlength=self.fusion.num_groups)
        return np.maximum(pieces - 1, 0)

    @cached_property
    def traffic(self) -> GroupTraffic:
        """Between groups; a tensor counts once for every group that receives it."""
        graph, groups = self.fused.graph, self.fusion.num_groups
        edges = graph.edges
        sender = self.fusion.piece_group[edges[:, 0]]
        receiver = self.fusion.piece_group[edges[:, 1]]
        across = sender != receiver
        deliveries, first = np.unique(
            edges[across, 2] * groups + receiver[across], return_index=True
        )  # (tensor, receiving group)
        tensor = deliveries // groups
        pair = sender[across][first] * groups + deliveries % groups
        pairs, edge = np.unique(pair, return_inverse=True)
        edge = edge.reshape(-1).astype(np.int64)
        nbytes = graph.tensor_bytes[tensor]
        forward = graph.phase[edges[across, 1][first]] == Phase.FORWARD
        total = sum_rows(nbytes, edge, len(pairs))
        share = sum_rows(np.where(forward, nbytes, 0.0), edge, len(pairs))
        return GroupTraffic(
            source=(pairs // groups).astype(np.int64),
            target=(pairs % groups).astype(np.int64),
            seconds=sum_rows(self.fused.transfer_seconds[tensor], edge, len(pairs)),
            forward_share=np.divide(share, total, out=np.zeros_like(total), where=total > 0),
        )


@dataclass(frozen=True, eq=False)
class GroupTraffic:
    """E ordered pairs of groups with tensors from the first to the second, sorted."""

    source: IntArray  # (E,) group
    target: IntArray  # (E,) group
    seconds: FloatArray  # (E, L) transfer seconds of a whole step on each link class
    forward_share: FloatArray  # (E,) part of the tensors (by bytes) that belong to the forward pass

    @property
    def num_edges(self) -> int:
        return len(self.source)


def group_live_bytes(fused: StepProblem, fusion: Fusion) -> FloatArray:
    """(G,) bytes of activations that a group holds for each micro-batch under way.

    What forward operators leave for later phases, in the mean of the micro-batches.
    """
    graph = fused.graph
    forward = graph.phase == Phase.FORWARD
    edges = graph.edges
    kept = np.unique(edges[forward[edges[:, 0]] & ~forward[edges[:, 1]], 2])
    group = fusion.piece_group[graph.producer[kept]]
    held = np.bincount(group, weights=graph.tensor_bytes[kept], minlength=fusion.num_groups)
    return np.asarray(held / max(graph.num_micro_batches, 1))


def waves(place: FloatArray, count: int) -> FloatArray:
    """(G, 2 count) sine and cosine of 2^k pi x `place` (G,), k = 0, 1, ...: where, sharply."""
    phases = np.pi * place[:, None] * 2.0 ** np.arange(count)
    return np.stack([np.sin(phases), np.cos(phases)], axis=2).reshape(len(place), -1)


class CompletionRule(Protocol):
    """Says where every group of a fused problem stands before it is decided."""

    def __call__(self, fused: StepProblem, fusion: Fusion) -> IntArray:
        """(G,) a device that can run it for every group."""


class FastestDevice:
    """Everything on the fastest single device that can run it all and hold its state.

    Where there is none, the groups fill the devices front to back: each goes to the fastest device
    that can run it and has room for its parameters, gradients and optimizer state; when none has,
    to the one with the most room left.
    """

    def __call__(self, fused: StepProblem, fusion: Fusion) -> IntArray:
        """(G,) devices.

        Raises:
            InputError: no device can run some group.
        """
        groups = Groups(fused, fusion)
        seconds, state = groups.seconds, groups.state_bytes
        total = np.where(state.sum() <= fused.capacity, seconds.sum(axis=0), np.inf)
        if np.isfinite(total).any():
            return np.full(fusion.num_groups, np.argmin(total), dtype=np.int64)
        free = fused.capacity.copy()
        device = np.empty(fusion.num_groups, dtype=np.int64)
        for group in range(fusion.num_groups):
            able = groups.able[group]
            if not able.any():
                raise InputError(
                    "no device can run it",
                    file=f"graph {fused.graph.name}",
                    record=f"group {group}",
                )
            roomy = able & (state[group] <= free)
            if roomy.any():
                chosen = np.argmin(np.where(roomy, seconds[group], np.inf))
            else:
                chosen = np.argmax(np.where(able, free, -np.inf))
            device[group] = chosen
            free[chosen] -= state[group]
        return device


@dataclass(frozen=True, eq=False)
class PlacementInstance:
    """One problem, its groups, and where they stand before anything is decided."""

    problem: StepProblem  # every operator
    fusion: Fusion  # its G groups
    fused: StepProblem  # the pieces of the groups
    start: IntArray  # (G,) devices of the undecided groups: by the completion rule, unless drawn

    @classmethod
    def build(
        cls,
        problem: StepProblem,
        max_groups: int,
        completion: CompletionRule = FastestDevice(),
    ) -> PlacementInstance:
        """Fuse `problem` into at most `max_groups` groups; `completion`: `FastestDevice`.

        For 1F1B, which leaves weight gradients where they are.
        """
        played = replace(problem, orders=("one_f_one_b",))
        fusion = fuse(played, max_groups)
        fused = fused_problem(played, fusion)
        return cls(problem, fusion, fused, completion(fused, fusion))


class GroupPlacement(Groups):
    """Groups that are decided one by one, or a run of consecutive ones together.

    A group may go to a device that can run it and whose capacity holds its parameters, gradients
    and optimizer state beside those of the groups decided there. Where no device allows that, of
    those that can run it the one with the most free memory is allowed. A run goes where all of its
    groups may go together.
    """

    def start(self, devices: Any) -> None:
        """Nothing decided, the groups on `devices` (G,).

        Raises:
            InputError: that is not one device for each group that can run it.
        """
        start = np.array(devices, dtype=np.int64)
        groups, count = self.able.shape
        if start.shape != (groups,) or not ((start >= 0) & (start < count)).all():
            raise InputError(
                f"is not one of {count} devices for each of {groups} groups", field="options.start"
            )
        if not self.able[np.arange(groups), start].all():
            raise InputError("puts a group where it cannot run", field="options.start")
        self.device: IntArray = start  # (G,)
        self.placed: BoolArray = np.zeros(groups, dtype=np.bool_)
        self.used: FloatArray = np.zeros(count)  # (D,) bytes of decided groups
        self.look(0)

    def look(self, group: int, length: int = 1) -> None:
        """Make the run of `length` groups from `group` the current one.

        It is cut where the groups end, and before the first group that leaves no device which can
        run them all.
        """
        able = self.able[group].copy()
        end = group + 1
        while end < min(group + length, len(self.able)) and (able & self.able[end]).any():
            able &= self.able[end]
            end += 1
        self.current, self.run = group, slice(group, end)
        state = self.state_bytes[self.run]
        here = np.where(self.placed[self.run], state, 0.0)
        others = self.used - np.bincount(
            self.device[self.run], weights=here, minlength=len(self.used)
        )
        self.able_now: BoolArray = able  # (D,)
        self.fits: BoolArray = able & (others + state.sum() <= self.capacity)  # (D,)
        self.mask: BoolArray = self.fits  # (D,)
        if not self.fits.any():
            free = np.where(able, self.capacity - others, -np.inf)
            self.mask = np.arange(len(free)) == np.argmax(free)

    def place(self, device: int) -> None:
        """Decide the current run; one that `device` cannot run stays where it is."""
        if not self.able_now[device]:
            return
        for group in range(self.run.start, self.run.stop):
            if self.placed[group]:
                self.used[self.device[group]] -= self.state_bytes[group]
            self.device[group] = device
            self.placed[group] = True
            self.used[device] += self.state_bytes[group]

    @property
    def pieces(self) -> IntArray:
        """(N,) device of every piece."""
        return self.fusion.expand_pieces(self.device)

    def variants(self) -> tuple[IntArray, IntArray]:
        """The devices that can run the current run, and (B, N) the pieces with it on each."""
        devices = np.flatnonzero(self.able_now)
        variants = np.repeat(self.device[None, :], len(devices), axis=0)
        variants[:, self.run] = devices[:, None]
        return devices, variants[:, self.fusion.piece_group]

    def compute_seconds(self) -> FloatArray:
        """(D,) compute seconds standing on each device."""
        seconds = self.seconds[np.arange(len(self.device)), self.device]
        return sum_rows(seconds, self.device, self.able.shape[1])


WIDTHS = FeatureWidths(node=22, node_device=2, edge=2, device=8, link=3, candidate=7)
_PLACED, _CURRENT = 10, 11  # columns of node_features that change


class PlacementObservation:
    """Builds a `PaddedGraph` whose nodes are the groups; features are clipped to [-1, 4].

    "Relative" means divided by the mean over groups (or edges) of the instance; S is the mean
    compute seconds of a group on a device; T is the step time at the start; transfer seconds
    between groups count a tensor once for each receiving group; C is the capacity of a device in
    bytes (an unlimited one counts as the state of the whole model).

    | node_features | |
    |---|---|
    | 0, 1, 2 | mean compute seconds over devices in forward, backward, optimizer / S |
    | 3 | parameters, gradients and optimizer state in bytes, relative |
    | 4 | the same x G / sum of C: 1 when the model fills the cluster |
    | 5, 6 | seconds of incoming, outgoing transfers on the mean link, relative |
    | 7 | bytes kept for the backward pass inside the group x G / sum of C |
    | 8 | place in the order of groups, 0..1 |
    | 9 | forward pieces per micro-batch - 1: how often the step returns to the group |
    | 10 | 1: placed |
    | 11 | 1: current, decided now |
    | 12 + 2k, 13 + 2k | sin, cos of 2^k pi x feature 8, k = 0..4: where in the order, sharply |

    | node_device_features | |
    |---|---|
    | 0 | compute seconds of the group on the device / S; 4: cannot run |
    | 1 | 1: runs there and its state fits beside the groups placed there |

    | edge_features | from source to target group |
    |---|---|
    | 0 | transfer seconds on the mean link, relative |
    | 1 | share of its bytes in the forward pass |

    | device_features | |
    |---|---|
    | 0 | speed: mean over groups of (fastest device's seconds / this device's) |
    | 1 | C / largest C |
    | 2 | C left beside the state of placed groups / C |
    | 3, 4 | compute seconds of all groups, of placed groups, standing there / T |
    | 5, 6 | seconds of transfers leaving, arriving / T |
    | 7 | 1: in the server where the current group stands |

    | link_features | from device to device |
    |---|---|
    | 0 | latency / largest latency |
    | 1 | seconds all tensors of the step would take / largest |
    | 2 | 1: same server |

    | candidate_features | the current group on each device |
    |---|---|
    | 0 | compute seconds as in node_device_features |
    | 1 | seconds of transfers to and from its neighbours / S |
    | 2 | share of its traffic with neighbours that stand there |
    | 3 | 1: stands there now |
    | 4 | 1: allowed |
    | 5 | compute seconds standing there afterwards / T |
    | 6 | look-ahead: log(1 + 1000 (step time with the group there / best such - 1)) / 2 |

    Args:
        max_groups: padded number of groups N.
        max_edges: padded number of edges E.
        num_devices: number of devices D.
    """

    def __init__(self, max_groups: int, max_edges: int, num_devices: int) -> None:
        self.layout = PaddedGraphLayout(max_groups, max_edges, num_devices, WIDTHS)
        self.space: spaces.Dict = self.layout.space()
        self._known: _Known | None = None

    def __call__(
        self, state: GroupPlacement, candidate_s: FloatArray, reference_s: float
    ) -> PaddedGraph:
        """The observation of a partial placement: fresh arrays.

        Args:
            candidate_s: (D,) step time with the current run on each device, seconds; inf: unable.
            reference_s: step time at the start, seconds.

        Raises:
            InputError: the groups do not fit into the padded shapes.
        """
        if self._known is None or self._known.fused is not state.fused:
            self._known = _Known(state, self.layout)
        known, current, clip = self._known, state.current, self.layout.clip
        groups, count = state.able.shape
        observation = {key: values.copy() for key, values in known.padded.items()}

        nodes = observation["node_features"]
        nodes[:groups, _PLACED] = state.placed
        nodes[state.run, _CURRENT] = 1.0
        observation["placement"][:groups] = state.device
        observation["placed"][:groups] = state.placed
        observation["current"][0] = current
        observation["action_mask"][:] = state.mask

        standing = state.device[:, None] == np.arange(count)
        resident = standing & state.placed[:, None]
        needed = state.used + np.where(resident, 0.0, state.state_bytes[:, None])
        fits = (needed <= state.capacity) & state.able
        observation["node_device_features"][:groups, :, 1] = fits

        load = np.where(standing, known.seconds, 0.0)
        stands = state.device[current]
        devices = observation["device_features"]
        devices[:, 2] = clip(1.0 - state.used / known.capacity)
        devices[:, 3] = clip(load.sum(axis=0) / reference_s)
        devices[:, 4] = clip(load[state.placed].sum(axis=0) / reference_s)
        for column, seconds in zip((5, 6), known.port_seconds(state.device), strict=True):
            devices[:, column] = clip(seconds / reference_s)
        devices[:, 7] = known.server == known.server[stands]

        transfers, share = known.neighbours(current, state.device)
        candidates = observation["candidate_features"]
        candidates[:, 0] = known.padded["node_device_features"][current, :, 0]
        candidates[:, 1] = clip(transfers / known.mean_seconds)
        candidates[:, 2] = share
        candidates[stands, 3] = 1.0
        candidates[:, 4] = state.mask
        after = load.sum(axis=0) - load[current] + known.seconds[current]
        candidates[:, 5] = clip(after / reference_s)
        best = candidate_s.min()
        worse = (candidate_s - best) / _positive(best)
        candidates[:, 6] = clip(np.log1p(1000.0 * worse) / 2.0)
        return observation


class _Known:
    """Everything about the groups of a problem that no decision changes."""

    def __init__(self, groups: Groups, layout: PaddedGraphLayout) -> None:
        self.fused, self.traffic = groups.fused, groups.traffic
        graph, topology = self.fused.graph, self.fused.topology
        count, edges = len(groups.able), self.traffic.num_edges
        layout.check_fits(graph.name, count, edges, topology.num_devices)
        self.seconds = np.where(groups.able, groups.seconds, 0.0)  # (G, D)
        self.mean_seconds = _positive(mean_able(groups.seconds).mean())
        unlimited = np.isinf(groups.capacity)
        capacity = np.where(unlimited, groups.state_bytes.sum(), groups.capacity)
        self.capacity = np.maximum(capacity, 1.0)  # (D,)
        self.server, self.link_class = topology.server, topology.link_class
        self.edge_seconds = mean_able(self.traffic.seconds[:, 1:])  # (E,)
        self.padded = padded = layout.empty()
        padded["node_features"][:count] = layout.clip(self._node_features(groups))
        padded["node_mask"][:count] = 1
        raw = groups.seconds
        padded["node_device_features"][:count, :, 0] = layout.clip(raw / self.mean_seconds)
        padded["edge_index"][:, :edges] = self.traffic.source, self.traffic.target
        padded["edge_features"][:edges, 0] = layout.clip(_relative(self.edge_seconds))
        padded["edge_features"][:edges, 1] = self.traffic.forward_share
        padded["edge_mask"][:edges] = 1
        ratio = np.divide(
            raw.min(axis=1, keepdims=True), raw,
            out=np.ones_like(raw), where=groups.able & (raw > 0),
        )  # fmt: skip
        padded["device_features"][:, 0] = np.where(groups.able, ratio, 0.0).mean(axis=0)
        padded["device_features"][:, 1] = self.capacity / self.capacity.max()
        links = padded["link_features"]
        links[:, :, 0] = layout.clip(over_largest(topology.latency))
        by_class = over_largest(self.fused.transfer_seconds.sum(axis=0))
        links[:, :, 1] = layout.clip(by_class[self.link_class])
        links[:, :, 2] = self.server[:, None] == self.server

    def _node_features(self, groups: Groups) -> FloatArray:
        """(G, 22) before clipping; placed and current are 0."""
        graph, count = groups.fused.graph, len(groups.able)
        features = np.zeros((count, WIDTHS.node))
        for phase in Phase:
            features[:, phase] = groups.mean_seconds(graph.phase == phase) / self.mean_seconds
        pressure = count / self.capacity.sum()
        features[:, 3] = _relative(groups.state_bytes)
        features[:, 4] = groups.state_bytes * pressure
        for column, ends in ((5, self.traffic.target), (6, self.traffic.source)):
            features[:, column] = _relative(sum_rows(self.edge_seconds, ends, count))
        features[:, 7] = _stash_bytes(groups) * pressure
        features[:, 8] = place = np.arange(count) / max(count - 1, 1)
        features[:, 9] = groups.returns
        features[:, 12:] = waves(place, 5)
        return features

    def port_seconds(self, device: IntArray) -> tuple[FloatArray, FloatArray]:
        """(D,) seconds of transfers leaving and arriving at each device."""
        source, target = device[self.traffic.source], device[self.traffic.target]
        kind = self.link_class[source, target]
        seconds = self.traffic.seconds[np.arange(len(kind)), kind]
        count = len(self.server)
        return sum_rows(seconds, source, count), sum_rows(seconds, target, count)

    def neighbours(self, group: int, device: IntArray) -> tuple[FloatArray, FloatArray]:
        """(D,) transfer seconds of `group` on each device, and its share of traffic there."""
        outgoing = np.flatnonzero(self.traffic.source == group)
        incoming = np.flatnonzero(self.traffic.target == group)
        to, come_from = device[self.traffic.target[outgoing]], device[self.traffic.source[incoming]]
        sent = self.traffic.seconds[outgoing, self.link_class[:, to]]
        received = self.traffic.seconds[incoming, self.link_class[come_from].T]
        weights = self.edge_seconds[np.concatenate([outgoing, incoming])]
        share = np.bincount(np.concatenate([to, come_from]), weights, len(self.server))
        return sent.sum(axis=1) + received.sum(axis=1), share / _positive(share.sum())


def _stash_bytes(groups: Groups) -> FloatArray:
    """(G,) bytes of forward tensors that the group's own backward pieces read."""
    graph, piece_group = groups.fused.graph, groups.fusion.piece_group
    u, v, tensor = graph.edges.T
    stash = (
        (piece_group[u] == piece_group[v])
        & (graph.phase[u] == Phase.FORWARD)
        & (graph.phase[v] == Phase.BACKWARD)
    )
    kept = np.unique(tensor[stash])
    return sum_rows(graph.tensor_bytes[kept], piece_group[graph.producer[kept]], len(groups.able))


def _relative(values: FloatArray) -> FloatArray:
    """Values over their mean; 0 where the mean is 0."""
    return values / _positive(float(values.mean()) if len(values) else 0.0)


def over_largest(values: FloatArray) -> FloatArray:
    """Values over the largest finite one; 0 where all are 0."""
    return values / _positive(values[np.isfinite(values)].max(initial=0.0))


def _positive(value: float | np.floating) -> float:
    """The value, or 1 for 0: a denominator for what is then 0 everywhere."""
    return float(value) if value > 0 else 1.0
