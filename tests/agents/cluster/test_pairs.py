"""Candidates of a decision, the network over them, and the futures that they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from agents.cluster.backfilling import start
from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH, pairs_of, scores
from agents.cluster.joint_choice import JointChoice, PairScorer
from agents.cluster.paired_futures import PairedFutures
from agents.cluster.replay import replay, simulate
from envs.cluster.interference.rates import SHARED
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from models.cluster.pairs import PairsConfig, PairsPolicy
from models.export.checkpoint import ModelCard
from models.export.pairs import export_pairs
from tests.agents.cluster.test_joint_choice import PowersOfTwo, drawn
from tests.refusal import refusal
from tests.strength import SEEDS, examples

FIRST, HEAD_START = 3, 2.0
CARD = ModelCard("A policy", "for a test", "seed: 0\n", {"seed": 0})


def policy_of(seed: int, spread: float = 1.0) -> PairsPolicy:
    torch.manual_seed(seed)
    space = spaces.Dict(
        {
            name: spaces.Box(-np.inf, np.inf, (1, width), np.float32)
            for name, width in (("pair", PAIR_WIDTH), ("node", NODE_WIDTH), ("edge", EDGE_WIDTH))
        }
    )
    policy = PairsConfig(hidden=8, head_start=HEAD_START).policy(space, spaces.Discrete(2))
    with torch.no_grad():
        for value in (policy.message, policy.alone, policy.second, policy.score):
            value.copy_(spread * torch.randn(value.shape))
    return policy


def scorer(folder: Path, seed: int, spread: float = 1.0, **settings: Any) -> PairScorer:
    path = export_pairs(policy_of(seed, spread), folder / f"policy{seed}", CARD)
    usual = {"first": FIRST, "sure": 0.0, "patience_s": 1e9}
    return PairScorer(str(path), **{**usual, **settings})


def decisions(
    policy: JointChoice, simulator: ClusterSimulator
) -> Iterator[tuple[int, Any, list[Any]]]:
    """Scheduler, candidates in numbers, candidates; the first is then carried out."""
    pairs = pairs_of(FIRST, simulator.cluster.num_nodes)
    policy.reset(simulator)
    while not simulator.done and simulator.advance():
        policy.learn(simulator)
        for scheduler in range(policy.schedulers):
            while True:
                candidates = policy.candidates(simulator, scheduler, pairs, FIRST)
                yield scheduler, pairs, candidates
                if candidates[0] is None:
                    break
                start(simulator, *candidates[0])


@examples(100, 12)
@given(seed=SEEDS, schedulers=st.sampled_from([1, 3]))
def test_the_first_candidate_is_what_the_rule_does(seed: int, schedulers: int) -> None:
    cluster, trace, settings = drawn(seed, schedulers)
    rates = PowersOfTwo(seed, SHARED)
    usual = replay(JointChoice(**settings), cluster, trace, rates=rates)
    simulator = ClusterSimulator(cluster, trace, rates=rates)
    for _, pairs, candidates in decisions(JointChoice(**settings), simulator):
        count = len(candidates)
        assert len({repr(one) for one in candidates}) == count
        if count > 1:
            assert np.isfinite(pairs.pair[:count]).all()
            assert np.isfinite(pairs.edge[:count]).all()
            assert pairs.pair[:count, 0].tolist() == [1.0] + [0.0] * (count - 1)
            told = [None if x is None else x[0] for x in candidates]
            assert pairs.pair[:count, 1].tolist() == [float(x is None) for x in told]
        for option in candidates:
            if option is not None:
                start(simulator.copy(), *option)  # which would refuse what cannot be
    assert_array_equal(simulator.schedule().start, usual.start)


@examples(60, 10)
@given(seed=SEEDS)
def test_compiled_scores_are_those_of_the_network(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    cluster, trace, settings = drawn(seed, 1)
    network = policy_of(seed)
    weights = scorer(tmp_path_factory.mktemp("weights"), seed).weights
    simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, SHARED))
    out = np.zeros(3 * FIRST + 2, np.float32)
    for _, pairs, candidates in decisions(JointChoice(**settings), simulator):
        count = len(candidates)
        if count == 1:
            continue
        scores(weights, pairs, count, cluster.num_nodes, out)
        seen = {
            "pair": pairs.pair[None, :count], "node": pairs.node[None],
            "edge": pairs.edge[None, :count], "action_mask": np.ones((1, count), np.int8),
        }  # fmt: skip
        given_ = {name: torch.from_numpy(array) for name, array in seen.items()}
        with torch.no_grad():
            expected, logits = network.scores(given_)[0], network.decide(given_)[0][0]
        assert_allclose(out[:count], expected.numpy(), rtol=1e-4, atol=1e-4)
        head_start = np.array([HEAD_START] + [0.0] * (count - 1))
        assert_allclose(logits.numpy(), expected.numpy() + head_start, rtol=1e-5)


@examples(60, 8)
@given(seed=SEEDS, schedulers=st.sampled_from([1, 3]))
def test_a_scorer_overrules_the_rule_and_no_job_starves(
    tmp_path_factory: pytest.TempPathFactory, seed: int, schedulers: int
) -> None:
    folder = tmp_path_factory.mktemp("scorers")
    cluster, trace, settings = drawn(seed, schedulers)
    rates = PowersOfTwo(seed, SHARED)
    rule = replay(JointChoice(**settings), cluster, trace, rates=rates)
    learned = {**settings, "scorer": scorer(folder, seed)}
    found = replay(JointChoice(**learned), cluster, trace, rates=rates)
    assert found.finished.all()
    steps = simulate(JointChoice(**learned), ClusterSimulator(cluster, trace, rates=rates))
    assert_array_equal(steps.start, found.start)
    learned["scorer"] = scorer(folder, seed, sure=1e9)
    same = replay(JointChoice(**learned), cluster, trace, rates=rates)
    assert_array_equal(same.start, rule.start)


@examples(60, 8)
@given(seed=SEEDS)
def test_the_rule_decides_while_a_job_has_waited_for_long(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    cluster, trace, settings = drawn(seed, 1)
    simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, SHARED))
    patient = scorer(tmp_path_factory.mktemp("scorers"), seed, patience_s=5.0)
    learned, rule = JointChoice(**{**settings, "scorer": patient}), JointChoice(**settings)
    for policy in (learned, rule):
        policy.reset(simulator)
    while not simulator.done and simulator.advance():
        while True:
            usual, chosen = rule.choice(simulator), learned.choice(simulator)
            waiting = simulator.pending()
            if len(waiting) and simulator.now - trace.submit_s[waiting].min() > 5.0:
                assert chosen == usual
            if usual is None:
                break
            start(simulator, *usual)


def test_an_untrained_network_does_what_the_rule_does(tmp_path: Path) -> None:
    cluster, trace, settings = drawn(7, 1)
    rates = PowersOfTwo(7, SHARED)
    rule = replay(JointChoice(**settings), cluster, trace, rates=rates)
    settings["scorer"] = scorer(tmp_path, 0, spread=0.0)
    same = replay(JointChoice(**settings), cluster, trace, rates=rates)
    assert_array_equal(same.start, rule.start)


def test_what_a_candidate_saves_is_what_the_base_comes_to_after_it() -> None:
    cluster, trace, settings = drawn(11, 1)
    trace = replace(trace, submit_s=np.zeros_like(trace.submit_s))
    rates = PowersOfTwo(11, SHARED)
    base = JointChoice(**settings)
    futures = PairedFutures(base, None, futures=1, share=1.0, strays=0.0)
    simulator = ClusterSimulator(cluster, trace, rates=rates)
    usual = replay(JointChoice(**settings), cluster, trace, rates=rates).finish.sum()
    other = JointChoice(**settings)
    count = 0
    for one in futures.decisions(simulator, np.random.default_rng(0), FIRST):
        assert one.saved.shape == (1, len(one.pair))
        assert one.saved[0, 0] == 0.0
        if count == 0:  # the first of all: played on by another copy, event by event
            world = ClusterSimulator(cluster, trace, rates=rates)
            pairs = pairs_of(FIRST, cluster.num_nodes)
            other.reset(world)
            world.advance()
            other.learn(world)
            candidates = other.candidates(world, 0, pairs, FIRST)
            for option, saved in zip(candidates, one.saved[0], strict=True):
                twin = world.copy()
                if option is not None:
                    start(twin, *option)
                    other.decide(twin)
                while not twin.done and twin.advance():
                    other.decide(twin)
                assert saved == pytest.approx(usual - twin.schedule().finish.sum())
                other.reset(world.copy())
                other.learn(world)
        count += 1
    assert count > 0
    assert simulator.done


def test_a_folder_of_another_kind_or_damaged_is_refused(tmp_path: Path) -> None:
    with refusal("shipped"):
        PairScorer("nobody", first=1, sure=0.0, patience_s=1.0)
    folder = scorer(tmp_path, 0).folder
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with refusal("sha256"):
        PairScorer(str(folder), first=1, sure=0.0, patience_s=1.0)
    wide = policy_of(0)
    wide.node = torch.nn.Parameter(torch.zeros(NODE_WIDTH + 1, 8))
    path = export_pairs(wide, tmp_path / "wide", CARD)
    with refusal("node is not of shape"):
        PairScorer(str(path), first=1, sure=0.0, patience_s=1.0)


def test_of_jobs_after_the_first_only_what_the_rule_does_is_a_candidate() -> None:
    """By "aligned" each of eight gangs beats those before it; places of one are looked for."""
    cluster = Cluster.uniform(1, 16)
    trace = Trace.of("growing", [0, *[1] * 8], [99] * 9, [1, *range(1, 9)])
    policy = JointChoice("queue", choice="aligned", own=0.0, others=0.0, fast=0.0)
    simulator = ClusterSimulator(cluster, trace)
    policy.reset(simulator)
    simulator.advance()
    policy.decide(simulator)
    simulator.advance()
    policy.learn(simulator)
    pairs = pairs_of(1, 1)
    candidates = policy.candidates(simulator, 0, pairs, 1)
    assert [None if one is None else one[0] for one in candidates] == [8, 1, None]
    assert len(candidates) <= len(pairs.job)
