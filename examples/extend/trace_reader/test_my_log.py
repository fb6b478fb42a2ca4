"""The file beside it, read and replayed."""

from pathlib import Path

from agents.cluster.queue import SRTF
from agents.cluster.replay import replay
from envs.cluster.nodes import Cluster
from examples.extend.trace_reader.my_log import MyLog

FILE = Path(__file__).with_name("my_log.csv")


def test_a_row_without_gpus_is_left_out_and_counted() -> None:
    found = MyLog().read(FILE)
    assert (len(found.trace), found.num_rejected) == (3, 1)
    assert found.trace.submit_s.tolist() == [0, 300, 420]
    assert found.trace.num_gpus.tolist() == [4, 1, 2]


def test_three_jobs_on_one_node_take_1100_seconds_on_average() -> None:
    trace = MyLog().read(FILE).trace
    schedule = replay(SRTF(), Cluster.uniform(1, 4), trace)
    assert (schedule.finish - trace.submit_s).mean() == 1100.0
