"""Kernels and parameters of transformers beside closed forms and published totals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.graphs.kernels import MATRIX, Family, Kernels
from envs.graphs.transformer import (
    FAMILIES,
    Execution,
    Part,
    TransformerSize,
    kernels_of_part,
    parameters_of,
    parts_of,
)
from tests.refusal import refusal

GPT = TransformerSize("gpt", hidden=256, layers=2, heads=4, vocabulary=1000, sequence=128)
LLAMA = replace(GPT, family="llama", feed_forward=704, groups=2, name="llama")
PLAIN, SAMPLES = Execution(), 3
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {  # configs of Hugging Face, parameters
    "gpt2_large": (
        {"family": "gpt", "hidden": 1280, "layers": 36, "heads": 20, "vocabulary": 50257,
         "sequence": 1024}, 774.0e6,
    ),
    "opt_1.3b": (
        {"family": "opt", "hidden": 2048, "layers": 24, "heads": 32, "vocabulary": 50272}, 1315.8e6,
    ),
    "llama_7b": (
        {"family": "llama", "hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 32000,
         "feed_forward": 11008}, 6738e6,
    ),
    "mixtral_8x7b": (
        {"family": "mixtral", "hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 32000,
         "groups": 8, "feed_forward": 14336}, 46.7e9,
    ),
}  # fmt: skip


def flop(kernels: Kernels) -> float:
    return float(kernels.flop[np.isin(kernels.family, MATRIX)].sum())


def moved(kernels: Kernels) -> float:
    return float((kernels.bytes_read + kernels.bytes_written).sum())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name: str) -> None:
    sizes, published = PUBLISHED[name]
    size = TransformerSize(**sizes)
    total = sum(parameters_of(size, part) for part in parts_of(size))
    assert total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("execution", [PLAIN, Execution(fused=True)])
def test_flop_of_a_block_of_gpt(execution: Execution) -> None:
    """24 h^2 + 4 s h for each token forward, and twice as many back."""
    forward, backward = kernels_of_part(GPT, Part.BLOCK, SAMPLES, execution)
    h, s = GPT.hidden, GPT.sequence
    assert flop(forward) == pytest.approx(SAMPLES * s * (24 * h * h + 4 * s * h))
    assert flop(backward) == pytest.approx(2 * flop(forward))


def test_flop_of_a_block_of_llama_with_fewer_keys() -> None:
    forward, _ = kernels_of_part(LLAMA, Part.BLOCK, SAMPLES, PLAIN)
    h, s, f = LLAMA.hidden, LLAMA.sequence, LLAMA.feed_forward
    weights = h * h + 2 * h * (h // 2) + h * h + 3 * h * f  # two of four heads have keys
    assert flop(forward) == pytest.approx(SAMPLES * s * (2 * weights + 4 * s * h))


def test_flop_of_experts_are_those_of_active_ones() -> None:
    size = replace(LLAMA, family="mixtral", name="", experts=4, active=2)
    dense, sparse = (
        flop(kernels_of_part(size, part, SAMPLES, PLAIN)[0])
        for part in (Part.BLOCK, Part.SPARSE_BLOCK)
    )
    tokens, one = SAMPLES * size.sequence, 6 * size.hidden * size.feed_forward
    assert sparse - dense == pytest.approx(tokens * (one + 2 * size.hidden * size.experts))


@pytest.mark.parametrize("part", [Part.BLOCK, Part.HEAD])
@pytest.mark.parametrize("size", [GPT, LLAMA])
def test_devices_share_the_flop(size: TransformerSize, part: Part) -> None:
    for alone, shared in zip(
        kernels_of_part(size, part, SAMPLES, PLAIN),
        kernels_of_part(size, part, SAMPLES, Execution(tensor=2)),
        strict=True,
    ):
        assert flop(shared) == pytest.approx(flop(alone) / 2)
        assert moved(shared) < moved(alone)


def test_fused_attention_moves_fewer_bytes_and_computes_half_of_the_scores() -> None:
    parts, fused = (
        kernels_of_part(GPT, Part.BLOCK, SAMPLES, execution)[0]
        for execution in (PLAIN, Execution(fused_attention=True))
    )
    assert moved(fused) < moved(parts)
    scores = 4 * SAMPLES * GPT.sequence**2 * GPT.hidden
    assert flop(parts) - flop(fused) == pytest.approx(scores / 2)
    assert np.sum(fused.family == Family.ATTENTION) == 1
    both = replace(GPT, family="bert")
    whole = kernels_of_part(both, Part.BLOCK, SAMPLES, Execution(fused_attention=True))[0]
    assert flop(whole) == pytest.approx(flop(parts))


def test_fused_kernels_are_fewer_and_move_fewer_bytes() -> None:
    for part in (Part.EMBEDDING, Part.BLOCK, Part.HEAD):
        eager, fused = (
            kernels_of_part(GPT, part, SAMPLES, execution)[0]
            for execution in (PLAIN, Execution(fused=True))
        )
        assert len(fused) < len(eager)
        assert moved(fused) < moved(eager)


def test_a_parallel_loss_takes_eight_passes_forward_and_two_back() -> None:
    scores = 4.0 * SAMPLES * GPT.sequence * GPT.vocabulary
    inference = kernels_of_part(GPT, Part.HEAD, SAMPLES, Execution(training=False))
    found = kernels_of_part(GPT, Part.HEAD, SAMPLES, Execution(parallel_loss=True))
    passes = [(moved(x) - moved(y)) / scores for x, y in zip(found, inference, strict=True)]
    assert passes == pytest.approx([8, 2])


def test_a_shared_embedding_masks_the_tokens_of_others() -> None:
    alone, shared = (
        kernels_of_part(GPT, Part.EMBEDDING, SAMPLES, Execution(tensor=tensor))[0]
        for tensor in (1, 2)
    )
    assert len(shared) > len(alone)
    assert set(shared.rate) == {"float32"}


@given(
    family=st.sampled_from(FAMILIES),
    heads=st.sampled_from([2, 4, 8]),
    head_size=st.sampled_from([16, 64, 80]),
    sequence=st.integers(1, 4096),
    samples=st.integers(1, 64),
    tensor=st.sampled_from([1, 2]),
    flags=st.tuples(*[st.booleans()] * 5),
)
def test_kernels_of_any_size_are_finite_and_not_negative(
    family: str, heads: int, head_size: int, sequence: int, samples: int, tensor: int,
    flags: tuple[bool, ...],
) -> None:  # fmt: skip
    size = TransformerSize(family, heads * head_size, 2, heads, 1000, sequence)
    fused, fused_attention, training, shared, loss = flags
    execution = Execution(
        "float16", 2.0, tensor, sequence_parallel=shared, fused=fused,
        fused_attention=fused_attention, training=training, parallel_loss=loss,
    )  # fmt: skip
    for part in dict.fromkeys(parts_of(size)):
        for kernels in kernels_of_part(size, part, samples, execution):
            for name in ("batch", "m", "n", "k", "flop", "bytes_read", "bytes_written"):
                column = getattr(kernels, name)
                assert np.isfinite(column).all()
                assert (column >= 0).all()
            assert (kernels.m * kernels.n * kernels.k > 0).all()
            assert (kernels.flop + kernels.bytes_read + kernels.bytes_written > 0).all()
        assert parameters_of(size, part) > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "rnn"}, "field 'family'.*'rnn'"),
        ({"heads": 3, "groups": 0, "head_size": 0}, "field 'heads': 3 does not divide"),
        ({"groups": 3}, "field 'groups'"),
        ({"active": 9}, "field 'active': 9 of 1 experts"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with refusal(words):
        replace(GPT, **changes)
