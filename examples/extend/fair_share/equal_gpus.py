"""A fair share: equal numbers of GPUs for all jobs.

python -m experiments.replay --config-dir examples/extend/fair_share/config agent=equal_gpus \
    trace.format=synthetic trace.jobs=30 trace.load=2 cluster.nodes=1

In the project: `agents/cluster/equal_gpus.py`, and `conf/agent/equal_gpus.yaml`.
"""

import numpy as np

from agents.cluster.shares import Demand, ShareRule
from agents.solver import Knowledge
from envs.arrays import FloatArray


class EqualGpus(ShareRule):
    """All jobs get the same number of GPUs, each at most its gang.

    Guarantees:
        No job holds more GPUs on average than another that could use them.

    Source:
        An example.
    """

    name = "equal_gpus"
    knows: Knowledge = "nothing"

    def shares(self, demand: Demand) -> FloatArray:
        each = demand.capacity[0] / len(demand.jobs)  # GPUs
        part = np.minimum(each / demand.gpus, 1.0)
        return np.where(demand.rates > 0.0, part[:, None], 0.0)  # rate 0: it cannot run there
