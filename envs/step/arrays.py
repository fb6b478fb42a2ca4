"""The problem and the working memory as flat arrays that compiled code can take.

Index arrays of the inner loop are unsigned: compiled code then need not test every index for being
negative, which is worth a quarter of its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.uint32]


class StepArrays(NamedTuple):
    """A `StepProblem` for kernels; uses are rows of (consumer, tensor, slot) by producer."""

    op_seconds: FloatArray  # (N, D)
    use_ptr: IntArray  # (N + 1,)
    use_op: IntArray  # (C,)
    use_tensor: IntArray  # (C,)
    use_slot: IntArray  # (C,)
    transfer_seconds: FloatArray  # (T, L)
    link_class: IndexArray  # (D, D)
    send_port: IndexArray  # (D, D)
    receive_port: IndexArray  # (D, D)
    phase: IntArray  # (N,)
    micro_batch: IntArray  # (N,)
    num_micro_batches: int


class Scratch(NamedTuple):
    """Working memory of one simulation at a time; one per thread."""

    order: IndexArray  # (N,)
    position: IndexArray  # (N,)
    key: IntArray  # (N,)
    depth: IntArray  # (N,)
    by_depth: IndexArray  # (N,)
    device: IndexArray  # (N,) by position
    use_ptr: IndexArray  # (N + 1,) relabelled
    use_op: IndexArray  # (C,)
    use_tensor: IndexArray  # (C,)
    use_slot: IndexArray  # (C,)
    ready: FloatArray  # (N,) zero between simulations
    device_free: FloatArray  # (D,)
    port_free: FloatArray  # (ports,); (0,) when transfers take no time
    arrival: FloatArray  # (slots, D)
    stamp: IntArray  # (slots, D)
    ticket: IntArray  # (1,) larger than every stamp


def step_arrays(problem: StepProblem) -> StepArrays:
    """The arrays of `problem`."""
    graph, topology = problem.graph, problem.topology
    uses = graph.uses
    return StepArrays(
        op_seconds=np.ascontiguousarray(problem.op_seconds, dtype=np.float64),
        use_ptr=graph.use_ptr,
        use_op=graph.use_op,
        use_tensor=np.ascontiguousarray(uses[:, 1]),
        use_slot=np.ascontiguousarray(uses[:, 2]),
        transfer_seconds=np.ascontiguousarray(problem.transfer_seconds, dtype=np.float64),
        link_class=np.ascontiguousarray(topology.link_class).astype(np.uint32),
        send_port=np.ascontiguousarray(topology.send_port).astype(np.uint32),
        receive_port=np.ascontiguousarray(topology.receive_port).astype(np.uint32),
        phase=graph.phase,
        micro_batch=graph.micro_batch,
        num_micro_batches=graph.num_micro_batches,
    )


def scratch(arrays: StepArrays, num_ports: int) -> Scratch:
    """Fresh working memory for `arrays`; `num_ports` = 0 makes transfers free."""
    n, d = arrays.op_seconds.shape
    uses = len(arrays.use_op)
    slots = int(arrays.use_slot.max(initial=0)) + 1
    return Scratch(
        order=np.arange(n, dtype=np.uint32),
        position=np.arange(n, dtype=np.uint32),
        key=np.zeros(n, dtype=np.int64),
        depth=np.zeros(n, dtype=np.int64),
        by_depth=np.zeros(n, dtype=np.uint32),
        device=np.zeros(n, dtype=np.uint32),
        use_ptr=np.zeros(n + 1, dtype=np.uint32),
        use_op=np.zeros(uses, dtype=np.uint32),
        use_tensor=np.zeros(uses, dtype=np.uint32),
        use_slot=np.zeros(uses, dtype=np.uint32),
        ready=np.zeros(n),
        device_free=np.zeros(d),
        port_free=np.zeros(num_ports),
        arrival=np.zeros((slots, d)),
        stamp=np.full((slots, d), -1),
        ticket=np.zeros(1, dtype=np.int64),
    )
