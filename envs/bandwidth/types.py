"""A placed step whose network is to be shared: what it is, what is seen of it, what actions say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from envs.graphs.op_graph import Phase
from envs.hardware.network import Network
from envs.spaces import check_sizes, clipped, flags, padding
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.phased import PhasedStep
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline


class PhaseCut(Protocol):
    """Cuts the order of a plan.

    Phase p of a step begins when all operators at positions before `begins[p]` of the order have
    ended.
    """

    @property
    def most(self) -> int:
        """The largest P."""

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,) first position of each phase: 0, then rising, all below N; 1 <= P <= `most`."""


class PassBoundaries:
    """At the first backward operator, after the last forward operator, at the first update.

    In a pipeline these are its filling, its steady state, its draining, and the rest from the first
    update on. Phases without operators are left out.
    """

    most = 4

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,) first position of each phase, P <= 4."""
        phase = problem.graph.phase[plan.order]
        cuts = {0}
        forward = np.flatnonzero(phase == Phase.FORWARD)
        if len(forward):
            cuts.add(int(forward[-1]) + 1)
        for part in (Phase.BACKWARD, Phase.OPTIMIZER):
            found = np.flatnonzero(phase == part)
            if len(found):
                cuts.add(int(found[0]))
        return np.array(sorted(cuts - {len(phase)}), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BandwidthInstance:
    """One placed and ordered step, cut into P phases, and what uniform shares make of it."""

    problem: StepProblem
    plan: Plan
    begins: IntArray  # (P,) first position of each phase, see `PhaseCut`
    traffic: PhaseTraffic
    uniform_rate: FloatArray  # (C,) bytes/s: `uniform_allocation`
    uniform: Timeline  # of the whole step at those rates
    uniform_begin_s: FloatArray  # (P + 1,) when each phase begins at those rates; the step time

    @classmethod
    def build(cls, problem: StepProblem, plan: Plan, cut: PhaseCut) -> BandwidthInstance:
        """Cut `plan` and play it with uniform static shares.

        Raises:
            InputError: the plan breaks a rule of `Plan.violations` other than the peak memory's,
                nothing passes between servers, a link class between servers has no bandwidth, or
                the step takes no time.
        """
        name = f"graph {problem.graph.name}"
        violations = plan.placement.violations(problem)
        if violations:
            raise InputError("; ".join(violations), file=name, field="placement")
        begins = cut(problem, plan)
        rates = uniform_allocation(problem.topology.network)
        through = allocated_problem(problem, rates)
        uniform = StepSimulator(through).run(plan.placement.device, plan.order)
        traffic = phase_traffic(problem, plan, begins)
        if not traffic.count.any():
            raise InputError("nothing is sent between servers", file=name)
        if not 0.0 < uniform.step_time < np.inf:
            raise InputError(f"a step takes {uniform.step_time} s", file=name)
        ended = np.maximum.accumulate(uniform.op_finish[plan.order])
        starts = np.append(0.0, ended)[begins]
        return cls(
            problem, plan, begins, traffic, rates.rate, uniform, np.append(starts, ended[-1])
        )

    @property
    def num_phases(self) -> int:
        return len(self.begins)

    @property
    def uniform_phase_s(self) -> FloatArray:
        """(P,) seconds of each phase with uniform static shares."""
        return np.diff(self.uniform_begin_s)


@dataclass(frozen=True, eq=False)
class PhaseTraffic:
    """What passes each pipe in each of P phases.

    The pipe from server s to server e has number s x S + e. A tensor is sent once to every
    receiving device and belongs to the phase of its producer. Tensors without bytes are no
    transfers.
    """

    volume: FloatArray  # (P, S * S) bytes
    count: IntArray  # (P, S * S) transfers


def phase_of(order: IntArray, begins: IntArray) -> IntArray:
    """(N,) the phase of every operator; `begins` (P,) as in `PhaseCut`."""
    phase = np.empty(len(order), dtype=np.int64)
    phase[order] = np.searchsorted(begins, np.arange(len(order)), side="right") - 1
    return phase


def phase_traffic(problem: StepProblem, plan: Plan, begins: IntArray) -> PhaseTraffic:
    """The traffic of `plan` cut at `begins` (P,).

    The bytes of a tensor are those its transfer time tells of: (seconds - latency) x bandwidth of
    its link class.
    """
    graph, topology = problem.graph, problem.topology
    device, server, servers = plan.placement.device, topology.server, topology.num_servers
    u, v, tensor = graph.edges.T
    across = server[device[u]] != server[device[v]]
    deliveries = np.unique(tensor[across] * topology.num_devices + device[v[across]])
    tensor, target = deliveries // topology.num_devices, deliveries % topology.num_devices
    source = device[graph.producer[tensor]]
    kind = topology.link_class[source, target]
    moving = problem.transfer_seconds[tensor, kind] - topology.class_latency[kind]
    bandwidth = topology.class_bandwidth[kind]
    sent = moving > 0.0
    nbytes = moving[sent] * bandwidth[sent]
    pipe = (server[source] * servers + server[target])[sent]
    phase = phase_of(plan.order, begins)[graph.producer[tensor[sent]]]
    volume = np.zeros((len(begins), servers * servers))
    count = np.zeros((len(begins), servers * servers), dtype=np.int64)
    np.add.at(volume, (phase, pipe), nbytes)
    np.add.at(count, (phase, pipe), 1)
    return PhaseTraffic(volume, count)


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

    def masks(self, active: BoolArray) -> dict[str, NDArray[np.int8]]:
        """What is added to the observation where the weights of `active` (C,) channels count."""
        return {}


@bounded
class ContinuousWeights(WeightActions):
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


@bounded
class WeightLevels(WeightActions):
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

    def masks(self, active: BoolArray) -> dict[str, NDArray[np.int8]]:
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
        sinks = np.repeat([[c], [k]], i, axis=1)
        self.space = spaces.Dict(
            {
                "channel_features": _features(c, CHANNEL_WIDTH),
                "channel_mask": flags(c),
                "channel_ends": spaces.Box(0, bounds.servers, (2, c), np.int64),
                "active": flags(c),
                "link_features": _features(k, LINK_WIDTH),
                "link_mask": flags(k),
                "incidence": spaces.Box(0, sinks, (2, i), np.int64),
                "incidence_mask": flags(i),
                "phase_features": _features(PHASE_WIDTH),
            }
        )
        self._known: _Known | None = None

    def __call__(
        self,
        instance: BandwidthInstance,
        step: PhasedStep,
        rate: FloatArray,
        left: FloatArray,
        active: BoolArray,
    ) -> ChannelGraph:
        """The observation of `step`, stopped where a phase begins: fresh arrays.

        Args:
            rate: (C,) bytes/s until now; before the first phase the uniform shares.
            left: (S * S,) bytes that each pipe has still to carry, in all phases to come.
            active: (C,) the pipe has something left to carry.

        Raises:
            InputError: the instance exceeds the bounds.
        """
        if self._known is None or self._known.instance is not instance:
            self._known = _Known(instance, self)
        known = self._known
        seen = {key: values.copy() for key, values in known.padded.items()}
        traffic, phase = instance.traffic, step.phase
        c, k, p = len(known.pipe), len(known.capacity), instance.num_phases
        over, waiting = phase >= p, step.backlog.ravel()
        coming = np.zeros_like(left) if over else waiting + traffic.volume[phase]
        reference = instance.uniform.step_time

        channels = seen["channel_features"]
        peak = coming.max()
        share = coming / (peak if peak > 0 else 1.0)
        with np.errstate(divide="ignore"):
            decibel = np.maximum(np.log(share) / np.log(1024.0), -1.0)
        lasting = [volume / known.uniform_bytes for volume in (coming, left, waiting)]
        channels[:c, 0] = _clip(rate / known.slowest)
        for column, values in enumerate((*lasting, share, decibel), start=4):
            channels[:c, column] = _clip(values[known.pipe])
        if not over:
            transfers = traffic.count[phase]
            channels[:c, 9] = (transfers / max(transfers.max(), 1))[known.pipe]
            channels[:c, 10:13] = _clip(known.windows[phase][known.pipe])
        channels[:c, 13] = seen["active"][:c] = active

        links = seen["link_features"]
        links[:k, 2] = _clip(known.incidence @ rate / known.capacity)
        for column, volume in ((3, coming), (4, left)):
            spread = (volume / known.split)[known.pipe]
            links[:k, column] = _clip(known.incidence @ spread / known.capacity / reference)

        begun = instance.uniform_begin_s
        seen["phase_features"][:] = _clip(
            np.array(
                [
                    phase / p,
                    1.0 / p,
                    step.now / reference,
                    begun[phase] / reference,
                    0.0 if over else (begun[phase + 1] - begun[phase]) / reference,
                    known.behind[phase],
                    0.0 if over else known.busiest[phase] / reference,
                    coming.sum() / traffic.volume.sum(),
                    lasting[0].sum() / max((coming > 0).sum(), 1),
                ]
            )
        )
        return seen


class _Known:
    """Everything about an instance that no decision changes."""

    def __init__(self, instance: BandwidthInstance, observation: BandwidthObservation) -> None:
        self.instance = instance
        network = instance.problem.topology.network
        needed, bounds = BandwidthBounds.of(network, instance.num_phases), observation.bounds
        check_sizes(bounds, f"graph {instance.problem.graph.name}", **asdict(needed))
        self.incidence, self.pipe = network.incidence, network.channel_pipe  # (K, C), (C,)
        pipes = network.num_servers**2
        self.split = np.maximum(np.bincount(self.pipe, minlength=pipes), 1)  # (S * S,)
        uniform = np.bincount(self.pipe, instance.uniform_rate, pipes)  # (S * S,) bytes/s
        # (S * S,) that each pipe carries in the uniform step time
        self.uniform_bytes = np.where(uniform > 0, uniform, np.inf) * instance.uniform.step_time
        self.capacity = network.link_capacity
        largest = self.capacity[self.incidence.any(axis=1)].max()
        self.slowest = network.channel_capacity
        self.windows = _uniform_windows(instance)  # (P, S * S, 3)
        self.busiest = _busiest_device(instance)  # (P,)
        self.behind = np.append(instance.begins / instance.problem.graph.num_operators, 1.0)
        c, k, i = network.num_channels, network.num_links, len(network.channel_links)
        self.padded = padding(observation.space)
        self.padded["channel_ends"][:] = bounds.servers
        self.padded["incidence"][:] = [[bounds.channels], [bounds.links]]
        for key, count in (("channel_mask", c), ("link_mask", k), ("incidence_mask", i)):
            self.padded[key][:count] = 1
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


def _features(*shape: int) -> spaces.Box:
    return spaces.Box(LOW, HIGH, shape, np.float32)
