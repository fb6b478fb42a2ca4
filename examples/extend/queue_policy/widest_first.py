"""A queue policy: jobs that ask for the most GPUs run first.

python -m experiments.replay agent=examples.extend.queue_policy.widest_first.WidestFirst \
    trace.format=synthetic trace.jobs=30 trace.load=2 cluster.nodes=1

In the project: `agents/cluster/widest_first.py`, and a row of the group `agent` in
`experiments/config/registry.py`.
"""

from numpy.typing import ArrayLike

from agents.cluster.own_order import Jobs, PriorityPolicy


class WidestFirst(PriorityPolicy):
    """The jobs with the most GPUs run, and preempt others for it.

    Guarantees:
        None: a job of one GPU may starve.

    Source:
        An example.
    """

    name = "widest_first"

    def rank(self, jobs: Jobs) -> ArrayLike:
        return -jobs.num_gpus
