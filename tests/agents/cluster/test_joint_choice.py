"""`JointChoice` against a readable twin that tries every place on imagined clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from agents.cluster.compiled import joint_choice as kernel
from agents.cluster.joint_choice import JointChoice, likes
from agents.cluster.partitioned import Partitioned, fastest
from agents.cluster.replay import replay, simulate
from envs.cluster.environment.routing import (
    MixedRacks,
    OneQueue,
    RandomRouting,
    first_that_holds,
)
from envs.cluster.interference.rates import (
    ALONE,
    ON_GPU,
    PAIRS_PRODUCT,
    SHARED,
    RateModel,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace
from tests.refusal import refusal
from tests.strength import SEEDS, examples

TYPES = ("V100", "T4")
SETTINGS: dict[str, Any] = {
    "order": "smallest", "first": 8, "joint": True, "blocking": False, "share": True,
    "own": 0.5, "others": 0.5, "fast": 0.5, "choice": "gain", "hurry": 0.0, "prior_s": 60.0,
    "recency": 0.25,
}  # fmt: skip


def several(schedulers: int = 1, **settings: Any) -> Partitioned:
    usual = {"routing": RandomRouting(), "arrival": "routed", "forward_s": None}
    return Partitioned(schedulers, **{**usual, **settings})


def joint_choice(partitioned: Partitioned = several(), **settings: Any) -> JointChoice:
    return JointChoice(**{**SETTINGS, "partitioned": partitioned, **settings})


@dataclass
class PowersOfTwo:
    """Rates whose products and quotients are exact."""

    seed: int
    kind: int
    name = "powers of two"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        rng = np.random.default_rng(self.seed)
        cases, types = 3, len(cluster.gpu_types)
        profile = rng.integers(0, cases, len(trace)).astype(np.int32)
        speed = rng.choice([0.25, 0.5, 1.0], (cases, types))
        locality = rng.choice([0.5, 1.0], (cases, types, 3, 2))
        return without_neighbours(profile, speed, locality)._replace(
            kind=self.kind,
            scope=ON_GPU,
            row=rng.integers(0, 2, (cases, 2)).astype(np.int32),
            pair=rng.choice([0.25, 0.5, 1.0], (2, 2)),
            demand=rng.choice([0.0, 0.25, 1.0], (cases, 6)),
        )


class Place(NamedTuple):
    shares: list[tuple[int, int]]
    joined: int | None = None


class Effect(NamedTuple):
    alone: float
    own: float
    others: float
    won: float


def held(simulator: ClusterSimulator, job: int) -> list[tuple[int, int, int]]:
    """(node, GPUs, set) of a job's shares, in the order of taking."""
    found, index = [], int(simulator.state.jobs[job]["share"])
    while index != NONE:
        share = simulator.state.shares[index]
        found.append((int(share["node"]), int(share["gpus"]), int(share["partial"])))
        index = int(share["next"])
    return found[::-1]


class Imagined:
    """The jobs that run, begun one after another in a world with other rates."""

    def __init__(self, simulator: ClusterSimulator, order: Sequence[int], model: RateModel) -> None:
        trace = simulator.trace
        trace = replace(trace, submit_s=np.zeros_like(trace.submit_s))
        self.world = ClusterSimulator(simulator.cluster, trace, rates=model)
        self.world.advance()
        self.order: list[int] = []
        self._sets: dict[int, int] = {}  # there: here
        for job in order:
            self.follow(simulator, job)

    def follow(self, simulator: ClusterSimulator, job: int) -> Effect:
        """A job runs here as it does there."""
        shares = held(simulator, job)
        effect = self.start(job, [one[:2] for one in shares], [one[2] for one in shares])
        for there, here in zip(shares, held(self.world, job), strict=True):
            if there[2] != NONE:
                self._sets[there[2]] = here[2]
        return effect

    def start(self, job: int, shares: list[tuple[int, int]], sets: list[int]) -> Effect:
        jobs, nodes = self.world.state.jobs, {node for node, _ in shares}
        before = jobs["rate"] / np.maximum(jobs["alone"], 1e-9)
        self.world.start(job, shares, [self._sets.get(one) for one in sets])
        after = jobs["rate"] / np.maximum(jobs["alone"], 1e-9)
        gpus, alone = jobs["gpus"], jobs["alone"]
        won, others = float(gpus[job] * alone[job] * after[job]), [1.0]
        for node, _ in shares:  # neighbours, the last to come first
            for other in self.order[::-1]:
                if node in nodes and node in {one[0] for one in held(self.world, other)}:
                    others.append(after[other] / before[other])
                    won -= float(gpus[other] * alone[other] * (before[other] - after[other]))
                    before[other] = after[other]
        self.order.append(job)
        return Effect(float(alone[job]), float(after[job]), float(min(others)), won)

    def tried(self, job: int, place: Place) -> Effect:
        world, order = self.world, list(self.order)
        self.world = world.copy()
        effect = self.start(job, place.shares, [place.joined] * len(place.shares))
        self.world, self.order = world, order
        return effect


@dataclass
class Twin:
    """One list of pending jobs, every place of each tried in an imagined world."""

    policy: JointChoice  # its numbers, owners and fastest rates
    settings: dict[str, Any]
    simulator: ClusterSimulator
    model: RateModel
    home: list[int]  # in whose queue jobs are, or NONE
    order: list[int] = field(default_factory=list)  # of starts
    asked: dict[int, float] = field(default_factory=dict)  # about the queue
    mean: dict[tuple[object, ...], float] = field(default_factory=dict)

    def run(self) -> None:
        told: set[int] = set()
        while not self.simulator.done:
            assert self.simulator.advance()
            jobs = self.simulator.state.jobs
            for job in sorted({*np.flatnonzero(jobs["status"] == FINISHED).tolist()} - told):
                told.add(job)
                self.order.remove(job)
                for key in self.likes(job):
                    mean = self.mean.get(key, float(jobs["work"][job]))
                    self.mean[key] = mean + 0.25 * (float(jobs["work"][job]) - mean)
            self.route()
            for scheduler in range(self.policy.schedulers):
                while self.start_one(scheduler):
                    pass

    def route(self) -> None:
        now, several = self.simulator.now, self.policy.partitioned
        longest = several.forward_s or np.inf
        for job in self.simulator.pending().tolist():
            since = max(float(self.simulator.state.jobs["since"][job]), self.asked.get(job, 0.0))
            if self.home[job] == NONE or now - since > longest:
                self.asked[job] = now
                can = np.flatnonzero(self.policy._now.owners.holds[job]).tolist()
                offers = self.offers(job, can) if several.arrival == "best_offer" else {}
                if offers:
                    self.home[job] = max(offers, key=lambda one: offers[one])
                    continue
                best = min(can, key=lambda one: self.load(one, job))
                if self.home[job] == NONE or self.load(best, job) < self.load(self.home[job], job):
                    self.home[job] = best

    def offers(self, job: int, schedulers: list[int]) -> dict[int, float]:
        """What its best place is worth to each that has one."""
        found, before = {}, self.home[job]
        world = Imagined(self.simulator, self.order, self.model)
        for one in schedulers:
            self.home[job] = one
            best = self.best_place(world, job, True)
            if best is not None:
                gain = self.settings["choice"] == "gain"
                fastest = float(self.policy._now.owners.fastest[job, one])
                found[one] = best[0] * (fastest if gain else 1.0)
        self.home[job] = before
        return found

    def load(self, scheduler: int, but: int) -> tuple[float, int]:
        pending = self.simulator.pending().tolist()
        waiting = [job for job in pending if self.home[job] == scheduler and job != but]
        mine = self.policy._now.owners.of_node == scheduler
        load = float(len(waiting))
        if self.policy.partitioned.arrival != "shortest_queue":
            gpus = int(self.simulator.cluster.gpus[mine].sum())
            load = sum((self.gpu_seconds(job) / gpus for job in waiting), 0.0)
        return load, -int(self.simulator.state.nodes["free"][mine].sum())

    def likes(self, job: int) -> list[tuple[object, ...]]:
        trace = self.simulator.trace
        gang = (int(trace.num_gpus[job]), int(trace.gpu_milli[job]))
        user = [] if trace.user[job] is None else [(trace.user[job], *gang)]
        return [*user, gang, ()]

    def seconds(self, job: int) -> float:
        return next((self.mean[key] for key in self.likes(job) if key in self.mean), 60.0)

    def gpu_seconds(self, job: int) -> float:
        trace = self.simulator.trace
        return float(self.seconds(job) * trace.num_gpus[job] * (trace.gpu_milli[job] / WHOLE_GPU))

    def rank(self, job: int) -> float:
        return {
            "queue": lambda job: 0.0,
            "shortest": self.seconds,
            "smallest": self.gpu_seconds,
            "dominant": self.dominant_share,
        }[self.settings["order"]](job)

    def dominant_share(self, job: int) -> float:
        trace, cluster = self.simulator.trace, self.simulator.cluster
        user = trace.user[job]
        same = [o for o in self.order if o == job or (user is not None and trace.user[o] == user)]
        gpus = (trace.num_gpus * trace.gpu_milli)[same].sum() / (WHOLE_GPU * cluster.num_gpus)
        cpu = trace.cpu_milli[same].sum() / cluster.cpu_milli.sum()
        return float(max(gpus, cpu, trace.memory_mib[same].sum() / cluster.memory_mib.sum()))

    def start_one(self, scheduler: int) -> bool:
        home, told = self.home, self.settings
        strict = any(home[job] == scheduler for job in self.order)
        mine = [int(job) for job in self.simulator.pending() if home[job] == scheduler]
        world = Imagined(self.simulator, self.order, self.model)
        best: tuple[float, int, Place] | None = None
        for row, job in enumerate(sorted(mine, key=self.rank)[: told["first"]]):
            found = self.best_place(world, job, strict)
            if found is None:
                if told["blocking"]:
                    break
                continue
            worth = found[0] - told["hurry"] * row
            if best is None or worth > best[0]:
                best = worth, job, found[1]
            if not told["joint"]:
                break
        if best is None:
            return False
        _, job, place = best
        self.simulator.start(job, place.shares, place.joined)
        self.order.append(job)
        return True

    def best_place(self, world: Imagined, job: int, strict: bool) -> tuple[float, Place] | None:
        best: tuple[float, Place] | None = None
        for place in self.places(job):
            if place is None:  # what follows reaches beyond a rack
                if best is not None:
                    break
                continue
            effect = world.tried(job, place)
            if strict and not good_enough(effect, self.policy, job, self.home[job]):
                continue
            worth = self.worth(effect, job, place)
            if best is None or worth > best[0]:
                best = worth, place
        return best

    def worth(self, effect: Effect, job: int, place: Place) -> float:
        gpus = int(self.simulator.trace.num_gpus[job])
        free = sum(int(self.simulator.state.nodes["free"][node]) for node, _ in place.shares)
        home = self.home[job]
        return {
            "gain": effect.won / (gpus * float(self.policy._now.owners.fastest[job, home])),
            "tightest": -free,
            "loosest": free,
            "aligned": gpus * free,
        }[self.settings["choice"]]

    def places(self, job: int) -> Iterator[Place | None]:
        state, owners = self.simulator.state, self.policy._now.owners
        nodes, gpus = state.nodes, int(state.jobs["gpus"][job])
        milli = int(state.jobs["milli"][job])
        mine = np.flatnonzero(owners.of_node == self.home[job]).tolist()
        if any(nodes["gpus"][node] >= gpus for node in mine):
            for node in mine:
                if nodes["free"][node] >= gpus:
                    yield Place([(node, gpus)])
                one = int(nodes["partial"][node])
                while one != NONE and self.settings["share"] and milli < WHOLE_GPU:
                    there = state.partials[one]
                    if there["gpus"] == gpus and there["left"] >= milli:
                        yield Place([(node, gpus)], one)
                    one = int(there["next"])
            return
        racks = nodes["rack"]
        for rack in range(int(racks.max()) + 1):
            yield from self.scattered([node for node in mine if racks[node] == rack], gpus)
        yield None
        yield from self.scattered(mine, gpus)

    def scattered(self, mine: list[int], gpus: int) -> Iterator[Place]:
        free = {node: int(self.simulator.state.nodes["free"][node]) for node in mine}
        shares: list[tuple[int, int]] = []
        while gpus > 0:
            enough = [node for node in free if free[node] >= gpus]
            if enough:
                node = min(enough, key=lambda one: free[one])
            else:
                node = max(free, key=lambda one: free[one], default=NONE)
            if node == NONE or free[node] == 0:
                return
            shares.append((node, min(gpus, free.pop(node))))
            gpus -= shares[-1][1]
        yield Place(shares)


def good_enough(effect: Effect, policy: JointChoice, job: int, home: int) -> bool:
    best, rule = policy._now.owners.fastest[job, home], policy.rule
    return bool(
        effect.alone >= rule.fast * best and effect.own >= rule.own and effect.others >= rule.others
    )


def drawn(seed: int, schedulers: int) -> tuple[Cluster, Trace, dict[str, Any]]:
    """A cluster, jobs that one of its schedulers can hold, and numbers of the rule."""
    rng = np.random.default_rng(seed)
    racks, per, size = (int(rng.integers(*of)) for of in ((schedulers, 5), (1, 3), (1, 5)))
    cluster = Cluster.uniform(
        racks * per, size, nodes_per_rack=per, gpu_types=TYPES[: min(racks * per, 2)]
    )
    nodes = racks * per
    cluster = replace(
        cluster,
        cpu_milli=np.full(nodes, 16_000 * size), memory_mib=np.full(nodes, 2048 * size),
    )  # fmt: skip
    owner = MixedRacks()(cluster, schedulers)
    most = int(np.bincount(owner, cluster.gpus).max())
    jobs = int(rng.integers(2, 11))
    trace = Trace.of(
        "drawn",
        np.sort(rng.integers(0, 40, jobs)),
        rng.integers(1, 40, jobs),
        np.minimum(rng.choice([1, 1, 2, 2, 3, 6], jobs), most),
    )
    trace = replace(
        trace,
        gpu_milli=rng.choice([250, 500, 500, 1000], jobs).astype(np.int32),
        cpu_milli=trace.num_gpus * rng.choice([0, 1000, 4000], jobs),
        memory_mib=trace.num_gpus * rng.choice([1, 512], jobs),
        user=Labels.of(rng.choice(["", "a", "b"], jobs).tolist()),
    )
    settings = {
        **SETTINGS,
        "order": str(rng.choice(["queue", "shortest", "smallest", "dominant"])),
        "first": int(rng.integers(1, 9)),
        **{name: bool(rng.integers(2)) for name in ("joint", "blocking")},
        "share": bool(rng.random() < 0.8),
        **{name: float(rng.choice([0, 0.25, 0.5, 1])) for name in ("own", "others", "fast")},
        "choice": str(rng.choice(["gain", "gain", "tightest", "loosest", "aligned"])),
        "hurry": float(rng.choice([0, 0.25])),
        "partitioned": several(
            schedulers,
            arrival=str(rng.choice(["routed", "least_load", "shortest_queue", "best_offer"])),
            forward_s=rng.choice([None, 5.0]),
            seed=seed,
        ),
    }
    return cluster, trace, settings


@pytest.mark.parametrize("kind", [ALONE, PAIRS_PRODUCT, SHARED])
@pytest.mark.parametrize("schedulers", [1, 3])
@examples(300, 20)
@given(seed=SEEDS, wrong=st.booleans())
def test_three_ways_to_one_schedule(kind: int, schedulers: int, seed: int, wrong: bool) -> None:
    """The compiled run, the decisions event by event under a view, and the twin's."""
    cluster, trace, settings = drawn(seed, schedulers)
    rates = PowersOfTwo(seed, kind)
    settings["believed"] = PowersOfTwo(seed + 1, SHARED) if wrong else None
    whole = replay(JointChoice(**settings), cluster, trace, rates=rates)
    assert whole.finished.all()  # nobody starves
    policy = JointChoice(**settings)
    steps = simulate(policy, ClusterSimulator(cluster, trace, rates=rates))
    assert_array_equal(steps.start, whole.start)
    assert_array_equal(steps.finish, whole.finish)
    twin = ClusterSimulator(cluster, trace, rates=rates)
    policy.reset(twin)
    home = policy._now.owners.home.tolist()
    Twin(policy, settings, twin, settings["believed"] or rates, home).run()
    assert_array_equal(twin.schedule().start, whole.start)
    assert_array_equal(twin.schedule().finish, whole.finish)


def in_order(simulator: ClusterSimulator, new: set[int]) -> list[int]:
    """Jobs that began together, those that came later to a node after those there before."""
    order: list[int] = []
    state, left = simulator.state, set(new)
    chains = []
    for node in range(simulator.cluster.num_nodes):
        chain, share = [], int(state.nodes["share"][node])
        while share != NONE:
            chain.append(int(state.shares[share]["job"]))
            share = int(state.shares[share]["after"])
        chains.append([job for job in chain[::-1] if job in new])
    while left:
        ready = (
            job
            for job in sorted(left)
            if all(
                job not in chain or set(chain[: chain.index(job)]) <= set(order) for chain in chains
            )
        )
        order.append(next(ready))
        left.remove(order[-1])
    return order


@examples(300, 20)
@given(seed=SEEDS, schedulers=st.sampled_from([1, 2]))
def test_every_start_is_good_enough_as_believed(seed: int, schedulers: int) -> None:
    """But for the first of a scheduler of whose jobs none runs."""
    cluster, trace, settings = drawn(seed, schedulers)
    settings["believed"] = believed = PowersOfTwo(seed + 1, SHARED)
    policy = JointChoice(**settings)
    simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, PAIRS_PRODUCT))
    policy.reset(simulator)
    order: list[int] = []
    while not simulator.done:
        simulator.advance()
        ran = set(simulator.running().tolist())
        order = [job for job in order if job in ran]
        world = Imagined(simulator, order, believed)
        policy.decide(simulator)
        home = policy._now.owners.home
        idle = set(range(schedulers)) - {int(home[job]) for job in ran}
        for job in in_order(simulator, set(simulator.running().tolist()) - ran):
            if not good_enough(world.follow(simulator, job), policy, job, int(home[job])):
                idle.remove(int(home[job]))  # once, and only there
            order.append(job)


def reachable(state: ClusterState) -> list[list[Any]]:
    """All that counts: of free shares and sets only the order in which they will be taken."""
    state = state.copy()
    for records, first in ((state.shares, "share"), (state.partials, "partial")):
        free = int(state.clock[0][first])
        while free != NONE:
            following = int(records[free]["next"])
            records[free] = np.zeros(1, records.dtype)[0]
            records[free]["next"] = following
            free = following
    return [array.tolist() for array in state]


def test_to_look_changes_nothing() -> None:
    looked = 0
    for seed in range(6):
        cluster, trace, settings = drawn(seed, 1)
        policy = JointChoice(**{**settings, "share": True, "own": 0.0, "others": 0.0})
        simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, SHARED))
        policy.reset(simulator)
        home = [0] * len(trace)
        twin = Twin(policy, {**settings, "share": True}, simulator, NoRates(), home)
        room = kernel.room_of(cluster.num_nodes, len(simulator.state.shares), len(trace))
        for _ in range(3):
            simulator.advance()
            before = reachable(simulator.state)
            for job in simulator.pending().tolist():
                for place in twin.places(job):
                    if place is None:
                        continue
                    for i, (node, gpus) in enumerate(place.shares):
                        room.nodes[0, i], room.gpus[0, i] = node, gpus
                        room.sets[0, i] = NONE if place.joined is None else place.joined
                    world = (simulator.state, simulator.tables, room, job, len(place.shares))
                    found = kernel.effect(*world)
                    after = simulator.copy()
                    after.start(job, place.shares, place.joined)
                    record = after.state.jobs[job]
                    assert found[:2] == (record["alone"], record["rate"] / record["alone"])
                    looked += 1
            assert reachable(simulator.state) == before
            policy.decide(simulator)
    assert looked > 20


def test_a_neighbour_on_two_nodes_loses_once() -> None:
    """Two gangs on the same two nodes ask for both network ports twice: each keeps a half."""
    cluster, trace = Cluster.uniform(2, 4), Trace.of("two", [0, 0], [9, 9], [6, 2])

    class Ports:
        name = "ports"

        def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
            return without_neighbours(np.zeros(2, np.int32), np.ones((1, 1)))._replace(
                kind=SHARED, demand=np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
            )

    simulator = ClusterSimulator(cluster, trace, rates=Ports())
    simulator.advance()
    simulator.start(0, [(0, 3), (1, 3)])
    room = kernel.room_of(2, len(simulator.state.shares), 2)
    room.nodes[0], room.gpus[0], room.sets[0] = (0, 1), (1, 1), NONE
    found = kernel.effect(simulator.state, simulator.tables, room, 1, 2)
    assert found == (1.0, 0.5, 0.5, 2 * 0.5 - 6 * 0.5)


class NoRates:
    """Nobody asks for them."""

    name = "none"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        raise AssertionError


def test_the_fastest_gpus_that_a_scheduler_has() -> None:
    """Two racks of two nodes with two GPUs each; the faster type is in the second rack."""
    cluster = Cluster.uniform(4, 2, nodes_per_rack=2, gpu_types=("T4", "V100"))
    trace = Trace.of("gangs", [0] * 5, [1] * 5, [1, 3, 4, 5, 2])
    locality = np.array([[1.0, 0.5], [0.75, 0.5], [0.25, 0.125]])[None, None]
    tables = without_neighbours(np.zeros(5, np.int32), np.array([[0.5, 1.0]]), locality)
    types = np.array([3, 3, 3, 3, 1])
    all_of_it = fastest(cluster, trace, types, tables, np.zeros(4, np.int64), 1)
    # one node; two of a rack; two of a rack; slow ones in two racks; only slow ones permitted
    assert all_of_it[:, 0].tolist() == [1.0, 0.5, 0.5, 0.5 * 0.125, 0.5]
    parted = fastest(cluster, trace, types, tables, np.array([0, 0, 0, 1]), 2)
    assert parted[:, 1].tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]  # nothing holds the gangs
    assert parted[:, 0].tolist() == [1.0, 0.25, 0.25, 0.5 * 0.125, 0.5]


def test_likes_of_a_job() -> None:
    trace = Trace.of("likes", [0] * 5, [1] * 5, [1, 1, 1, 2, 1])
    trace = replace(
        trace,
        user=Labels.of(["a", "a", None, "a", None]),
        gpu_milli=np.array([500, 500, 500, 500, 1000], np.int32),
    )
    like = likes(trace)
    same = [[row[i] == other[i] for i in range(3)] for row in like for other in like]
    pairs = {(i, j): same[5 * i + j] for i in range(5) for j in range(i)}
    assert pairs[1, 0] == [True, True, True]
    assert pairs[2, 1] == pairs[2, 0] == [False, True, True]
    assert pairs[3, 0] == pairs[4, 2] == [False, False, True]
    assert len(set(like[:, 0]) & set(like[:, 1]) | set(like[:, 1]) & set(like[:, 2])) == 0


def test_a_gang_goes_where_it_can_run() -> None:
    """Of two schedulers with racks of two and of four GPUs only the second holds three."""
    cluster = Cluster.uniform(2, 4, nodes_per_rack=1)
    cluster = replace(cluster, gpus=np.array([2, 4], np.int32))
    trace = Trace.of("gangs", [0] * 6, [5] * 6, [3] * 6)
    policy = joint_choice(several(2))
    assert replay(policy, cluster, trace).finish.tolist() == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    with refusal("no server group can hold it"):
        first_that_holds("t", np.zeros(1, np.int32), np.zeros((1, 2), np.int8))
    with refusal("no server group can hold it"):
        replay(policy, cluster, Trace.of("large", [0], [5], [6]))


def two_racks(**columns: Any) -> tuple[Cluster, Trace]:
    """Two racks of a node with two GPUs; five jobs of 90, 10, 10, 10 and 10 s on 2, 1, .. GPUs."""
    trace = Trace.of("queues", [0, 1, 2, 3, 4], [90, 10, 10, 10, 10], [2, 2, 1, 1, 1])
    return Cluster.uniform(2, 2, nodes_per_rack=1), replace(trace, **columns)


def test_jobs_come_to_the_shortest_queue_and_to_the_least_load() -> None:
    """Both racks are taken when the third comes; two single GPUs wait as long as one pair."""
    cluster, trace = two_racks(num_gpus=np.array([2, 2, 2, 1, 1]))
    homes = {}
    for arrival in ("shortest_queue", "least_load"):
        policy = joint_choice(several(2, arrival=arrival), order="queue")
        replay(policy, cluster, trace)
        homes[arrival] = policy._now.owners.home.tolist()
    assert homes == {"shortest_queue": [0, 1, 0, 1, 0], "least_load": [0, 1, 0, 1, 1]}


def test_who_waits_too_long_goes_where_less_waits() -> None:
    """All come to the first scheduler. At 8 s the second job leaves it, at 18 s the third.

    The fourth stays then, as the third waits there, and leaves at 28 s.
    """
    cluster, trace = two_racks(submit_s=np.array([0, 1, 2, 8, 50]))
    one_queue = {"schedulers": 2, "routing": OneQueue()}
    usual = joint_choice(several(**one_queue), order="queue")
    assert replay(usual, cluster, trace).finish.tolist()[1] == 100.0
    policy = joint_choice(several(**one_queue, forward_s=5.0), order="queue")
    assert replay(policy, cluster, trace).start.tolist() == [0.0, 8.0, 18.0, 28.0, 90.0]
    assert policy._now.owners.home.tolist() == [0, 1, 1, 1, 0]


def test_the_dominant_share_of_the_user_comes_first() -> None:
    """`a` holds a quarter of the GPUs and no memory, `b` a half of the memory: then `a` is next."""
    cluster = replace(Cluster.uniform(1, 4), memory_mib=np.array([100]))
    trace = Trace.of("users", [0] * 4, [10, 10, 5, 5], [1, 1, 2, 2])
    trace = replace(trace, user=Labels.of(["a", "b", "b", "a"]), memory_mib=np.array([0, 50, 0, 0]))
    starts = {}
    for order in ("queue", "dominant"):
        policy = joint_choice(order=order, joint=False)
        starts[order] = replay(policy, cluster, trace).start.tolist()
    assert starts == {"queue": [0, 0, 0, 5], "dominant": [0, 0, 5, 0]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order", "longest"), ("choice", "best"), ("first", 0), ("own", 1.5), ("others", -0.5),
        ("fast", np.nan), ("hurry", -1.0), ("prior_s", 0.0), ("recency", 0.0),
    ],
)  # fmt: skip
def test_wrong_numbers_are_named(field: str, value: object) -> None:
    with refusal(field):
        joint_choice(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("schedulers", 0), ("arrival", "random"), ("forward_s", 0.0)]
)
def test_wrong_numbers_of_several_schedulers_are_named(field: str, value: Any) -> None:
    with refusal(field):
        several(**{field: value})
