"""`ClusterSimulator` against a simulator of dictionaries that computes everything anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as replaced

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.cluster.interference.rates import PAIRS_PRODUCT, RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.simulation import cluster_kernel as kernel
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import (
    INCIDENT,
    NONE,
    PENDING,
    REFUSED,
    RUNNING,
    Overheads,
)
from envs.cluster.workload.trace import Labels, Trace
from envs.errors import InputError
from tests.strength import examples

ONE_INSTANT = 1 + 1e-12  # times whose ratio is less differ by rounding alone


@dataclass
class PairRates:
    """Two profiles, by the parity of the job's number; neighbours multiply."""

    pair: tuple[tuple[float, float], tuple[float, float]]
    name = "pairs"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        parity = (np.arange(len(trace)) % 2).astype(np.int32)
        alone = without_neighbours(parity, np.ones((2, len(cluster.gpu_types))))
        rows = np.array([[0], [1]], np.int32)
        return alone._replace(kind=PAIRS_PRODUCT, pair=np.array(self.pair), row=rows)


@dataclass
class NaiveCluster:
    """Running jobs as dictionaries; rates, ends and free GPUs are computed whenever asked for.

    Events that only rounding keeps apart happen at once.
    """

    trace: Trace
    cluster: Cluster
    pair: np.ndarray
    overheads: Overheads
    incidents: np.ndarray
    now: float = 0.0
    arrived: int = 0
    seen: int = 0
    queue: list[int] = field(default_factory=list)
    held: dict[int, dict[int, int]] = field(default_factory=dict)  # job: {node: GPUs}
    ready: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    preempted: dict[int, int] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = {job: float(self.trace.duration_s[job]) for job in range(len(self.trace))}

    def rate(self, job: int) -> float:
        beside = {
            node: [other for other in self.held if other != job and node in self.held[other]]
            for node in self.held[job]
        }
        return float(
            min(np.prod([self.pair[job % 2, o % 2] for o in others]) for others in beside.values())
        )

    def end(self, job: int) -> float:
        return max(self.now, self.ready[job]) + self.left[job] / self.rate(job)

    def free(self, node: int) -> int:
        if node in self.down:
            return 0
        return int(self.cluster.gpus[node]) - sum(h.get(node, 0) for h in self.held.values())

    def pass_time(self, due: float) -> None:
        for job in self.held:
            progressing = max(self.now, self.ready[job])
            if due > progressing:
                self.left[job] -= (due - progressing) * self.rate(job)
        self.now = due

    def advance(self) -> bool:
        dues = [self.end(job) for job in self.held]
        if self.arrived < len(self.trace):
            dues.append(float(self.trace.submit_s[self.arrived]))
        if self.seen < len(self.incidents):
            dues.append(float(self.incidents[self.seen]["time"]))
        if not dues:
            return False
        due = min(dues)
        last = due * ONE_INSTANT
        over = [job for job in self.held if self.end(job) <= last]
        self.pass_time(due)
        for job in over:
            self.finish[job] = due
            del self.held[job]
        while self.seen < len(self.incidents) and self.incidents[self.seen]["time"] <= last:
            incident = self.incidents[self.seen]
            self.seen += 1
            node = int(incident["node"])
            if incident["up"]:
                self.down.discard(node)
            else:
                for job in [job for job, held in self.held.items() if node in held][::-1]:
                    self.preempt(job)
                    done = self.trace.duration_s[job] - self.left[job]
                    step = self.overheads.checkpoint_s
                    if step:
                        kept = int((done + 1e-6) / step) * step
                        self.left[job] = self.trace.duration_s[job] - kept
                self.down.add(node)
        while self.arrived < len(self.trace) and self.trace.submit_s[self.arrived] <= last:
            self.queue.append(self.arrived)
            self.arrived += 1
        return True

    def start(self, job: int, shares: list[tuple[int, int]]) -> None:
        self.queue.remove(job)
        self.held[job] = dict(shares)
        restart = self.overheads.restart_s if self.preempted.get(job) else 0.0
        self.ready[job] = self.now + restart

    def preempt(self, job: int) -> None:
        del self.held[job]
        self.preempted[job] = self.preempted.get(job, 0) + 1
        self.queue.append(job)


def random_trace(rng: np.random.Generator, jobs: int, gpus: int) -> Trace:
    submit = np.sort(rng.integers(0, 12, jobs))
    return Trace.of("random", submit, rng.integers(1, 9, jobs), rng.integers(1, gpus + 1, jobs))


def advance(simulator: ClusterSimulator) -> bool:
    """Go to the next instant, and over those that rounding keeps apart from it."""
    moved = simulator.advance()
    while kernel.next_event(simulator.state) <= simulator.now * ONE_INSTANT:
        simulator.advance()
    return moved


@examples(150)
@given(seed=st.integers(0, 10**6), interference=st.booleans(), restart=st.sampled_from([0, 3]))
@example(seed=319, interference=True, restart=3)  # a failure with 2 - 4e-16 s done of a step of 2 s
@example(seed=1952, interference=True, restart=0)  # two completions that rounding keeps apart
def test_random_decisions_have_the_outcome_that_a_naive_simulator_computes(
    seed: int, interference: bool, restart: int
) -> None:
    rng = np.random.default_rng(seed)
    cluster = Cluster.uniform(3, 4)
    trace = random_trace(rng, int(rng.integers(1, 9)), 8)
    low = 0.5 if interference else 1.0
    pair = rng.uniform(low, 1.0, (2, 2))
    times = np.sort(rng.choice(40, 4, replace=False)).astype(float) + 0.5
    incidents = np.zeros(4 if rng.random() < 0.5 else 0, INCIDENT)
    for index in range(len(incidents)):
        incidents[index] = (times[index], 1 + index // 2 % 2, index % 2)
    overheads = Overheads(float(restart), 2.0)
    simulator = ClusterSimulator(
        cluster,
        trace,
        rates=PairRates(tuple(map(tuple, pair))) if interference else None,
        overheads=overheads,
        incidents=incidents,
        keep_runs=True,
    )
    naive = NaiveCluster(trace, cluster, pair, overheads, incidents)
    for event in range(400):
        moved = advance(simulator)
        assert moved == naive.advance()
        if not moved:
            break
        assert simulator.now == pytest.approx(naive.now, rel=1e-9)
        assert list(simulator.pending()) == naive.queue
        assert set(simulator.running()) == set(naive.held)
        free = [naive.free(node) for node in range(3)]
        assert list(simulator.state.nodes["free"]) == free
        if event < 60:
            for job in list(naive.held):
                if rng.random() < 0.15:
                    naive.preempt(job)
                    simulator.preempt(job)
        for job in list(naive.queue):
            need = int(trace.num_gpus[job])
            shares = []
            for node in rng.permutation(3):
                take = min(need, naive.free(int(node)))
                if take:
                    shares.append((int(node), take))
                    need -= take
            if need == 0 and (rng.random() < 0.8 or event >= 60):
                naive.start(job, shares)
                simulator.start(job, shares)
                assert simulator.shares(job) == shares
        simulator.settle()
        for job in naive.held:
            assert simulator.state.jobs[job]["rate"] == pytest.approx(naive.rate(job), rel=1e-12)
            left = simulator.state.jobs[job]["remaining"]
            assert left == pytest.approx(naive.left[job], rel=1e-9, abs=1e-9)
    schedule = simulator.schedule()
    assert {int(j) for j in np.flatnonzero(schedule.finished)} == set(naive.finish)
    for job, finish in naive.finish.items():
        assert schedule.finish[job] == pytest.approx(finish, rel=1e-9)
        assert schedule.preemptions[job] == naive.preempted.get(job, 0)
    if simulator.done:
        assert simulator.state.clock[0]["free"] == simulator.state.nodes["free"].sum()
        assert (simulator.state.nodes["share"] == NONE).all()
        runs = schedule.runs
        assert runs is not None
        held = ((runs["end"] - runs["start"]) * runs["gpus"]).sum()
        assert simulator.state.clock[0]["busy"] == pytest.approx(held)
        if not interference and not restart and len(incidents) == 0:
            assert held == trace.gpu_seconds.sum()


def test_rounding_takes_no_checkpoint() -> None:
    """0.3 s of work, as floats, are less than three times 0.1 s."""
    incidents = np.array([(0.3, 0, 0), (0.4, 0, 1), (0.5, 0, 0), (0.6, 0, 1)], INCIDENT)
    simulator = ClusterSimulator(
        Cluster.uniform(1, 1),
        Trace.of("t", [0], [1], [1]),
        overheads=Overheads(5.0, 0.1),
        incidents=incidents,
    )
    while simulator.advance():
        for job in simulator.pending():
            if simulator.state.nodes[0]["up"]:
                simulator.start(int(job), [(0, 1)])
    assert simulator.schedule().finish[0] == pytest.approx(0.6 + 5.0 + 0.7)


def test_whole_seconds_are_compiled_for_as_fractions_are() -> None:
    overheads = ClusterSimulator(
        Cluster.uniform(1, 1), Trace.of("t", [0], [1], [1]), overheads=Overheads(3, 0)
    ).overheads
    assert overheads == Overheads(3.0, 0.0)
    assert [type(seconds) for seconds in overheads] == [float, float]


def test_a_copy_goes_its_own_way() -> None:
    simulator = ClusterSimulator(Cluster.uniform(1, 2), Trace.of("t", [0, 1], [5, 5], [1, 2]))
    simulator.advance()
    simulator.start(0, [(0, 1)])
    twin = simulator.copy()
    while twin.advance():
        pass
    assert twin.now == 5.0
    assert simulator.now == 0.0
    assert simulator.state.jobs[0]["status"] == RUNNING


def test_fractions_share_a_gpu_and_give_it_back() -> None:
    trace = Trace.of("t", [0, 0, 0, 0], [5, 7, 9, 4], [1, 1, 1, 2])
    milli = np.array([400, 600, 300, 1000], np.int32)
    simulator = ClusterSimulator(Cluster.uniform(1, 3), replaced(trace, gpu_milli=milli))
    state = simulator.state
    simulator.advance()
    simulator.start(0, [(0, 1)])
    partial = int(state.nodes[0]["partial"])
    simulator.start(1, [(0, 1)], partial)
    assert state.nodes[0]["free"] == 2
    with pytest.raises(ValueError, match="too full"):
        simulator.start(2, [(0, 1)], partial)
    simulator.start(3, [(0, 2)])
    assert state.nodes[0]["free"] == 0
    assert state.clock[0]["held"] == 3000
    simulator.advance()
    simulator.advance()
    assert simulator.now == 5.0
    assert state.partials[partial]["left"] == 400
    simulator.start(2, [(0, 1)], partial)
    while simulator.advance():
        pass
    assert list(simulator.schedule().finish) == [5, 7, 14, 4]
    assert state.nodes[0]["free"] == 3
    assert state.nodes[0]["partial"] == NONE
    assert state.clock[0]["busy"] == pytest.approx(0.4 * 5 + 0.6 * 7 + 0.3 * 9 + 2 * 4)


def test_until_stops_the_clock_in_between() -> None:
    simulator = ClusterSimulator(Cluster.uniform(1, 1), Trace.of("t", [4], [5], [1]))
    assert simulator.advance(until=3.0)
    assert simulator.now == 3.0
    assert simulator.advance(until=4.0)
    assert list(simulator.pending()) == [0]
    simulator.refuse(0)
    assert simulator.done
    assert simulator.state.jobs[0]["status"] == REFUSED
    assert not simulator.advance()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([(0, 1)], "asks for 2"),
        ([(0, 1), (0, 1)], "different"),
        ([(1, 2)], "is down"),
        ([(0, 3), (1, -1)], "asks for|free"),
        ([], "different"),
    ],
)
def test_impossible_starts_are_refused(shares: list[tuple[int, int]], message: str) -> None:
    incidents = np.array([(0.0, 1, 0)], INCIDENT)
    simulator = ClusterSimulator(
        Cluster.uniform(2, 2), Trace.of("t", [0], [5], [2]), incidents=incidents
    )
    simulator.advance()
    assert simulator.state.jobs[0]["status"] == PENDING
    with pytest.raises(ValueError, match=message if shares != [(1, 2)] else "free|down"):
        simulator.start(0, shares)


def test_jobs_that_can_never_run_are_named() -> None:
    with pytest.raises(InputError, match="job '0' asks for 9 GPUs, the cluster has 8"):
        ClusterSimulator(Cluster.uniform(2, 4), Trace.of("t", [0], [5], [9]))
    trace = replaced(Trace.of("t", [0], [5], [1]), gpu_type=Labels.of(["A100|H100"]))
    with pytest.raises(InputError, match="gpu_type"):
        ClusterSimulator(Cluster.uniform(2, 4), trace)
    mixed = Cluster.uniform(2, 4, gpu_types=("V100", "H100"))
    wide = replaced(Trace.of("t", [0, 0], [5, 5], [8, 5]), gpu_type=Labels.of([None, "H100"]))
    with pytest.raises(InputError, match="job '1' asks for 5 GPUs, the cluster has 4"):
        ClusterSimulator(mixed, wide)
    simulator = ClusterSimulator(mixed, trace)
    assert list(simulator.state.jobs["types"]) == [2]
    simulator.advance()
    with pytest.raises(ValueError, match="may not run"):
        simulator.start(0, [(0, 1)])
    simulator.start(0, [(1, 1)])


@given(amount=st.integers(0, 10**6), gpus=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_the_parts_of_a_jobs_processors_are_never_less_than_it_asks_for(
    amount: int, gpus: list[int]
) -> None:
    of = sum(gpus)
    parts = [kernel.part(amount, each, of) for each in gpus]
    assert all(one * of >= amount * each for one, each in zip(parts, gpus, strict=True))
    assert amount <= sum(parts) < amount + len(gpus)
