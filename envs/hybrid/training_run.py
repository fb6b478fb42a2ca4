"""How a transformer of a size is trained on many devices: degrees, batch, precision, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.graphs.transformer import TransformerSize, parts_of

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "gpipe", "interleaved"]


@bounded
@dataclass(frozen=True)
class TrainingRun:
    """One step: `tensor * pipeline * data` devices, tensor parallel ones next to each other.

    Args:
        model: what is trained.
        tensor: devices that share every block (Megatron-LM).
        pipeline: stages.
        data: replicas.
        expert: devices of the replicas among which experts are divided; a divisor of `data`.
        sequence_parallel: norms, dropout and residuals too are shared by tensor parallel devices.
        micro_batch: samples of one micro-batch of one replica.
        global_batch: samples of a step of all replicas.
        schedule: order of micro-batches.
        chunks: stages of each device under the interleaved schedule.
        recompute: what the backward pass computes again: nothing, attention's scores alone, or
            every block.
        recompute_layers: with `full`, only so many blocks of each stage, its first ones (with
            chunks a device has several stages); None: every block.
        precision: of products: float32, float32 by TF32 tensor cores, or half precision with
            float32 master weights.
        fused_attention: attention is one operator (FlashAttention), which keeps no scores.
        zero: what replicas divide among each other (Rajbhandari et al., SC 2020): 0 nothing, 1
            optimizer state, 2 gradients too, 3 parameters too.
        layers_per_stage: of every stage, the embedding and the head counted as layers; empty: the
            blocks equally, the embedding in the first stage and the head in the last one.

    Raises:
        InputError: what does not divide what, by its field.
    """

    model: TransformerSize
    tensor: Count = 1
    pipeline: Count = 1
    data: Count = 1
    expert: Count = 1
    sequence_parallel: bool = False
    micro_batch: Count = 1
    global_batch: Count = 1
    schedule: Schedule = "1f1b"
    chunks: Count = 1
    recompute: Recompute = "none"
    recompute_layers: Annotated[int, Ge(0)] | None = None
    precision: Precision = "bf16"
    fused_attention: bool = True
    zero: Literal[0, 1, 2, 3] = 0
    layers_per_stage: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        one = self.micro_batch * self.data
        if self.global_batch % one:
            reason = (
                f"a global batch of {self.global_batch} is no multiple of {self.data} replicas "
                f"with micro-batches of {self.micro_batch}"
            )
            raise InputError(reason, field="micro_batch")
        if self.model.heads % self.tensor:
            reason = f"{self.tensor} does not divide {self.model.heads} heads"
            raise InputError(reason, field="tensor")
        if self.data % self.expert or self.model.experts % self.expert:
            reason = f"{self.expert} does not divide {self.data} replicas and the experts"
            raise InputError(reason, field="expert")
        if self.recompute_layers is not None and self.recompute != "full":
            raise InputError("counts blocks of recompute=full", field="recompute_layers")

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.tensor * self.pipeline * self.data

    def rings(self, replicas: int) -> list[range]:
        """Devices with the same shard of so many replicas beside each other, ring by ring."""
        group = self.tensor * replicas
        return [range(shard, group, self.tensor) for shard in range(self.tensor)]

    @property
    def stage_layers(self) -> list[int]:
        """Layers of every stage, the embedding and the head counted."""
        sizes, blocks = list(self.layers_per_stage), len(parts_of(self.model)) - 2
        count = self.pipeline * self.chunks
        if sizes:
            if len(sizes) != count or sum(sizes) != blocks + 2 or min(sizes) < 1:
                reason = f"{sizes} are not {blocks + 2} layers of {count} stages"
                raise InputError(reason, field="layers_per_stage")
            return sizes
        if blocks % count:
            raise InputError(f"{count} stages do not divide {blocks} blocks", field="pipeline")
        sizes = [blocks // count] * count
        sizes[0] += 1
        sizes[-1] += 1
        return sizes

    @property
    def micro_batches(self) -> int:
        """Of a step, one after the other in each replica."""
        return self.global_batch // (self.micro_batch * self.data)
