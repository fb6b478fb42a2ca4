"""Fractional rules where jobs come and go: a placement rule for clusters whose GPUs are shared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import PartialGpuShares, PlacementRule, Share
from agents.cluster.rules.bins import Bins, RequestClasses, fitting_nodes
from agents.cluster.rules.fractional import BestFit, Chooser, FractionalRule
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
        self._mirror: _Mirror | None = None

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Shares | None:
        """See `PlacementRule.place`; `PartialGpuShares` where the job joins others on a GPU."""
        mirror = self._mirror
        if mirror is None or not mirror.is_of(simulator):
            mirror = self._mirror = _Mirror(self.rule, simulator.cluster, simulator.trace)
        request = mirror.classes[job]
        if request.number in mirror.gangs:
            found = self.gangs.place(simulator, job, rng)
            return None if found is None else list(found)
        _reflect(simulator.state, mirror.bins, mirror.partial)
        spot = mirror.chooser.choose(request, rng)
        if spot is None:
            return None
        shares: list[Share] = [(spot.node, request.gpus)]
        partial = int(mirror.partial[spot.node, spot.gpu]) if request.gpus == 1 else NONE
        return shares if partial == NONE else PartialGpuShares(shares, partial)


class _Mirror:
    """The state of a simulator as bins; of its copies too, since it is reflected at every use."""

    def __init__(self, rule: FractionalRule, cluster: Cluster, trace: Trace) -> None:
        workload = ResourceRequests.of(trace)
        self.cluster, self.trace = cluster, trace
        self.bins, self.classes = Bins.empty(cluster), RequestClasses(workload, cluster)
        self.partial = np.full(self.bins.left.shape, NONE, np.int32)  # (N, G) of each slot
        several = [request for request in self.classes.requests if request.gpus > 1]
        self.gangs = {r.number for r in several if not len(fitting_nodes(self.bins, r))}
        self.chooser: Chooser = rule.chooser(cluster, self.bins, self.classes, workload)

    def is_of(self, simulator: ClusterSimulator) -> bool:
        return self.cluster is simulator.cluster and self.trace is simulator.trace


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
