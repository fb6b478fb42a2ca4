"""What is left on the nodes of a cluster, GPU by GPU, as arrays that compiled rules work on."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.cluster.nodes import UNLIMITED, Cluster, ResourceRequests
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

    number: int  # of its class: equal requests have equal numbers
    cpu: int  # thousandths of a core
    memory: int  # MiB
    gpus: int
    milli: int  # thousandths of each GPU
    types: int  # bit t: may run on GPU type t


class RequestClasses:
    """The different requests among J jobs, so that rules can remember what they found for one."""

    def __init__(self, requests: ResourceRequests, cluster: Cluster) -> None:
        columns = np.stack(
            [
                requests.cpu_milli,
                requests.memory_mib,
                requests.num_gpus.astype(np.int64),
                requests.taken_milli,
                requests.permitted(cluster),
            ],
            axis=1,
        )
        rows, numbers = np.unique(columns, axis=0, return_inverse=True)
        self.of_job: list[int] = numbers.reshape(-1).tolist()  # (J,)
        self.requests = [Request(c, *map(int, row)) for c, row in enumerate(rows)]

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, job: int) -> Request:
        return self.requests[self.of_job[job]]


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
def fitting_nodes(bins: Bins, request: Request) -> NDArray[np.int64]:
    """The nodes on which the request fits, ascending."""
    found = np.empty(len(bins.cpu), np.int64)
    count = 0
    for node in range(len(bins.cpu)):
        if fits(bins, node, request):
            found[count] = node
            count += 1
    return found[:count]


@compiled
def take(bins: Bins, node: int, gpu: int, request: Request) -> None:
    """Put a request that fits on the node: one GPU or a part on slot `gpu`, several from slot 0."""
    bins.cpu[node] -= request.cpu
    bins.memory[node] -= request.memory
    bins.version[node] += 1
    if request.gpus == 1:
        bins.left[node, gpu] -= request.milli
    else:
        take_whole(bins.left[node], request.gpus)


@compiled_inner
def take_whole(left: NDArray[np.int32], gpus: int) -> None:
    """Use up the lowest `gpus` GPUs of a node that have nothing on them."""
    for slot in range(len(left)):
        if gpus and left[slot] == WHOLE_GPU:
            left[slot] = 0
            gpus -= 1


@compiled_inner
def tightest_gpu(left: NDArray[np.int32], request: Request) -> int:
    """The GPU with the least left that is enough, the lowest of equals; NOWHERE without GPU."""
    best = NOWHERE
    if request.gpus == 0:
        return best
    for gpu in range(len(left)):
        if left[gpu] >= request.milli and (best == NOWHERE or left[gpu] < left[best]):
            best = gpu
    return best


class Capacity(NamedTuple):
    """Weights in proportion to one over the most that any node has.

    They are the smallest whole numbers, so that sums weighed with them are exact and equal scores
    are seen to be equal; 0 for a resource that no node limits or has.
    """

    per_cpu_milli: float
    per_gpu_milli: float


def largest_node(cluster: Cluster) -> Capacity:
    """The largest number of cores and of GPUs of a node, not necessarily the same one."""
    limited = cluster.cpu_milli[cluster.cpu_milli != UNLIMITED]
    cpu = int(limited.max(initial=0)) if len(limited) == cluster.num_nodes else 0
    gpu = int(cluster.gpus.max()) * WHOLE_GPU
    if not cpu or not gpu:
        return Capacity(1.0 if cpu else 0.0, 1.0 if gpu else 0.0)
    common = gcd(cpu, gpu)
    return Capacity(float(gpu // common), float(cpu // common))
