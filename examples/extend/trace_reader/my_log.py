"""A trace reader: the CSV file of a log of one's own.

python -m experiments.replay \
    +trace.formats.my_log._target_=examples.extend.trace_reader.my_log.MyLog trace.format=my_log \
    trace.path=examples/extend/trace_reader/my_log.csv \
    agent=srtf cluster.nodes=1 cluster.gpus_per_node=4

In the project: `envs/cluster/workload/readers/my_log.py`, and a format in `conf/trace/file.yaml`.
"""

from envs.cluster.workload.readers.read_trace import Columns, LogReader
from envs.text_table import RowChecks


class MyLog(LogReader):
    """CSV with `name, at_min, minutes, gpus, owner`; jobs without GPUs are left out and counted."""

    ID = "name"  # what the file calls the ids

    def columns(self, checks: RowChecks) -> Columns:
        gpus = checks.whole("gpus")
        checks.exclude(gpus == 0, "gpus", "asks for none")
        return {
            "job_id": checks.text("name"),
            "submit_s": 60 * checks.whole("at_min"),
            "duration_s": 60 * checks.whole("minutes", 1),  # 1: the least that is no fault
            "num_gpus": gpus,
            "user": checks.text("owner"),
        }
