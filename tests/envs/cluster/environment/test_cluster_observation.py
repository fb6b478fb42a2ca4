"""What schedulers see and may do is what the tables say, on random clusters at random instants."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from cluster_instances import Crowding, Fixed, instances, random_action, without_too_large_jobs
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.environment.actions import (
    ClusterActions,
    LeastService,
    QueueOrder,
    ShortestRemainingTime,
    SmallestRemainingService,
)
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.instance import ClusterBounds
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.simulation.cluster_state import Overheads
from tests.envs.cluster.environment.reference_observation import Reference, count, time
from tests.refusal import refusal
from tests.strength import examples

ORDERS = (QueueOrder(), LeastService(), ShortestRemainingTime(), SmallestRemainingService())


def check_observation(reference: Reference, others: list[Reference], seen: dict[str, Any]) -> None:
    """Every feature, of a scheduler and those after it."""
    approx = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    sizes, cluster, me = reference.sizes, reference.cluster, reference.me
    window, shown = (
        [int(job) for job in jobs[me] if job >= 0]
        for jobs in (reference.book.window, reference.book.shown)
    )
    assert window == reference.window
    assert len(set(shown)) == len(shown) == min(len(reference.running), sizes.running)
    assert set(shown) <= set(reference.running)
    rack_of = [reference.racks.index(int(cluster.rack[k])) for k in reference.nodes]
    inside = [[k for k in reference.nodes if cluster.rack[k] == rack] for rack in reference.racks]
    for name, rows in (
        ("server", [reference.server(node) for node in reference.nodes]),
        ("rack", [reference.area(nodes, reference.gpus) for nodes in inside]),
        ("pending", [reference.job(job) for job in window]),
        ("running", [reference.job(job) for job in shown]),
    ):
        features, padding = seen[f"{name}_features"], seen[f"{name}_features"][len(rows) :]
        assert seen[f"{name}_mask"].tolist() == [1] * len(rows) + [0] * len(padding)
        if rows:
            approx(features[: len(rows)], rows, err_msg=name)
        assert not padding.any()
    assert seen["server_rack"].tolist() == rack_of + [sizes.racks] * (sizes.servers - len(rack_of))
    edges, expected = reference.edges(seen), reference.expected_edges(shown)
    assert len(edges) == min(len(expected), sizes.shares) == seen["share_mask"].sum()
    for key, features in edges.items():
        approx(features, expected[key])
    padding = seen["share_index"][:, seen["share_mask"] == 0]
    assert (padding == [[sizes.running], [sizes.servers]]).all()
    asked = sum(reference.fraction(job) for job in reference.queue)
    waited = [reference.now - reference.jobs[job]["submit"] for job in reference.queue]
    approx(
        seen["cluster_features"],
        [
            np.log2(reference.gpus) / 10,
            *reference.area(reference.nodes, reference.gpus)[1:],
            count(len(reference.queue)),
            count(max(len(reference.queue) - sizes.window, 0)),
            count(len(reference.running)),
            count(max(len(reference.running) - sizes.running, 0)),
            min(asked / reference.gpus, 4.0),
            time(max(waited, default=0.0)),
            count(len(reference.coming)),
            count(len(expected) - len(edges)),
        ],
    )
    if others:
        rows = [other.summary() for other in others]
        rows = [[min(row[0] / reference.gpus, 4.0), *row[1:]] for row in rows]
        approx(seen["peer_features"], rows)


def check_mask(reference: Reference, others: list[Reference], mask: np.ndarray) -> None:
    """Every action."""
    table, sim, now = reference.episode.action_table, reference.sim, reference.now
    expected = np.zeros(table.size, int)
    for row, job in enumerate(reference.window):
        expected[[row * table.groups + group for group in reference.groups(job)]] = 1
        if reference.book.forwards[job] < reference.sizes.most_forwards:
            for number, other in enumerate(others):
                expected[table.window * table.groups + row * table.peers + number] = (
                    reference.book.holds[job, other.me]
                )
    first = table.window * (table.groups + table.peers)
    for row, job in enumerate(reference.book.shown[reference.me][: table.preemptible]):
        if job >= 0:
            ran = now - reference.jobs[job]["since"]
            expected[first + row] = ran > 0 and ran >= table.least_run_s
    clock = sim.state.clock[0]
    to_come = (
        clock["running"] > 0
        or clock["arrived"] < len(sim.trace)
        or clock["incident"] < len(sim.state.incidents)
        or any(reference.book.there[job] > now for job in sim.pending())
    )
    expected[-1] = to_come or not expected.any()
    np.testing.assert_array_equal(mask, expected)


@examples(40)
@given(fixed=instances(), data=st.data())
def test_features_and_masks_are_those_of_the_tables(fixed: Fixed, data: st.DataObject) -> None:
    racks = fixed.bounds.racks
    schedulers = data.draw(st.integers(1, racks))
    groups = data.draw(st.integers(1, 7))
    actions = ClusterActions(
        servers=bool(groups & 1),
        racks=bool(groups & 2),
        all_servers=bool(groups & 4),
        preempt_after_s=data.draw(st.sampled_from([None, 0.0, 3.0])),
        longest_wait_s=data.draw(st.sampled_from([None, 2.5])),
    )
    bounds = ClusterBounds(
        servers=fixed.bounds.servers + 1, racks=racks + 1, rack_servers=5, gpus=4, gpu_types=3
    )
    observation = ClusterObservation(
        bounds,
        schedulers - 1,
        window=data.draw(st.integers(1, 5)),
        running=data.draw(st.sampled_from([2, 12])),
        shares=data.draw(st.sampled_from([3, 30])),
        known_durations=True,
        order=data.draw(st.sampled_from(ORDERS)),
        history=data.draw(st.sampled_from([0, 1, 3])),
    )
    seed = data.draw(st.integers(0, 1000))
    cluster = fixed.instance.cluster
    numbered = np.unique(cluster.rack, return_inverse=True)[1]
    owner = (numbered % schedulers).astype(np.int32)

    def begin(fixed: Fixed) -> SchedulingEpisode:
        jobs = len(fixed.instance.trace)
        return SchedulingEpisode(
            fixed.instance,
            owner,
            np.random.default_rng(seed).integers(schedulers, size=jobs).astype(np.int32),
            bounds,
            observation,
            actions,
            rates=Crowding(),
            overheads=Overheads(restart_s=1.5, checkpoint_s=0.0),
            forwards=2,
            forward_s=1.25,
        )

    episode = begin(without_too_large_jobs(fixed, begin))
    rng = np.random.default_rng(seed)
    for _ in range(30):
        references = [Reference(episode, me, owner) for me in range(schedulers)]
        chosen = []
        for me, reference in enumerate(references):
            seen, mask = episode.observe(me)
            others = [references[(me + 1 + k) % schedulers] for k in range(schedulers - 1)]
            for key, space in observation.space.items():
                assert space.contains(seen[key]), key
            check_observation(reference, others, seen)
            check_mask(reference, others, mask)
            chosen.append(random_action({"action_mask": mask}, rng))
        if all(action == episode.action_table.size - 1 for action in chosen):
            episode.wait()
        for me, action in enumerate(chosen):
            episode.act(me, action)


BOUNDS = ClusterBounds(servers=2, racks=1, rack_servers=2, gpus=4, gpu_types=1)


def test_bad_bounds_are_input_errors() -> None:
    with refusal("1 racks for 2 schedulers"):
        BOUNDS.part(2)
    assert ClusterParallelEnv().bounds.servers == 4
