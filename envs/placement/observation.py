"""What the agent sees of a partial placement; the builder owns the space."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envs.arrays import BoolArray, FloatArray, IntArray, mean_able
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import Phase
from envs.placement.generator import PlacementInstance
from envs.placement.groups import (
    GroupPlacement,
    GroupTraffic,
    group_returns,
    group_seconds,
    group_state_bytes,
    group_traffic,
)
from envs.spaces import FeatureWidths, PaddedGraph, PaddedGraphLayout

WIDTHS = FeatureWidths(node=22, node_device=2, edge=2, device=8, link=3, candidate=7)
_PLACED, _CURRENT = 10, 11  # columns of node_features that change
_WAVES = 5  # wavelengths of the positional encoding, each half of the one before


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
        self._static: _Static | None = None

    def __call__(
        self,
        instance: PlacementInstance,
        state: GroupPlacement,
        candidate_s: FloatArray,
        reference_s: float,
    ) -> PaddedGraph:
        """The observation of a partial placement: fresh arrays.

        Args:
            candidate_s: (D,) step time with the current run on each device, seconds; inf: unable.
            reference_s: step time at the start, seconds.

        Raises:
            InputError: the instance does not fit into the padded shapes.
        """
        if self._static is None or self._static.instance.fused is not instance.fused:
            self._static = _Static(instance, self.layout)
        static, current = self._static, state.current
        groups, clip = static.num_groups, self.layout.clip
        observation = {key: values.copy() for key, values in static.padded.items()}

        nodes = observation["node_features"]
        nodes[:groups, _PLACED] = state.placed
        nodes[state.run, _CURRENT] = 1.0
        observation["placement"][:groups] = state.device
        observation["placed"][:groups] = state.placed
        observation["current"][0] = current
        observation["action_mask"][:] = state.mask

        standing = static.standing(state.device)
        resident = standing & state.placed[:, None]
        needed = state.used[None, :] + np.where(resident, 0.0, static.state_bytes[:, None])
        fits = (needed <= state.capacity[None, :]) & static.able
        observation["node_device_features"][:groups, :, 1] = fits

        load = np.where(standing, static.seconds, 0.0)
        leaving, arriving = static.port_seconds(state.device)
        stands = state.device[current]
        devices = observation["device_features"]
        devices[:, 2] = clip(1.0 - state.used / static.capacity)
        devices[:, 3] = clip(load.sum(axis=0) / reference_s)
        devices[:, 4] = clip(load[state.placed].sum(axis=0) / reference_s)
        devices[:, 5] = clip(leaving / reference_s)
        devices[:, 6] = clip(arriving / reference_s)
        devices[:, 7] = static.server == static.server[stands]

        transfers, share = static.neighbours(current, state.device)
        candidates = observation["candidate_features"]
        candidates[:, 0] = static.padded["node_device_features"][current, :, 0]
        candidates[:, 1] = clip(transfers / static.mean_seconds)
        candidates[:, 2] = share
        candidates[stands, 3] = 1.0
        candidates[:, 4] = state.mask
        after = load.sum(axis=0) - load[current] + static.seconds[current]
        candidates[:, 5] = clip(after / reference_s)
        best = candidate_s.min()
        worse = (candidate_s - best) / _positive(best)
        candidates[:, 6] = clip(np.log1p(1000.0 * worse) / 2.0)
        return observation


class _Static:
    """Everything about an instance that no decision changes."""

    def __init__(self, instance: PlacementInstance, layout: PaddedGraphLayout) -> None:
        fused, fusion = instance.fused, instance.fusion
        topology = fused.topology
        self.instance = instance
        self.num_groups = fusion.num_groups
        self.num_devices = topology.num_devices
        self.traffic = group_traffic(fused, fusion)
        layout.check_fits(
            fused.graph.name, self.num_groups, self.traffic.num_edges, self.num_devices
        )
        raw = group_seconds(fused, fusion)
        self.able = np.isfinite(raw)  # (G, D)
        self.seconds = np.where(self.able, raw, 0.0)  # (G, D)
        self.mean_seconds = _positive(mean_able(raw).mean())
        self.state_bytes = group_state_bytes(fused, fusion)  # (G,)
        unlimited = np.isinf(fused.capacity)
        self.capacity = np.maximum(
            np.where(unlimited, self.state_bytes.sum(), fused.capacity), 1.0
        )  # (D,)
        self.server = topology.server
        self.link_class = topology.link_class
        self._incident = _incident_edges(self.traffic, self.num_groups)
        self.edge_seconds = mean_able(self.traffic.seconds[:, 1:])  # (E,)
        self.padded = layout.empty()
        self._fill(instance, layout, raw)

    def standing(self, device: IntArray) -> BoolArray:
        """(G, D) whether each group stands on each device."""
        return np.asarray(device[:, None] == np.arange(self.num_devices)[None, :])

    def port_seconds(self, device: IntArray) -> tuple[FloatArray, FloatArray]:
        """(D,) seconds of transfers leaving and arriving at each device."""
        source, target = device[self.traffic.source], device[self.traffic.target]
        kind = self.link_class[source, target]
        seconds = self.traffic.seconds[np.arange(len(kind)), kind]
        leaving: FloatArray = np.zeros(self.num_devices)
        arriving: FloatArray = np.zeros(self.num_devices)
        np.add.at(leaving, source, seconds)
        np.add.at(arriving, target, seconds)
        return leaving, arriving

    def neighbours(self, group: int, device: IntArray) -> tuple[FloatArray, FloatArray]:
        """(D,) transfer seconds of `group` on each device, and its share of traffic there."""
        outgoing, incoming = self._incident[group]
        to = device[self.traffic.target[outgoing]]
        come_from = device[self.traffic.source[incoming]]
        sent = self.traffic.seconds[outgoing[None, :], self.link_class[:, to]]
        received = self.traffic.seconds[incoming[None, :], self.link_class[come_from, :].T]
        weights = np.concatenate([self.edge_seconds[outgoing], self.edge_seconds[incoming]])
        where = np.concatenate([to, come_from])
        share = np.bincount(where, weights=weights, minlength=self.num_devices)
        return sent.sum(axis=1) + received.sum(axis=1), share / _positive(share.sum())

    def _fill(
        self, instance: PlacementInstance, layout: PaddedGraphLayout, raw: FloatArray
    ) -> None:
        """Write the constant part of the observation."""
        groups, edges = self.num_groups, self.traffic.num_edges
        topology, padded = instance.fused.topology, self.padded
        padded["node_features"][:groups] = layout.clip(self._node_features(instance))
        padded["node_mask"][:groups] = 1
        padded["node_device_features"][:groups, :, 0] = layout.clip(raw / self.mean_seconds)
        padded["edge_index"][0, :edges] = self.traffic.source
        padded["edge_index"][1, :edges] = self.traffic.target
        padded["edge_features"][:edges, 0] = layout.clip(_relative(self.edge_seconds))
        padded["edge_features"][:edges, 1] = self.traffic.forward_share
        padded["edge_mask"][:edges] = 1
        fastest = np.where(self.able, raw, np.inf).min(axis=1, keepdims=True)
        ratio = np.divide(fastest, raw, out=np.ones_like(raw), where=self.able & (raw > 0))
        padded["device_features"][:, 0] = np.where(self.able, ratio, 0.0).mean(axis=0)
        padded["device_features"][:, 1] = self.capacity / self.capacity.max()
        padded["link_features"][:, :, 0] = layout.clip(over_largest(topology.latency))
        by_class = instance.fused.transfer_seconds.sum(axis=0)
        padded["link_features"][:, :, 1] = layout.clip(over_largest(by_class)[self.link_class])
        padded["link_features"][:, :, 2] = self.server[:, None] == self.server[None, :]

    def _node_features(self, instance: PlacementInstance) -> FloatArray:
        """(G, 22) before clipping; placed and current are 0."""
        fused, fusion = instance.fused, instance.fusion
        graph, groups = fused.graph, self.num_groups
        seconds = mean_able(fused.op_seconds)
        features = np.zeros((groups, WIDTHS.node))
        for phase in Phase:
            part = np.where(graph.phase == phase, seconds, 0.0)
            features[:, phase] = sum_rows(part, fusion.piece_group, groups) / self.mean_seconds
        pressure = groups / self.capacity.sum()
        features[:, 3] = _relative(self.state_bytes)
        features[:, 4] = self.state_bytes * pressure
        features[:, 5] = _relative(sum_rows(self.edge_seconds, self.traffic.target, groups))
        features[:, 6] = _relative(sum_rows(self.edge_seconds, self.traffic.source, groups))
        features[:, 7] = self._stash_bytes(instance) * pressure
        place = np.arange(groups) / max(groups - 1, 1)
        features[:, 8] = place
        phases = np.pi * place[:, None] * 2.0 ** np.arange(_WAVES)
        features[:, 12::2], features[:, 13::2] = np.sin(phases), np.cos(phases)
        features[:, 9] = group_returns(fused, fusion)
        return features

    def _stash_bytes(self, instance: PlacementInstance) -> FloatArray:
        """(G,) bytes of forward tensors that the group's own backward pieces read."""
        graph, piece_group = instance.fused.graph, instance.fusion.piece_group
        u, v, tensor = graph.edges.T
        stash = (
            (piece_group[u] == piece_group[v])
            & (graph.phase[u] == Phase.FORWARD)
            & (graph.phase[v] == Phase.BACKWARD)
        )
        kept = np.unique(tensor[stash])
        owner = piece_group[graph.producer[kept]]
        return sum_rows(graph.tensor_bytes[kept], owner, self.num_groups)


def _incident_edges(traffic: GroupTraffic, groups: int) -> list[tuple[IntArray, IntArray]]:
    """Outgoing and incoming edges of every group."""
    return [
        (np.flatnonzero(traffic.source == group), np.flatnonzero(traffic.target == group))
        for group in range(groups)
    ]


def _relative(values: FloatArray) -> FloatArray:
    """Values over their mean; 0 where the mean is 0."""
    return values / _positive(float(values.mean()) if len(values) else 0.0)


def over_largest(values: FloatArray) -> FloatArray:
    """Values over the largest finite one; 0 where all are 0."""
    return values / _positive(values[np.isfinite(values)].max(initial=0.0))


def _positive(value: float | np.floating) -> float:
    """The value, or 1 for 0: a denominator for what is then 0 everywhere."""
    return float(value) if value > 0 else 1.0
