"""A policy of one's own against SRTF, on a trace of one's own with columns of one's own.

python examples/own_policy.py [jobs.csv]
"""

import sys
from pathlib import Path

from numpy.typing import ArrayLike

import meshwright as mw

JOBS = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("jobs.csv")
COLUMNS = {"id": "name", "submit": "created_at", "duration": "runtime", "gpus": "gpu_count"}


@mw.order(knows="nothing")
def least_served_first(jobs: mw.Jobs) -> ArrayLike:
    """The GPU time that a job has had so far."""
    return jobs.num_gpus * jobs.executed_s


trace = mw.read_trace(JOBS, columns=COLUMNS)
print(mw.replay(trace, mw.cluster(nodes=2, gpus_per_node=4), ["srtf", least_served_first]))
