"""Features of groups on devices against their readable twin, placed one after another or anew."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from envs.graphs.contraction import Fusion
from envs.placement import sweeps
from envs.placement.sweeps import CANDIDATE, UNPLACED
from envs.placement.whole import HIGH, LOW, PlacementFacts
from envs.step.problem import StepProblem
from tests.envs.placement.test_episodes import DISTRIBUTION

IntArray = NDArray[np.int64]


def drawn(seed: int) -> PlacementFacts:
    fused: StepProblem = DISTRIBUTION(default_rng(seed), 0.3)
    return PlacementFacts.of(fused, Fusion.of_fused(fused.graph))


class Twin:
    """Features by their table in `envs.placement.sweeps`, from the placement alone."""

    def __init__(self, facts: PlacementFacts, device: IntArray, depth: IntArray) -> None:
        self.facts, self.device, self.depth = facts, device, depth

    def moved(self, edge: int, source: int, target: int) -> float:
        kind = self.facts.link_class[source, target]
        return 0.0 if source == target else float(self.facts.edge_seconds[edge, kind])

    def edges(self) -> list[tuple[int, int, int]]:
        """Edge, source and target group."""
        facts = self.facts
        found = []
        for group in range(facts.num_groups):
            rows = facts.incident[facts.incident_ptr[group] : facts.incident_ptr[group + 1]]
            found += [(int(e), group, int(other)) for other, e, sends in rows if sends]
        return found

    def ports(self) -> NDArray[np.float64]:
        busy = np.zeros(max(self.facts.num_ports, 1))
        for edge, u, v in self.edges():
            a, b = int(self.device[u]), int(self.device[v])
            if a >= 0 and b >= 0 and a != b:
                busy[self.facts.send_port[a, b]] += self.moved(edge, a, b)
                busy[self.facts.receive_port[a, b]] += self.moved(edge, a, b)
        return busy

    def row(self, group: int, d: int, parallel: bool, stood: int) -> list[float]:
        facts, device = self.facts, self.device
        n, groups = facts.num_devices, facts.num_groups
        placed = np.flatnonzero(device >= 0)
        load = np.zeros(n)
        np.add.at(load, device[placed], facts.seconds[placed, device[placed]])
        on_d = placed[device[placed] == d]
        own = facts.seconds[group, d]
        state = (facts.state[on_d].sum() + facts.state[group]) / facts.capacity[d]
        live = (facts.live[on_d].sum() + facts.live[group]) / facts.capacity[d]
        into = out = known = here = crowd = 0.0
        deepest, busy = 0, self.ports()
        for edge, u, v in self.edges():
            if group not in (u, v) or device[v if u == group else u] < 0:
                continue
            other = v if u == group else u
            e = int(device[other])
            pairs = [(k, e) if u == group else (e, k) for k in range(n)]
            mean = sum(self.moved(edge, *pair) for pair in pairs) / max(n - 1, 1)
            known += mean
            here += mean if e == d else 0.0
            if e != d:
                source, target = pairs[d]
                crowd = max(
                    crowd,
                    busy[facts.send_port[source, target]],
                    busy[facts.receive_port[source, target]],
                )
            if u == group:
                out += self.moved(edge, d, e)
            else:
                into += self.moved(edge, e, d)
                if facts.edge_forward[edge]:
                    deepest = max(deepest, int(self.depth[other]) + int(e != d))
        runs = [g for g in on_d if g == 0 or device[g - 1] != d]
        before = int(device[group - 1]) if group > 0 else UNPLACED
        after = int(device[group + 1]) if group + 1 < groups else UNPLACED
        many = facts.micro_batches
        return [
            own * n, load[d], load[d] + own, max(load[d] + own - load.max(), 0.0) * n,
            load[d] + own - (load.sum() + own) / n, state,
            state + live * min(many, max(n - deepest, 1)), state + live * many,
            float(state <= 1.0), into * n, out * n, here / known if known > 0.0 else 0.0,
            into + out, crowd, float(before == d), float(after == d), float(len(on_d) > 0),
            len(runs) / 4, deepest / n,
            float(before >= 0 and facts.server[before] == facts.server[d]), float(stood == d),
            float(facts.begin[d] <= facts.place[group] < facts.end[d]),
            (facts.place[group] - (facts.begin[d] + facts.end[d]) / 2) * min(n, 8), busy.max(),
            float(parallel), float(stood >= 0),
        ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("again", [False, True])
def test_features_are_those_of_the_readable_twin(seed: int, again: bool) -> None:
    random, facts = default_rng(seed), drawn(seed)
    given = sweeps.boards([facts, drawn(seed + 10)])
    now = sweeps.standing(given, np.array([0]))
    n, groups = facts.num_devices, facts.num_groups
    if again:
        sweeps.put_all(given, now, random.integers(0, n, (1, given.seconds.shape[1])))
    x = np.zeros((1, given.seconds.shape[2], CANDIDATE), np.float32)
    for group in range(groups):
        sweeps.look(given, now, group, x)
        device = now.device[0, :groups].copy()
        stood, device[group] = int(device[group]), UNPLACED
        twin = Twin(facts, device, now.depth[0])
        for d in range(n):
            expected = np.clip(twin.row(group, d, False, stood), LOW, HIGH)
            assert_allclose(x[0, d], expected, rtol=1e-5, atol=1e-5)
        sweeps.put(given, now, group, random.integers(0, n, 1))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_placed_again_and_again_is_as_if_placed_once(seed: int) -> None:
    random, facts = default_rng(seed), drawn(seed)
    given = sweeps.boards([facts])
    shape = (3, facts.num_groups)
    moved, once = (sweeps.standing(given, np.zeros(3, np.int64)) for _ in range(2))
    for _ in range(4):
        last = random.integers(0, facts.num_devices, shape)
        sweeps.put_all(given, moved, last)
    sweeps.put_all(given, once, last)
    for name in ("load", "state", "live", "port", "many", "visits", "device"):
        assert_allclose(getattr(moved, name), getattr(once, name), atol=1e-9)


def test_a_replay_sees_what_the_sweep_saw() -> None:
    random = default_rng(0)
    given = sweeps.boards([drawn(1), drawn(2)])
    problem = np.array([0, 1, 1])
    groups, devices = given.seconds.shape[1:]
    seen = np.zeros((3, groups, devices, CANDIDATE), np.float32)
    taken = np.zeros((3, groups), np.int64)
    now = sweeps.standing(given, problem)
    x = np.zeros((3, devices, CANDIDATE), np.float32)
    for group in range(groups):
        there = group < given.groups[problem]
        sweeps.look(given, now, group, x)
        seen[there, group] = x[there]
        taken[:, group] = random.integers(0, given.devices[problem])
        sweeps.put(given, now, group, taken[:, group])
    again = np.zeros_like(seen)
    sweeps.replay(given, sweeps.standing(given, problem), taken, again)
    for sample, b in enumerate(problem):
        real = seen[sample, : given.groups[b], : given.devices[b]]
        assert_array_equal(again[sample, : given.groups[b], : given.devices[b]], real)


def test_starts_are_contiguous_splits_by_hand() -> None:
    facts = drawn(3)
    line, work = np.argsort(facts.end), facts.place
    assert (facts.starts[0] == UNPLACED).all()
    n = facts.num_devices
    even = line[np.minimum((work * n).astype(np.int64), n - 1)]
    there_and_back = np.concatenate([line, line[::-1]])
    folded = there_and_back[np.minimum((work * 2 * n).astype(np.int64), 2 * n - 1)]
    by_speed = [next(d for d in line if share < facts.end[d] or d == line[-1]) for share in work]
    able = facts.able.all(axis=1)
    for number, expected in ((1, even), (3, folded), (4, np.array(by_speed))):
        assert (facts.starts[number] == expected)[able].all()
    groups = np.arange(facts.num_groups)
    for start in facts.starts[1:]:
        assert facts.able[groups, start][facts.able.any(axis=1)].all()


def test_a_sample_begins_where_its_start_puts_it() -> None:
    facts = [drawn(1), drawn(2)]
    given, problem = sweeps.boards(facts), np.array([0, 1, 1])
    stands = np.full((3, given.seconds.shape[1]), UNPLACED)
    for row, number, start in zip(stands, problem, (0, 4, 9), strict=True):
        row[: facts[number].num_groups] = facts[number].starts[start]
    begun, placed = sweeps.standing(given, problem, stands), sweeps.standing(given, problem)
    sweeps.put_all(given, placed, stands)
    for name in ("load", "port", "device", "visits"):
        assert_array_equal(getattr(begun, name), getattr(placed, name))
    assert (begun.device[0] == UNPLACED).all()
    assert (begun.device[1, : given.groups[1]] >= 0).all()
