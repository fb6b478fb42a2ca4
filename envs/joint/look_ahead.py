"""The compiled look-ahead of allocators: the step time after every change of one weight."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.graphs.op_graph import NONE
from envs.joint.shares import Shares, pipe_rates
from envs.step.arrays import Scratch, StepArrays
from envs.step.pipe_times import PipeTable, set_some_pipe_rates
from envs.step.step import step_time_in_order, use_order

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Crossings(NamedTuple):
    """The transfers between servers of one placement, with room for all uses of tensors."""

    tensor: IntArray  # (uses,)
    kind: IntArray  # (uses,) link class
    size: IntArray  # (1,) how many there are
    seconds: FloatArray  # (S * S,) that the transfers of each pipe take
    nbytes: FloatArray  # (S * S,) of each pipe
    transfers: IntArray  # (S * S,) of each pipe
    sent: IntArray  # (slots, D) scratch


def crossings_of(arrays: StepArrays, servers: int) -> Crossings:
    """Room for the transfers of any placement."""
    uses, devices = len(arrays.use_op), arrays.op_seconds.shape[1]
    return Crossings(
        tensor=np.zeros(uses, dtype=np.int64),
        kind=np.zeros(uses, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
        seconds=np.zeros(servers * servers),
        nbytes=np.zeros(servers * servers),
        transfers=np.zeros(servers * servers, dtype=np.int64),
        sent=np.zeros((int(arrays.use_slot.max(initial=0)) + 1, devices), dtype=np.int64),
    )


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
def find_crossings(
    arrays: StepArrays, table: PipeTable, device: IntArray, found: Crossings
) -> None:
    """Fill `found` for placement `device` (N,) at the present transfer times."""
    found.seconds[:], found.nbytes[:], found.transfers[:] = 0.0, 0.0, 0
    found.sent[:] = NONE
    count = 0
    for op in range(len(device)):
        for k in range(arrays.use_ptr[op], arrays.use_ptr[op + 1]):
            e = device[arrays.use_op[k]]
            kind, slot = arrays.link_class[device[op], e], arrays.use_slot[k]
            pipe = table.pipe[kind]
            if pipe == NONE or found.sent[slot, e] == op:
                continue
            found.sent[slot, e] = op
            tensor = arrays.use_tensor[k]
            if arrays.transfer_seconds[tensor, kind] > 0.0:
                found.tensor[count], found.kind[count] = tensor, kind
                found.seconds[pipe] += arrays.transfer_seconds[tensor, kind]
                found.nbytes[pipe] += table.nbytes[tensor, kind]
                found.transfers[pipe] += 1
                count += 1
    found.size[0] = count


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
def changed_step_times(
    arrays: StepArrays,
    work: Scratch,
    table: PipeTable,
    shares: Shares,
    crossings: Crossings,  # of `device`
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    level: IntArray,  # (S * S,)
    top: int,
    asked: BoolArray,  # (S * S,) the pipes that are changed
    rate: FloatArray,  # (S * S,) bytes/s of the pipes at `level`
    trial: FloatArray,  # (S * S,) scratch
    seconds: FloatArray,  # (S * S, 2) out
) -> None:
    """Step time with the level of each pipe one higher, one lower, all else as it is.

    inf where the level would leave -top..top, on the diagonal, and for pipes that are not `asked`.
    All arguments but scratch and `seconds` are left as they were.
    """
    for p in range(len(order)):
        work.order[p] = order[p]
    use_order(arrays, work)
    seconds[:] = np.inf
    count = crossings.size[0]
    for c in range(len(shares.pipe)):
        pipe = shares.pipe[c]
        if not asked[pipe] or seconds[pipe, 0] < np.inf or seconds[pipe, 1] < np.inf:
            continue  # the last two: another channel of the same pipe
        for way in range(2):
            change = 1 - 2 * way
            if abs(level[pipe] + change) > top:
                continue
            level[pipe] += change
            pipe_rates(shares, level, trial)
            level[pipe] -= change
            set_some_pipe_rates(
                table, trial, crossings.tensor, crossings.kind, count, arrays.transfer_seconds
            )
            seconds[pipe, way] = step_time_in_order(arrays, work, device)
    set_some_pipe_rates(
        table, rate, crossings.tensor, crossings.kind, count, arrays.transfer_seconds
    )
