"""The state that is made of what Slurm says: GPUs are counted once, whoever has them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.live import PolicyDecider
from agents.cluster.queue import FIFO, SRTF
from envs.cluster.slurm.commands import Job, Node
from envs.cluster.slurm.state import cluster_state

NOW = 1.8e9


def job(name: str, state: str, gpus: int, **fields: Any) -> Job:
    about = {
        "label": "a", "user": "ann", "partition": "gpu", "submit_s": NOW - 100, "start_s": None,
        "end_s": None, "limit_s": 600.0, "gpu_type": None, "nodes": 1, "per_node": gpus,
        "held": state == "PENDING", "eligible_s": 0.0, "depends": False, "wants": (),
        "restarts": 0, "most_nodes": 1, "movable": True,
    }  # fmt: skip
    return Job(name=name, state=state, gpus=gpus, **{**about, **fields})


def free(jobs: list[Job], used: int) -> int:
    node = Node("n0", 8, "v100", used, True)
    (found,) = cluster_state(jobs, [node], [], NOW, gpus={})["nodes"]
    return int(found["free_gpus"])


def test_gpus_of_others_of_running_and_of_sent_jobs_add_up() -> None:
    runs = job("1", "RUNNING", 2, start_s=NOW - 50, holds={"n0": 2})
    sent = job("2", "PENDING", 1, held=False, wants=("n0",))
    assert free([], used=1) == 7  # another partition's
    assert free([runs], used=3) == 5
    assert free([runs, sent], used=3) == 4
    assert free([runs], used=0) == 6  # it ended between two looks


def test_nothing_is_stopped_for_a_job_that_others_leave_no_room_for() -> None:
    """One GPU of the node is another's, one that of a job on its way: four are never free."""
    jobs = [
        job("1", "PENDING", 1, held=False, wants=("n0",), limit_s=120.0),
        job("2", "RUNNING", 2, start_s=NOW - 50, holds={"n0": 2}),
        job("3", "PENDING", 4, limit_s=60.0),
    ]
    nodes = [Node("n0", 4, "v100", 3, True)]
    state = cluster_state(jobs, nodes, [], NOW, gpus={}, durations="time_limit")
    assert PolicyDecider(SRTF()).decide(state).actions == []


@given(
    st.lists(st.tuples(st.sampled_from(["PENDING", "RUNNING", "SENT", "OVER"]), st.integers(1, 4)),
             max_size=8),
    st.integers(0, 8), st.booleans(),
)  # fmt: skip
def test_every_state_can_be_decided_on(drawn: list[tuple[str, int]], others: int, up: bool) -> None:
    jobs, room = [], 8
    for number, (state, gpus) in enumerate(drawn):
        name, holds = str(number), {}
        if state in {"RUNNING", "SENT"}:
            if gpus > room:
                continue
            room -= gpus
            holds = {"n0": gpus}
        if state == "SENT":
            jobs.append(job(name, "PENDING", gpus, held=False, wants=("n0",)))
        else:
            over = {"end_s": NOW - 10, "start_s": NOW - 50} if state == "OVER" else {}
            begun = {"holds": holds, "start_s": NOW - 50} if holds else {}
            jobs.append(job(name, state, gpus, **over, **begun))
    nodes = [Node("n0", 8, "v100", min(8, 8 - room + others), up)]
    state = cluster_state(jobs, nodes, [], NOW, gpus={})
    started = [x for x in PolicyDecider(FIFO()).decide(state).actions if x["action"] == "start"]
    begun = sum(sum(x["on"].values()) for x in started)
    assert begun <= (max(room - others, 0) if up else 0)
