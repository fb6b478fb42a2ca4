"""Fractional rules where jobs come and go: a placement rule for clusters whose GPUs are shared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import PartialGpuShares, PlacementRule, Share
from agents.cluster.rules.bins import Bins, requests_by_job
from agents.cluster.rules.fractional import BestFit, FractionalRule, choose
from agents.cluster.rules.gangs import FirstFit
from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.compilation import compiled

Shares = list[Share] | PartialGpuShares


class SharedGpuPlacement:
    """Places jobs by a fractional rule, each on one node, together with what runs there.

    The trace's own jobs are what the rule takes for the usual workload. A gang that asks for
    fractions has GPUs of its own; only single GPUs are shared.

    Args:
        rule: chooses node and GPU.
        gangs: places the jobs that no node, were it empty, could hold alone.
    """

    def __init__(self, rule: FractionalRule = BestFit(), gangs: PlacementRule = FirstFit()) -> None:
        self.rule, self.gangs, self.name = rule, gangs, rule.name
        self._of: tuple[Cluster, Trace] | None = None  # what `_prepare` was called for

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Shares | None:
        """See `PlacementRule.place`; `PartialGpuShares` where the job joins others on a GPU."""
        if self._of != (simulator.cluster, simulator.trace):
            self._prepare(simulator.cluster, simulator.trace)
        request = self._requests[job]
        if request in self._for_gangs:
            found = self.gangs.place(simulator, job, rng)
            return None if found is None else list(found)
        _reflect(simulator.state, self._bins, self._partial)
        spot = choose(self.rule, self._costs, self._bins, request, rng)
        if spot is None:
            return None
        shares: list[Share] = [(spot.node, request.gpus)]
        partial = int(self._partial[spot]) if request.gpus == 1 else NONE
        return shares if partial == NONE else PartialGpuShares(shares, partial)

    def _prepare(self, cluster: Cluster, trace: Trace) -> None:
        """Bins for the states of simulators: copies too, since they are reflected at every use."""
        workload, self._of = ResourceRequests.of(trace), (cluster, trace)
        self._bins, self._requests = Bins.empty(cluster), requests_by_job(workload, cluster)
        self._partial = np.full(self._bins.left.shape, NONE, np.int32)  # (N, G) of each slot
        distinct = set(self._requests)
        self._costs = self.rule.costs(cluster, self._bins, len(distinct), workload)
        self._for_gangs = {
            request
            for request in distinct
            if request.gpus > 1 and np.isinf(self._costs(request)[0]).all()
        }


@compiled
def _reflect(state: ClusterState, bins: Bins, partial: NDArray[np.int32]) -> None:
    """Bring the bins up to the state; nodes that have changed get a new version.

    The first slots of a node are its shared GPUs, then come those with nothing on them.
    """
    row = np.empty(bins.left.shape[1], np.int32)
    for n in range(len(state.nodes)):
        node = state.nodes[n]
        cpu = node.cpu if node.up else -1
        row[:] = 0
        partial[n, :] = NONE
        slot, gpu = 0, node.partial
        while gpu != NONE:
            if state.partials[gpu].gpus == 1:
                row[slot], partial[n, slot] = state.partials[gpu].left, gpu
                slot += 1
            gpu = state.partials[gpu].next
        row[slot : slot + node.free] = WHOLE_GPU
        same = cpu == bins.cpu[n] and node.memory == bins.memory[n]
        if not same or not np.array_equal(row, bins.left[n]):
            bins.cpu[n], bins.memory[n], bins.left[n] = cpu, node.memory, row
            bins.version[n] += 1
