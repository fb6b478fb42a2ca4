"""`HybridPlan`: stages on groups of devices, and the order in which each group works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.hybrid.links import Servers
from envs.hybrid.states import LayerGraph
from envs.step.pipeline import Action, Orders, Pipeline, Work, parts, play
from envs.synchronisation.planned import PlannedSums
from envs.units import MEBI

BUCKET_BYTES = 25 * MEBI  # PyTorch's default
SUM_SLACK = 1e-9  # what shares may miss 1 by: rounding
LETTERS = {Work.FORWARD: "F", Work.INPUT: "I", Work.WEIGHT: "W", Work.BACKWARD: "B"}
_ACTION = re.compile(r"(\d+)([FIWB])(\d+)")


@dataclass(frozen=True)
class Stage:
    """Layers `first`..`end` - 1 on a group of devices.

    The group holds replicas of the stage, one after the other, of `shards` devices each; every
    replica computes its share of each micro-batch, every shard its part of each layer.
    """

    first: int
    end: int
    devices: tuple[int, ...]
    shards: int = 1
    shares: tuple[float, ...] | None = None  # of a micro-batch, by replica; None: equal ones
    recompute: bool = False  # keep the stage's input alone, and compute the rest again

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len(self.devices) // self.shards

    @property
    def share(self) -> FloatArray:
        """(R,) of a micro-batch, by replica."""
        if self.shares is None:
            return np.full(self.replicas, 1.0 / self.replicas)
        return np.array(self.shares, dtype=np.float64)

    def replica(self, number: int) -> tuple[int, ...]:
        """The devices of a replica."""
        return self.devices[number * self.shards : (number + 1) * self.shards]


@dataclass(frozen=True)
class HybridPlan:
    """A step of `micro_batches`, gradients summed over replicas at its end.

    Stages of the same devices take turns on them. A *rank* is such a group of devices; ranks are
    numbered by their first stage.

    Args:
        stages: in the order of the layers.
        orders: the list of actions of every rank; `envs.step.pipeline` says how they are run.
    """

    stages: tuple[Stage, ...]
    micro_batches: int
    orders: Orders

    @property
    def rank(self) -> tuple[int, ...]:
        """(S,) the rank of each stage."""
        groups = list(dict.fromkeys(stage.devices for stage in self.stages))
        return tuple(groups.index(stage.devices) for stage in self.stages)

    def violations(self, problem: LayerRow) -> list[str]:
        """What is wrong with this plan, a sentence each; empty when it is feasible."""
        found = self._wrong_stages(problem)
        if found:
            return found
        try:
            play(self.untimed(), self.orders)
        except InputError as error:
            return [f"orders: {error}"]
        used = dict.fromkeys(device for stage in self.stages for device in stage.devices)
        peak = peak_memory(problem, self)
        return [
            f"device {problem.topology.devices[d].name!r} needs {peak[d]:.0f} bytes, "
            f"{peak[d] - problem.capacity[d]:.0f} too many"
            for d in used
            if peak[d] > problem.capacity[d]
        ]

    def untimed(self) -> Pipeline:
        """The stages on their ranks, where every action takes one second."""
        ones, ordered = (1.0,) * len(self.stages), tuple(range(len(self.stages)))
        return Pipeline(self.rank, self.micro_batches, ones, ones, ones, 0.0, (ordered,))

    def _wrong_stages(self, problem: LayerRow) -> list[str]:
        faults = stage_faults(self.stages, problem.num_layers, SUM_SLACK)
        found = [f"stage {number}: {fault}" for number, _, fault in faults]
        if self.micro_batches != problem.micro_batches:
            found.append(f"{self.micro_batches} micro-batches, not {problem.micro_batches}")
        owner = dict[int, Stage]()
        for number, stage in enumerate(self.stages if not found else ()):
            if stage.shards not in problem.sharding:
                known = ", ".join(map(str, problem.sharding))
                found.append(f"stage {number}: {stage.shards} shards are none of {known}")
            if not 0 <= min(stage.devices) <= max(stage.devices) < problem.num_devices:
                found.append(f"stage {number} names a device that is none")
                continue
            if np.isinf(problem.forward[stage.first : stage.end, stage.devices]).any():
                found.append(f"stage {number} has a layer that a device of it cannot run")
            for device in stage.devices:
                other = owner.setdefault(device, stage)
                if (other.devices, other.shards) != (stage.devices, stage.shards):
                    name = problem.topology.devices[device].name
                    found.append(f"device {name!r} is in two groups, or in one divided in two ways")
        return found


def stage_faults(
    stages: Sequence[Stage], layers: int, slack: float
) -> Iterator[tuple[int, str, str]]:
    """(stage, field, what is wrong with it) of stages that should divide the layers.

    Shares may miss 1 by `slack`.
    """
    begin = 0
    for number, stage in enumerate(stages):
        if stage.first != begin or stage.end <= begin:
            yield number, "first", f"has layers {stage.first} to {stage.end}, after {begin}"
        count, shards, begin = len(stage.devices), stage.shards, stage.end
        if not count or shards < 1 or len(set(stage.devices)) < count or count % shards:
            fault = f"{count} devices are not replicas of {shards} shards, each device once"
            yield number, "devices", fault
        elif (
            len(stage.share) != stage.replicas
            or abs(stage.share.sum() - 1.0) > slack
            or (stage.share <= 0).any()
        ):
            fault = f"shares are not {stage.replicas} positive numbers with the sum 1"
            yield number, "shares", fault
    if begin != layers:
        yield max(len(stages) - 1, 0), "end", f"ends at layer {begin} of {layers}"


def ordered(
    stages: Sequence[Stage], micro_batches: int, order: Callable[[int, int, int], Orders]
) -> HybridPlan:
    """The plan of `stages` in a published order (ranks, micro-batches, stages a rank)."""
    bare = HybridPlan(tuple(stages), micro_batches, ())
    ranks = max(bare.rank) + 1
    return replace(bare, orders=order(ranks, micro_batches, len(stages) // ranks))


def stage_bytes(problem: LayerRow, stage: Stage) -> tuple[float, float]:
    """(bytes of state, bytes saved of a whole micro-batch) of a stage, on each of its shards."""
    held, layers = problem.held[stage.shards], slice(stage.first, stage.end)
    return float(held.state_bytes[layers].sum()), float(held.saved_bytes[layers].sum())


def peak_memory(problem: LayerRow, plan: HybridPlan) -> FloatArray:
    """(D,) bytes at worst: state, and the activations that the order keeps at once.

    Activations of a micro-batch are there from its forward pass to its backward pass, or to the
    gradient of the weights where that is apart. With recomputation only a stage's input stays, and
    one micro-batch's activations come back for its backward pass.
    """
    peak = np.zeros(problem.num_devices)
    for rank, order in enumerate(plan.orders):
        kept = {}  # (R,) bytes of a micro-batch on each device of a replica
        again = {}
        state = 0.0
        for number in [s for s, r in enumerate(plan.rank) if r == rank]:
            stage = plan.stages[number]
            own, saved = stage_bytes(problem, stage)
            state += own
            entry = float(problem.cut_bytes[stage.first])
            kept[number] = (min(entry, saved) if stage.recompute else saved) * stage.share
            again[number] = (saved if stage.recompute else 0.0) * stage.share
        live = most = np.zeros(stage.replicas)
        for work, number, *_ in (part for action in order for part in parts(action)):
            if work is Work.FORWARD:
                live = live + kept[number]
            most = np.maximum(most, live + (again[number] if work is not Work.FORWARD else 0.0))
            if work in {Work.BACKWARD, Work.WEIGHT}:
                live = live - kept[number]
        peak[list(stage.devices)] = np.repeat(state + most, stage.shards)
    return peak


def order_texts(orders: Orders) -> list[list[str]]:
    """Every rank's list as texts: stage, F, I, W or B, micro-batch; "1F3"."""
    return [
        [f"{action.stage}{LETTERS[action.work]}{action.micro_batch}" for action in order]
        for order in orders
    ]


def order_of_texts(texts: Sequence[Sequence[str]], file: object) -> list[list[Action]]:
    """The lists that `order_texts` wrote.

    Raises:
        InputError: a text is no action.
    """
    works = {letter: work for work, letter in LETTERS.items()}
    orders = []
    for rank, row in enumerate(texts):
        found = [_ACTION.fullmatch(text) if isinstance(text, str) else None for text in row]
        if None in found:
            wrong = row[found.index(None)]
            fault = f"{wrong!r} is no action such as 0F0, 1B2, 1I2, 1W2"
            raise InputError(fault, file=file, record=f"rank {rank}", field="orders")
        orders.append([Action(works[m[2]], int(m[1]), int(m[3])) for m in found if m is not None])
    return orders


class Shard(NamedTuple):
    """What sharing leaves of every layer to each of several shards, (L,) each, and what it costs.

    Shards of a layer compute a share of it each and exchange partial results by collectives, of
    which a shard sends so many bytes, in so many messages one after the other.
    """

    compute: FloatArray  # share of a layer's seconds
    state: FloatArray  # share of its parameters and gradients
    saved: FloatArray  # share of its saved activations
    forward_sent: FloatArray  # bytes a shard sends for a whole micro-batch, forward pass
    backward_sent: FloatArray  # and backward pass
    forward_messages: FloatArray  # of a shard, one after the other
    backward_messages: FloatArray


Sharding = Mapping[int, Shard]  # by how many devices share a layer, ascending from 1


def unshared(layers: int) -> Sharding:
    """No layer can be shared: where its operators are not known."""
    one, zero = np.ones(layers), np.zeros(layers)
    return {1: Shard(one, one, one, zero, zero, zero, zero)}


class Held(NamedTuple):
    """What one of several shards has of every layer."""

    state_bytes: FloatArray  # (L,)
    gradient_bytes: FloatArray  # (L,)
    saved_bytes: FloatArray  # (L,)
    update: FloatArray  # (L, D) seconds


@dataclass(frozen=True, eq=False)
class LayerRow:
    """L layers in a row and the D devices of `topology`: seconds, bytes and memory.

    Seconds and bytes of layers are those of a whole micro-batch; a replica that gets a share of it
    takes that share of both. Layers pass bytes only to the layer after them: what a later one reads
    travels through those between.
    """

    name: str
    layer_names: tuple[str, ...]  # (L,)
    topology: Topology
    forward: FloatArray  # (L, D) seconds, inf: the device cannot run it
    input_gradient: FloatArray  # (L, D) what the layer before waits for in the backward pass
    weight_gradient: FloatArray  # (L, D) what no stage waits for; 0 where it is not known apart
    update: FloatArray  # (L, D) seconds of the optimizer, once a step
    cut_bytes: FloatArray  # (L + 1,) from layer l - 1 to layer l, gradients the same back; ends 0
    gradient_bytes: FloatArray  # (L,) what replicas sum
    state_bytes: FloatArray  # (L,) parameters, gradients, optimizer state
    saved_bytes: FloatArray  # (L,) activations kept from the forward to the backward pass
    micro_batches: int  # M of a step
    capacity: FloatArray  # (D,) bytes
    sharding: Sharding
    profile: LayerGraph | None = None  # what the row was made of, with its branches
    sums: PlannedSums | None = None  # how replicas sum gradients; None: by rings
    servers: Servers | None = None  # whose measured collectives hold; None: rings over the topology
    bucket_bytes: float = BUCKET_BYTES  # of gradients that are summed together

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layer_names)

    @property
    def num_devices(self) -> int:
        """D."""
        return self.topology.num_devices

    @cached_property
    def held(self) -> dict[int, Held]:
        """By one of so many shards."""
        return {
            shards: Held(
                of.state * self.state_bytes, of.state * self.gradient_bytes,
                of.saved * self.saved_bytes, of.state[:, None] * self.update,
            )
            for shards, of in self.sharding.items()
        }  # fmt: skip

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are known apart, so that an order may defer them."""
        return bool(self.weight_gradient.any())

    def work(self) -> FloatArray:
        """(L, D) seconds of forward and backward pass of all micro-batches, and the update."""
        passes = self.forward + self.input_gradient + self.weight_gradient
        return self.micro_batches * passes + self.update
