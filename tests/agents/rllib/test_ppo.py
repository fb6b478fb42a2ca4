"""The update: worked out by hand in numpy, and beside RLlib's own PPO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from agents.rllib.module import EXPERT_ACTIONS, LABELS, NO_LABEL, module_spec
from agents.rllib.ppo import PPOLearner, num_minibatches
from agents.rllib.restore import restore, save
from tests.agents.rllib.toys import (
    CHOICES,
    SPACE,
    Linear,
    copied,
    learner_of,
    small_training,
    terms_of_ppo,
    update,
)
from tests.strength import SEEDS, examples, trials

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(CHOICES),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "box": spaces.Box(0.0, 1.0, (1,), np.float32),
}
SIZES = {"discrete": [4], "multi-discrete": [3, 2], "box": [2]}  # of what a policy puts out
PAIR = {"a": "discrete", "b": "discrete"}
TARGETS, GAINS = Postprocessing.VALUE_TARGETS, Postprocessing.ADVANTAGES

Table = dict[str, Any]


def specs(**kinds: str) -> dict[str, Any]:
    """Of policies with these kinds of actions."""
    found = {name: module_spec(Linear()) for name in kinds}
    for name, kind in kinds.items():
        found[name].observation_space, found[name].action_space = SPACE, SPACES[kind]
    return found


def learner(kinds: Mapping[str, str] = {"a": "discrete"}, seed: int = 0, **ppo: Any) -> PPOLearner:
    return learner_of(small_training(ppo, seed=seed), specs(**kinds))


def random_batch(seed: int, rows: int = 40, kind: str = "discrete", expert: bool = False) -> Table:
    """Some of the rows are no decisions."""
    rng = np.random.default_rng(seed)
    mask = (rng.random((rows, CHOICES)) < 0.7).astype(np.int8)
    allowed = rng.integers(0, CHOICES, rows)
    mask[np.arange(rows), allowed] = 1
    actions = {
        "discrete": allowed,
        "multi-discrete": rng.integers(0, [3, 2], (rows, 2)),
        "box": rng.normal(size=(rows, 1)).astype(np.float32),
    }[kind]
    shown, gains, logs, targets = rng.normal(size=(4, rows, CHOICES)).astype(np.float32)
    columns: Table = {
        Columns.OBS: {"shown": shown, "action_mask": mask},
        Columns.LOSS_MASK: rng.random(rows) < 0.8,
        TARGETS: 1.0 + 2.0 * targets[:, 0],
    }
    if expert:
        return {**columns, EXPERT_ACTIONS: actions}
    of_ppo = {GAINS: gains[:, 0], Columns.ACTION_LOGP: 0.4 * logs[:, 0] - 1.4}
    return {**columns, **of_ppo, Columns.ACTIONS: actions}


def decisions(columns: Table) -> Table:
    """Those rows alone."""
    kept = columns[Columns.LOSS_MASK]
    found = {name: x[kept] for name, x in columns.items() if name != Columns.OBS}
    return found | {Columns.OBS: {name: x[kept] for name, x in columns[Columns.OBS].items()}}


def as_tensors(columns: Table) -> Table:
    found = decisions(columns)
    del found[Columns.LOSS_MASK]
    seen = found.pop(Columns.OBS)
    tensors: Table = {name: torch.from_numpy(x) for name, x in found.items()}
    return tensors | {Columns.OBS: {name: torch.from_numpy(x) for name, x in seen.items()}}


def outputs(made: PPOLearner, seen: Table) -> tuple[Any, Any, Any]:
    """Logits, values and logits of the head of a linear policy, with no torch in it."""
    weights = {name: x.double().numpy() for name, x in made.weights()["a"].items()}
    logits, values, head = (
        seen["shown"] @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        for name in ("actor", "critic", "head")
    )
    return np.where(seen["action_mask"] == 0, -1e9, logits), values[:, 0], head


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def expected_of(made: PPOLearner, columns: Table) -> Table:
    """All terms of the loss, in numpy."""
    own = decisions(columns)
    logits, values, head = outputs(made, own[Columns.OBS])
    logs, rows, off = log_softmax(logits), np.arange(len(logits)), own[TARGETS] - values
    terms = {
        "entropy": -(np.exp(logs) * logs).sum(axis=1).mean(),
        "value_loss": np.square(off).mean(),
        "explained_variance": 1.0 - np.var(off) / np.var(own[TARGETS]),
    }
    if EXPERT_ACTIONS in own:
        expert = own[EXPERT_ACTIONS]
        total = terms["cross_entropy"] = -logs[rows, expert].mean()
        terms["agreement"] = (logits.argmax(axis=1) == expert).mean()
    else:
        moved = logs[rows, own[Columns.ACTIONS]] - own[Columns.ACTION_LOGP]
        terms |= terms_of_ppo(moved, own[GAINS])
        total = terms["policy_loss"] - 0.01 * terms["entropy"]
    if LABELS in own:
        labels = own[LABELS][:, 0]
        known = labels != NO_LABEL
        terms["auxiliary_loss"] = -log_softmax(head)[rows[known], labels[known]].mean()
        total = total + 0.3 * terms["auxiliary_loss"]
    return {**terms, "total_loss": total + 0.5 * terms["value_loss"], "gradient_steps": 1}


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("expert", [False, True])
@pytest.mark.parametrize("seed", range(trials(3, 1)))
def test_the_loss_is_what_numpy_says(seed: int, expert: bool, labelled: bool) -> None:
    """Of PPO, or of cloning where there are an expert's actions; of labels that are known."""
    made = learner(seed=seed, auxiliary_coefficient=0.3)
    columns = random_batch(seed, expert=expert)
    if labelled:
        columns[LABELS] = np.random.default_rng(seed).integers(0, CHOICES, (40, 1))
        columns[LABELS][::3] = NO_LABEL
    expected = expected_of(made, columns)
    found = update(made, {"a": columns})["a"]
    assert found.keys() == expected.keys() | {"gradient_norm"}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    if labelled:
        columns[LABELS][:] = NO_LABEL
        assert update(made, {"a": columns})["a"]["auxiliary_loss"] == 0.0
    if expert:
        last = update(made, {"a": columns}, learning_rate=0.1, num_epochs=60)["a"]
        assert last["cross_entropy"] < 0.9 * found["cross_entropy"]


def gradients_of(made: Any, batch: Table) -> tuple[Tensor, dict[str, Tensor]]:
    policy = made.module["a"].unwrapped().policy
    policy.zero_grad()
    fwd_out = made.module.forward_train({"a": batch})
    loss = made.compute_losses(fwd_out=fwd_out, batch={"a": batch})["a"]
    loss.backward()
    named = policy.named_parameters()
    return loss.detach(), {name: p.grad for name, p in named if p.grad is not None}


def test_two_steps_are_adams_with_the_gradient_clipped() -> None:
    made, other = (learner(max_gradient_norm=0.3) for _ in range(2))
    columns, moments = random_batch(3), {}
    own, other.entropy_coefficient = dict(other.policies()["a"].named_parameters()), 0.01
    for step in (1, 2):
        _, gradients = gradients_of(other, as_tensors(columns))
        norm = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
        for name, whole in gradients.items():
            gradient, (first, second) = whole * min(1.0, 0.3 / norm), moments.get(name, (0.0, 0.0))
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            moments[name] = first, second
            spread = (second / (1 - 0.999**step)) ** 0.5
            own[name].data -= 1e-2 * first / (1 - 0.9**step) / (spread + 1e-8)
    found = update(made, {"a": columns}, num_epochs=2)["a"]
    assert found["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert norm > 0.3
    for name, value in made.weights()["a"].items():
        torch.testing.assert_close(value, own[name].data, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[PPOLearner, PPOTorchLearner]]:
    """Our learner and RLlib's, by space of actions."""
    config = (
        PPOConfig()
        .learners()
        .training(
            use_kl_loss=False, clip_param=0.2, vf_clip_param=float("inf"), vf_loss_coeff=0.5,
            entropy_coeff=0.01,
        )
    )  # fmt: skip
    found = {}
    for kind in SPACES:
        spec = MultiRLModuleSpec(rl_module_specs=specs(a=kind))
        theirs = PPOTorchLearner(config=config.copy(), module_spec=spec)
        theirs.build()
        found[kind] = learner({"a": kind}), theirs
    return found


@pytest.mark.parametrize("kind", SPACES)
@examples(20, 8)
@given(seed=SEEDS)
def test_loss_and_gradients_are_rllibs(pairs: Any, kind: str, seed: int) -> None:
    ours, theirs = pairs[kind]
    ours.entropy_coefficient = 0.01
    theirs.module["a"].policy.load_state_dict(ours.weights()["a"])
    batch = as_tensors(random_batch(seed, kind=kind))
    shape = len(batch[Columns.ACTIONS]), sum(SIZES[kind])
    batch[Columns.ACTION_DIST_INPUTS] = torch.zeros(shape)
    (loss, gradients), (their_loss, their_gradients) = (
        gradients_of(one, batch) for one in (ours, theirs)
    )
    torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=1e-6)
    assert len(gradients) == 4
    torch.testing.assert_close(gradients, their_gradients, rtol=1e-4, atol=1e-5)


def test_all_modules_are_passed_over_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(PAIR)
    batches = {"a": random_batch(0, rows=50), "b": random_batch(1, rows=173)}
    for columns in batches.values():
        columns[Columns.ACTION_LOGP] = np.arange(len(columns[Columns.ACTIONS]))
    met: list[dict[str, list[int]]] = []

    def note(minibatch: dict[str, Table]) -> None:
        assert all(Columns.LOSS_MASK not in own for own in minibatch.values())
        met.append({name: own[Columns.ACTION_LOGP].tolist() for name, own in minibatch.items()})

    monkeypatch.setattr(made, "_step", note)
    for seed in (0, 0, 1):
        update(made, batches, num_epochs=3, num_minibatches=4, seed=seed)
    first, again, other = met[:12], met[12:24], met[24:]
    assert first == again != other
    assert len(other) == 12
    for name, columns in batches.items():
        numbers = np.flatnonzero(columns[Columns.LOSS_MASK]).tolist()
        passes = [[n for one in met[4 * k : 4 * k + 4] for n in one[name]] for k in range(3)]
        assert [sorted(one) for one in passes] == [numbers] * 3
        assert passes[0] != passes[1] != passes[2]
        sizes = [len(one[name]) for one in first]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("count", "parts"), [(0, 1), (1, 1), (32, 1), (33, 2), (65, 3)])
def test_no_minibatch_is_larger_than_asked_for(count: int, parts: int) -> None:
    assert num_minibatches(count, 32) == parts


@pytest.mark.parametrize(("target_kl", "steps"), [(1e-9, 2), (1e9, 12), (None, 12)])
def test_no_step_follows_a_policy_that_has_gone_too_far(
    target_kl: float | None, steps: int
) -> None:
    made, columns = learner(target_kl=target_kl), random_batch(0)
    logs = log_softmax(outputs(made, columns[Columns.OBS])[0])  # of the sampling policy
    taken = logs[np.arange(len(logs)), columns[Columns.ACTIONS]]
    columns[Columns.ACTION_LOGP] = taken.astype(np.float32)
    found = update(made, {"a": columns}, num_epochs=12, learning_rate=0.05)["a"]
    assert found["gradient_steps"] == steps


def divergence(kind: str, inputs: Tensor, others: Tensor) -> float:
    """From the second to the first, by torch's distributions."""
    torchs, total = torch.distributions, torch.zeros(())
    for both in zip(inputs.split(SIZES[kind], 1), others.split(SIZES[kind], 1), strict=True):
        if kind == "box":
            own, other = (torchs.Normal(x[:, 0], x[:, 1].exp()) for x in both)
        else:
            own, other = (torchs.Categorical(logits=x) for x in both)
        total = total + torchs.kl_divergence(own, other).mean()
    return float(total.detach())


@pytest.mark.parametrize("kind", SPACES)
def test_a_policy_is_pulled_back_to_where_ppo_began(kind: str) -> None:
    made, columns = learner({"a": kind}, reference_kl=5.0), random_batch(0, kind=kind)
    past = Linear().policy(SPACE, SPACES[kind])
    past.load_state_dict(copied(made.weights()["a"]))
    assert update(made, {"a": columns})["a"]["reference_kl"] == 0.0
    update(made, {"a": columns | {GAINS: 100 * columns[GAINS]}}, num_epochs=20)
    seen = as_tensors(columns)[Columns.OBS]
    outputs = (policy.decide(seen)[0] for policy in (made.policies()["a"], past))
    expected = divergence(kind, *outputs)
    nothing = {"a": columns | {GAINS: np.zeros(40, np.float32)}}
    away = update(made, nothing)["a"]
    assert away["reference_kl"] == pytest.approx(expected, rel=1e-4)
    without = 0.5 * away["value_loss"] - 0.01 * away["entropy"]
    assert away["total_loss"] == pytest.approx(without + 5.0 * expected, rel=1e-4)
    assert update(made, nothing, num_epochs=100)["a"]["reference_kl"] < 0.3 * expected


def test_what_cloning_came_to_is_the_reference() -> None:
    made = learner(reference_kl=1.0)
    update(made, {"a": random_batch(0, expert=True)}, num_epochs=5)
    assert made.reference is None
    cloned = copied(made.weights()["a"])
    update(made, {"a": random_batch(1)}, num_epochs=5)
    for name, value in made.reference["a"].state_dict().items():
        assert torch.equal(value, cloned[name])
        assert name.startswith("head") or not torch.equal(value, made.weights()["a"][name])


def test_gradients_of_every_module_are_clipped_on_their_own() -> None:
    made = learner(PAIR, max_gradient_norm=0.5)
    batches = {"a": random_batch(0), "b": random_batch(1)}
    for name, factor in (("a", 1e3), ("b", 1e-3)):
        columns = batches[name]
        seen = {key: torch.from_numpy(x) for key, x in columns[Columns.OBS].items()}
        values = made.policies()[name].decide(seen)[1]  # what is to be expected is expected
        columns[TARGETS], columns[GAINS] = values.detach().numpy(), factor * columns[GAINS]
    found = update(made, batches, entropy_coefficient=0.0)
    norms = [
        float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        for parameters in (policy.parameters() for policy in made.policies().values())
    ]
    assert found["a"]["gradient_norm"] > 10.0
    assert norms[0] == pytest.approx(0.5, rel=1e-4)
    assert found["b"]["gradient_norm"] == pytest.approx(norms[1], rel=1e-5)
    assert 0.0 < norms[1] < 0.01


def test_the_critics_error_is_not_clamped() -> None:
    columns = random_batch(0)
    columns[TARGETS] += np.float32(1e3)
    assert update(learner(), {"a": columns})["a"]["value_loss"] > 1e5


def test_a_gradient_that_is_not_finite_is_told() -> None:
    columns = random_batch(0)
    columns[GAINS][:] = np.nan
    with pytest.raises(FloatingPointError, match="of a is not finite"):
        update(learner(), {"a": columns})


def everything(made: PPOLearner) -> Iterator[tuple[str, Tensor]]:
    for file, tensors in made.tensors().items():
        for name, x in tensors.items():
            yield f"{file}/{name}", x


@pytest.mark.parametrize("updates", [0, 1, 3])
def test_learning_goes_on_from_a_checkpoint(updates: int, tmp_path: Path) -> None:
    kinds = {"a": "discrete", "b": "multi-discrete"}
    batches = {name: random_batch(1, kind=kind) for name, kind in kinds.items()}
    first, *others = (learner(kinds, reference_kl=0.5, seed=seed) for seed in range(3))
    for _ in range(updates):
        update(first, batches, num_epochs=2, num_minibatches=2)
    save(tmp_path, 1, {}, first.tensors(), {})
    _, files = restore(tmp_path, {})
    update(first, batches, num_epochs=2, num_minibatches=2, seed=7)
    expected = dict(everything(first))
    assert any(name.startswith("reference") for name in expected)
    for made in others:  # what was restored from is as it was
        made.restore(files)
        update(made, batches, num_epochs=2, num_minibatches=2, seed=7)
        found = dict(everything(made))
        assert set(found) == set(expected)
        assert all(torch.equal(x, expected[name]) for name, x in found.items())


def test_another_policys_weights_are_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        learner().restore(learner({"a": "multi-discrete"}).tensors())


def test_the_seed_alone_decides_on_the_first_weights() -> None:
    state = torch.random.get_rng_state()
    first = learner(seed=5).weights()["a"]
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(3)
    again, other = learner(seed=5).weights()["a"], learner(seed=6).weights()["a"]
    assert all(torch.equal(x, again[name]) for name, x in first.items())
    assert not torch.equal(first["actor.weight"], other["actor.weight"])


def test_the_optimizer_owns_exactly_the_policys_parameters() -> None:
    made = learner(PAIR)
    for name, policy in made.policies().items():
        groups = made.get_optimizer(name).param_groups
        owned = {id(p) for group in groups for p in group["params"]}
        assert owned == {id(p) for p in policy.parameters()}
