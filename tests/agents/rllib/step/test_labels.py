"""Labelled problems are imitated, and a policy that was exported is learned on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.placement.labelling import LabelledProblem, describe, write_shard
from agents.rllib.step.plans import PLANNER, Continued, LabelledProblems, PlanRLTask, sweeps_of
from envs.graphs.contraction import Fusion
from envs.placement.episodes import ORDER_CLASSES
from envs.placement.generator import TrainingProblems
from envs.placement.whole import WholeLayout
from envs.step.order import Rule
from envs.step.price import Pricer
from experiments.learning.training import train_policies
from models.export.checkpoint import ModelCard
from models.export.placer import export_placer
from models.step.channels import ChannelPolicyConfig
from models.step.placer import PlacerConfig, PlacerPolicy
from tests.agents.rllib.step.test_plans import training
from tests.agents.rllib.toys import rows_of
from tests.refusal import refusal

LAYOUT = WholeLayout(groups=40, devices=8, edges=200, classes=16)
MODEL = PlacerConfig(hidden=16, rounds=1, heads=2, sweeps=("sequential",), topology=True)
COUNT = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of problems whose label is one device."""
    made = tmp_path_factory.mktemp("labelled")
    draw, found = TrainingProblems((), 0.0, 0.12, 0.15, 30, 8), {}
    for place in range(COUNT):
        problem = draw(np.random.default_rng(place), 0.0)
        device = np.full(Fusion.of_fused(problem.graph).num_groups, place % 2)
        pieces = np.full(problem.graph.num_operators, place % 2)
        price = Pricer(problem).price(pieces, (Rule.ONE_F_ONE_B,))
        found[place] = LabelledProblem(
            place, problem, device, price.rule, price.seconds, price.seconds, 1.0, 1.0
        )
    describe(made, 1, COUNT, {})
    write_shard(made / "shard00000.npz", found)
    return made


def source(folder: Path, sweeps: int = 1, kept_back: int = 2) -> LabelledProblems:
    return LabelledProblems(
        str(folder), layout=LAYOUT, sweeps=sweeps, unfit=1.0, kept_back=kept_back
    )


def test_the_expert_action_is_the_label_and_comes_to_its_seconds(folder: Path) -> None:
    labelled = source(folder, sweeps=2)
    for number in range(COUNT - 2):
        question = labelled.draw(number, 1.0)
        tokens = question.expert_action
        device, order = labelled.tokens.plan(tokens, question.facts.num_groups)
        assert (device == number % 2).all()
        assert list(ORDER_CLASSES)[order] == "one_f_one_b"
        assert question.judge(tokens).ratio == pytest.approx(1.0)
    assert {labelled.draw(seed, 1.0).number for seed in range(50)} == set(range(COUNT - 2))
    assert {labelled.evaluation(k).number for k in range(4)} == {COUNT - 2, COUNT - 1}
    with refusal("field 'kept_back'"):
        source(folder, kept_back=COUNT)


@pytest.mark.proof
def test_a_placer_imitates_labels_and_goes_on_from_its_folder(folder: Path, tmp_path: Path) -> None:
    chosen = replace(training(30, num_envs=8, group_size=1), model=MODEL, max_steps=8 * 30)
    result = train_policies(chosen, PlanRLTask(source(folder), chosen), tmp_path / "run")
    errors = [float(row["losses/cross_entropy"]) for row in rows_of(tmp_path / "run")]
    assert errors[-1] < 0.5 * errors[0]
    (policy,) = result.policies.values()
    assert isinstance(policy, PlacerPolicy)
    export_placer(policy, tmp_path / "checkpoint", ModelCard("A", "b", "", {}))
    model = Continued(str(tmp_path / "checkpoint"))
    assert sweeps_of(model) == 1
    one, two = (PlanRLTask(source(folder, sweeps), chosen).spaces_of(PLANNER) for sweeps in (1, 2))
    for name, value in model.policy(*one).state_dict().items():
        assert torch.equal(value, policy.state_dict()[name])
    with refusal("1 sweeps make"):
        model.policy(*two)


@pytest.mark.parametrize("model", [ChannelPolicyConfig(8, 1, 0.1, 0.1), Continued("absent")])
def test_what_makes_no_whole_plans_is_said(model: Any) -> None:
    with refusal(r"makes no whole plans|neither a folder nor shipped"):
        sweeps_of(model)
