"""`JointChoice` against a readable twin that tries every place on imagined clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from agents.cluster.cells import BySize, LateViews, LeastWork, ShortestQueue, of_weights
from agents.cluster.compiled import joint_choice as kernel
from agents.cluster.joint_choice import JointChoice, likes
from agents.cluster.partitioned import Partitioned, fastest
from agents.cluster.replay import replay, simulate
from envs.arrays import FloatArray
from envs.cluster.environment.routing import (
    MixedRacks,
    OneQueue,
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
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from models.layout import CONTEXTS, FEATURES
from tests.agents.cluster.further_policies import joint_choice, several
from tests.agents.cluster.small_clusters import (
    Speeds,
    chain,
    jobs_on,
    order_of_starts,
    with_columns,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples

TYPES = ("V100", "T4")


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
    joined: int | None = None  # the set of GPUs


class Effect(NamedTuple):
    alone: float
    own: float
    others: float
    won: float


def held(simulator: ClusterSimulator, job: int) -> list[tuple[int, int, int]]:
    """(node, GPUs, set) of a job's shares, in the order of taking."""
    shares = simulator.state.shares
    taken = chain(shares, simulator.state.jobs[job]["share"])[::-1]
    return list(shares[taken][["node", "gpus", "partial"]].tolist())


class Imagined:
    """The jobs that run, begun one after another in a world with other rates."""

    def __init__(self, here: ClusterSimulator, model: RateModel) -> None:
        at_once = with_columns(here.trace, submit_s=[0] * len(here.trace))
        self.world = ClusterSimulator(here.cluster, at_once, rates=model)
        self.world.advance()
        self.sets: dict[int | None, int] = {}  # here: in that world
        for job in order_of_starts(here):
            *shares, sets = zip(*held(here, job), strict=True)
            self.start(job, [*zip(*shares, strict=True)], sets)
            there = [one for *_, one in held(self.world, job)]
            self.sets |= {one: other for one, other in zip(sets, there, strict=True) if one != NONE}

    def start(self, job: int, shares: list[tuple[int, int]], sets: Sequence[Any]) -> Effect:
        jobs = self.world.state.jobs

        def kept() -> Any:
            return jobs["rate"] / np.maximum(jobs["alone"], 1e-9)

        before = kept()
        self.world.start(job, shares, [self.sets.get(one) for one in sets])
        after, alone = kept(), jobs["alone"]
        won = jobs["gpus"][job] * alone[job] * after[job]
        neighbours = [other for node, _ in shares for other in jobs_on(self.world, node)]
        others = [other for other in dict.fromkeys(neighbours) if other != job]
        for loss in (jobs["gpus"] * alone * (before - after))[others]:
            won -= loss
        least = np.min(after[others] / before[others], initial=1.0)
        return Effect(alone[job], after[job], least, won)

    def tried(self, job: int, place: Place) -> Effect:
        other = copy(self)
        other.world = self.world.copy()
        return other.start(job, place.shares, [place.joined] * len(place.shares))


class Twin:
    """One list of pending jobs, every place of each tried in an imagined world."""

    def __init__(
        self, settings: dict[str, Any], simulator: ClusterSimulator, rates: RateModel
    ) -> None:
        self.settings, self.policy = settings, JointChoice(**settings)
        self.simulator, self.trace = simulator, simulator.trace
        self.model = settings["believed"] or rates
        self.policy.reset(simulator)
        self.owners = self.policy._now.owners  # of nodes and jobs, and the fastest rates
        self.asked: dict[int, float] = {}  # about the queue
        self.cells = LateTwin(self)
        self.mean: dict[tuple[object, ...], float] = {}

    def run(self) -> None:
        jobs = self.simulator.state.jobs
        while not self.simulator.done:
            assert self.simulator.advance()
            for job in np.flatnonzero(jobs["finish"] == self.simulator.now):
                work = jobs["work"][job]
                for key in self.likes(job):
                    mean = self.mean.get(key, work)
                    self.mean[key] = mean + 0.25 * (work - mean)
            self.route()
            for scheduler in range(self.policy.schedulers):
                while self.start_one(scheduler):
                    pass

    def route(self) -> None:
        now, several, home = self.simulator.now, self.policy.partitioned, self.owners.home
        for job in self.simulator.pending():
            since = max(self.simulator.state.jobs["since"][job], self.asked.get(job, 0.0))
            if home[job] == NONE or now - since > (several.forward_s or np.inf):
                if several.views is not None:
                    self.asked[job] = now if home[job] == NONE else np.inf
                    home[job] = self.cells.chosen(job)
                    continue
                self.asked[job] = now
                can = np.flatnonzero(self.owners.holds[job]).tolist()
                offers = self.offers(job, can) if several.arrival == "best_offer" else {}
                if home[job] != NONE:
                    can.insert(0, home[job])
                least = min(can, key=lambda one: self.load(one, job))
                home[job] = max(offers, key=lambda one: offers[one]) if offers else least

    def offers(self, job: int, schedulers: list[int]) -> dict[int, float]:
        """What its best place is worth to each that has one."""
        found, home = {}, self.owners.home
        before, world = home[job], Imagined(self.simulator, self.model)
        for one in schedulers:
            home[job] = one
            if best := self.best_place(world, job, True):
                gain = self.settings["choice"] == "gain"
                found[one] = best[0] * (self.owners.fastest[job, one] if gain else 1.0)
        home[job] = before
        return found

    def load(self, scheduler: int, but: int) -> tuple[float, int]:
        waiting = self.simulator.pending()
        waiting = waiting[(self.owners.home[waiting] == scheduler) & (waiting != but)]
        mine = self.owners.of_node == scheduler
        load = float(len(waiting))
        if self.policy.partitioned.arrival != "shortest_queue":
            gpus = self.simulator.cluster.gpus[mine].sum()
            load = sum(self.gpu_seconds(job) / gpus for job in waiting)
        return load, -self.simulator.state.nodes["free"][mine].sum()

    def likes(self, job: int) -> list[tuple[object, ...]]:
        user = self.trace.user[job]
        gang = self.trace.num_gpus[job], self.trace.gpu_milli[job]
        return [*([] if user is None else [(user, *gang)]), gang, ()]

    def seconds(self, job: int) -> float:
        return next((self.mean[key] for key in self.likes(job) if key in self.mean), 60.0)

    def gpu_seconds(self, job: int) -> float:
        gpus, milli = self.trace.num_gpus[job], self.trace.gpu_milli[job]
        return self.seconds(job) * gpus * (milli / WHOLE_GPU)

    def dominant_share(self, job: int) -> float:
        trace, users, cluster = self.trace, self.trace.user, self.simulator.cluster
        same = [o for o in self.simulator.running() if users[o] == users[job] is not None]
        asked = trace.num_gpus * trace.gpu_milli, trace.cpu_milli, trace.memory_mib
        there = WHOLE_GPU * cluster.gpus, cluster.cpu_milli, cluster.memory_mib
        return max(a[same].sum() / t.sum() for a, t in zip(asked, there, strict=True))

    def start_one(self, scheduler: int) -> bool:
        home, settings, pending = self.owners.home, self.settings, self.simulator.pending()
        strict = scheduler in home[self.simulator.running()]
        rank: dict[str, Callable[[int], float]] = {
            "queue": lambda job: 0.0,
            "shortest": self.seconds,
            "smallest": self.gpu_seconds,
            "dominant": self.dominant_share,
        }
        mine = sorted(pending[home[pending] == scheduler].tolist(), key=rank[settings["order"]])
        world = Imagined(self.simulator, self.model)
        good: list[tuple[float, int, Place]] = []
        for row, job in enumerate(mine[: settings["first"]]):
            if found := self.best_place(world, job, strict):
                good.append((found[0] - settings["hurry"] * row, job, found[1]))
            if not settings["joint"] if found else settings["blocking"]:
                break
        if good:
            _, job, place = max(good, key=lambda one: one[0])
            self.simulator.start(job, place.shares, place.joined)
        return bool(good)

    def best_place(self, world: Imagined, job: int, strict: bool) -> tuple[float, Place] | None:
        rule, fastest = self.policy.rule, self.owners.fastest[job, self.owners.home[job]]
        for group in self.places(job):
            tried = [(world.tried(job, place), place) for place in group]
            if strict:
                least = rule.fast * fastest, rule.own, rule.others
                tried = [one for one in tried if all(np.array(one[0][:3]) >= least)]
            if tried:
                worth = [self.worth(*one, job, fastest) for one in tried]
                return max(worth), tried[worth.index(max(worth))][1]
        return None

    def worth(self, effect: Effect, place: Place, job: int, fastest: float) -> float:
        gpus, nodes = self.trace.num_gpus[job], [node for node, _ in place.shares]
        free = self.simulator.state.nodes["free"][nodes].sum()
        return {
            "gain": effect.won / (gpus * fastest),
            "tightest": -free,
            "loosest": free,
            "aligned": gpus * free,
        }[self.settings["choice"]]

    def places(self, job: int) -> list[list[Place]]:
        """Those of the second group count where none of the first is good enough."""
        state, gpus = self.simulator.state, int(self.trace.num_gpus[job])
        nodes, milli = state.nodes, self.trace.gpu_milli[job]
        mine = np.flatnonzero(self.owners.of_node == self.owners.home[job]).tolist()
        if (nodes["gpus"][mine] < gpus).all():
            racks = [[n for n in mine if nodes["rack"][n] == rack] for rack in set(nodes["rack"])]
            return [self.scattered(racks, gpus), self.scattered([mine], gpus)]
        places = []
        for node in mine:
            if nodes["free"][node] >= gpus:
                places.append(Place([(node, gpus)]))
            if self.settings["share"] and milli < WHOLE_GPU:
                for one in chain(state.partials, nodes["partial"][node]):
                    there = state.partials[one]
                    if there["gpus"] == gpus and there["left"] >= milli:
                        places.append(Place([(node, gpus)], one))
        return [places]

    def scattered(self, groups: list[list[int]], gpus: int) -> list[Place]:
        """In each group with room the fewest nodes, at last the fullest that holds the rest."""
        places = []
        for group in groups:
            free = {node: int(self.simulator.state.nodes["free"][node]) for node in group}
            if sum(free.values()) < gpus:
                continue
            shares, left = list[tuple[int, int]](), gpus
            while left:
                node = min(free, key=lambda one: (free[one] < left, abs(free[one] - left)))
                shares.append((node, min(left, free.pop(node))))
                left -= shares[-1][1]
            places.append(Place(shares))
        return places


class LateTwin:
    """What schedulers know of cells, told anew from the jobs at every decision."""

    def __init__(self, twin: Twin) -> None:
        self.twin, self.views = twin, twin.policy.partitioned.views
        several, trace = twin.policy.partitioned, twin.trace
        rng = np.random.default_rng(several.seed)
        home = several.routing(trace, several.schedulers, rng)
        self.first = first_that_holds(trace.name, home, twin.owners.holds)
        self.broadcast_s, self.seen = -np.inf, list[Counter[str]]()
        self.sends: list[tuple[int, int, Counter[str]]] = []  # since: by whom, where to, what

    def chosen(self, job: int) -> int:
        twin, views, home = self.twin, self.views, int(self.twin.owners.home[job])
        assert views is not None
        cells = range(twin.policy.schedulers)
        me = int(self.first[job]) if home == NONE else home
        now = [self.summary(cell, job) for cell in cells]
        trace = twin.simulator.trace
        delay_s = views.delay_s + views.delay_jobs * trace.span_s / len(trace)
        if twin.simulator.now - self.broadcast_s >= delay_s:
            self.broadcast_s, self.seen, self.sends = twin.simulator.now, now, []
        shape = (2, len(twin.trace), len(cells))
        draws = np.random.default_rng(views.seed).random(shape)[int(home != NONE), job]
        known = [now[cell] if cell == me else self.seen[cell] for cell in cells]
        score = self.scores(views.choice, job, me, known)
        if isinstance(views.choice, BySize | Linear):
            score = [one - np.log(-np.log(draw)) for one, draw in zip(score, draws, strict=True)]
        can = np.flatnonzero(twin.owners.holds[job]).tolist()
        can.sort(key=lambda cell: -draws[cell])
        can = can[: getattr(views.choice, "candidates", None)]
        best: int = max(can, key=lambda cell: (score[cell], draws[cell]))
        amounts = {"gpus": self.gpus(job), "work": twin.gpu_seconds(job)}  # as thought of now
        self.sends.append((me, best, Counter({"jobs": 1, **amounts})))
        return best

    def gpus(self, job: int) -> float:
        return float(self.twin.trace.num_gpus[job] * (self.twin.trace.gpu_milli[job] / WHOLE_GPU))

    def summary(self, cell: int, but: int) -> Counter[str]:
        twin, simulator = self.twin, self.twin.simulator.copy()
        simulator.settle()  # not the twin's, whose work left would be rounded once more
        home, found = twin.owners.home, Counter[str]()
        for job in simulator.pending().tolist():
            if home[job] == cell and job != but:
                amounts = {"waiting_gpus": self.gpus(job), "waiting_work": twin.gpu_seconds(job)}
                found.update({"waiting": 1, **amounts})
        for job in simulator.running().tolist():
            if home[job] == cell:
                done = float(simulator.state.jobs["attained"][job])
                left = max(twin.seconds(job) - done, 0.3 * done, 1.0)
                found.update({"running": 1, "running_work": left * self.gpus(job)})
        free = simulator.state.nodes["free"][twin.owners.of_node == cell]
        found.update({"free": int(free.sum()), "largest": int(free.max())})
        return found

    def sent(self, me: int, cell: int) -> Counter[str]:
        found = Counter[str]()
        for who, to, what in self.sends:
            found.update(what if (who, to) == (me, cell) else {})
        return found

    def scores(self, choice: Any, job: int, me: int, known: list[Counter[str]]) -> list[float]:
        owners, cells = self.twin.owners, range(len(known))
        rate = owners.fastest[job] / owners.fastest[job].max()
        if isinstance(choice, Linear):
            rows = [self.features(job, me, cell, known[cell], rate[cell]) for cell in cells]
            sent = len([1 for who, *_ in self.sends if who == me])
            context = [
                1.0, np.log1p(len(cells) * sent) / 4, np.mean([row[4] for row in rows]),
                np.log1p(self.twin.gpu_seconds(job) / 60.0) / 4,
            ]  # fmt: skip
            return [float(np.array(row) @ choice.weights @ context) for row in rows]
        score = []
        for cell, seen in zip(cells, known, strict=True):
            size = owners.gpus[cell] * (rate[cell] if choice.speed else 1.0)
            if isinstance(choice, BySize):
                score.append(np.log(size))
                continue
            often = {"none": 0, "own": 1, "all": len(cells)}[choice.sends] * (cell != me)
            sent = self.sent(me, cell)
            if isinstance(choice, ShortestQueue):
                score.append(-(seen["waiting"] + seen["running"] + often * sent["jobs"]) / size)
            else:
                work = seen["waiting_work"] + seen["running_work"]
                score.append(-(work + often * sent["work"]) / size)
        return score

    def features(
        self, job: int, me: int, cell: int, seen: Counter[str], rate: float
    ) -> list[float]:
        gpus = self.twin.owners.gpus.astype(float)
        size, sent, all_ = gpus[cell] * rate, self.sent(me, cell), len(gpus) * (cell != me)
        own, jobs, asked = int(cell != me), seen["waiting"] + seen["running"], self.gpus(job)
        work = (seen["waiting_work"] + seen["running_work"]) / 60.0
        age = self.twin.simulator.now - self.broadcast_s
        free = seen["free"] - all_ * sent["gpus"]
        return [
            cell == me,
            np.log(gpus[cell] / gpus.mean()),
            np.log(rate),
            np.log1p(10 * seen["waiting"] / size),
            np.log1p(10 * (jobs + own * sent["jobs"]) / size),
            np.log1p(10 * (jobs + all_ * sent["jobs"]) / size),
            np.log1p((work + own * sent["work"] / 60.0) / size),
            np.log1p((work + all_ * sent["work"] / 60.0) / size),
            np.log1p(10 * all_ * sent["jobs"] / size),
            np.log1p(seen["running_work"] / 60.0 / size),
            seen["free"] / gpus[cell],
            seen["free"] >= asked,
            free >= asked,
            seen["largest"] >= asked,
            max((free - seen["waiting_gpus"]) / gpus[cell], -3.0),
            0.0 if cell == me else np.log1p(age / 60.0),
            seen["waiting"] == 0,
            np.log1p(self.twin.gpu_seconds(job) / gpus[cell] / 60.0),
        ]


@dataclass
class Linear:
    """A linear rule with weights of the test's own."""

    weights: FloatArray

    def compiled(self) -> Any:
        return of_weights({"weights": self.weights})


def drawn(seed: int, schedulers: int) -> tuple[Cluster, Trace, dict[str, Any]]:
    """A cluster, jobs that one of its schedulers can hold, and numbers of the rule."""
    rng = np.random.default_rng(seed)
    racks, per, size = (int(rng.integers(*of)) for of in ((schedulers, 5), (1, 3), (1, 5)))
    nodes = racks * per
    cluster = Cluster.uniform(nodes, size, nodes_per_rack=per, gpu_types=TYPES[: min(nodes, 2)])
    cluster = replace(
        cluster,
        cpu_milli=np.full(nodes, 16_000 * size), memory_mib=np.full(nodes, 2048 * size),
    )  # fmt: skip
    most = int(np.bincount(MixedRacks()(cluster, schedulers), cluster.gpus).max())
    jobs = int(rng.integers(2, 11))
    submit, seconds = np.sort(rng.integers(0, 40, jobs)), rng.integers(1, 40, jobs)
    gpus = np.minimum(rng.choice([1, 1, 2, 2, 3, 6], jobs), most)
    trace = with_columns(
        Trace.of("drawn", submit, seconds, gpus),
        gpu_milli=rng.choice([250, 500, 500, 1000], jobs),
        cpu_milli=gpus * rng.choice([0, 1000, 4000], jobs),
        memory_mib=gpus * rng.choice([1, 512], jobs),
        user=rng.choice(["", "a", "b"], jobs).tolist(),
    )

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    count, sends = int(rng.integers(1, 4)), one_of("none", "own", "all")
    choices = (
        BySize(one_of(False, True)),
        ShortestQueue(one_of(None, count), one_of(False, True), sends),
        LeastWork(one_of(None, count), one_of(False, True), sends),
        Linear(rng.normal(size=(FEATURES, CONTEXTS))),
    )
    settings = {
        "order": one_of("queue", "shortest", "smallest", "dominant"),
        "first": int(rng.integers(1, 9)),
        **{name: one_of(False, True) for name in ("joint", "blocking")},
        "share": rng.random() < 0.8,
        **{name: one_of(0.0, 0.25, 0.5, 1.0) for name in ("own", "others", "fast")},
        "choice": one_of("gain", "gain", "tightest", "loosest", "aligned"),
        "hurry": one_of(0.0, 0.25),
        "partitioned": several(
            schedulers,
            arrival=one_of("routed", "least_load", "shortest_queue", "best_offer"),
            forward_s=one_of(None, 5.0),
            seed=seed,
            views=one_of(
                None,
                LateViews(one_of(*choices), one_of(0.0, 5.0, 20.0), seed, one_of(0.0, 0.0, 3.0)),
            ),
        ),
        "prior_s": 60.0,
        "recency": 0.25,
        "believed": None,
    }
    return cluster, trace, settings


@pytest.mark.parametrize("kind", [ALONE, PAIRS_PRODUCT, SHARED])
@pytest.mark.parametrize("schedulers", [1, 2, 3])
@examples(300, 20)
@given(seed=SEEDS, wrong=st.booleans())
def test_three_ways_to_one_schedule(kind: int, schedulers: int, seed: int, wrong: bool) -> None:
    """The compiled run, the decisions event by event under a view, and the twin's.

    So every start is good enough as believed, but for the first of a scheduler of whose jobs none
    runs.
    """
    cluster, trace, settings = drawn(seed, schedulers)
    rates = PowersOfTwo(seed, kind)
    if wrong:
        settings["believed"] = PowersOfTwo(seed + 1, SHARED)
    options: dict[str, Any] = {"rates": rates, "keep_runs": True}
    steps, simulator = (ClusterSimulator(cluster, trace, **options) for _ in range(2))
    Twin(settings, simulator, rates).run()
    expected = simulator.schedule()
    assert expected.finished.all()  # nobody starves
    for found in (
        replay(JointChoice(**settings), cluster, trace, **options),
        simulate(JointChoice(**settings), steps),
    ):
        assert_array_equal([found.start, found.finish], [expected.start, expected.finish])
        assert_array_equal(np.sort(found.runs), np.sort(expected.runs))


def reachable(state: ClusterState) -> list[list[Any]]:
    """All that counts: of free shares and sets only the order in which they will be taken."""
    state = state.copy()
    for records, first in ((state.shares, "share"), (state.partials, "partial")):
        free = chain(records, state.clock[0][first])
        following = records["next"][free]
        records[free] = np.zeros(1, records.dtype)
        records["next"][free] = following
    return [array.tolist() for array in state]


def looked_at(simulator: ClusterSimulator, job: int, place: Place) -> tuple[float, ...]:
    """What the kernel says would come of a job there."""
    room = kernel.room_of(simulator.cluster.num_nodes, len(simulator.state.shares), 0)
    for i, (node, gpus) in enumerate(place.shares):
        room.nodes[0, i], room.gpus[0, i] = node, gpus
    room.sets[:] = NONE if place.joined is None else place.joined
    return kernel.effect(simulator.state, simulator.tables, room, job, len(place.shares))


def test_to_look_changes_nothing() -> None:
    looked = 0
    for seed in range(6):
        cluster, trace, settings = drawn(seed, 1)
        settings |= {"share": True, "own": 0.0, "others": 0.0}
        simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, SHARED))
        twin = Twin(settings, simulator, PowersOfTwo(seed, SHARED))
        for _ in range(3):
            simulator.advance()
            before = reachable(simulator.state)
            for job in simulator.pending().tolist():
                for place in [place for group in twin.places(job) for place in group]:
                    alone, own, *_ = looked_at(simulator, job, place)
                    after = simulator.copy()
                    after.start(job, *place)
                    record = after.state.jobs[job]
                    assert (alone, own) == (record["alone"], record["rate"] / record["alone"])
                    looked += 1
            assert reachable(simulator.state) == before
            twin.policy.decide(simulator)
    assert looked > 20


def test_a_neighbour_on_two_nodes_loses_once() -> None:
    """Two gangs on the same two nodes ask for both network ports twice: each keeps a half."""
    ports = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]] * 2)
    simulator = ClusterSimulator(
        Cluster.uniform(2, 4),
        Trace.of("two", [0, 0], [9, 9], [6, 2]),
        rates=Speeds(np.ones((2, 1)), kind=SHARED, demand=ports),
    )
    simulator.advance()
    simulator.start(0, [(0, 3), (1, 3)])
    found = looked_at(simulator, 1, Place([(0, 1), (1, 1)]))
    assert found == (1.0, 0.5, 0.5, 2 * 0.5 - 6 * 0.5)


def test_the_fastest_gpus_that_a_scheduler_has() -> None:
    """Two racks of two nodes with two GPUs each; the faster type is in the second rack."""
    cluster = Cluster.uniform(4, 2, nodes_per_rack=2, gpu_types=("T4", "V100"))
    trace = Trace.of("gangs", [0] * 5, [1] * 5, [1, 3, 4, 5, 2])
    locality = np.array([[1.0, 0.5], [0.75, 0.5], [0.25, 0.125]])[None, None]
    tables = without_neighbours(np.zeros(5, np.int32), np.array([[0.5, 1.0]]), locality)
    types = np.array([3, 3, 3, 3, 1])
    one, two = (
        fastest(cluster, trace, types, tables, np.array(owners), schedulers).T.tolist()
        for owners, schedulers in (([0, 0, 0, 0], 1), ([0, 0, 0, 1], 2))
    )
    # one node; two of a rack; two of a rack; slow ones in two racks; only slow ones permitted
    assert one == [[1.0, 0.5, 0.5, 0.5 * 0.125, 0.5]]
    # nothing of the second scheduler holds the gangs
    assert two == [[1.0, 0.25, 0.25, 0.5 * 0.125, 0.5], [1.0] * 5]


def test_likes_of_a_job() -> None:
    trace = Trace.of("", [0] * 5, [1] * 5, [1, 1, 1, 2, 1], user=["a", "a", None, "a", None])
    like = likes(with_columns(trace, gpu_milli=[500, 500, 500, 500, 1000]))
    same = (like[:, None] == like).tolist()
    assert same[1][0] == [True, True, True]
    assert same[2][1] == same[2][0] == [False, True, True]
    assert same[3][0] == same[4][2] == [False, False, True]
    assert sum(len(set(column)) for column in like.T) == len(np.unique(like))


def test_a_gang_goes_where_it_can_run() -> None:
    """Of two schedulers with racks of two and of four GPUs only the second holds three."""
    cluster = replace(Cluster.uniform(2, 4, nodes_per_rack=1), gpus=np.array([2, 4], np.int32))
    trace = Trace.of("gangs", [0] * 6, [5] * 6, [3] * 6)
    policy = joint_choice(several(2))
    assert replay(policy, cluster, trace).finish.tolist() == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    with refusal("no server group can hold it"):
        first_that_holds("t", np.zeros(1, np.int32), np.zeros((1, 2), np.int8))
    with refusal("no server group can hold it"):
        replay(policy, cluster, Trace.of("large", [0], [5], [6]))


def on_two_racks(
    partitioned: Partitioned, submit: list[int], gpus: list[int]
) -> tuple[list[float], list[float], list[int]]:
    """Starts, finishes and queues of jobs of 90, 10, 10, .. s on two nodes of two GPUs."""
    policy = joint_choice(partitioned, order="queue")
    trace = Trace.of("queues", submit, [90, 10, 10, 10, 10], gpus)
    found = replay(policy, Cluster.uniform(2, 2, nodes_per_rack=1), trace)
    return found.start.tolist(), found.finish.tolist(), policy._now.owners.home.tolist()


@pytest.mark.parametrize(
    ("arrival", "queues"),
    [("shortest_queue", [0, 1, 0, 1, 0]), ("least_load", [0, 1, 0, 1, 1])],
)
def test_jobs_come_to_the_shortest_queue_and_to_the_least_load(
    arrival: str, queues: list[int]
) -> None:
    """Both racks are taken when the third comes; two single GPUs wait as long as one pair."""
    arrive = several(2, arrival=arrival)
    assert on_two_racks(arrive, [0, 1, 2, 3, 4], [2, 2, 2, 1, 1])[2] == queues


def test_who_waits_too_long_goes_where_less_waits() -> None:
    """All come to the first scheduler. At 8 s the second job leaves it, at 18 s the third.

    The fourth stays then, as the third waits there, and leaves at 28 s.
    """
    jobs = [0, 1, 2, 8, 50], [2, 2, 1, 1, 1]
    assert on_two_racks(several(2, routing=OneQueue()), *jobs)[1][1] == 100.0
    start, _, queues = on_two_racks(several(2, routing=OneQueue(), forward_s=5.0), *jobs)
    assert start == [0.0, 8.0, 18.0, 28.0, 90.0]
    assert queues == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(("order", "starts"), [("queue", [0, 0, 0, 5]), ("dominant", [0, 0, 5, 0])])
def test_the_dominant_share_of_the_user_comes_first(order: str, starts: list[int]) -> None:
    """`a` holds a quarter of the GPUs and no memory, `b` a half of the memory: then `a` is next."""
    cluster = replace(Cluster.uniform(1, 4), memory_mib=np.array([100]))
    trace = Trace.of("users", [0] * 4, [10, 10, 5, 5], [1, 1, 2, 2], user=["a", "b", "b", "a"])
    trace = with_columns(trace, memory_mib=[0, 50, 0, 0])
    found = replay(joint_choice(order=order, joint=False), cluster, trace)
    assert found.start.tolist() == starts
