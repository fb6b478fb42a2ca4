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
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from torch import Tensor

from agents.rllib.config import TRAINING
from agents.rllib.module import ARCHITECTURE_KEY, LABELS, NO_LABEL, TAUGHT, PolicyModule
from agents.rllib.ppo import Instruction, PPOLearner, parts_of
from agents.rllib.restore import restore, save
from agents.rllib.runner import Shared
from tests.agents.rllib.toys import CHOICES, SPACE, Linear, small_ppo, small_training
from tests.strength import SEEDS, examples

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(CHOICES),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "box": spaces.Box(0.0, 1.0, (1,), np.float32),
}
ALONE, PAIR = {"a": "discrete"}, {"a": "discrete", "b": "discrete"}
ONE_STEP = Instruction(seed=0, num_epochs=1, parts=1, learning_rate=1e-2, entropy_coefficient=0.01)

Table = dict[str, Any]


def specification(**kinds: str) -> MultiRLModuleSpec:
    return MultiRLModuleSpec(
        rl_module_specs={
            name: RLModuleSpec(
                module_class=PolicyModule,
                observation_space=SPACE,
                action_space=SPACES[kind],
                model_config={ARCHITECTURE_KEY: Linear()},
            )
            for name, kind in kinds.items()
        }
    )


def learner(kinds: Mapping[str, str] = ALONE, seed: int = 0, **ppo: Any) -> PPOLearner:
    """Of policies with these kinds of actions."""
    training = small_training(seed=seed, ppo=small_ppo(**ppo))
    config = PPOConfig().learners(learner_config_dict={TRAINING: Shared(training)})
    made = PPOLearner(config=config, module_spec=specification(**kinds))
    made.build()
    return made


def random_batch(seed: int, rows: int = 40, kind: str = "discrete", taught: bool = False) -> Table:
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
    columns: Table = {
        Columns.OBS: {
            "shown": rng.normal(size=(rows, CHOICES)).astype(np.float32),
            "action_mask": mask,
        },
        Columns.LOSS_MASK: rng.random(rows) < 0.8,
        Postprocessing.VALUE_TARGETS: rng.normal(1.0, 2.0, rows).astype(np.float32),
    }
    if taught:
        return {**columns, TAUGHT: actions}
    return {
        **columns,
        Postprocessing.ADVANTAGES: rng.normal(size=rows).astype(np.float32),
        Columns.ACTIONS: actions,
        Columns.ACTION_LOGP: (-1.4 + 0.4 * rng.normal(size=rows)).astype(np.float32),
    }


def update(
    made: PPOLearner, batches: dict[str, Table], **chosen: Any
) -> dict[str, dict[str, float]]:
    rows = {name: SampleBatch(columns) for name, columns in batches.items()}
    data = TrainingData(batch=MultiAgentBatch(rows, 1))
    return made.update(training_data=data, instruction=Instruction(**{**vars(ONE_STEP), **chosen}))


def as_tensors(columns: Table) -> Table:
    """The decisions."""
    kept = torch.from_numpy(columns[Columns.LOSS_MASK])
    found: Table = {}
    for name, column in columns.items():
        if isinstance(column, dict):
            found[name] = {key: torch.from_numpy(x)[kept] for key, x in column.items()}
        elif name != Columns.LOSS_MASK:
            found[name] = torch.from_numpy(column)[kept]
    return found


def outputs(made: PPOLearner, columns: Table) -> tuple[np.ndarray, np.ndarray]:
    """Logits and values of a linear policy, with no torch in it."""
    seen = {name: x[columns[Columns.LOSS_MASK]] for name, x in columns[Columns.OBS].items()}
    weights = {name: x.double().numpy() for name, x in made.weights()["a"].items()}
    logits = seen["shown"] @ weights["actor.weight"].T + weights["actor.bias"]
    values = seen["shown"] @ weights["critic.weight"][0] + weights["critic.bias"]
    return np.where(seen["action_mask"] == 0, -1e9, logits), values


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_what_numpy_says(seed: int) -> None:
    made, columns = learner(seed=seed), random_batch(seed)
    logits, values = outputs(made, columns)
    found = update(made, {"a": columns})["a"]
    own = {name: x[columns[Columns.LOSS_MASK]] for name, x in columns.items() if name != "obs"}
    logs = log_softmax(logits)
    moved = logs[np.arange(len(logs)), own[Columns.ACTIONS]] - own[Columns.ACTION_LOGP]
    ratio, gains = np.exp(moved), own[Postprocessing.ADVANTAGES]
    off = np.square(values - own[Postprocessing.VALUE_TARGETS])
    expected = {
        "policy_loss": -np.minimum(ratio * gains, np.clip(ratio, 0.8, 1.2) * gains).mean(),
        "value_loss": off.mean(),
        "entropy": -(np.exp(logs) * logs).sum(axis=1).mean(),
        "old_approx_kl": -moved.mean(),
        "approx_kl": (ratio - 1.0 - moved).mean(),
        "clipfrac": (np.abs(ratio - 1.0) > 0.2).mean(),
        "explained_variance": 1.0
        - np.var(own[Postprocessing.VALUE_TARGETS] - values)
        / np.var(own[Postprocessing.VALUE_TARGETS]),
        "gradient_steps": 1,
    }
    expected["total_loss"] = (
        expected["policy_loss"] + 0.5 * expected["value_loss"] - 0.01 * expected["entropy"]
    )
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_two_steps_are_adams_with_the_gradient_clipped() -> None:
    made, columns = learner(max_gradient_norm=0.3), random_batch(3)
    own = as_tensors(columns)
    policy = Linear().policy(SPACE, SPACES["discrete"])
    policy.load_state_dict({k: x.clone() for k, x in made.weights()["a"].items()})
    first = {name: torch.zeros_like(x) for name, x in policy.named_parameters()}
    second = {name: torch.zeros_like(x) for name, x in policy.named_parameters()}
    norms = []
    for step in (1, 2):
        logits, values = policy.decide(own[Columns.OBS])
        logs = logits - logits.logsumexp(dim=1, keepdim=True)
        ratio = (
            logs.gather(1, own[Columns.ACTIONS][:, None])[:, 0] - own[Columns.ACTION_LOGP]
        ).exp()
        gains = own[Postprocessing.ADVANTAGES]
        surrogate = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        off = (values - own[Postprocessing.VALUE_TARGETS]).pow(2).mean()
        entropy = -(logs.exp() * logs).sum(dim=1).mean()
        named = {n: p for n, p in policy.named_parameters() if not n.startswith("head")}
        loss = -surrogate + 0.5 * off - 0.01 * entropy
        gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        norms.append(sum(float(g.square().sum()) for g in gradients.values()) ** 0.5)
        for name, parameter in named.items():
            gradient = gradients[name] * min(1.0, 0.3 / norms[-1])
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient.square()
            even = first[name] / (1 - 0.9**step)
            spread = (second[name] / (1 - 0.999**step)).sqrt()
            parameter.data -= 1e-2 * even / (spread + 1e-8)
    found = update(made, {"a": columns}, num_epochs=2)["a"]
    assert found["gradient_norm"] == pytest.approx(norms[-1], rel=1e-4)
    assert norms[-1] > 0.3
    for name, value in policy.state_dict().items():
        torch.testing.assert_close(made.weights()["a"][name], value, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[PPOLearner, PPOTorchLearner]]:
    """Our learner and RLlib's, by space of actions."""
    found = {}
    for kind in SPACES:
        config = (
            PPOConfig()
            .learners()
            .training(
                use_kl_loss=False,
                clip_param=0.2,
                vf_clip_param=float("inf"),
                vf_loss_coeff=0.5,
                entropy_coeff=0.01,
            )
        )
        theirs = PPOTorchLearner(config=config, module_spec=specification(a=kind))
        theirs.build()
        found[kind] = learner({"a": kind}), theirs
    return found


def gradients_of(made: Any, batch: Table) -> tuple[float, dict[str, Tensor]]:
    policy = made.module["a"].unwrapped().policy
    policy.zero_grad()
    losses = made.compute_losses(
        fwd_out=made.module.forward_train({"a": batch}), batch={"a": batch}
    )
    losses["a"].backward()
    return float(losses["a"].detach()), {
        name: p.grad for name, p in policy.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("kind", SPACES)
@examples(20, 8)
@given(seed=SEEDS)
def test_loss_and_gradients_are_rllibs(pairs: Any, kind: str, seed: int) -> None:
    ours, theirs = pairs[kind]
    ours.entropy_coefficient = 0.01
    theirs.module["a"].policy.load_state_dict(ours.weights()["a"])
    batch = as_tensors(random_batch(seed, kind=kind))
    size = {"discrete": 4, "multi-discrete": 5, "box": 2}[kind]
    batch[Columns.ACTION_DIST_INPUTS] = torch.zeros(len(batch[Columns.ACTIONS]), size)
    loss, gradients = gradients_of(ours, batch)
    their_loss, their_gradients = gradients_of(theirs, batch)
    assert loss == pytest.approx(their_loss, rel=1e-5, abs=1e-6)
    assert set(gradients) == set(their_gradients)
    assert len(gradients) == 4
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], rtol=1e-4, atol=1e-5)


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
    update(made, batches, num_epochs=3, parts=4)
    assert len(met) == 12
    for name, columns in batches.items():
        decisions = np.flatnonzero(columns[Columns.LOSS_MASK]).tolist()
        passes = [[n for one in met[4 * k : 4 * k + 4] for n in one[name]] for k in range(3)]
        assert [sorted(one) for one in passes] == [decisions] * 3
        assert passes[0] != passes[1] != passes[2]
        sizes = [len(one[name]) for one in met]
        assert max(sizes) - min(sizes) <= 1
    first = list(met)
    met.clear()
    update(made, batches, num_epochs=3, parts=4)
    assert met == first
    met.clear()
    update(made, batches, num_epochs=3, parts=4, seed=1)
    assert met != first


@pytest.mark.parametrize(("decisions", "parts"), [(0, 1), (1, 1), (32, 1), (33, 2), (65, 3)])
def test_no_minibatch_is_larger_than_asked_for(decisions: int, parts: int) -> None:
    assert parts_of(decisions, 32) == parts


@pytest.mark.parametrize(("most_kl", "steps"), [(1e-9, 2), (1e9, 12), (None, 12)])
def test_no_step_follows_a_policy_that_has_gone_too_far(most_kl: float | None, steps: int) -> None:
    made, columns = learner(most_kl=most_kl), random_batch(0)
    logits, _ = made.policies()["a"].decide(
        {name: torch.from_numpy(x) for name, x in columns[Columns.OBS].items()}
    )
    logs = torch.log_softmax(logits, dim=1).detach().numpy()  # of the sampling policy: it is here
    columns[Columns.ACTION_LOGP] = logs[np.arange(len(logs)), columns[Columns.ACTIONS]]
    found = update(made, {"a": columns}, num_epochs=12, learning_rate=0.05)["a"]
    assert found["gradient_steps"] == steps


def test_the_loss_of_cloning_is_the_cross_entropy_of_what_is_taught() -> None:
    made, columns = learner(), random_batch(0, taught=True)
    logits, values = outputs(made, columns)
    kept = columns[Columns.LOSS_MASK]
    taught = columns[TAUGHT][kept]
    found = update(made, {"a": columns})["a"]
    cross_entropy = -log_softmax(logits)[np.arange(len(taught)), taught].mean()
    off = np.square(values - columns[Postprocessing.VALUE_TARGETS][kept]).mean()
    assert found["cross_entropy"] == pytest.approx(cross_entropy, rel=1e-5)
    assert found["agreement"] == pytest.approx((logits.argmax(axis=1) == taught).mean())
    assert found["total_loss"] == pytest.approx(cross_entropy + 0.5 * off, rel=1e-5)
    assert "policy_loss" not in found
    for _ in range(60):
        last = update(made, {"a": columns}, learning_rate=0.1)["a"]
    assert last["cross_entropy"] < 0.9 * found["cross_entropy"]


@pytest.mark.parametrize("taught", [False, True])
def test_the_auxiliary_head_learns_the_labels_that_are_known(taught: bool) -> None:
    made, columns = learner(auxiliary_coefficient=0.3), random_batch(0, taught=taught)
    plain = update(learner(auxiliary_coefficient=0.3), {"a": columns})["a"]
    labels = np.random.default_rng(0).integers(0, CHOICES, (40, 1))
    labels[::3] = NO_LABEL
    columns[LABELS] = labels
    kept = columns[Columns.LOSS_MASK] & (labels[:, 0] != NO_LABEL)
    weights = {name: x.numpy() for name, x in made.weights()["a"].items()}
    shown = columns[Columns.OBS]["shown"][kept]
    logs = log_softmax(shown @ weights["head.weight"].T + weights["head.bias"])
    expected = -logs[np.arange(len(logs)), labels[kept, 0]].mean()
    found = update(made, {"a": columns})["a"]
    assert found["auxiliary_loss"] == pytest.approx(expected, rel=1e-5)
    assert found["total_loss"] == pytest.approx(plain["total_loss"] + 0.3 * expected, rel=1e-5)
    columns[LABELS] = np.full_like(labels, NO_LABEL)
    assert update(made, {"a": columns})["a"]["auxiliary_loss"] == 0.0


def divergence(kind: str, inputs: Tensor, others: Tensor) -> float:
    """From the second to the first, by torch's distributions."""
    distributions = torch.distributions
    if kind == "box":
        both = [distributions.Normal(x[:, 0], x[:, 1].exp()) for x in (inputs, others)]
        return float(distributions.kl_divergence(*both).mean().detach())
    sizes = [4] if kind == "discrete" else [3, 2]
    total = torch.zeros(())
    for own, other in zip(inputs.split(sizes, dim=1), others.split(sizes, dim=1), strict=True):
        both = [distributions.Categorical(logits=x) for x in (own, other)]
        total = total + distributions.kl_divergence(*both).mean()
    return float(total.detach())


@pytest.mark.parametrize("kind", SPACES)
def test_a_policy_is_pulled_back_to_where_ppo_began(kind: str) -> None:
    made, columns = learner({"a": kind}, reference_kl=5.0), random_batch(0, kind=kind)
    start = {name: x.clone() for name, x in made.weights()["a"].items()}
    assert update(made, {"a": columns}, parts=1)["a"]["reference_kl"] == 0.0
    strong = {**columns, Postprocessing.ADVANTAGES: 100 * columns[Postprocessing.ADVANTAGES]}
    update(made, {"a": strong}, num_epochs=20)
    own = as_tensors(columns)
    past = Linear().policy(SPACE, SPACES[kind])
    past.load_state_dict(start)
    present, _ = made.policies()["a"].decide(own[Columns.OBS])
    expected = divergence(kind, present, past.decide(own[Columns.OBS])[0])
    nothing = {**columns, Postprocessing.ADVANTAGES: np.zeros(40, np.float32)}
    away = update(made, {"a": nothing})["a"]
    assert away["reference_kl"] == pytest.approx(expected, rel=1e-4)
    assert away["total_loss"] == pytest.approx(
        0.5 * away["value_loss"] - 0.01 * away["entropy"] + 5.0 * expected, rel=1e-4
    )
    back = update(made, {"a": nothing}, num_epochs=100)["a"]
    assert back["reference_kl"] < 0.3 * expected


def test_what_cloning_came_to_is_the_reference() -> None:
    made = learner(reference_kl=1.0)
    update(made, {"a": random_batch(0, taught=True)}, num_epochs=5)
    assert made.reference is None
    cloned = {name: x.clone() for name, x in made.weights()["a"].items()}
    update(made, {"a": random_batch(1)}, num_epochs=5)
    assert made.reference is not None
    for name, value in made.reference["a"].state_dict().items():
        assert torch.equal(value, cloned[name])
        assert name.startswith("head") or not torch.equal(value, made.weights()["a"][name])


def test_gradients_of_every_module_are_clipped_on_their_own() -> None:
    made = learner(PAIR, max_gradient_norm=0.5)
    batches = {"a": random_batch(0), "b": random_batch(1)}
    for columns, factor in zip(batches.values(), (1e3, 1e-3), strict=True):
        values = made.weights()["b"]["critic.weight"]  # what is to be expected is expected
        shown = columns[Columns.OBS]["shown"]
        bias = made.weights()["b"]["critic.bias"].numpy()
        columns[Postprocessing.VALUE_TARGETS] = shown @ values[0].numpy() + bias
        columns[Postprocessing.ADVANTAGES] *= np.float32(factor)
    found = update(made, batches, entropy_coefficient=0.0)
    norms = {
        name: float(
            torch.nn.utils.get_total_norm(
                [p.grad for p in policy.parameters() if p.grad is not None]
            )
        )
        for name, policy in made.policies().items()
    }
    assert found["a"]["gradient_norm"] > 10.0
    assert norms["a"] == pytest.approx(0.5, rel=1e-4)
    assert found["b"]["gradient_norm"] == pytest.approx(norms["b"], rel=1e-5)
    assert 0.0 < norms["b"] < 0.01


def test_the_critics_error_is_not_clamped() -> None:
    made, columns = learner(), random_batch(0)
    columns[Postprocessing.VALUE_TARGETS] += np.float32(1e3)
    assert update(made, {"a": columns})["a"]["value_loss"] > 1e5


def test_a_gradient_that_is_not_finite_is_told() -> None:
    made, columns = learner(), random_batch(0)
    columns[Postprocessing.ADVANTAGES][:] = np.nan
    with pytest.raises(FloatingPointError, match="of a is not finite"):
        update(made, {"a": columns})


def everything(made: PPOLearner) -> Iterator[tuple[str, Tensor]]:
    for file, tensors in made.tensors().items():
        for name, x in tensors.items():
            yield f"{file}/{name}", x


@pytest.mark.parametrize("updates", [0, 1, 3])
def test_learning_goes_on_from_a_checkpoint(updates: int, tmp_path: Path) -> None:
    kinds = {"a": "discrete", "b": "multi-discrete"}
    batches = {name: random_batch(1, kind=kind) for name, kind in kinds.items()}
    first = learner(kinds, reference_kl=0.5)
    second = learner(kinds, reference_kl=0.5, seed=1)
    for _ in range(updates):
        update(first, batches, num_epochs=2, parts=2)
    save(tmp_path, 1, {}, first.tensors(), {})
    _, files = restore(tmp_path, {})
    second.restore(files)
    for made in (first, second):
        update(made, batches, num_epochs=2, parts=2, seed=7)
    theirs = dict(everything(first))
    assert {name for name, _ in everything(second)} == set(theirs)
    assert all(torch.equal(x, theirs[name]) for name, x in everything(second))
    assert any(name.startswith("reference") for name in theirs)
    third = learner(kinds, reference_kl=0.5, seed=2)
    third.restore(files)  # what was restored from is as it was
    update(third, batches, num_epochs=2, parts=2, seed=7)
    assert all(torch.equal(x, theirs[name]) for name, x in everything(third))


def test_another_policys_weights_are_refused() -> None:
    made, other = learner(), learner({"a": "multi-discrete"})
    with pytest.raises(RuntimeError, match="size mismatch"):
        made.restore(other.tensors())


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
