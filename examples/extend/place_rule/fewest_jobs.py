"""A placement rule: gangs go where the fewest jobs run.

python -m experiments.replay agent=fifo_backfill \
    placement=examples.extend.place_rule.fewest_jobs.FewestJobs trace.format=synthetic \
    trace.jobs=300 trace.load=2 cluster.nodes=4 cluster.nodes_per_rack=2 interference=analytic

In the project: `agents/cluster/rules/fewest_jobs.py`, and a row of the group `placement` in
`experiments/config/registry.py`.
"""

import numpy as np

from agents.cluster.rules.scored import ScoredNodes
from envs.arrays import IntArray
from envs.cluster.simulation.cluster import ClusterSimulator


class FewestJobs(ScoredNodes):
    """A gang goes to the node with the fewest jobs."""

    name = "fewest_jobs"

    def score(self, simulator: ClusterSimulator, job: int) -> IntArray:
        jobs: IntArray = simulator.state.nodes["jobs"].astype(np.int64)
        return jobs
