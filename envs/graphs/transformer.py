"""Transformers by their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import numpy as np
from annotated_types import Ge

from envs.bounds import Count, bounded
from envs.errors import InputError, refused_in, require_one_of
from envs.graphs.kernels import Family, Kernels

FAMILIES = ("gpt", "bert", "opt", "llama", "t5", "mixtral", "switch")
SMALL = 20  # kernels of eager PyTorch before the first block, for positions and masks
# PyTorch's look-up in a table divides 64-bit indices for every element, which takes as long as so
# many FLOP in float32 (fitted to measured embeddings).
INDEXING_FLOP = 180.0
MASKING = 12  # small kernels that look for the tokens of a shared vocabulary's own part
_Own = Annotated[int, Ge(0)]  # 0: the family's own


@bounded
@dataclass(frozen=True)
class TransformerSize:
    """A transformer of a known family in a size of one's own; 0 is what the family has.

    Args:
        family: gpt, bert, opt, llama, t5, mixtral or switch (T5 with experts).
        hidden: width between blocks.
        layers: blocks; of the encoder, and as many of the decoder, in t5 and switch.
        heads: of attention.
        vocabulary: different tokens.
        sequence: tokens of a sample, in the encoder and in the decoder alike.
        feed_forward: inner width of the feed-forward part: 4 hidden, or of llama and mixtral the
            multiple of 256 above 8/3 hidden.
        groups: heads of keys and values, a divisor of `heads`: as many as heads.
        head_size: width of a head: hidden / heads.
        experts: of a feed-forward part: 8 in mixtral and switch, 1 elsewhere.
        active: experts that a token goes to: 2 in mixtral, 1 elsewhere.
        every: one block of so many has experts: 2 in switch, 1 elsewhere.
        name: what it is called: its family.
    """

    family: str
    hidden: Count
    layers: Count
    heads: Count
    vocabulary: Count = 50_304
    sequence: Count = 2048
    feed_forward: _Own = 0
    groups: _Own = 0
    head_size: _Own = 0
    experts: _Own = 0
    active: _Own = 0
    every: _Own = 0
    name: str = ""

    @property
    def gated(self) -> bool:
        """Whether feed-forward parts have a gate, and positions are rotated (as in llama)."""
        return self.family in {"llama", "mixtral"}

    @property
    def biased(self) -> bool:
        """Whether products have biases, and positions are learned (as in gpt)."""
        return self.family in {"gpt", "bert", "opt"}

    @property
    def decoded(self) -> bool:
        """Whether a decoder stands behind the encoder (as in t5)."""
        return self.family in {"t5", "switch"}

    @property
    def feed_forward_parameters(self) -> int:
        """Weights of one feed-forward part, or of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.feed_forward

    def __post_init__(self) -> None:
        with refused_in(f"graph {self.name or self.family}"):
            require_one_of(self.family, FAMILIES, field="family")
            if not self.head_size and self.hidden % self.heads:
                reason = f"{self.heads} does not divide hidden = {self.hidden}"
                raise InputError(reason, field="heads")
            own = {
                "feed_forward": -(-8 * self.hidden // 768) * 256 if self.gated else 4 * self.hidden,
                "groups": self.heads,
                "head_size": self.hidden // self.heads,
                "experts": 8 if self.family in {"mixtral", "switch"} else 1,
                "active": 2 if self.family == "mixtral" else 1,
                "every": 2 if self.family == "switch" else 1,
                "name": self.family,
            }
            for field, value in own.items():
                object.__setattr__(self, field, getattr(self, field) or value)
            if self.heads % self.groups:
                reason = f"{self.groups} does not divide {self.heads} heads"
                raise InputError(reason, field="groups")
            if self.active > self.experts:
                raise InputError(f"{self.active} of {self.experts} experts", field="active")


class Part(IntEnum):
    """Kinds of layers."""

    EMBEDDING = 0
    BLOCK = 1
    SPARSE_BLOCK = 2  # its feed-forward part is experts
    DECODER_BLOCK = 3  # with attention to the encoder's output too
    SPARSE_DECODER_BLOCK = 4
    HEAD = 5  # the output projection, with the loss in training

    @property
    def sparse(self) -> bool:
        """Whether it has experts."""
        return self in {Part.SPARSE_BLOCK, Part.SPARSE_DECODER_BLOCK}

    @property
    def decodes(self) -> bool:
        """Whether it reads the encoder's output."""
        return self in {Part.DECODER_BLOCK, Part.SPARSE_DECODER_BLOCK}


@dataclass(frozen=True)
class Execution:
    """How a transformer's kernels run.

    Args:
        rate: whose peak products reach, a key of `DeviceSpec.peak_flops`.
        element_bytes: of activations.
        tensor: devices that share every block.
        expert: devices that share the experts of their replicas.
        sequence_parallel: norms and residuals are shared too.
        fused: bias, activation, dropout and residual are one kernel each, and so are scale, mask
            and softmax (Megatron-LM); else every operator is one (eager PyTorch).
        fused_attention: attention is one kernel.
        training: with dropout where the family has it, a loss, and a backward pass.
        parallel_loss: the loss is Megatron-LM's, which lets devices share the vocabulary and is a
            kernel for every operator; else PyTorch's cross entropy.
    """

    rate: str = "float32"
    element_bytes: float = 4.0
    tensor: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    fused: bool = False
    fused_attention: bool = False
    training: bool = True
    parallel_loss: bool = False


def parts_of(size: TransformerSize) -> list[Part]:
    """The layers, in a row: an encoder's before a decoder's."""
    sparse = [(block + 1) % size.every == 0 and size.experts > 1 for block in range(size.layers)]
    blocks = [Part.SPARSE_BLOCK if chosen else Part.BLOCK for chosen in sparse]
    if size.decoded:
        blocks += [Part.SPARSE_DECODER_BLOCK if x else Part.DECODER_BLOCK for x in sparse]
    return [Part.EMBEDDING, *blocks, Part.HEAD]


def kernels_of_part(
    size: TransformerSize, part: Part, samples: int, execution: Execution
) -> tuple[Kernels, Kernels]:
    """(forward, backward) kernels of one device for `samples` in a layer of this kind."""
    tape = _Tape(size, samples, execution)
    if part is Part.EMBEDDING:
        tape.embedding()
    elif part is Part.HEAD:
        tape.head()
    else:
        tape.block(part)
    return tape.forward.kernels(execution.rate), tape.backward.kernels(execution.rate)


def sums_of(part: Part) -> tuple[int, int]:
    """How often devices that share a layer sum its activations, forward and backward.

    Each attention and each feed-forward part once in either direction, embeddings forward, the
    gradient of the head's input backward.
    """
    if part is Part.EMBEDDING:
        return 1, 0
    if part is Part.HEAD:
        return 0, 1
    return (3, 3) if part.decodes else (2, 2)


def parameters_of(size: TransformerSize, part: Part) -> float:
    """How many parameters a layer of this kind has; a head that is tied to the embedding none."""
    h, inner = size.hidden, size.heads * size.head_size
    if part is Part.EMBEDDING:
        positions = size.sequence * h if size.biased else 0
        return float(size.vocabulary * h + positions)
    if part is Part.HEAD:
        tied = size.family in {"gpt", "bert", "opt", "t5", "switch"}
        return float(h if tied else (size.vocabulary + 1) * h)
    keys = 2 * size.groups * size.head_size
    attention = h * (inner + keys) + inner * h
    biases = 2 * inner + keys + 2 * h if size.biased else 0
    norms = 4 * h if size.biased else 2 * h
    experts = size.experts if part.sparse else 1
    router = h * size.experts if part.sparse else 0
    attentions = 2 if part.decodes else 1
    return float(
        attentions * attention + experts * size.feed_forward_parameters + router + biases + norms
    )


class _Column:
    """Kernels, one after the other."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []

    def product(self, family: Family, batch: float, m: float, n: float, k: float, e: float) -> None:
        weights = k * n
        read = e * batch * (m * k + weights)
        self.rows.append((family, batch, m, n, k, 2.0 * batch * m * n * k, read, e * batch * m * n))

    def rowwise(
        self, family: Family, rows: float, width: float, read: float, wrote: float, flop: float = 0
    ) -> None:
        self.rows.append((family, 1.0, rows, width, 1.0, flop, read, wrote))

    def attention(self, batch: float, s: float, head: float, e: float, flop: float) -> None:
        moved = e * batch * head * s
        self.rows.append((Family.ATTENTION, batch, s, s, head, flop, 3 * moved, moved))

    def kernels(self, rate: str) -> Kernels:
        table = np.array(self.rows, dtype=np.float64).reshape(-1, 8).T
        none = np.zeros(table.shape[1])
        rates = tuple("float32" if row[0] == Family.ELEMENTWISE else rate for row in self.rows)
        family, batch, m, n, k, flop, read, wrote = table
        return Kernels(
            family.astype(np.int64), batch, m, n, k, flop, read, wrote, none, none, rates
        )


class _Tape:
    """Operators of a layer, forward and backward."""

    def __init__(self, size: TransformerSize, samples: int, execution: Execution) -> None:
        self.size, self.run = size, execution
        self.samples, self.e = float(samples), execution.element_bytes
        self.tokens = self.samples * size.sequence
        self.forward, self.backward = _Column(), _Column()
        self.dropout = execution.training and size.family in {"gpt", "bert", "opt", "t5", "switch"}

    def embedding(self) -> None:
        elements = self.tokens * self.size.hidden / self._shared
        self._look_up(elements, elements)
        self._back(elements, 1, 2)
        if self.size.biased:
            for _ in range(2 if self.size.family == "bert" else 1):
                self._look_up(elements, elements / self.samples)
                self._move(elements, 2, backward=(0, 0))
        if self.size.family == "bert":
            self._norm()
        self._drop(elements)
        small = 0 if self.run.fused else SMALL
        if self.run.tensor > 1:  # tokens of others' parts are embedded as zeros
            small += MASKING
            others = self.e * elements * (1 - 1 / self.run.tensor)
            self.forward.rowwise(Family.ELEMENTWISE, 1.0, elements, 0.0, others)
        for _ in range(small):
            self._move(self.tokens, 1, backward=(0, 0))

    def block(self, part: Part) -> None:
        before = self.size.family != "bert"  # norms stand before what they norm, or behind it
        inner = [self._attention] * (2 if part.decodes else 1)
        for operators in (*inner, self._experts if part.sparse else self._feed_forward):
            if before:
                self._norm()
            operators()
            self._residual()
            if not before:
                self._norm()

    def head(self) -> None:
        size, run, tokens = self.size, self.run, self.tokens
        vocabulary = size.vocabulary / run.tensor
        if size.family == "bert":
            self._linear(size.hidden, size.hidden)
            self._move(tokens * size.hidden, 1)
            self._norm()
        else:
            self._norm()
        self._linear(vocabulary, size.hidden)
        if run.training:
            self._loss(tokens * vocabulary)

    def _loss(self, scores: float) -> None:
        """Of all scores, in float32."""
        e, wide = 4.0 * scores, scores / self.tokens
        if self.e < 4.0:
            self.forward.rowwise(Family.ELEMENTWISE, 1.0, scores, self.e * scores, e)
            self.backward.rowwise(Family.ELEMENTWISE, 1.0, scores, e, self.e * scores)
        if self.run.parallel_loss:
            # the largest, what is above it, its exponentials, their sum, shares of it
            for written in (0.0, e, e, 0.0, e):
                self.forward.rowwise(Family.ELEMENTWISE, 1.0, scores, e, written)
            self.backward.rowwise(Family.ELEMENTWISE, 1.0, scores, e, e)
            return
        if self.size.family in {"gpt", "opt", "llama", "mixtral"} and not self.run.fused:
            self._move(scores, 1)  # without the last token
        self.forward.rowwise(Family.SOFTMAX, self.tokens, wide, e, e)
        self.backward.rowwise(Family.SOFTMAX, self.tokens, wide, 2 * e, e)

    @property
    def _shared(self) -> float:
        """Among how many devices norms and residuals are."""
        return self.run.tensor if self.run.sequence_parallel else 1.0

    def _attention(self) -> None:
        size, run = self.size, self.run
        heads, groups = size.heads / run.tensor, max(size.groups / run.tensor, 1.0)
        inner, keys = heads * size.head_size, groups * size.head_size
        if run.fused or size.family == "gpt":
            self._linear(inner + 2 * keys, size.hidden)
        else:
            for width in (inner, keys, keys):
                self._linear(width, size.hidden)
        if size.gated:
            for width in (inner, keys):  # rotary positions
                for _ in range(1 if run.fused else 4):
                    self._move(self.tokens * width, 1)
        if run.fused_attention:
            s, batch = float(size.sequence), self.samples * heads
            causal = 0.5 if size.family not in {"bert", "t5", "switch"} else 1.0
            flop = causal * 4.0 * batch * s * s * size.head_size
            self.forward.attention(batch, s, size.head_size, self.e, flop)
            self.backward.attention(batch, s, size.head_size, self.e, 2.5 * flop)
        else:
            self._scores(inner, keys)
        self._linear(size.hidden, inner)

    def _scores(self, inner: float, keys: float) -> None:
        """Attention in parts, of queries `inner` and keys `keys` wide."""
        size, run, s = self.size, self.run, float(self.size.sequence)
        batch = self.samples * inner / size.head_size
        scores = batch * s * s
        if size.family == "opt" and not run.fused:
            self._move(self.tokens * inner, 1)  # queries are scaled
        if self.samples > 1 or run.fused or size.family == "opt":
            for width in (inner, keys, keys):  # one head after the other
                self._move(self.tokens * width, 1)
        self._product(batch, s, s, size.head_size)
        if not run.fused:
            self._mask(scores)
        self.forward.rowwise(Family.SOFTMAX, batch * s, s, self.e * scores, self.e * scores)
        self.backward.rowwise(Family.SOFTMAX, batch * s, s, 2 * self.e * scores, self.e * scores)
        if size.family != "opt":
            self._drop(scores)
        self._product(batch, s, size.head_size, s)
        self._move(self.tokens * inner, 1)

    def _mask(self, scores: float) -> None:
        """Scale, or positions in t5, and mask; opt takes the least number for what is less."""
        self._move(scores, 1)
        if not self.size.decoded:
            self._move(scores, 1)
        if self.size.family == "opt":  # the gradient of the larger of two is 5 passes
            for _ in range(4):
                self._back(scores, 1, 1)

    def _feed_forward(self, tokens: float | None = None) -> None:
        size, run = self.size, self.run
        rows = self.tokens if tokens is None else tokens
        width = size.feed_forward / run.tensor
        elements = rows * width
        for _ in range(2 if size.gated and not run.fused else 1):
            self._linear(width * (2 if size.gated and run.fused else 1), size.hidden, rows)
        if size.gated:
            if not run.fused:
                self._move(elements, 1)
            self._move(elements, 2, backward=(3, 2))
        elif size.family == "gpt" and not run.fused:
            for reads in (1, 1, 1, 2, 1, 1, 1, 2):  # the tanh form, operator by operator
                self._move(elements, reads, backward=(2, 1))
        else:
            self._move(elements, 1, backward=(2, 1))
        self._linear(size.hidden, width, rows)

    def _experts(self) -> None:
        size = self.size
        self._linear(size.experts, size.hidden)
        chances = self.e * self.tokens * size.experts
        self.forward.rowwise(Family.SOFTMAX, self.tokens, size.experts, chances, chances)
        for _ in range(6):  # who goes where
            self._move(self.tokens * size.experts, 1, backward=(0, 0))
        own = size.experts // self.run.expert
        rows = self.tokens * size.active / own  # with those of the other devices
        for _ in range(own):
            self._move(rows * size.hidden, 1)
            self._feed_forward(rows)
            self._move(rows * size.hidden, 1)
        self._move(self.tokens * size.hidden, 1)

    def _residual(self) -> None:
        elements = self.tokens * self.size.hidden / self._shared
        if self.run.fused:  # with bias and dropout
            self._move(elements, 2, backward=(1, 1))
        else:
            self._drop(elements)
            self._move(elements, 2, backward=(2, 1))

    def _norm(self) -> None:
        rows, width = self.tokens / self._shared, float(self.size.hidden)
        elements = rows * width * self.e
        passes = 4 if self.size.family in {"t5", "switch", "llama", "mixtral"} else 1
        if passes > 1 and not self.run.fused:
            for _ in range(passes):
                self._move(rows * width, 1)
            return
        self.forward.rowwise(Family.NORM, rows, width, elements, elements)
        self.backward.rowwise(Family.NORM, rows, width, 2 * elements, elements)

    def _linear(self, out: float, width: float, rows: float | None = None) -> None:
        m = self.tokens if rows is None else rows
        self.forward.product(Family.LINEAR, 1.0, m, out, width, self.e)
        self.backward.product(Family.LINEAR, 1.0, m, width, out, self.e)
        self.backward.product(Family.LINEAR, 1.0, out, width, m, self.e)
        if self.size.biased:
            self.backward.rowwise(Family.ELEMENTWISE, m, out, self.e * m * out, 0.0)  # the bias

    def _product(self, batch: float, m: float, n: float, k: float) -> None:
        self.forward.product(Family.PRODUCT, batch, m, n, k, self.e)
        self.backward.product(Family.PRODUCT, batch, m, k, n, self.e)
        self.backward.product(Family.PRODUCT, batch, k, n, m, self.e)

    def _move(self, elements: float, reads: int, backward: tuple[int, int] = (1, 1)) -> None:
        """One pass that reads so many tensors and writes one, and the pass back."""
        e = self.e * elements
        self.forward.rowwise(Family.ELEMENTWISE, 1.0, elements, reads * e, e)
        if backward != (0, 0):
            self._back(elements, *backward)

    def _look_up(self, elements: float, different: float) -> None:
        """So many elements out of a table, some the same."""
        flop = 0.0 if self.run.fused else INDEXING_FLOP * elements
        read, wrote = self.e * different, self.e * elements
        self.forward.rowwise(Family.ELEMENTWISE, 1.0, elements, read, wrote, flop)

    def _back(self, elements: float, reads: float, writes: float) -> None:
        e = self.e * elements
        self.backward.rowwise(Family.ELEMENTWISE, 1.0, elements, reads * e, writes * e)

    def _drop(self, elements: float) -> None:
        if self.dropout:  # with a mask of a byte each
            e = self.e * elements
            self.forward.rowwise(Family.ELEMENTWISE, 1.0, elements, e, e + elements)
            self.backward.rowwise(Family.ELEMENTWISE, 1.0, elements, e + elements, e)


def opt(
    hidden: int = 768, layers: int = 12, heads: int = 12, vocabulary: int = 50_272,
    sequence: int = 2048,
) -> TransformerSize:  # fmt: skip
    """OPT (Zhang et al., 2022), by default that of 125 million parameters.

    Args:
        hidden: width between blocks.
        layers: blocks.
        heads: of attention.
        vocabulary: different tokens.
        sequence: tokens of a sample.
    """
    return TransformerSize("opt", hidden, layers, heads, vocabulary, sequence)


def mixtral(
    hidden: int = 4096, layers: int = 32, heads: int = 32, vocabulary: int = 32_000,
    sequence: int = 4096, feed_forward: int = 14_336, groups: int = 8, experts: int = 8,
    active: int = 2,
) -> TransformerSize:  # fmt: skip
    """Mixtral (Jiang et al., 2024), by default 8 x 7B.

    Args:
        hidden: width between blocks.
        layers: blocks.
        heads: of attention.
        vocabulary: different tokens.
        sequence: tokens of a sample.
        feed_forward: inner width of an expert.
        groups: heads of keys and values, a divisor of `heads`.
        experts: of a block.
        active: experts that a token goes to.
    """
    return TransformerSize(
        "mixtral", hidden, layers, heads, vocabulary, sequence, feed_forward, groups,
        experts=experts, active=active,
    )  # fmt: skip


def switch(
    hidden: int = 768, layers: int = 12, heads: int = 12, vocabulary: int = 32_128,
    sequence: int = 512, feed_forward: int = 3072, head_size: int = 64, experts: int = 8,
) -> TransformerSize:  # fmt: skip
    """Switch transformer (Fedus et al., JMLR 2022), by default the base model.

    Args:
        hidden: width between blocks.
        layers: blocks of the encoder, and as many of the decoder.
        heads: of attention.
        vocabulary: different tokens.
        sequence: tokens of a sample.
        feed_forward: inner width of an expert, and of blocks without.
        head_size: width of a head.
        experts: of every other block.
    """
    return TransformerSize(
        "switch", hidden, layers, heads, vocabulary, sequence, feed_forward,
        head_size=head_size, experts=experts,
    )  # fmt: skip
