"""Drift plus penalty: the oracle, the theorem, and policies beside all that could be done."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from agents.hybrid.lyapunov import (
    FREE,
    UNLIMITED,
    Policy,
    best_kept,
    clairvoyant,
    even,
    greedy,
    lyapunov,
    neighbours,
    play,
    search,
    static,
)
from envs.compilation import compiled
from envs.files import read_json
from envs.hybrid.batch_time import Batch, BatchTime, Groups, transformer
from envs.hybrid.slots import GeneratedSlots, Markov
from tests.refusal import refusal
from tests.strength import SEEDS, examples, trials

FloatArray = NDArray[np.float64]


@compiled
def drift_plus_penalty(
    time: FloatArray, cost: FloatArray, states: NDArray[np.int64], budget: FloatArray, weight: float
) -> tuple[NDArray[np.int64], FloatArray]:
    """The control over finite sets of actions.

    Args:
        time: (S, A) of the actions in each state; inf: there is no such action.
        cost: (S, A, K).
        states: (T,) the state of each slot.
        budget: (K,) of a slot, on average.
        weight: V.

    Returns:
        (T,) the action of each slot, the first among equals; (T, K) the queues after it.
    """
    action = np.empty(len(states), dtype=np.int64)
    queues = np.empty((len(states), len(budget)))
    queue = np.zeros(len(budget))
    for t in range(len(states)):
        state, best = states[t], np.inf
        for a in range(time.shape[1]):
            value = weight * time[state, a] + (queue * cost[state, a]).sum()
            if value < best:
                best, action[t] = value, a
        queue = np.maximum(queue + cost[state, action[t]] - budget, 0.0)
        queues[t] = queue
    return action, queues


@pytest.fixture(scope="module")
def oracle(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(data / "oracles/parallel/lyapunov.json")
    return found


def test_every_weight_of_the_oracle(oracle: dict[str, Any]) -> None:
    """Exactly: the times and costs are halves, so that no sum is rounded."""
    rng = random.Random(7)
    draws = np.array([rng.random() for _ in range(400_000)])
    states = (draws >= 0.5).astype(np.int64) + (draws >= 0.8)
    table = np.array([actions for _, actions in oracle["states"]])
    time, cost = table[..., 0], table[..., 1:]
    budget = np.array([oracle["budget"]])
    bound = ((cost - budget) ** 2).max() / 2
    assert bound == oracle["B"]
    shares = np.bincount(states) / len(states)
    noise = 6.0 * 3.0 / math.sqrt(len(states))  # six standard errors of times of at most 9
    assert shares == pytest.approx([share for share, _ in oracle["states"]], abs=0.005)
    for row in oracle["results"]:
        action, queue = drift_plus_penalty(time, cost, states, budget, row["V"])
        taken, spent = time[states, action].mean(), cost[states, action].mean()
        assert (taken, spent) == (row["avg_time"], row["avg_cost"])
        assert (queue.mean(), queue.max()) == (row["avg_queue"], row["max_queue"])
        assert oracle["budget"] + queue[-1, 0] / len(states) == row["cost_violation_bound"] >= spent
        assert taken - oracle["lp_optimum"] <= bound / row["V"] + noise


numbers = st.integers(0, 40).map(lambda x: x / 4)


@given(
    st.integers(1, 3).flatmap(
        lambda kinds: st.lists(
            st.lists(
                st.lists(numbers, min_size=kinds + 1, max_size=kinds + 1), min_size=2, max_size=2
            ),
            min_size=1,
            max_size=4,
        )
    ),
    st.floats(0.01, 100.0),
    SEEDS,
)
@examples(300)
def test_costs_are_within_the_budget_and_the_last_queue(
    actions: list[list[list[float]]], weight: float, seed: int
) -> None:
    table = np.array(actions)
    states = np.random.default_rng(seed).integers(len(table), size=50)
    budget = table[..., 1:].mean(axis=(0, 1))
    action, queue = drift_plus_penalty(table[..., 0], table[..., 1:], states, budget, weight)
    spent = table[states, action, 1:].mean(axis=0)
    assert (spent <= budget + queue[-1] / len(states) + 1e-9).all()


def slots_of(workers: int, slots: int, bandwidth: float, seed: int) -> list[BatchTime]:
    change = Markov((1.0, 0.5, 0.2), 0.8)
    drawn = GeneratedSlots(workers, slots, 4.0, bandwidth, change, change, change).draw(seed)
    layers = transformer(6, 4, 1024, 512, 5e13, 2)
    return [BatchTime(layers, 256.0, drawn, t) for t in range(slots)]


def all_groups(workers: int) -> list[Groups]:
    """Every way to divide some of the workers into groups and put each into an order."""
    found: list[Groups] = [()]
    for worker in range(workers):
        longer: list[Groups] = []
        for groups in found:
            longer += [groups, (*groups, (worker,))]
            for k, group in enumerate(groups):
                for place in range(len(group) + 1):
                    with_it = (*group[:place], worker, *group[place:])
                    longer.append((*groups[:k], with_it, *groups[k + 1 :]))
        found = longer
    return [tuple(sorted(groups)) for groups in found if groups]


def test_the_search_finds_what_there_is() -> None:
    """The best of all 147 groupings of four workers nearly always, and never far from it."""
    every, rng = all_groups(4), np.random.default_rng(0)
    assert len(every) == len(set(every)) == 147
    gaps = []
    for bandwidth in (2e8, 1.25e9, 1e10):
        for batch in slots_of(4, trials(60, 12), bandwidth, 1):
            batches = [batch.best(groups) for groups in every]
            largest = np.max([b.cost for b in batches], axis=0)
            price = rng.exponential(1.0, 2) * 10.0 / largest
            found = search(batch, price=price)
            values = [b.seconds + price @ b.cost for b in batches]
            gaps.append((found.seconds + price @ found.cost) / min(values) - 1.0)
            assert set(neighbours(found.plan.groups, 4, 6)) < set(every)
            limit = np.median([b.cost for b in batches], axis=0)
            within = [b.seconds for b in batches if (b.cost <= limit).all()]
            kept = search(batch, limit=limit)
            assert (kept.cost <= limit * (1 + 1e-8)).all()
            gaps.append(kept.seconds / min(within) - 1.0)
    assert np.mean(np.array(gaps) < 1e-9) > 0.85
    assert max(gaps) < 0.3


def least(slots: list[BatchTime], budget: FloatArray) -> float:
    """The program over all groupings, solved by another solver's interface."""
    every = [[batch.best(groups) for groups in all_groups(batch.num_workers)] for batch in slots]
    seconds = np.concatenate([[b.seconds for b in batches] for batches in every]) / len(slots)
    spent = np.concatenate([[b.cost / budget for b in batches] for batches in every]) / len(slots)
    one = np.kron(np.eye(len(slots)), np.ones(len(every[0])))
    found = linprog(seconds, spent.T, np.ones(2), one, np.ones(len(slots)), method="highs")
    return float(found.fun)


def test_policies_side_by_side() -> None:
    slots = slots_of(3, 30, 1.25e9, 4)
    mean = slots[0]
    budget = search(mean).cost * [0.7, 0.8]
    kept = search(mean, limit=budget)
    policies: dict[str, Policy] = {
        "even": static(even(mean)),
        "static": static(kept.plan),
        "greedy": greedy(UNLIMITED),
        "within": greedy(budget),
        "lyapunov": lyapunov(3.0, kept.seconds, budget),
        "careless": lyapunov(1e12, kept.seconds, budget),
    }
    played = {name: play(policy, slots, budget) for name, policy in policies.items()}
    for own in played.values():
        assert (own.spent.mean(axis=0) <= 1.0 + own.queue[-1] / len(slots) + 1e-9).all()
    assert (played["within"].spent <= 1.0 + 1e-8).all()
    means = {name: own.seconds.mean() for name, own in played.items()}
    assert means["greedy"] == min(means.values())
    assert means["careless"] == pytest.approx(means["greedy"], rel=1e-6)
    assert means["greedy"] < means["lyapunov"] < means["static"] < means["even"]
    best = best_kept(slots, budget, list(played.values()))
    assert np.mean([batch.of(best).seconds for batch in slots]) <= means["static"]
    known = [[own.batches[t] for own in played.values()] for t in range(len(slots))]
    found = clairvoyant(slots, budget, known)
    assert found.seconds == pytest.approx(least(slots, budget), rel=1e-4)
    assert found.bound <= found.seconds * (1 + 1e-9)
    assert found.bound == pytest.approx(found.seconds, rel=1e-4)
    for own in played.values():
        if (own.spent.mean(axis=0) <= 1.0).all():
            assert found.seconds <= own.seconds.mean() * (1 + 1e-9)


def test_budgets_that_nothing_keeps_to() -> None:
    slots = slots_of(2, 5, 1e9, 0)
    known: list[list[Batch]] = [[search(batch, price=FREE)] for batch in slots]
    with refusal("no plans keep to the budgets"):
        clairvoyant(slots, np.array([1e-3, np.inf]), known)
    found = clairvoyant(slots, UNLIMITED, known)
    assert found.seconds == pytest.approx(np.mean([own.seconds for (own,) in known]))
