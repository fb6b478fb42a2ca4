"""Searches and fits that are stopped and go on are those that were not stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from agents.cluster.cells import CellChoice
from agents.cluster.migrating.weight_search import WeightSearchConfig
from agents.cluster.rule_numbers import Numbers, NumberSearch
from envs.arrays import FloatArray
from envs.cluster.environment.duration_features import width
from experiments.cluster.regimes import Regime
from experiments.cluster.split_windows import SampledWindows
from experiments.learning.train_cells import EvolutionConfig, EvolutionTask
from experiments.learning.train_durations import DurationTask, Rows
from experiments.learning.train_priority import Request, WeightTask
from experiments.learning.train_rule import NumberTask
from experiments.learning.trainer import Rounds, Task, train
from models.durations.bins import DurationConfig
from models.layout import CONTEXTS, FEATURES
from tests.refusal import refusal


def numbers(seed: int = 0) -> NumberTask:
    search = NumberSearch({"x": {"least": -4.0, "most": 4.0}, "kind": ["a", "b"]}, 4, 3, 4)

    def costs(asked: Sequence[Numbers]) -> FloatArray:
        return np.array([(one["x"] - 1.5) ** 2 + (one["kind"] == "a") for one in asked])

    return NumberTask(search, {"x": 0.0, "kind": "a"}, costs, seed)


def weights(seed: int = 0) -> WeightTask:
    def replay(requests: Sequence[Request]) -> list[FloatArray]:
        noise = [np.random.default_rng(one.seed).uniform(1.0, 2.0) for one in requests]
        off = [((one.weights - 0.4) ** 2).sum(axis=1) for one in requests]
        return [jobs * np.exp(by) for jobs, by in zip(noise, off, strict=True)]

    config: Any = SimpleNamespace(
        parts=SampledWindows([8, 20], 5, [2, 3], [1.0, 1.0]), evaluation_parts=3, agent={},
        seed=seed, window="train", evaluation_window="validation", samples=50,
    )  # fmt: skip
    return WeightTask(config, WeightSearchConfig(rounds=3, pairs=4), np.zeros(2), replay)


def durations(seed: int = 0) -> DurationTask:
    config = DurationConfig(
        history=2, hidden=4, readout=8, heads=1, dropout=0.2, stretch=2.0, epochs=3, batch=16,
        learning_rate=1e-2, weight_decay=0.01,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    features = rng.random((60, width(2)), np.float32)
    left = rng.uniform(60.0, 6e5, 60)
    rows = Rows(("a",), features, left, left, np.ones(60, np.int64), np.zeros(60, np.int64))
    return DurationTask(config, rows, rows, seed)


class Noisy:
    """Windows in which weights cost more the farther they are from 0.4."""

    def jcts(self, choice: CellChoice, drawn: Sequence[int] | None = None) -> list[FloatArray]:
        off = np.square(choice.compiled().weights - 0.4).sum()
        return [np.array([1.0, 3.0]) * (n + 1) * np.exp(off) for n in drawn or range(4)]


def evolution(seed: int = 0) -> EvolutionTask:
    config: Any = SimpleNamespace(chosen=Regime(), delays=[2.0], base={}, seed=seed)
    start, windows = np.zeros((FEATURES, CONTEXTS)), cast(Any, Noisy())
    return EvolutionTask(config, EvolutionConfig(spread=0.1, replays=3), start, windows, windows)


@pytest.mark.parametrize("make", [numbers, weights, durations, evolution])
def test_what_goes_on_is_what_was_not_stopped(make: Callable[..., Task], tmp_path: Path) -> None:
    rounds, whole, parts = Rounds(3, evaluate_every=2), make(), make()
    undisturbed = train(whole, rounds, tmp_path / "whole")
    train(make(), Rounds(1, evaluate_every=2), tmp_path / "parts")
    torch.rand(7)  # draws of others change nothing
    resumed = train(parts, rounds, tmp_path / "parts", resume=True)
    assert resumed.best_score == undisturbed.best_score
    assert resumed.evaluations[-1] == undisturbed.evaluations[-1]
    first, second = whole.state(), parts.state()
    if make is not weights:  # whose evaluation after the first part is one more
        assert first[0] == second[0]
    for name, tensors in first[1].items():
        assert all(torch.equal(x, second[1][name][key]) for key, x in tensors.items())
    assert undisturbed.best_score < undisturbed.evaluations[0][1]
    with refusal("seed"):
        train(make(seed=1), rounds, tmp_path / "parts", resume=True)
