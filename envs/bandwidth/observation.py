"""What the agent sees of a step at the begin of a phase; the builder owns the space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray
from envs.bandwidth.instance import BandwidthInstance, phase_of
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from envs.hardware.network import Network
from envs.spaces import check_sizes, clipped, flags

OCTAVES = 5.0  # weights from 2^-5 to 2^5
LEVELS = 21  # a factor of sqrt(2) from each to the next


class WeightActions(Protocol):
    """Reads one kind of action."""

    def space(self, channels: int) -> spaces.Space[Any]:
        """The actions for `channels` padded channels."""

    def weights(self, action: NDArray[Any]) -> FloatArray:
        """(C,) positive weight of every padded channel.

        Raises:
            InputError: the action is not in the space.
        """

    def mask_spaces(self, channels: int) -> Mapping[str, spaces.Space[Any]]:
        """What `masks` adds to the observation: key and space."""

    def masks(self, active: BoolArray) -> Mapping[str, NDArray[np.int8]]:
        """The masks where the weights of `active` (C,) channels count."""


@bounded
class ContinuousWeights:
    """`Box(-1, 1, (C,))`: action a is the weight 2^(octaves a). No action is forbidden.

    Args:
        octaves: of the largest weight over 1, and of 1 over the smallest.
    """

    def __init__(self, octaves: Positive = OCTAVES) -> None:
        self.octaves = float(octaves)

    def space(self, channels: int) -> spaces.Box:
        """(C,) float32."""
        return spaces.Box(-1.0, 1.0, (channels,), np.float32)

    def weights(self, action: NDArray[Any]) -> FloatArray:
        """(C,) 2^(octaves a)."""
        values = np.asarray(action, dtype=np.float64)
        if not (np.isfinite(values).all() and (np.abs(values) <= 1.0).all()):
            raise InputError("holds a value outside -1..1", field="action")
        return np.exp2(self.octaves * values)

    def mask_spaces(self, channels: int) -> Mapping[str, spaces.Space[Any]]:
        """None."""
        return {}

    def masks(self, active: BoolArray) -> Mapping[str, NDArray[np.int8]]:
        """None."""
        return {}


@bounded
class WeightLevels:
    """`MultiDiscrete((L,) * C)`: level l is the weight 2^(octaves (2 l / (L - 1) - 1)).

    `action_mask` (int8 (C, L)) allows every level to a channel whose weight counts and level 0
    alone to every other.

    Args:
        levels: L, from the smallest weight to the largest.
        octaves: of the largest weight over 1, and of 1 over the smallest.
    """

    def __init__(self, levels: Annotated[int, Ge(2)] = LEVELS, octaves: Positive = OCTAVES) -> None:
        self.levels, self.octaves = levels, float(octaves)

    def space(self, channels: int) -> spaces.MultiDiscrete:
        """(C,) levels, 0..L-1."""
        return spaces.MultiDiscrete(np.full(channels, self.levels))

    def weights(self, action: NDArray[Any]) -> FloatArray:
        """(C,) of the levels."""
        level = np.asarray(action)
        if not ((level >= 0) & (level < self.levels) & (level == np.floor(level))).all():
            raise InputError(f"holds a level outside 0..{self.levels - 1}", field="action")
        return np.exp2(self.octaves * (2.0 * level / (self.levels - 1) - 1.0))

    def mask_spaces(self, channels: int) -> Mapping[str, spaces.Space[Any]]:
        """`action_mask` (C, L)."""
        return {"action_mask": spaces.Box(0, 1, (channels, self.levels), np.int8)}

    def masks(self, active: BoolArray) -> Mapping[str, NDArray[np.int8]]:
        """`action_mask` (C, L)."""
        mask = np.repeat(active[:, None], self.levels, axis=1).astype(np.int8)
        mask[:, 0] = 1
        return {"action_mask": mask}


ChannelGraph = dict[str, NDArray[np.generic]]

CHANNEL_WIDTH, LINK_WIDTH, PHASE_WIDTH = 14, 5, 9
LOW, HIGH = -1.0, 4.0
_clip = partial(clipped, low=LOW, high=HIGH)


@bounded
@dataclass(frozen=True)
class BandwidthBounds:
    """The most that the instances of a generator have."""

    channels: Count  # C
    links: Count  # K
    incidences: Count  # I: pairs of a channel and a link it runs over
    servers: Count  # S
    phases: Count  # P

    @classmethod
    def of(cls, network: Network, phases: int) -> BandwidthBounds:
        """Those of steps of `phases` phases on `network`."""
        return cls(
            channels=network.num_channels,
            links=network.num_links,
            incidences=len(network.channel_links),
            servers=network.num_servers,
            phases=phases,
        )


@dataclass(frozen=True, eq=False)
class BandwidthState:
    """A step stopped where a phase begins; everything in it belongs to the environment."""

    instance: BandwidthInstance
    phase: int  # the phase that begins, 0..P-1; P: the step has ended
    now_s: float
    rate: FloatArray  # (C,) bytes/s until now; before the first phase the uniform shares
    waiting: FloatArray  # (S * S,) bytes of former phases that each pipe has still to carry
    left: FloatArray  # (S * S,) the same and the traffic of all phases to come
    active: BoolArray  # (C,) the pipe has something left to carry


class BandwidthObservation:
    """A bipartite graph of channels and links; features are clipped to [-1, 4].

    | key | dtype, shape | padding |
    |---|---|---|
    | channel_features | float32 (C, 14) | 0 |
    | channel_mask | int8 (C,): 1 = a channel | 0 |
    | channel_ends | int64 (2, C): source, destination server | S |
    | active | int8 (C,): 1 = its weight counts: its pipe has something left to carry | 0 |
    | link_features | float32 (K, 5) | 0 |
    | link_mask | int8 (K,): 1 = a link | 0 |
    | incidence | int64 (2, I): a channel, a link it runs over | C, K: sinks a model appends |
    | incidence_mask | int8 (I,) | 0 |
    | phase_features | float32 (9,) | none |

    C, K, I and S here are the bounds. A *pipe* is all channels from one server to another. The
    traffic of a phase is what its operators produce for other servers (those that ran ahead of its
    begin included), and what was produced in former phases and has not arrived. U is the step time
    with uniform static shares. *Uniform seconds* of a pipe are bytes over its uniform rate, of a
    link bytes over its capacity where every pipe spreads its bytes evenly over its channels. After
    the last phase all traffic is 0.

    | channel_features | |
    |---|---|
    | 0 | rate until now / capacity of its slowest link |
    | 1 | uniform rate / capacity of its slowest link |
    | 2 | capacity of its slowest link / largest capacity of a link under a channel |
    | 3 | 1 / number of channels of its pipe |
    | 4 | uniform seconds of its pipe's traffic in the phase / U |
    | 5 | the same of everything its pipe has left in the step / U |
    | 6 | the same of what waits now / U |
    | 7 | traffic of its pipe in the phase / largest of a pipe |
    | 8 | ln of feature 7 / ln 1024, at least -1; -1 without traffic |
    | 9 | transfers of its pipe from operators of the phase / most of a pipe |
    | 10, 11 | when its pipe's transfers of the phase begin, end with uniform shares: seconds since
      the begin of the phase / seconds of the phase; both 0 without transfers |
    | 12 | seconds those transfers take together / seconds of the phase |
    | 13 | 1: active |

    | link_features | |
    |---|---|
    | 0 | capacity / largest capacity of a link under a channel |
    | 1 | 1 / number of channels over it, 0 without |
    | 2 | share of its capacity given away until now |
    | 3, 4 | uniform seconds of the traffic in the phase, of all that is left / U |

    | phase_features | |
    |---|---|
    | 0 | number of the phase / P |
    | 1 | 1 / P |
    | 2 | seconds since the step began / U |
    | 3 | the same with uniform shares / U |
    | 4 | seconds of the phase with uniform shares / U |
    | 5 | share of the operators that belong to former phases |
    | 6 | compute seconds of the phase's operators on the busiest device / U |
    | 7 | traffic in the phase / all traffic of the step |
    | 8 | uniform seconds of the pipes' traffic in the phase, summed over pipes / (U x pipes with
      traffic) |
    """

    def __init__(self, bounds: BandwidthBounds) -> None:
        self.bounds = bounds
        c, k, i = bounds.channels, bounds.links, bounds.incidences
        boxes: dict[str, spaces.Space[NDArray[np.generic]]] = {
            "channel_features": _features(c, CHANNEL_WIDTH),
            "channel_mask": flags(c),
            "channel_ends": spaces.Box(0, bounds.servers, (2, c), np.int64),
            "active": flags(c),
            "link_features": _features(k, LINK_WIDTH),
            "link_mask": flags(k),
            "incidence": spaces.Box(
                0, np.repeat([[c], [k]], i, axis=1).astype(np.int64), (2, i), np.int64
            ),
            "incidence_mask": flags(i),
            "phase_features": _features(PHASE_WIDTH),
        }
        self.space = spaces.Dict(boxes)
        self._static: _Static | None = None

    def __call__(self, state: BandwidthState) -> ChannelGraph:
        """The observation of `state`: fresh arrays.

        Raises:
            InputError: the instance exceeds the bounds.
        """
        if self._static is None or self._static.instance is not state.instance:
            self._static = _Static(state.instance, self.bounds)
        return self._static.observe(state)


class _Static:
    """Everything about an instance that no decision changes."""

    def __init__(self, instance: BandwidthInstance, bounds: BandwidthBounds) -> None:
        self.instance = instance
        network = instance.problem.topology.network
        self.incidence = network.incidence
        needed = BandwidthBounds.of(network, instance.num_phases)
        check_sizes(bounds, f"graph {instance.problem.graph.name}", **asdict(needed))
        servers = network.num_servers
        self.pipe = network.channel_pipe  # (C,)
        pipes = servers * servers
        self.split = np.maximum(np.bincount(self.pipe, minlength=pipes), 1)  # (S * S,)
        self.uniform_pipe = np.bincount(
            self.pipe, weights=instance.uniform_rate, minlength=pipes
        )  # (S * S,) bytes/s
        self.capacity = network.link_capacity
        used = self.incidence.any(axis=1)
        largest = self.capacity[used].max()
        self.slowest = np.where(self.incidence > 0, self.capacity[:, None], np.inf).min(axis=0)
        self.windows = _uniform_windows(instance)  # (P, S * S, 3)
        self.busiest = _busiest_device(instance)  # (P,)
        self.behind = np.append(instance.begins / instance.problem.graph.num_operators, 1.0)
        c, k, i = network.num_channels, network.num_links, len(network.channel_links)
        self.padded: ChannelGraph = {
            "channel_features": np.zeros((bounds.channels, CHANNEL_WIDTH), np.float32),
            "channel_mask": _first(c, bounds.channels),
            "channel_ends": np.full((2, bounds.channels), bounds.servers, np.int64),
            "active": np.zeros(bounds.channels, np.int8),
            "link_features": np.zeros((bounds.links, LINK_WIDTH), np.float32),
            "link_mask": _first(k, bounds.links),
            "incidence": np.repeat([[bounds.channels], [bounds.links]], bounds.incidences, axis=1),
            "incidence_mask": _first(i, bounds.incidences),
            "phase_features": np.zeros(PHASE_WIDTH, np.float32),
        }
        self.padded["channel_ends"][:, :c] = network.channel_source, network.channel_destination
        owner = np.repeat(np.arange(c), np.diff(network.channel_ptr))
        self.padded["incidence"][:, :i] = owner, network.channel_links
        channels, links = self.padded["channel_features"], self.padded["link_features"]
        channels[:c, 1] = instance.uniform_rate / self.slowest
        channels[:c, 2] = self.slowest / largest
        channels[:c, 3] = 1.0 / self.split[self.pipe]
        crowd = self.incidence.sum(axis=1)
        links[:k, 0] = _clip(self.capacity / largest)
        links[:k, 1] = np.where(crowd > 0, 1.0 / np.maximum(crowd, 1.0), 0.0)

    def observe(self, state: BandwidthState) -> ChannelGraph:
        """The constant part with what changes written in."""
        seen = {key: values.copy() for key, values in self.padded.items()}
        instance, traffic, phase = self.instance, self.instance.traffic, state.phase
        c, k, p = len(self.pipe), len(self.capacity), instance.num_phases
        over = phase >= p
        coming = np.zeros_like(state.left) if over else state.waiting + traffic.volume[phase]
        reference = instance.uniform.step_time

        channels = seen["channel_features"]
        peak = coming.max()
        share = coming / (peak if peak > 0 else 1.0)
        with np.errstate(divide="ignore"):
            decibel = np.maximum(np.log(share) / np.log(1024.0), -1.0)
        channels[:c, 0] = _clip(state.rate / self.slowest)
        for column, values in (
            (4, coming / self.uniform_pipe_s(reference)),
            (5, state.left / self.uniform_pipe_s(reference)),
            (6, state.waiting / self.uniform_pipe_s(reference)),
            (7, share),
            (8, decibel),
        ):
            channels[:c, column] = _clip(values[self.pipe])
        if not over:
            transfers = traffic.count[phase]
            channels[:c, 9] = (transfers / max(transfers.max(), 1))[self.pipe]
            channels[:c, 10:13] = _clip(self.windows[phase][self.pipe])
        channels[:c, 13] = state.active
        seen["active"][:c] = state.active

        links = seen["link_features"]
        links[:k, 2] = _clip(self.incidence @ state.rate / self.capacity)
        even = coming / self.split, state.left / self.split
        for column, pipe_bytes in zip((3, 4), even, strict=True):
            links[:k, column] = _clip(
                self.incidence @ pipe_bytes[self.pipe] / self.capacity / reference
            )

        busy = coming > 0
        begun = instance.uniform_begin_s
        seen["phase_features"][:] = _clip(
            np.array(
                [
                    phase / p,
                    1.0 / p,
                    state.now_s / reference,
                    begun[phase] / reference,
                    0.0 if over else (begun[phase + 1] - begun[phase]) / reference,
                    self.behind[phase],
                    0.0 if over else self.busiest[phase] / reference,
                    coming.sum() / traffic.volume.sum(),
                    (coming / self.uniform_pipe_s(reference)).sum() / max(busy.sum(), 1),
                ]
            )
        )
        return seen

    def uniform_pipe_s(self, reference: float) -> FloatArray:
        """(S * S,) bytes that each pipe carries in `reference` seconds at its uniform rate."""
        return np.where(self.uniform_pipe > 0, self.uniform_pipe, np.inf) * reference


def _uniform_windows(instance: BandwidthInstance) -> FloatArray:
    """(P, S * S, 3) first begin, last end and busy part of each pipe's transfers of a phase.

    In seconds since the phase began over the seconds of the phase, with uniform shares.
    """
    topology, timeline = instance.problem.topology, instance.uniform
    servers, server = topology.num_servers, topology.server
    source, target = timeline.transfer_source, timeline.transfer_destination
    start, finish = timeline.transfer_start, timeline.transfer_finish
    sent = (server[source] != server[target]) & (finish > start)
    pipe = (server[source] * servers + server[target])[sent]
    producer = instance.problem.graph.producer[timeline.transfer_tensor[sent]]
    phase = phase_of(instance.plan.order, instance.begins)[producer]
    shape = (instance.num_phases, servers * servers)
    first, last, busy = np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros(shape)
    np.minimum.at(first, (phase, pipe), start[sent])
    np.maximum.at(last, (phase, pipe), finish[sent])
    np.add.at(busy, (phase, pipe), (finish - start)[sent])
    begin = np.broadcast_to(instance.uniform_begin_s[:-1, None], shape)
    silent = ~np.isfinite(first)
    first, last = np.where(silent, begin, first), np.where(silent, begin, last)
    lasting = np.where(instance.uniform_phase_s > 0, instance.uniform_phase_s, np.inf)[:, None]
    return np.stack([first - begin, last - begin, busy], axis=2) / lasting[:, :, None]


def _busiest_device(instance: BandwidthInstance) -> FloatArray:
    """(P,) most compute seconds of a phase's operators on one device."""
    problem, order = instance.problem, instance.plan.order
    device = instance.plan.placement.device[order]
    phase = phase_of(order, instance.begins)[order]
    load = np.zeros((instance.num_phases, problem.topology.num_devices))
    np.add.at(load, (phase, device), problem.op_seconds[order, device])
    return np.asarray(load.max(axis=1))


def _first(count: int, size: int) -> NDArray[np.int8]:
    return (np.arange(size) < count).astype(np.int8)


def _features(*shape: int) -> spaces.Box:
    return spaces.Box(LOW, HIGH, shape, np.float32)
