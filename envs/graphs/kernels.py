"""Kernels: what one launch on a device computes and moves, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import Kind, OpGraph
from envs.units import DTYPES


class Family(IntEnum):
    """Kernels that share a way of using a device."""

    LINEAR = 0  # a product of activations and a weight
    PRODUCT = 1  # a batch of products
    CONVOLUTION = 2
    NORM = 3  # over the last axis
    SOFTMAX = 4  # over the last axis
    ELEMENTWISE = 5  # and all else that moves bytes
    ATTENTION = 6  # fused: scores never leave the chip


WIDTH = 1024.0  # of a row where nothing tells it
FUSED_PRODUCT = 16.0  # multiplications for every number that a fused operator writes
MATRIX = (Family.LINEAR, Family.PRODUCT, Family.CONVOLUTION, Family.ATTENTION)


@dataclass(frozen=True, eq=False)
class Kernels:
    """K kernels.

    A product is `batch` times (m, k) by (k, n). A convolution is the product that it comes to: m
    positions, n output channels, k inputs of each. Elsewhere m rows of n elements are computed.
    """

    family: IntArray  # (K,) Family
    batch: FloatArray  # (K,)
    m: FloatArray  # (K,)
    n: FloatArray  # (K,)
    k: FloatArray  # (K,) 1 where nothing is summed
    flop: FloatArray  # (K,) of products, and what indexing comes to in float32
    bytes_read: FloatArray  # (K,)
    bytes_written: FloatArray  # (K,)
    window: FloatArray  # (K,) edge of a convolution's kernel; else, and where unknown, 0
    stride: FloatArray  # (K,) of a convolution; else, and where unknown, 0
    rate: tuple[str, ...]  # (K,) whose peak: a key of `DeviceSpec.peak_flops`

    def __len__(self) -> int:
        return len(self.family)

    def take(self, rows: IntArray) -> Kernels:
        """Some of them."""
        columns = {
            name: getattr(self, name)[rows] for name in self.__annotations__ if name != "rate"
        }
        return Kernels(**columns, rate=tuple(map(self.rate.__getitem__, rows.tolist())))


def kernels_of(graph: OpGraph) -> Kernels:
    """The operators of a graph as kernels; sizes of products come from their FLOP and bytes.

    A product of one matrix by another is taken for the weight's: m n are the elements written, k
    what is left of the FLOP, and m + n what is read over k. So is what is fused, where it does
    much arithmetic. Integers move bytes alone.
    """
    size = np.array([_BYTES[name] for name in DTYPES])[graph.op_dtype]
    computes = (graph.flop > 0) & np.array(["float" in name for name in DTYPES])[graph.op_dtype]
    written = np.maximum(graph.bytes_written / size, 1.0)
    read = np.maximum(graph.bytes_read / size, 1.0)
    k = np.maximum(graph.flop / (2.0 * written), 1.0)
    product = computes & np.isin(graph.kind, [Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION])
    product |= computes & (graph.kind == Kind.FUSED) & (k >= FUSED_PRODUCT)
    k = np.where(product, k, 1.0)
    edges = np.maximum(read / k, 2.0)  # m + n of one product
    root = np.sqrt(np.maximum((edges / 2.0) ** 2 - written, 0.0))
    long = edges / 2.0 + root
    n = np.where(product, np.maximum(written / long, 1.0), np.minimum(written, WIDTH))
    family = np.array([_FAMILY.get(Kind(kind), Family.ELEMENTWISE) for kind in range(len(Kind))])
    none = np.zeros(graph.num_operators)
    return Kernels(
        family=np.where(
            product | ~np.isin(family[graph.kind], MATRIX), family[graph.kind], Family.ELEMENTWISE
        ),
        batch=np.ones(graph.num_operators),
        m=np.where(product, long, written / n),
        n=n,
        k=k,
        flop=np.where(product, graph.flop, 0.0),
        bytes_read=graph.bytes_read,
        bytes_written=graph.bytes_written,
        window=none,
        stride=none,
        rate=tuple(map(DTYPES.__getitem__, graph.op_dtype.tolist())),
    )


_FAMILY = {
    Kind.MATMUL: Family.LINEAR,
    Kind.CONVOLUTION: Family.CONVOLUTION,
    Kind.ATTENTION: Family.ATTENTION,
    Kind.NORMALIZATION: Family.NORM,
    Kind.FUSED: Family.LINEAR,
}
_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "float8": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
