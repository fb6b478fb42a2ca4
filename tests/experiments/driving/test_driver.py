"""A driver over a Slurm in memory: whatever happens meanwhile, jobs end, and each where it may."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_slurm import ModelSlurm

from agents.cluster.live import ClusterDecider, PolicyDecider
from agents.cluster.queue import FIFO, SRTF, FIFOBackfill, LAS2DTiresias
from agents.decision import Decision
from envs.cluster.slurm.commands import Job
from experiments.driving.driver import AuditLog, Driver, Limits
from tests.experiments.refusals import run_refused
from tests.refusal import refusal
from tests.strength import examples

NOW = 1.8e9
OURS, OTHERS = "ours-", "other"


DECIDERS = {
    "fifo": lambda: PolicyDecider(FIFO()),
    "srtf": lambda: PolicyDecider(SRTF()),
    "las": lambda: PolicyDecider(LAS2DTiresias()),
    "backfill": lambda: PolicyDecider(FIFOBackfill()),
    "shipped": lambda: ClusterDecider("unknown_durations"),
}
EVENTS = st.lists(
    st.sampled_from(["submit", "submit", "gang", "other", "unheld", "cancel", "drain", "resume",
                     "kill", "silence", "vanish", "time"]), min_size=5, max_size=40,
)  # fmt: skip


@examples(100, 8)
@given(st.sampled_from(sorted(DECIDERS)), EVENTS, st.integers(0, 10**6))
def test_jobs_end_and_each_where_it_may(
    tmp_path_factory: Any, name: str, events: list[str], seed: int
) -> None:
    rng = random.Random(seed)
    slurm, decider = ModelSlurm(4, 4, NOW, rng), DECIDERS[name]()
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    made = lambda: Driver(  # noqa: E731
        slurm, decider, AuditLog(path), prefix=OURS, durations="time_limit", say=lambda _: None,
        clock=lambda: slurm.now,
        limits=Limits(every_s=5, stuck_s=20, actions_per_s=10),
    )  # fmt: skip
    driver, foreign = made(), dict[str, Any]()

    def live(seconds: float) -> None:
        slurm.tick(seconds)
        for node in slurm.table.values():
            assert slurm.used(node.name) <= node.gpus
        if not slurm.silent:
            driver.step()
            for one in foreign:
                assert not slurm.asked[one].job.wants  # it is not ours

    for event in events:
        size = rng.choice([1, 1, 2, 4])
        if event in {"submit", "unheld"}:
            slurm.submit(size, rng.randint(1, 60), label=f"{OURS}a", held=event == "submit")
        elif event == "gang":
            slurm.submit(
                4, rng.randint(1, 60), label=f"{OURS}g", held=True, nodes=rng.randint(1, 4)
            )
        elif event == "other":
            foreign[slurm.submit(size, rng.randint(1, 60), label=OTHERS, held=False)] = None
        elif event == "cancel" and slurm.asked:
            slurm.cancel(rng.choice(sorted(slurm.asked)))
        elif event in {"drain", "resume"}:
            node = rng.choice(sorted(slurm.table))
            slurm.table[node] = replace(slurm.table[node], up=event == "resume")
        elif event == "kill":
            driver = made()
        elif event == "silence":
            slurm.silent = not slurm.silent
        live(rng.choice([0.2, 1.0, 5.0]))
    slurm.silent = False
    for node in slurm.table:
        slurm.table[node] = replace(slurm.table[node], up=True)
    for _ in range(400):
        live(5.0)
        if all(one.job.state == "OVER" for one in slurm.asked.values()):
            break
    assert all(one.job.state == "OVER" for one in slurm.asked.values())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    stops = {line["job"] for line in lines if line["event"] == "stop"}
    for number, one in slurm.asked.items():
        assert one.starts <= 1 or number in stops  # none runs twice unless it was sent back
        if name in {"fifo", "backfill"}:
            assert one.starts <= 1


def test_a_decision_that_is_made_again_changes_nothing(tmp_path: Path) -> None:
    slurm = ModelSlurm(2, 4, NOW, random.Random(0))
    for gpus in (4, 2, 2, 4):
        slurm.submit(gpus, 50, label="a", held=True)
    driver = Driver(slurm, PolicyDecider(FIFO()), AuditLog(tmp_path / "audit.jsonl"))
    while driver.step(always=True) and slurm.changes < 6:
        pass
    changes = slurm.changes
    for _ in range(5):  # and another driver finds nothing to do either
        driver = Driver(slurm, PolicyDecider(FIFO()), AuditLog(tmp_path / "audit.jsonl"))
        driver.step(always=True)
    assert slurm.changes == changes == 6  # three jobs, each sent to its nodes and released


def test_all_is_looked_at_after_a_change_and_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, looks, seen = ModelSlurm(1, 4, NOW, random.Random(0)), list[int](), list[float]()
    driver = Driver(
        slurm, PolicyDecider(FIFO()), AuditLog(tmp_path / "audit.jsonl"), prefix="a",
        clock=lambda: slurm.now, limits=Limits(poll_s=1e-6, look_s=5),
    )  # fmt: skip
    rounds = iter(range(30))

    def ends() -> bool:
        place = next(rounds)
        if place == 5:
            slurm.submit(4, 50, label="a", held=True)
        elif place in (10, 15, 20):  # it begins; seconds pass
            slurm.tick({10: 1.0, 15: 3.0, 20: 2.0}[place])
        looks.append(len(seen))
        seen.clear()
        return place == 25

    jobs = slurm.jobs

    def listed() -> list[Job]:
        seen.append(slurm.now)
        return jobs()

    monkeypatch.setattr(slurm, "jobs", listed)
    driver.run(ends)
    assert [place - 1 for place, number in enumerate(looks) if number] == [0, 5, 6, 10, 20]


def test_a_shadow_changes_nothing(tmp_path: Path) -> None:
    slurm, audit = ModelSlurm(2, 4, NOW, random.Random(0)), AuditLog(tmp_path / "audit.jsonl")
    slurm.submit(4, 50, label="a", held=False)
    slurm.submit(4, 50, label="b", held=True)
    driver = Driver(slurm, PolicyDecider(FIFO()), audit, acts=False)
    for _ in range(3):
        driver.step()
        slurm.tick(1.0)
    assert slurm.changes == 0
    assert audit.counts["decided"] >= 2
    assert audit.counts["slurm_started"] == 1


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_what_a_killed_controller_has_forgotten_does_not_run_again(
    state: str, tmp_path: Path
) -> None:
    slurm, audit = ModelSlurm(2, 4, NOW, random.Random(0)), AuditLog(tmp_path / "audit.jsonl")
    name = slurm.submit(4, 2.0, label="ours-a", held=True)
    said: list[str] = []
    driver = Driver(slurm, PolicyDecider(FIFO()), audit, acts=True, prefix="ours-", say=said.append)
    for second in range(20):
        if slurm.asked[name].job.state == state:
            before = slurm.asked[name].job
        driver.clock = lambda: slurm.now
        driver.step(always=True)
        slurm.tick(1.0)
        if second == 9:
            assert slurm.asked[name].job.state == "OVER"
            slurm.asked[name].job = before  # it was killed, and has this state on its disk
    assert slurm.asked[name].starts == 1
    told = f"job {name} has ended and Slurm has forgotten it: it does not run again"
    assert said == ([told] if state == "PENDING" else [])
    assert slurm.asked[name].job.state == ("PENDING" if state == "PENDING" else "OVER")
    again = slurm.submit(4, 2.0, label="ours-b", held=True)  # others run
    for _ in range(9):
        driver.step(always=True)
        slurm.tick(1.0)
    assert slurm.asked[again].starts == 1


def test_a_gang_keeps_the_shape_that_it_asks_slurm_for(tmp_path: Path) -> None:
    slurm = ModelSlurm(3, 4, NOW, random.Random(0))
    gang = slurm.submit(2, 50, label="a", held=True, nodes=2)  # a policy would put it on one node
    Driver(slurm, PolicyDecider(FIFO()), AuditLog(tmp_path / "audit.jsonl")).step()
    slurm.tick(1.0)
    assert sorted(slurm.asked[gang].job.holds.values()) == [2, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_ends_it_before_anything_is_started() -> None:
    slurm = ModelSlurm(1, 4, NOW, random.Random(0))
    slurm.submit(4, 50, label="a", held=True)
    with refusal("/dev/full.*nothing more is done"):
        Driver(slurm, PolicyDecider(FIFO()), AuditLog(Path("/dev/full"))).step()
    assert slurm.changes == 0


class Wild(PolicyDecider):
    """Decides what no policy would."""

    def _decide_on(self, arrays: Any) -> Decision:
        on = [{"n0": 4}, {"n0": 2, "n1": 2}]
        actions = [{"action": "start", "job": "1", "on": one, "probability": 1.0} for one in on]
        return Decision(actions, {"actions": actions, "ask_again_s": None})


def test_a_job_that_was_cancelled_meanwhile_is_a_line(tmp_path: Path) -> None:
    slurm, audit = ModelSlurm(2, 4, NOW, random.Random(0)), AuditLog(tmp_path / "audit.jsonl")
    slurm.submit(4, 50, label="a", held=True)
    driver = Driver(slurm, Wild(FIFO()), audit)
    driver.step()
    assert audit.counts["refused"] == 0
    assert audit.counts["start"] == 1  # once, though it was decided twice
    listed = slurm.jobs()
    slurm.cancel("1")
    slurm.jobs = lambda: listed  # type: ignore[method-assign]  # as it was a moment ago
    driver.step(always=True)
    assert audit.counts["refused"] <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["checkpoint=fifo"], ["'prefix'", "prefix='' is all of the partition"]),
        (
            ["checkpoint=fifo", "dry_run=true", "stop_file={stop}"],
            ["'stop_file'", "is there already"],
        ),
        (["checkpoint=fifo", "prefix=", "stop_file={stop}"], ["'stop_file'", "is there already"]),
    ],
)
def test_a_command_line_that_would_act_on_too_much_or_end_at_once_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: list[str]
) -> None:
    """Before Slurm is asked anything."""
    stop = tmp_path / "stop"
    stop.touch()
    given = ["partition=gpu", *(word.format(stop=stop) for word in words)]
    run_refused("drive", [*given, f"hydra.run.dir={tmp_path / 'run'}"], said, tmp_path, capfd)
