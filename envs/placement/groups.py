"""The groups of an episode: where they stand, what they hold, what they send each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.contraction import Fusion, sum_rows
from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem


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
        seconds = group_seconds(fused, fusion)
        state = group_state_bytes(fused, fusion)
        total = np.where(state.sum() <= fused.capacity, seconds.sum(axis=0), np.inf)
        if np.isfinite(total).any():
            return np.full(fusion.num_groups, np.argmin(total), dtype=np.int64)
        free = fused.capacity.copy()
        device = np.empty(fusion.num_groups, dtype=np.int64)
        for group in range(fusion.num_groups):
            able = np.isfinite(seconds[group])
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


def group_seconds(fused: StepProblem, fusion: Fusion) -> FloatArray:
    """(G, D) compute seconds of each group's pieces, inf where the device cannot run one."""
    return sum_rows(fused.op_seconds, fusion.piece_group, fusion.num_groups)


def group_state_bytes(fused: StepProblem, fusion: Fusion) -> FloatArray:
    """(G,) bytes of parameters, gradients and optimizer state of each group."""
    return sum_rows(fused.graph.state_bytes, fusion.piece_group, fusion.num_groups)


def group_returns(fused: StepProblem, fusion: Fusion) -> IntArray:
    """(G,) how often the forward pass of a micro-batch comes back to each group."""
    graph = fused.graph
    first = (graph.phase == Phase.FORWARD) & (graph.micro_batch == 0) & (graph.replica == 0)
    pieces = np.bincount(fusion.piece_group[first], minlength=fusion.num_groups)
    return np.maximum(pieces - 1, 0)


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


class GroupPlacement:
    """Groups that are decided one by one, or a run of consecutive ones together.

    A group may go to a device that can run it and whose capacity holds its parameters, gradients
    and optimizer state beside those of the groups decided there. Where no device allows that, of
    those that can run it the one with the most free memory is allowed. A run goes where all of its
    groups may go together.
    """

    def __init__(self, fused: StepProblem, fusion: Fusion) -> None:
        self.fusion, self.capacity = fusion, fused.capacity
        self.state_bytes: FloatArray = group_state_bytes(fused, fusion)  # (G,)
        self.seconds: FloatArray = group_seconds(fused, fusion)  # (G, D)
        self.able: BoolArray = np.isfinite(self.seconds)  # (G, D)

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
        total = np.zeros(self.able.shape[1])
        np.add.at(total, self.device, seconds)
        return total


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


def group_traffic(fused: StepProblem, fusion: Fusion) -> GroupTraffic:
    """The traffic between groups; a tensor counts once for every group that receives it."""
    graph, groups = fused.graph, fusion.num_groups
    edges = graph.edges
    sender = fusion.piece_group[edges[:, 0]]
    receiver = fusion.piece_group[edges[:, 1]]
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
        seconds=sum_rows(fused.transfer_seconds[tensor], edge, len(pairs)),
        forward_share=np.divide(share, total, out=np.zeros_like(total), where=total > 0),
    )
