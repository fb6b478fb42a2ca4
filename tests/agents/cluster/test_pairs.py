"""Candidates of a decision, and the network over them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import save_file

from agents.cluster.backfilling import start
from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH, pairs_of, scores
from agents.cluster.joint_choice import JointChoice, PairScorer
from agents.cluster.replay import replay, simulate
from envs.cluster.interference.rates import SHARED
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace
from models.cluster.pairs import PairsConfig, PairsPolicy
from models.export.checkpoint import ModelCard
from models.export.pairs import export_pairs, pair_shapes
from tests.agents.cluster.small_clusters import with_columns
from tests.agents.cluster.test_joint_choice import PowersOfTwo, drawn
from tests.refusal import refusal
from tests.strength import SEEDS, examples

FIRST, HEAD_START = 3, 2.0
CARD = ModelCard("A policy", "for a test", "seed: 0\n", {"seed": 0})
WIDTHS = {"pair": PAIR_WIDTH, "node": NODE_WIDTH, "edge": EDGE_WIDTH}
SCHEDULERS = st.sampled_from([1, 3])


def policy_of(seed: int, spread: float = 1.0) -> PairsPolicy:
    torch.manual_seed(seed)
    space = spaces.Dict(
        {x: spaces.Box(-np.inf, np.inf, (1, width), np.float32) for x, width in WIDTHS.items()}
    )
    policy = PairsConfig(hidden=8, head_start=HEAD_START).policy(space, spaces.Discrete(2))
    with torch.no_grad():
        for value in (policy.message, policy.alone, policy.second, policy.score):
            value.copy_(spread * torch.randn(value.shape))
    return policy


def scorer(folder: Path, seed: int, spread: float = 1.0, **settings: Any) -> PairScorer:
    path = export_pairs(policy_of(seed, spread), folder / f"policy{seed}", CARD)
    return PairScorer(str(path), **{"first": FIRST, "sure": 0.0, "patience_s": 1e9, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scorers")


class Case(NamedTuple):
    """A drawn cluster with numbers of the rule."""

    simulator: ClusterSimulator  # before its first event
    settings: dict[str, Any]
    again: partial[Schedule]  # what a policy makes of the same

    @classmethod
    def drawn(cls, seed: int, schedulers: int = 1, **columns: Any) -> Case:
        cluster, trace, settings = drawn(seed, schedulers)
        trace, rates = with_columns(trace, **columns), PowersOfTwo(seed, SHARED)
        again = partial(replay, cluster=cluster, trace=trace, rates=rates)
        return cls(ClusterSimulator(cluster, trace, rates=rates), settings, again)

    def policy(self, scorer: PairScorer | None = None) -> JointChoice:
        return JointChoice(**self.settings, scorer=scorer)

    def decisions(self) -> Iterator[tuple[Any, list[Any]]]:
        """Candidates in numbers, and as they are; the first is then carried out."""
        simulator, policy = self.simulator, self.policy()
        pairs = pairs_of(FIRST, simulator.cluster.num_nodes)
        policy.reset(simulator)
        while not simulator.done and simulator.advance():
            policy.learn(simulator)
            for scheduler in range(policy.schedulers):
                while True:
                    candidates = policy.candidates(simulator, scheduler, pairs, FIRST)
                    yield pairs, candidates
                    if candidates[0] is None:
                        break
                    start(simulator, *candidates[0])


@examples(100, 12)
@given(seed=SEEDS, schedulers=SCHEDULERS)
def test_the_first_candidate_is_what_the_rule_does(seed: int, schedulers: int) -> None:
    case = Case.drawn(seed, schedulers)
    for pairs, candidates in case.decisions():
        count = len(candidates)
        assert len({repr(one) for one in candidates}) == count
        if count > 1:
            assert np.isfinite(pairs.pair[:count]).all()
            assert np.isfinite(pairs.edge[:count]).all()
            first_and_waits = [[k == 0, one is None] for k, one in enumerate(candidates)]
            assert pairs.pair[:count, :2].tolist() == first_and_waits
        for option in candidates:
            if option is not None:
                start(case.simulator.copy(), *option)  # which would refuse what cannot be
    assert_array_equal(case.simulator.schedule().start, case.again(case.policy()).start)


@examples(60, 10)
@given(seed=SEEDS)
def test_compiled_scores_are_those_of_the_network(folder: Path, seed: int) -> None:
    case, network, weights = Case.drawn(seed), policy_of(seed), scorer(folder, seed).weights
    out = np.zeros(3 * FIRST + 2, np.float32)
    for pairs, candidates in case.decisions():
        count = len(candidates)
        if count == 1:
            continue
        scores(weights, pairs, count, len(pairs.node), out)
        seen = {
            "pair": pairs.pair[None, :count],
            "node": pairs.node[None],
            "edge": pairs.edge[None, :count],
            "action_mask": np.ones((1, count), np.int8),
        }
        tensors = {name: torch.from_numpy(array) for name, array in seen.items()}
        with torch.no_grad():
            expected, logits = network.scores(tensors)[0], network.decide(tensors)[0][0]
        assert_allclose(out[:count], expected.numpy(), rtol=1e-4, atol=1e-4)
        expected[0] += HEAD_START
        assert_allclose(logits.numpy(), expected.numpy(), rtol=1e-5)


@examples(60, 8)
@given(seed=SEEDS, schedulers=SCHEDULERS)
def test_a_scorer_overrules_the_rule_and_no_job_starves(
    folder: Path, seed: int, schedulers: int
) -> None:
    case = Case.drawn(seed, schedulers)
    learned = scorer(folder, seed)
    found = case.again(case.policy(learned))
    assert found.finished.all()
    assert_array_equal(simulate(case.policy(learned), case.simulator).start, found.start)
    rule, same = (case.again(case.policy(x)) for x in (None, scorer(folder, seed, sure=1e9)))
    assert_array_equal(same.start, rule.start)


@examples(60, 8)
@given(seed=SEEDS)
def test_the_rule_decides_while_a_job_has_waited_for_long(folder: Path, seed: int) -> None:
    case = Case.drawn(seed)
    simulator, rule = case.simulator, case.policy()
    learned = case.policy(scorer(folder, seed, patience_s=5.0))
    for policy in (learned, rule):
        policy.reset(simulator)
    while not simulator.done and simulator.advance():
        while True:
            usual, chosen = rule.choice(simulator), learned.choice(simulator)
            submit = simulator.trace.submit_s[simulator.pending()]
            if (simulator.now - submit > 5.0).any():
                assert chosen == usual
            if usual is None:
                break
            start(simulator, *usual)


def test_an_untrained_network_does_what_the_rule_does(tmp_path: Path) -> None:
    case = Case.drawn(7)
    rule, same = (case.again(case.policy(x)) for x in (None, scorer(tmp_path, 0, spread=0.0)))
    assert_array_equal(same.start, rule.start)


def test_a_folder_written_by_hand_decides(tmp_path: Path) -> None:
    """It scores GPUs, so that the largest gang starts first, and the smallest by the rule."""
    shapes = pair_shapes(NODE_WIDTH, EDGE_WIDTH, PAIR_WIDTH, 1)
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    gpus = 9  # the number of the feature
    weights["pair"][gpus, 0] = weights["again"][0, 0] = weights["score"][0] = 1.0
    save_file(weights, tmp_path / "weights.safetensors")
    for name in ("config.yaml", "README.md"):
        (tmp_path / name).write_text("By hand.\n")
    hashes = {x.name: hashlib.sha256(x.read_bytes()).hexdigest() for x in tmp_path.iterdir()}
    spec = {"kind": "meshwright.pairs", "schema_version": 1, "sha256": hashes}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    learned = PairScorer(str(tmp_path), first=FIRST, sure=0.0, patience_s=1e9)
    cluster, trace = Cluster.uniform(1, 4), Trace.of("three", [0, 0, 0], [10] * 3, [1, 2, 4])
    for scorer, starts in ((None, [0, 0, 10]), (learned, [10, 10, 0])):
        found = replay(JointChoice(scorer=scorer), cluster, trace)
        assert found.start.tolist() == starts


def test_a_folder_of_another_kind_or_damaged_is_refused(tmp_path: Path) -> None:
    weights = scorer(tmp_path, 0).folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    wide = policy_of(0)
    wide.node = torch.nn.Parameter(torch.zeros(NODE_WIDTH + 1, 8))
    other = export_pairs(wide, tmp_path / "wide", CARD)
    for path, words in (
        ("nobody", "shipped"),
        (weights.parent, "sha256"),
        (other, "node is not of shape"),
    ):
        with refusal(words):
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
