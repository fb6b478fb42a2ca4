"""A GPU cluster as a multi-job scheduler sees it: nodes with GPUs, in racks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import bounded
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace, refuse_rows
from envs.errors import InputError
from envs.files import unprintable
from envs.memory import require_memory


@dataclass(frozen=True, eq=False)
class ResourceRequests:
    """J requests as columns, in the order of their source."""

    name: str
    job_id: NDArray[np.str_]  # (J,)
    num_gpus: NDArray[np.int32]  # (J,) 0 for jobs without GPU
    gpu_milli: NDArray[np.int32]  # (J,) thousandths of each GPU, 1..1000
    cpu_milli: IntArray  # (J,) thousandths of a processor core
    memory_mib: IntArray  # (J,) MiB of main memory
    gpu_type: Labels  # permitted GPU types, separated by "|"; unknown: all

    @classmethod
    def of(cls, trace: Trace) -> ResourceRequests:
        """What the jobs of `trace` ask for."""
        return cls(**{field.name: getattr(trace, field.name) for field in fields(cls)})

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def demand_milli(self) -> IntArray:
        """(J,) thousandths of a GPU, of all GPUs of a job together."""
        return self.num_gpus.astype(np.int64) * self.gpu_milli

    @property
    def taken_milli(self) -> IntArray:
        """(J,) thousandths of each GPU that no other job gets where only single GPUs are shared."""
        return np.where(self.num_gpus == 1, self.gpu_milli, WHOLE_GPU).astype(np.int64)

    def permitted(self, cluster: Cluster) -> IntArray:
        """(J,) bit t is set where a job may run on GPU type t of `cluster`."""
        return cluster.type_masks(self.gpu_type.names)[self.gpu_type.codes]


MOST = int(np.iinfo(np.int32).max)  # nodes, and GPUs of a node
Size = Annotated[int, Ge(1), Le(MOST)]
NODE_BYTES = 256  # of a node here, in the simulator and in what a scheduler sees, at least
MAX_GPU_TYPES = 62  # bits of a mask
UNLIMITED = np.iinfo(np.int64).max  # processor or memory of a node that sets no limit


@dataclass(frozen=True, eq=False)
class Cluster:
    """N nodes as columns. A pool without topology is one node with all GPUs.

    Raises:
        InputError: columns of different lengths, no node, a negative number, a GPU type without a
            name, more than `MAX_GPU_TYPES` of them.
    """

    name: str
    gpus: NDArray[np.int32]  # (N,) GPUs of each node
    rack: NDArray[np.int32]  # (N,) from 0
    gpu_type: NDArray[np.int32]  # (N,) index into gpu_types
    gpu_types: tuple[str, ...]
    cpu_milli: IntArray  # (N,) thousandths of a processor core, or UNLIMITED
    memory_mib: IntArray  # (N,) MiB of main memory, or UNLIMITED

    def __post_init__(self) -> None:
        if len(self.gpus) == 0:
            raise InputError("a cluster without nodes", field="nodes")
        if (wrong := unprintable(self.gpu_types)) is not None:
            reason = f"{self.gpu_types[wrong]!r} holds a control character"
            raise InputError(reason, field="gpu_types")
        if len(self.gpu_types) > MAX_GPU_TYPES:
            raise InputError(f"more than {MAX_GPU_TYPES} GPU types", field="gpu_types")
        for field in ("gpus", "rack", "gpu_type", "cpu_milli", "memory_mib"):
            column = getattr(self, field)
            if column.shape != self.gpus.shape:
                raise InputError(f"{column.shape} is not {self.gpus.shape}", field=field)
            refuse_rows(self, column < 0, field)
            column.flags.writeable = False
        refuse_rows(self, self.gpu_type >= len(self.gpu_types), "gpu_type")

    @classmethod
    @bounded
    def uniform(
        cls,
        nodes: Size = 12,  # number of nodes
        gpus_per_node: Size = 8,  # GPUs of each
        *,
        nodes_per_rack: Size | None = None,  # nodes that share a rack switch; null: one rack
        # several types have equal consecutive shares of the nodes
        gpu_types: Sequence[str] = ("V100",),
    ) -> Cluster:
        """Equal nodes in racks of `nodes_per_rack` (None: one rack).

        With several `gpu_types` node i has type i·T // N: equal consecutive shares.

        Raises:
            InputError: no GPU type, one named twice, more of them than nodes.
        """
        if not gpu_types:
            raise InputError("no GPU type", field="gpu_types")
        if len(set(gpu_types)) < len(gpu_types):
            raise InputError(f"{list(gpu_types)} names a type twice", field="gpu_types")
        if len(gpu_types) > nodes:
            raise InputError(f"{len(gpu_types)} types for {nodes} nodes", field="gpu_types")
        require_memory(NODE_BYTES * nodes, f"{nodes:,} nodes", field="nodes")
        index = np.arange(nodes)
        return cls(
            name=f"{nodes}x{gpus_per_node}",
            gpus=np.full(nodes, gpus_per_node, np.int32),
            rack=(index // (nodes_per_rack or nodes)).astype(np.int32),
            gpu_type=(index * len(gpu_types) // nodes).astype(np.int32),
            gpu_types=tuple(gpu_types),
            cpu_milli=np.full(nodes, UNLIMITED, np.int64),
            memory_mib=np.full(nodes, UNLIMITED, np.int64),
        )

    def __repr__(self) -> str:
        return (
            f"Cluster {self.name}: {self.num_nodes:,} nodes in {self.num_racks:,} racks, "
            f"{self.num_gpus:,} GPUs ({', '.join(self.gpu_types)})"
        )

    @property
    def num_nodes(self) -> int:
        return len(self.gpus)

    @property
    def num_gpus(self) -> int:
        return int(self.gpus.sum())

    @property
    def num_racks(self) -> int:
        """Racks, counted from 0 to the last one named."""
        return int(self.rack.max()) + 1

    def type_masks(self, permitted: Sequence[str]) -> IntArray:
        """(K + 1,) bit t of entry k: `permitted[k]`, names separated by "|", has GPU type t.

        The last entry has all types: that of jobs without such a label, whose code is -1.
        """
        names = [*(set(text.split("|")) for text in permitted), set(self.gpu_types)]
        masks = [
            sum(1 << t for t, name in enumerate(self.gpu_types) if name in those) for those in names
        ]
        return np.array(masks, np.int64)
