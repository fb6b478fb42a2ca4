"""`HybridProblem`: layers in a row, to be divided into stages on groups of devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from envs.arrays import FloatArray
from envs.hardware.topology import Topology
from envs.hybrid.states import LayerGraph
from envs.synchronisation.planned import PlannedSums

if TYPE_CHECKING:
    from envs.hybrid.plan import HybridPlan


@dataclass(frozen=True, eq=False)
class Sharding:
    """What it costs to share a layer among several devices, by degree; row 0 is degree 1.

    Shards of a layer compute a share of it each and exchange partial results by collectives, of
    which a shard sends so many bytes, in so many messages one after the other.
    """

    degrees: tuple[int, ...]  # (Q,) devices that share a layer, ascending from 1
    compute: FloatArray  # (Q, L) share of a layer's seconds that is left to each shard
    state: FloatArray  # (Q, L) share of its parameters and gradients
    saved: FloatArray  # (Q, L) share of its saved activations
    forward_sent: FloatArray  # (Q, L) bytes a shard sends for a whole micro-batch, forward pass
    backward_sent: FloatArray  # (Q, L) and backward pass
    forward_messages: FloatArray  # (Q, L) messages of a shard one after the other
    backward_messages: FloatArray  # (Q, L)

    @classmethod
    def none(cls, layers: int) -> Sharding:
        """No layer can be shared: where its operators are not known."""
        one, zero = np.ones((1, layers)), np.zeros((1, layers))
        return cls((1,), one, one, one, zero, zero, zero, zero)


@dataclass(frozen=True, eq=False)
class HybridProblem:
    """Divide L layers in a row into stages on groups of the D devices of `topology`.

    Seconds and bytes of layers are those of a whole micro-batch; a replica that gets a share of it
    takes that share of both. Layers pass bytes only to the layer after them: what a later one reads
    travels through those between.

    Knows:
        Every layer's seconds on every device, what passes between layers, what replicas sum, the
        memory, and the links between devices. It decides stages, devices, shares and the order.
    """

    objective: ClassVar[str] = "step_time_s"
    sense: ClassVar[Literal["min"]] = "min"

    name: str
    layer_names: tuple[str, ...]  # (L,)
    topology: Topology
    forward: FloatArray  # (L, D) seconds, inf: the device cannot run it
    input_gradient: FloatArray  # (L, D) what the layer before waits for in the backward pass
    weight_gradient: FloatArray  # (L, D) what nobody waits for; 0 where it is not known apart
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

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layer_names)

    @property
    def num_devices(self) -> int:
        """D."""
        return self.topology.num_devices

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are known apart, so that an order may defer them."""
        return bool(self.weight_gradient.any())

    def work(self) -> FloatArray:
        """(L, D) seconds of forward and backward pass of all micro-batches, and the update."""
        passes = self.forward + self.input_gradient + self.weight_gradient
        return self.micro_batches * passes + self.update

    def price(self, plan: HybridPlan) -> dict[str, float]:
        """What the simulator says of a plan."""
        from envs.hybrid.simulation import simulate

        step = simulate(self, plan)
        peak = float(step.peak_memory.max())
        return {self.objective: step.step_time, "peak_memory_bytes": peak}

    def violations(self, plan: HybridPlan) -> list[str]:
        """What is wrong with a plan, a sentence each."""
        return plan.violations(self)

    def bound(self) -> float:
        """Seconds no plan can beat: all work spread over all devices, each layer where it is fast.

        Shards save no work in sum: `Sharding.compute` is at least 1 / degree.
        """
        fastest = self.work().min(axis=1).sum()
        speed = fastest / self.work().sum(axis=0)  # (D,) of the fastest device's
        return float(fastest / speed.sum()) if np.isfinite(speed).all() else 0.0
