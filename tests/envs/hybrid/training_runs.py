"""Training runs, drawn."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from envs.graphs.transformer import TransformerSize
from envs.hybrid.training_run import TrainingRun

LLAMA3_8B = TransformerSize("llama", 4096, 32, 32, 128_256, 8192, 14_336, groups=8)
MODELS = (
    TransformerSize("gpt", 64, 12, 8, 512, 32),
    TransformerSize("gpt", 64, 12, 8, 512, 32, head_size=16, groups=4, experts=4, every=2),
    TransformerSize("llama", 64, 24, 8, 512, 64, groups=2),
    TransformerSize("mixtral", 64, 12, 8, 512, 64, groups=4),
    TransformerSize("llama", 256, 6, 16, 2048, 128),
    LLAMA3_8B,
)


def drawn(seed: int) -> TrainingRun:
    """A run; no framework has words for every one."""
    rng = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    model = cast(TransformerSize, one_of(*MODELS))
    schedule, pipeline = one_of("1f1b", "1f1b", "gpipe", "interleaved"), one_of(1, 2, 4)
    chunks = one_of(2, 3) if schedule == "interleaved" else 1
    micro_batch, data, sizes = one_of(1, 2), one_of(1, 2, 4), ()
    if pipeline * chunks <= model.layers and one_of(True, False):
        cuts = rng.choice(np.arange(1, model.layers + 2), pipeline * chunks - 1, replace=False)
        sizes = tuple(np.diff([0, *sorted(cuts), model.layers + 2]).tolist())
    return TrainingRun(
        model, one_of(1, 2), pipeline, data, one_of(1, np.gcd(data, model.experts).item()),
        one_of(True, True, False), micro_batch, micro_batch * data * one_of(2, 4, 8), schedule,
        chunks, recompute := one_of("none", "selective", "full"),
        one_of(None, 1, 3) if recompute == "full" else None,
        one_of("fp32", "tf32", "fp16", "bf16", "bf16"), one_of(True, True, False),
        one_of(0, 1, 2, 3), sizes,
    )  # fmt: skip


def layers_of_stages(run: TrainingRun) -> list[int]:
    """The embedding and the head among them."""
    count = run.pipeline * run.chunks
    sizes = list(run.layers_per_stage) or [run.model.layers // count] * count
    if not run.layers_per_stage:
        sizes[0] += 1
        sizes[-1] += 1
    return sizes
