"""What is left on the nodes of a cluster, GPU by GPU, as arrays that compiled rules work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner

NOWHERE = -1


class Bins(NamedTuple):
    """N nodes with at most G GPUs each. A slot without GPU has nothing left, like a full GPU."""

    cpu: NDArray[np.int64]  # (N,) thousandths of a core left; -1 on a node that is down
    memory: NDArray[np.int64]  # (N,) MiB left
    left: NDArray[np.int32]  # (N, G) thousandths of each GPU
    gpus: NDArray[np.int32]  # (N,) GPUs in all
    kind: NDArray[np.int64]  # (N,) bit of the node's GPU type
    version: NDArray[np.int64]  # (N,) rises whenever a node changes

    @classmethod
    def empty(cls, cluster: Cluster) -> Bins:
        """The nodes of `cluster` with nothing on them."""
        slots = np.arange(max(int(cluster.gpus.max()), 1))
        return cls(
            cpu=cluster.cpu_milli.copy(),
            memory=cluster.memory_mib.copy(),
            left=np.where(slots < cluster.gpus[:, None], WHOLE_GPU, 0).astype(np.int32),
            gpus=cluster.gpus.copy(),
            kind=np.int64(1) << cluster.gpu_type.astype(np.int64),
            version=np.zeros(cluster.num_nodes, np.int64),
        )


class Request(NamedTuple):
    """What one job asks for; a gang that asks for fractions asks for whole GPUs here."""

    number: int  # from 0; equal requests have equal numbers
    cpu: int  # thousandths of a core
    memory: int  # MiB
    gpus: int
    milli: int  # thousandths of each GPU
    types: int  # bit t: may run on GPU type t


def requests_by_job(workload: ResourceRequests, cluster: Cluster) -> list[Request]:
    """(J,) what every job asks for; equal requests are one object."""
    columns = (
        workload.cpu_milli, workload.memory_mib, workload.num_gpus, workload.taken_milli,
        workload.permitted(cluster),
    )  # fmt: skip
    rows, numbers = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    requests = [Request(number, *row) for number, row in enumerate(rows.tolist())]
    return [requests[number] for number in numbers.reshape(-1).tolist()]


@compiled_inner
def fits(bins: Bins, node: int, request: Request) -> bool:
    """Whether the node has what is asked for: cores, memory, GPU type and enough such GPUs."""
    if bins.cpu[node] < request.cpu or bins.memory[node] < request.memory:
        return False
    if not request.types & bins.kind[node]:
        return False
    enough = 0
    for left in bins.left[node]:
        enough += left >= request.milli
    return enough >= request.gpus


@compiled
def take(bins: Bins, node: int, gpu: int, request: Request) -> None:
    """Put a request that fits on the node: one GPU or a part on slot `gpu`, several from slot 0."""
    bins.cpu[node] -= request.cpu
    bins.memory[node] -= request.memory
    bins.version[node] += 1
    take_gpus(bins.left[node], gpu, request)


@compiled_inner
def take_gpus(left: NDArray[np.int32], gpu: int, request: Request) -> None:
    """The same on the GPUs of a node: several are the lowest that have nothing on them."""
    gpus = request.gpus
    if gpus == 1:
        left[gpu] -= request.milli
        return
    for slot in range(len(left)):
        if gpus > 0 and left[slot] == WHOLE_GPU:
            left[slot] = 0
            gpus -= 1
