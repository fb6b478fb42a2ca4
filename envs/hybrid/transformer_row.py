"""A transformer's training run as layers in a row: seconds, messages and memory of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.graphs.kernels import Family, Kernels
from envs.graphs.transformer import (
    Execution,
    Part,
    kernels_of_part,
    parameters_of,
    parts_of,
    sums_of,
)
from envs.hardware.devices import DeviceSpec
from envs.hybrid.links import Servers
from envs.hybrid.plan import BUCKET_BYTES, Shard
from envs.hybrid.problem import HybridProblem
from envs.hybrid.training_run import TrainingRun

# Bytes an optimizer step of Adam reads and writes for every parameter; those it keeps: parameters,
# gradients, and the rest that ZeRO divides first.
_ADAM_MOVED = {4: 28.0, 2: 34.0}
_STATE = {4: (4.0, 4.0, 8.0), 2: (2.0, 4.0, 12.0)}
_GRADIENT = 4.0  # gradients are summed in float32
_RATES = {"fp32": "float32", "tf32": "tfloat32", "fp16": "float16", "bf16": "bfloat16"}
MEMORY_SHARE = 0.8  # of the bandwidth that the optimizer reaches
FRAMEWORK_BYTES = 4.0e9  # of the CUDA context, of libraries' buffers and of fragments
MOST_ACTIONS = 1_000_000  # of all devices in a step
WHOLE = float("inf")  # a bucket: gradients are summed when all of them are there


@runtime_checkable
class KernelCost(Protocol):
    """How long kernels take."""

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec) -> FloatArray:
        """(K,) seconds."""


@dataclass(frozen=True)
class Constants:
    """What may be calibrated; the products of these and what physics says.

    Args:
        compute: of kernels' seconds.
        launch_s: added to every kernel.
        collective: of seconds of tensor parallel sums.
        data: of seconds of sums over replicas.
        pipeline: of bytes between stages.
        framework_bytes: memory beside parameters and activations.
    """

    compute: float = 1.0
    launch_s: float = 0.0
    collective: float = 1.0
    data: float = 1.0
    pipeline: float = 1.0
    framework_bytes: float = FRAMEWORK_BYTES


@dataclass(frozen=True)
class PricedPart:
    """One device's seconds in a layer of one micro-batch of one replica."""

    forward_s: float
    backward_s: float
    sums_forward: float  # bytes an all-reduce of the forward pass has, all of them together
    sums_backward: float
    messages_forward: int
    messages_backward: int
    experts_s: float = 0.0  # seconds of a pass in which tokens go to experts and come back


@dataclass(frozen=True, eq=False)
class TransformerRow:
    """The layers of a run on servers, under a cost of kernels."""

    run: TrainingRun
    servers: Servers
    cost: KernelCost
    fused: bool = True  # kernels as Megatron-LM's; else those of eager PyTorch
    constants: Constants = Constants()
    overlap: bool = False  # gradients are summed beside the backward pass
    stage_devices: tuple[DeviceSpec, ...] = ()  # of each stage; (): those of the servers
    # seconds of kernels that runs of one model on these servers have in common
    known: dict[tuple[object, ...], tuple[FloatArray, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def parts(self) -> list[Part]:
        """The layers."""
        return parts_of(self.run.model)

    @property
    def stages(self) -> list[int]:
        """Layers of each stage."""
        return self.run.stage_layers

    @property
    def element_bytes(self) -> int:
        """Of activations."""
        return 2 if self.run.precision in {"fp16", "bf16"} else 4

    def execution(self, spec: DeviceSpec) -> Execution:
        """How kernels run on a device; TF32 where it has none is float32.

        Raises:
            InputError: it has no rate for the precision.
        """
        rate = _RATES[self.run.precision]
        if rate == "tfloat32" and rate not in spec.peak_flops:
            rate = "float32"
        if rate not in spec.peak_flops:
            known = ", ".join(spec.peak_flops)
            reason = f"device {spec.name} has no {rate} rate (it has: {known})"
            raise InputError(reason, field="precision")
        return Execution(
            rate=rate,
            element_bytes=float(self.element_bytes),
            tensor=self.run.tensor,
            expert=self.run.expert,
            sequence_parallel=self.run.sequence_parallel,
            fused=self.fused,
            fused_attention=self.run.fused_attention,
            parallel_loss=self.run.tensor > 1,
        )

    @cached_property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """(S,) of each stage."""
        return self.stage_devices or (self.servers.device,) * len(self.stages)

    @cached_property
    def specs(self) -> list[DeviceSpec]:
        """(L,) the device of each layer."""
        stages = np.repeat(np.arange(len(self.stages)), self.stages)
        return [self.devices[stage] for stage in stages.tolist()]

    @cached_property
    def recomputed(self) -> list[bool]:
        """(L,) whether a layer is a block that keeps its input alone."""
        run, ends = self.run, np.cumsum(self.stages)
        first = np.maximum(np.repeat(ends - self.stages, self.stages), 1)  # blocks of their stages
        place = np.arange(ends[-1]) - first
        most = ends[-1] if run.recompute_layers is None else run.recompute_layers
        chosen = (place >= 0) & (place < most) & (run.recompute == "full")
        return [*chosen.tolist()[:-1], False]

    @cached_property
    def priced(self) -> list[PricedPart]:
        """Of each layer, on the device of its stage."""
        found: dict[tuple[Part, str, bool], PricedPart] = {}
        row = []
        for part, spec, again in zip(self.parts, self.specs, self.recomputed, strict=True):
            key = part, spec.name, again
            if key not in found:
                found[key] = self._price(part, spec, again)
            row.append(found[key])
        return row

    def _price(self, part: Part, spec: DeviceSpec, recomputed: bool) -> PricedPart:
        run, size = self.run, self.run.model
        execution = self.execution(spec)
        key = (size, part, run.micro_batch, execution, spec.name)
        if key not in self.known:
            passes = kernels_of_part(size, part, run.micro_batch, execution)
            self.known[key] = tuple(self.cost.kernel_seconds(each, spec) for each in passes)
        forward, backward = map(self._calibrated, self.known[key])
        block = part not in {Part.EMBEDDING, Part.HEAD}
        again = 0.0
        if recomputed:
            again = forward
        elif run.recompute == "selective" and block and not run.fused_attention:
            scores = self._scores(part, execution)
            again = self._calibrated(self.cost.kernel_seconds(scores, spec))
        activations = float(run.micro_batch * size.sequence * size.hidden * self.element_bytes)
        once, twice = sums_of(part) if run.tensor > 1 else (0, 0)
        if recomputed:
            twice *= 2
        return PricedPart(
            forward, backward + again, once * activations, twice * activations, once, twice,
            self._experts_s(activations) if part.sparse else 0.0,
        )  # fmt: skip

    def _experts_s(self, activations: float) -> float:
        """Of two all-to-alls among the devices that share experts.

        Each sends half of what an all-reduce of as many bytes does.
        """
        run = self.run
        latency, per_byte = self.servers.all_reduce(run.rings(run.expert))
        return 2.0 * (latency + activations * run.model.active * per_byte / 2.0)

    def _calibrated(self, seconds: FloatArray) -> float:
        constants = self.constants
        return float(constants.compute * seconds.sum() + constants.launch_s * len(seconds))

    def _scores(self, part: Part, execution: Execution) -> Kernels:
        """Kernels of attention's scores, which selective recomputation runs again."""
        whole, _ = kernels_of_part(self.run.model, part, self.run.micro_batch, execution)
        products = np.flatnonzero(whole.family == Family.PRODUCT)  # by keys, by values, and again
        pairs = zip(products[::2], products[1::2], strict=True)
        return whole.take(np.concatenate([np.arange(first, end) for first, end in pairs]))

    def parameters(self, part: Part) -> tuple[float, float]:
        """(shared by all replicas, experts') parameters of one device in a layer of this kind."""
        size, run = self.run.model, self.run
        whole = parameters_of(size, part) / run.tensor
        if not part.sparse:
            return whole, 0.0
        one = size.feed_forward_parameters / run.tensor
        return whole - size.experts * one, size.experts / run.expert * one

    def summed(self, part: Part) -> float:
        """Parameters of one device whose gradients all replicas sum: experts have fewer of them."""
        shared, experts = self.parameters(part)
        data, own = self.run.data, self.run.data // self.run.expert
        return shared + (experts * (1.0 - 1.0 / own) / (1.0 - 1.0 / data) if data > 1 else 0.0)

    @property
    def parameter_count(self) -> float:
        """Of the whole model."""
        return sum(parameters_of(self.run.model, part) for part in self.parts)

    def flop(self, part: Part) -> float:
        """Of one device for a micro-batch, forward and backward, nothing computed again."""
        execution = self.execution(self.servers.device)
        both = kernels_of_part(self.run.model, part, self.run.micro_batch, execution)
        return float(sum(kernels.flop.sum() for kernels in both))

    def states(self, part: Part) -> tuple[float, float, float]:
        """Bytes of parameters, of gradients and of optimizer state of one device."""
        shared, experts = self.parameters(part)
        replicas = self.run.data, self.run.data // self.run.expert
        found = []
        for held, level in zip(_STATE[self.element_bytes], (3, 2, 1), strict=True):
            ways = [count if self.run.zero >= level else 1 for count in replicas]
            found.append(held * (shared / ways[0] + experts / ways[1]))
        return found[0], found[1], found[2]

    @property
    def saved(self) -> list[float]:
        """(L,) bytes of `saved_bytes`."""
        return [self.saved_bytes(*each) for each in zip(self.parts, self.recomputed, strict=True)]

    def saved_bytes(self, part: Part, recomputed: bool = False) -> float:
        """Activations of one device that a micro-batch keeps (Korthikanti et al., MLSys 2023)."""
        run, size, e = self.run, self.run.model, float(self.element_bytes)
        tokens, t = float(run.micro_batch * size.sequence), run.tensor
        width = tokens * size.hidden
        shared = t if run.sequence_parallel else 1
        if part is Part.EMBEDDING:
            return width / shared
        if part is Part.HEAD:
            return width * e / shared + tokens * size.vocabulary / t * (4.0 + (e if e < 4 else 0.0))
        if recomputed:
            return width * e / shared
        ratio = size.feed_forward / (4.0 * size.hidden)
        gates = 1.5 if size.gated else 1.0
        kept = width * e * (5.0 / shared + (4.0 + 8.0 * ratio * gates * size.active) / t)
        if not run.fused_attention and run.recompute != "selective":
            kept += (2.0 * e + 1.0 if size.family != "opt" else e) * (
                run.micro_batch * size.heads * float(size.sequence) ** 2 / t
            )
        return kept * (1.5 if part.decodes else 1.0)

    def working_bytes(self) -> float:
        """Of the largest block, where any is computed again."""
        return max(map(self.saved_bytes, self.parts[1:-1])) if any(self.recomputed) else 0.0

    def summed_bytes(self) -> float:
        """Of a parameter, as bytes of one all-reduce at the end of a step.

        With ZeRO a gradient is sent once to who keeps its part, of level 2 on after every
        micro-batch, and the new parameters come back.
        """
        if not self.run.zero:
            return _GRADIENT
        times = self.run.micro_batches if self.run.zero > 1 else 1
        back = 0.0 if self.run.zero == 3 else float(self.element_bytes)
        return (times * _GRADIENT + back) / 2.0

    def gathering_s(self) -> FloatArray:
        """(L,) seconds in which ZeRO 3 collects a layer's parameters, beside what is computed."""
        run = self.run
        if run.zero < 3:
            return np.zeros(len(self.parts))
        latency, per_byte = self.servers.all_reduce(run.rings(run.data))
        parameters = np.array([self.summed(part) for part in self.parts])
        found: FloatArray = latency + parameters * self.element_bytes * per_byte / 2.0
        return found

    def update_s(self) -> FloatArray:
        """(L,) seconds of the optimizer, for the parameters whose state a device has."""
        moved = _ADAM_MOVED[self.element_bytes] / _STATE[self.element_bytes][2]
        held = np.array([self.states(part)[2] for part in self.parts])
        bandwidth = np.array([spec.memory_bandwidth for spec in self.specs])
        found: FloatArray = moved * held / (bandwidth * MEMORY_SHARE)
        return found

    def problem(self) -> HybridProblem:
        """The row, for the plan of the run alone: its seconds are those of its micro-batches."""
        run, parts, constants = self.run, self.parts, self.constants
        data, devices = float(run.data), run.devices
        actions = 2 * run.micro_batches * len(self.stages)
        if actions * run.data > MOST_ACTIONS:
            reason = (
                f"{run.micro_batches} micro-batches in {len(self.stages)} stages of {run.data} "
            )
            raise InputError(reason + "replicas are too many to simulate", field="global_batch")
        topology = self.servers.topology(devices)
        priced = self.priced

        def column(values: FloatArray) -> FloatArray:
            return np.repeat(values[:, None] * data, devices, axis=1)

        summed = np.array([self.summed(part) for part in parts])
        gathered = self.gathering_s()
        ones = np.ones(len(parts))
        ring = 2.0 * (run.tensor - 1) / run.tensor * data * constants.collective
        shard = Shard(
            ones, ones, ones,
            np.array([ring * part.sums_forward for part in priced]),
            np.array([ring * part.sums_backward for part in priced]),
            np.array([float(part.messages_forward) for part in priced]) * constants.collective,
            np.array([float(part.messages_backward) for part in priced]) * constants.collective,
        )  # fmt: skip
        width = float(run.micro_batch * run.model.sequence * run.model.hidden * self.element_bytes)
        cuts = np.full(len(parts) + 1, width * data * constants.pipeline)
        cuts[[0, -1]] = 0.0
        free = self.servers.device.memory_bytes - constants.framework_bytes - self.working_bytes()
        names = [f"{part.name.lower()}{number}" for number, part in enumerate(parts)]
        return HybridProblem(
            name=run.model.name,
            layer_names=tuple(names),
            topology=topology,
            forward=column(
                np.maximum([part.forward_s + part.experts_s for part in priced], gathered)
            ),
            input_gradient=column(
                np.maximum([part.backward_s + part.experts_s for part in priced], gathered)
            ),
            weight_gradient=np.zeros((len(parts), devices)),
            update=np.repeat(self.update_s()[:, None], devices, axis=1),
            cut_bytes=cuts,
            gradient_bytes=summed * self.summed_bytes() * constants.data,
            state_bytes=np.array([sum(self.states(part)) for part in parts]),
            saved_bytes=np.array(self.saved) * data,
            micro_batches=run.micro_batches,
            capacity=np.full(devices, max(free, 0.0)),
            sharding={run.tensor: shard},
            servers=self.servers,
            bucket_bytes=BUCKET_BYTES if self.overlap else WHOLE,
        )
