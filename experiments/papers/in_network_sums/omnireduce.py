"""OmniReduce: only blocks that are not all zero are sent, and each names the next of its worker.

Fei et al., *Efficient Sparse Collective Communication and its Application to Accelerate Distributed
Deep Learning*, SIGCOMM 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, NonNegative, bounded
from envs.synchronisation.plan import ELEMENT, SynchronisationPlan, VectorSum
from envs.synchronisation.sparsity import blocks_of, in_blocks
from experiments.papers.in_network_sums.switchml import HEADERS

NEXT = 4  # bytes of the index of a block


@bounded
@dataclass(frozen=True)
class Streaming:
    """How the B blocks of a vector are sent.

    With A aggregators there are C = A `streams` `columns` columns; block b stands in row b // C of
    column b mod C. Adjacent columns are fused into a stream; streams go to aggregators in turn.
    Every worker sends the first row, and with every block the index of its `next` block in the
    column that is not zero. When an aggregator has all that is due of a row of a stream, it sends
    the sums to all workers with the least of those indices: the row that is due next. Workers
    without a block in it are silent.

    Args:
        block: elements.
        columns: fused into a packet, at most one block of each.
        streams: of each aggregator.
        overhead: seconds of a collective besides what follows.
        per_byte: seconds for each byte of a worker's own blocks (bitmap, copies to the NIC).
    """

    block: Count = 256
    columns: Count = 4
    streams: Count = 8
    # Fitted to the nine times of the paper's micro-benchmark: 104.86 MB, 8 workers, 8 aggregators,
    # 100 Gb/s, blocks drawn at random; the largest difference is 0.24 ms.
    overhead: NonNegative = 2.4161e-3
    per_byte: NonNegative = 4.2446e-11


@dataclass(frozen=True, eq=False)
class Traffic:
    """Blocks and packets between n workers and A aggregators."""

    block_bytes: float
    blocks: IntArray  # (n, A) sent by workers
    packets: IntArray  # (n, A)
    sums: IntArray  # (A,) blocks sent by an aggregator to each worker
    answers: IntArray  # (A,) packets to each worker

    @property
    def sent(self) -> FloatArray:
        """(n, A) bytes from workers to aggregators, headers and indices included."""
        return self.blocks * (self.block_bytes + NEXT) + self.packets * float(HEADERS)

    @property
    def received(self) -> FloatArray:
        """(A,) bytes from an aggregator to each worker."""
        return self.sums * (self.block_bytes + NEXT) + self.answers * float(HEADERS)


def traffic(
    streaming: Streaming, blocks: BoolArray, aggregators: int, block_bytes: float
) -> Traffic:
    """What `blocks` (n, B) make the workers and aggregators send, counted without sending it.

    In round r a stream's packets hold the r-th of the blocks that any worker has, in every column.
    """
    workers, length = blocks.shape
    columns = aggregators * streaming.streams * streaming.columns
    flat = in_blocks(blocks.astype(np.float64), columns).astype(np.bool_)
    flat[:, 0, :length] = True  # the first row
    own = flat.reshape(workers, flat.shape[1], -1, streaming.columns)
    union = own.any(axis=0)
    turn = np.cumsum(union, axis=0) - 1  # (rows, streams, columns)
    # A worker sends a packet in a round in which it has a block of any column.
    worker, row, stream, column = np.nonzero(own)
    packets = np.zeros_like(own[..., 0])
    packets[worker, turn[row, stream, column], stream] = True

    def by_aggregator(count: IntArray) -> IntArray:
        found: IntArray = count.reshape(*count.shape[:-1], -1, aggregators).sum(axis=-2)
        return found

    return Traffic(
        block_bytes,
        by_aggregator(own.sum(axis=(1, 3))),
        by_aggregator(packets.sum(axis=1)),
        by_aggregator(union.sum(axis=(0, 2))),
        by_aggregator(union.sum(axis=0).max(axis=1)),
    )


def stream(
    streaming: Streaming, values: FloatArray, aggregators: int, seed: int = 0
) -> tuple[FloatArray, Traffic]:
    """Execute the protocol on (n, E) vectors: what each worker has at the end, and what was sent.

    Packets of a round arrive in an order drawn with `seed`. An aggregator knows of the workers only
    what their packets say, and a worker of the others only what the answers say.
    """
    workers, length = values.shape
    held = in_blocks(values, streaming.block)
    bitmap = blocks_of(values, streaming.block)
    size = bitmap.shape[1]
    streams = aggregators * streaming.streams
    columns, result = streams * streaming.columns, np.zeros_like(held)
    sent = Traffic(
        float(streaming.block * ELEMENT),
        *np.zeros((2, workers, aggregators), np.int64),
        *np.zeros((2, aggregators), np.int64),
    )
    rng = np.random.default_rng(seed)
    for number in range(streams):
        aggregator = number % aggregators
        own = range(number * streaming.columns, (number + 1) * streaming.columns)
        due = {column: column for column in own if column < size}  # blocks to be summed, by column
        said = {column: np.full(workers, column) for column in due}  # what each worker sends next
        while due:
            sums = {column: np.zeros(streaming.block) for column in due}
            for worker in rng.permutation(workers).tolist():
                packet = [column for column, block in due.items() if said[column][worker] == block]
                for column in packet:
                    sums[column] += held[worker, due[column]]
                    said[column][worker] = _next(bitmap[worker], due[column], columns)
                sent.blocks[worker, aggregator] += len(packet)
                sent.packets[worker, aggregator] += bool(packet)
            for column, block in due.items():
                result[:, block] = sums[column]
            sent.sums[aggregator] += len(due)
            sent.answers[aggregator] += 1
            least = {column: int(said[column].min()) for column in due}
            due = {column: block for column, block in least.items() if block < size}
    return result.reshape(workers, -1)[:, :length], sent


def _next(bitmap: BoolArray, block: int, columns: int) -> int:
    """The next block of the column that is not zero; past the end where there is none."""
    below = np.flatnonzero(bitmap[block + columns :: columns])
    return block + columns * (1 + int(below[0])) if len(below) else len(bitmap)


@dataclass(frozen=True)
class StreamedPlan(SynchronisationPlan):
    """Stars around aggregators, of which rank after rank carries only its blocks."""

    streaming: Streaming = Streaming()

    def blocks(self, problem: VectorSum) -> BoolArray:
        """(n, B) those of the problem; all, where it names none."""
        if problem.blocks is not None:
            return problem.blocks
        count = int(-(-problem.size // (ELEMENT * self.streaming.block)))
        return np.ones((len(problem.network.participants), count), dtype=np.bool_)

    def traffic(self, problem: VectorSum) -> Traffic:
        """What workers and aggregators send each other, to the byte."""
        blocks = self.blocks(problem)
        return traffic(self.streaming, blocks, len(self.trees), problem.size / blocks.shape[1])

    def perform(self, problem: VectorSum, vectors: FloatArray) -> FloatArray:
        """As `SynchronisationPlan.perform`, by the protocol; zeros are those of the vectors."""
        block = self.streaming.block
        if problem.blocks is not None:
            block = -(-vectors.shape[1] // problem.blocks.shape[1])
        return stream(replace(self.streaming, block=block), vectors, len(self.trees))[0]

    def sizes(self, problem: VectorSum) -> tuple[FloatArray, float]:
        """Bytes of the blocks that are not zero, stripes having equal shares of them."""
        blocks, sent = self.blocks(problem), np.zeros(problem.network.num_vertices)
        sent[[*problem.network.participants]] = blocks.mean(axis=1) * problem.size
        return sent, float(blocks.any(axis=0).mean()) * problem.size

    def own_seconds(self, problem: VectorSum) -> float:
        """The busiest link at its rate, the overhead, and each byte of the fullest worker.

        Workers that receive the union of all blocks, and aggregators that send it, need its bytes
        at the line rate. That stripes differ by what is drawn, headers and the first row are not
        timed.
        """
        fullest = float(self.blocks(problem).mean(axis=1).max()) * problem.size
        fixed = self.streaming.overhead + self.streaming.per_byte * fullest
        return fixed + self.busiest_seconds(problem)
