"""`ClusterSimulator` against a simulator of dictionaries that computes everything anew."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.random import Generator, default_rng
from numpy.testing import assert_allclose

from envs.cluster.interference.rates import (
    ON_GPU,
    ON_NODE,
    PAIRS_PRODUCT,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.simulation import cluster_kernel as kernel
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import (
    INCIDENT,
    NEVER,
    NONE,
    PENDING,
    REFUSED,
    RUNNING,
    Overheads,
)
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from tests.refusal import refusal
from tests.strength import SEEDS, examples

ONE_INSTANT = 1 + 1e-12  # times whose ratio is less differ by rounding alone


@dataclass
class PairRates:
    """Two profiles, by the parity of the job's number; neighbours multiply."""

    pair: np.ndarray  # (2, 2)
    scope: int
    name = "pairs"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        parity = (np.arange(len(trace)) % 2).astype(np.int32)
        alone = without_neighbours(parity, np.ones((2, len(cluster.gpu_types))))
        rows = np.array([[0], [1]], np.int32)
        return alone._replace(kind=PAIRS_PRODUCT, scope=self.scope, pair=self.pair, row=rows)


@dataclass(eq=False)
class GpuSet:
    """GPUs of a node that one job has, or that fractional jobs share."""

    node: int
    gpus: int


class NaiveCluster:
    """Running jobs as a dictionary; rates, ends and free GPUs are computed whenever asked for.

    Events that only rounding keeps apart happen at once.
    """

    def __init__(
        self, trace: Trace, cluster: Cluster, rates: PairRates, overheads: Overheads, incidents: Any
    ) -> None:
        self.trace, self.cluster, self.rates = trace, cluster, rates
        self.overheads, self.incidents = overheads, incidents
        self.milli = trace.num_gpus * trace.gpu_milli  # that each job takes in all
        self.now = 0.0
        self.past = NEVER  # up to here all has happened
        self.queue: list[int] = []
        self.held: dict[int, list[GpuSet]] = {}  # by running jobs, in the order of their starts
        self.ready: dict[int, float] = {}
        self.down: set[int] = set()
        self.left = trace.duration_s.astype(float)
        self.finish = np.full(len(trace), NEVER)
        self.preemptions, self.executed = np.zeros((2, len(trace)))

    @property
    def busy(self) -> float:
        """GPU-seconds held so far."""
        return float((self.executed * self.milli).sum() / WHOLE_GPU)

    def sets(self) -> list[GpuSet]:
        return list(dict.fromkeys(one for held in self.held.values() for one in held))

    def on(self, one: GpuSet) -> list[int]:
        """Jobs on a set."""
        return [job for job, held in self.held.items() if one in held]

    def left_on(self, one: GpuSet) -> int:
        """Thousandths of each GPU of a set."""
        return WHOLE_GPU - int(self.trace.gpu_milli[self.on(one)].sum())

    def free(self, node: int) -> int:
        held = sum(one.gpus for one in self.sets() if one.node == node)
        return 0 if node in self.down else int(self.cluster.gpus[node]) - held

    def on_node(self, node: int) -> list[int]:
        return [job for job, held in self.held.items() if node in {one.node for one in held}]

    def rate(self, job: int) -> float:
        products = []
        for one in self.held[job]:
            group = self.on(one) if self.rates.scope == ON_GPU else self.on_node(one.node)
            others = [other % 2 for other in group if other != job]
            products.append(np.prod(self.rates.pair[job % 2, others]))
        return float(min(products))

    def end(self, job: int) -> float:
        return max(self.now, self.ready[job]) + self.left[job] / self.rate(job)

    def advance(self) -> bool:
        ends = {job: self.end(job) for job in self.held}
        submit, incident = self.trace.submit_s, self.incidents["time"]
        due = min(
            [*ends.values(), *submit[submit > self.past], *incident[incident > self.past]],
            default=np.inf,
        )
        if due == np.inf:
            return False
        for job in self.held:
            progressing = max(self.now, self.ready[job])
            self.left[job] -= max(due - progressing, 0.0) * self.rate(job)
            self.executed[job] += due - self.now
        before, self.now, self.past = self.past, due, due * ONE_INSTANT
        for job, end in ends.items():
            if end <= self.past:
                self.finish[job] = due
                del self.held[job]
        for _, node, up in self.incidents[(before < incident) & (incident <= self.past)].tolist():
            if up:
                self.down.remove(node)
                continue
            for job in self.on_node(node)[::-1]:
                self.preempt(job)
                step, work = self.overheads.checkpoint_s, self.trace.duration_s[job]
                self.left[job] = work - int((work - self.left[job] + 1e-6) / step) * step
            self.down.add(node)
        self.queue += np.flatnonzero((before < submit) & (submit <= self.past)).tolist()
        return True

    def start(self, job: int, sets: list[GpuSet]) -> None:
        self.queue.remove(job)
        self.held[job] = sets
        self.ready[job] = self.now + self.overheads.restart_s * (self.preemptions[job] > 0)

    def preempt(self, job: int) -> None:
        del self.held[job]
        self.preemptions[job] += 1
        self.queue.append(job)


def random_sets(naive: NaiveCluster, job: int, rng: Generator) -> list[GpuSet] | None:
    """Random parts of a gang on random nodes, some of them on sets that others are on."""
    need, milli = int(naive.trace.num_gpus[job]), int(naive.trace.gpu_milli[job])
    found: list[GpuSet] = []
    for node in rng.permutation(naive.cluster.num_nodes).tolist():
        fitting = [
            one
            for one in naive.sets()
            if one.node == node and one.gpus <= need and milli <= naive.left_on(one)
        ]
        take = min(need, naive.free(node))
        if fitting and rng.random() < 0.8:
            found.append(fitting[rng.integers(len(fitting))])
        elif take:
            part = take if rng.random() < 0.5 else int(rng.integers(1, take + 1))
            found.append(GpuSet(node, part))
        need = int(naive.trace.num_gpus[job]) - sum(one.gpus for one in found)
        if need == 0:
            return found
    return None


def number_of(simulator: ClusterSimulator, job: int, node: int) -> int:
    """The set that a job has on a node, as the simulator numbers it."""
    shares = simulator.state.shares
    share = shares[simulator.state.jobs[job]["share"]]
    while share["node"] != node:
        share = shares[share["next"]]
    return int(share["partial"])


def sets_of(simulator: ClusterSimulator) -> list[tuple[int, int, int]]:
    """(node, GPUs, thousandths left) of all sets that the nodes' chains lead to."""
    found = []
    for node, first in enumerate(simulator.state.nodes["partial"]):
        before, index = NONE, first
        while index != NONE:
            one = simulator.state.partials[index]
            assert (one["node"], one["before"]) == (node, before)
            found.append((node, one["gpus"], one["left"]))
            index, before = one["next"], index
    return sorted(found)


def assert_agree(simulator: ClusterSimulator, naive: NaiveCluster) -> None:
    state, running = simulator.state, sorted(naive.held)
    clock, records = state.clock[0], state.jobs[running]
    assert_allclose([simulator.now, clock["busy"]], [naive.now, naive.busy], rtol=1e-9)
    assert list(simulator.pending()) == naive.queue
    assert list(simulator.running()) == running
    free = [naive.free(node) for node in range(naive.cluster.num_nodes)]
    assert (state.nodes["free"].tolist(), clock["free"]) == (free, sum(free))
    assert clock["held"] == naive.milli[running].sum()
    assert sets_of(simulator) == sorted(
        (one.node, one.gpus, naive.left_on(one))
        for one in naive.sets()
        if naive.trace.gpu_milli[naive.on(one)[0]] < WHOLE_GPU
    )
    for job in running:
        assert simulator.shares(job) == [(one.node, one.gpus) for one in naive.held[job]]
    assert records["nodes"].tolist() == [len(naive.held[job]) for job in running]
    assert_allclose(records["rate"], [naive.rate(job) for job in running], rtol=1e-12)
    assert_allclose(records["end"], [naive.end(job) for job in running], rtol=1e-9)
    settled = simulator.copy()
    settled.settle()
    assert_allclose(settled.state.jobs["remaining"][running], naive.left[running], 1e-9, 1e-9)


@pytest.mark.parametrize("fractional", [False, True])
@examples(150)
@given(
    seed=SEEDS,
    scope=st.sampled_from([None, ON_NODE, ON_GPU]),  # of the interference, if there is any
    restart=st.sampled_from([0, 1, 3]),
)
@example(seed=1568, scope=ON_NODE, restart=3)  # a failure with 2 - 4e-16 s done of a step of 2 s
@example(seed=789, scope=ON_NODE, restart=0)  # two completions that rounding keeps apart
def test_random_decisions_have_the_outcome_that_a_naive_simulator_computes(
    fractional: bool, seed: int, scope: int | None, restart: int
) -> None:
    rng = default_rng(seed)
    cluster, jobs = Cluster.uniform(3, 4), int(rng.integers(1, 11))
    submit_s, duration_s = np.sort(rng.integers(0, 12, jobs)), rng.integers(1, 9, jobs)
    trace = Trace.of("random", submit_s, duration_s, rng.integers(1, 9, jobs))
    if fractional:
        milli = rng.choice([200, 300, 500, WHOLE_GPU], jobs).astype(np.int32)
        trace = replaced(trace, gpu_milli=milli)
    low = 1.0 if scope is None else 0.5
    rates = PairRates(rng.uniform(low, 1.0, (2, 2)), scope or ON_NODE)
    incidents = np.zeros(4 * int(rng.integers(2)), INCIDENT)
    if len(incidents):
        incidents["time"] = np.sort(rng.choice(40, 4, replace=False)) + 0.5
        incidents["node"], incidents["up"] = [1, 1, 2, 2], [0, 1, 0, 1]
    overheads = Overheads(float(restart), 2.0)
    simulator = ClusterSimulator(
        cluster, trace, rates=None if scope is None else rates, overheads=overheads,
        incidents=incidents, keep_runs=True,
    )  # fmt: skip
    naive = NaiveCluster(trace, cluster, rates, overheads, incidents)
    for event in range(400):
        moved = simulator.advance()
        while kernel.next_event(simulator.state) <= simulator.now * ONE_INSTANT:
            simulator.advance()  # over what rounding keeps apart
        assert moved == naive.advance()
        if not moved:
            break
        assert_agree(simulator, naive)
        for job in list(naive.held):
            if event < 60 and rng.random() < 0.15:
                naive.preempt(job)
                simulator.preempt(job)
        for job in list(naive.queue):
            sets = random_sets(naive, job, rng)
            if sets and (event >= 60 or rng.random() < 0.8):
                joined = [
                    number_of(simulator, naive.on(one)[0], one.node) if naive.on(one) else None
                    for one in sets
                ]
                shares = [(one.node, one.gpus) for one in sets]
                simulator.start(job, shares, None if joined == [None] * len(sets) else joined)
                naive.start(job, sets)
        if rng.random() < 0.5:
            simulator.settle()
        assert_agree(simulator, naive)
    schedule = simulator.schedule()
    assert_allclose(schedule.finish, naive.finish, rtol=0 if scope is None else 1e-9)
    assert_allclose(schedule.held, naive.executed, rtol=1e-9)
    assert schedule.preemptions.tolist() == naive.preemptions.tolist()
    if simulator.done:
        assert (simulator.state.nodes["share"] == NONE).all()
        runs = schedule.runs
        assert runs is not None
        milli = ((runs["end"] - runs["start"]) * runs["gpus"] * runs["milli"]).sum()
        assert milli / WHOLE_GPU == pytest.approx(naive.busy)
        if scope is None and not restart and len(incidents) == 0:
            assert milli == (trace.duration_s * naive.milli).sum()


def simulator_of(
    cluster: Cluster, *columns: list[int], milli: list[int] | None = None, **options: Any
) -> ClusterSimulator:
    """Of jobs by their submissions, durations and numbers of GPUs."""
    trace = Trace.of("t", *columns)
    if milli:
        trace = replaced(trace, gpu_milli=np.array(milli, np.int32))
    return ClusterSimulator(cluster, trace, **options)


def test_a_gang_joins_sets_of_its_size_only() -> None:
    simulator = simulator_of(
        Cluster.uniform(2, 4), [0] * 6, [5, 9, 9, 9, 9, 9], [5, 5, 3, 1, 2, 2],
        milli=[500, 500, 400, 400, 600, 1000],
    )  # fmt: skip
    free, both = simulator.state.nodes["free"], [(0, 3), (1, 2)]
    simulator.advance()
    simulator.start(0, both)
    assert free.tolist() == [1, 2]
    three, two = (number_of(simulator, 0, node) for node in range(2))
    for job, shares, partial, message in (
        (1, both, three, "1 sets of GPUs for 2 shares"),
        (1, both, [three, 99], "no sets of GPUs"),
        (1, both, [two, three], "elsewhere or too full"),
        (1, [(0, 4), (1, 1)], [three, two], "has 3 GPUs, not 4"),
        (3, [(0, 1)], three, "has 3 GPUs, not 1"),
        (4, [(1, 2)], two, "elsewhere or too full"),
        (5, [(1, 2)], two, "elsewhere or too full"),
        (2, [(0, 3)], None, "has 1 free GPUs, not 3"),
        (3, [(0, 1)], 7, "elsewhere or too full"),  # a set that nobody has opened
    ):
        with pytest.raises(ValueError, match=message):
            simulator.start(job, shares, partial)
    simulator.start(1, both, [three, two])
    simulator.start(4, [(1, 2)])
    assert (free.tolist(), sets_of(simulator)) == ([1, 0], [(0, 3, 0), (1, 2, 0), (1, 2, 400)])
    assert simulator.state.clock[0]["held"] == 5 * 500 + 5 * 500 + 2 * 600
    simulator.advance()
    assert simulator.now == 5.0
    simulator.start(2, [(0, 3)], three)
    assert free.tolist() == [1, 0]
    simulator.preempt(1)
    assert (free.tolist(), sets_of(simulator)) == ([1, 2], [(0, 3, 600), (1, 2, 400)])
    closed = number_of(simulator, 4, 1)
    simulator.preempt(4)
    with pytest.raises(ValueError, match="elsewhere or too full"):
        simulator.start(4, [(1, 2)], closed)


def test_rounding_takes_no_checkpoint() -> None:
    """0.3 s of work, as floats, are less than three times 0.1 s."""
    incidents = np.array([(0.3, 0, 0), (0.4, 0, 1), (0.5, 0, 0), (0.6, 0, 1)], INCIDENT)
    simulator = simulator_of(
        Cluster.uniform(1, 1), [0], [1], [1], overheads=Overheads(5.0, 0.1), incidents=incidents
    )
    while simulator.advance():
        if len(simulator.pending()) and simulator.state.nodes[0]["up"]:
            simulator.start(0, [(0, 1)])
    assert simulator.schedule().finish[0] == pytest.approx(0.6 + 5.0 + 0.7)


def test_whole_seconds_are_compiled_for_as_fractions_are() -> None:
    simulator = simulator_of(Cluster.uniform(1, 1), [0], [1], [1], overheads=Overheads(3, 0))
    assert str(simulator.overheads) == "Overheads(restart_s=3.0, checkpoint_s=0.0)"


def test_a_copy_goes_its_own_way() -> None:
    simulator = simulator_of(Cluster.uniform(1, 2), [0, 1], [5, 5], [1, 2])
    simulator.advance()
    simulator.start(0, [(0, 1)])
    twin = simulator.copy()
    while twin.advance():
        pass
    assert (twin.now, simulator.now) == (5.0, 0.0)
    assert simulator.state.jobs[0]["status"] == RUNNING


def test_until_stops_the_clock_in_between() -> None:
    simulator = simulator_of(Cluster.uniform(1, 1), [4], [5], [1])
    assert simulator.advance(until=3.0)
    assert simulator.now == 3.0
    assert simulator.advance(until=4.0)
    assert list(simulator.pending()) == [0]
    simulator.refuse(0)
    assert simulator.done
    assert simulator.state.jobs[0]["status"] == REFUSED
    assert not simulator.advance()


def test_impossible_starts_are_refused() -> None:
    down = np.array([(0.0, 1, 0)], INCIDENT)
    simulator = simulator_of(Cluster.uniform(2, 2), [0], [5], [2], incidents=down)
    simulator.advance()
    assert simulator.state.jobs[0]["status"] == PENDING
    for shares, message in (
        ([(0, 1)], "asks for 2"),
        ([(0, 1), (0, 1)], "different"),
        ([(1, 2)], "free|down"),
        ([(0, 3), (1, -1)], "asks for|free"),
        ([], "different"),
    ):
        with pytest.raises(ValueError, match=message):
            simulator.start(0, shares)


def test_jobs_that_can_never_run_are_named() -> None:
    same, mixed = Cluster.uniform(2, 4), Cluster.uniform(2, 4, gpu_types=("V100", "H100"))
    one = Trace.of("t", [0], [5], [1], gpu_type=["A100|H100"])
    wide = Trace.of("t", [0, 0], [5, 5], [8, 5], gpu_type=[None, "H100"])
    for cluster, trace, message in (
        (same, Trace.of("t", [0], [5], [9]), "job '0' asks for 9 GPUs, the cluster has 8"),
        (same, one, "gpu_type"),
        (mixed, wide, "job '1' asks for 5 GPUs, the cluster has 4"),
    ):
        with refusal(message):
            ClusterSimulator(cluster, trace)
    simulator = ClusterSimulator(mixed, one)
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
