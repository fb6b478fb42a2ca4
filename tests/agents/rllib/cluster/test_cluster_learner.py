"""The learner's losses against formulas, its stops, and what cloning does to a policy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.evaluation.postprocessing import Postprocessing
from schedulers import environment, training
from torch.nn import functional

from agents.rllib.cluster.config import Cloning
from agents.rllib.cluster.drivers import FirstFit
from agents.rllib.cluster.learner import NO_BIN, REMAINING_BIN, TAUGHT, Decisions
from agents.rllib.cluster.session import ClusterProgress, ClusterSession
from envs.cluster.environment.episode import SchedulingEpisode
from envs.errors import InputError
from models.durations.network import bins_of

CLONING = Cloning(iterations=9, learning_rate=4e-3, num_epochs=4, first_share=0.0, last_share=0.0)


def session(cloning: bool = False, jobs: int = 6, **ppo: object) -> ClusterSession:
    chosen = training(ppo) if not cloning else training(ppo, cloning=CLONING)
    return ClusterSession(chosen, partial(environment, jobs=jobs), FirstFit())


def test_the_loss_is_ppos_with_ours_for_the_posterior() -> None:
    made = session()
    decisions = made.decisions(made.sample(ClusterProgress()))
    batch = decisions.batch(torch.arange(len(decisions)))
    moved = batch[Columns.ACTION_LOGP] + 0.3 * torch.randn(len(decisions))
    batch[Columns.ACTION_LOGP] = moved
    outputs = made.learner.module.forward_train({DEFAULT_MODULE_ID: batch})
    losses = made.learner.compute_losses(fwd_out=outputs, batch={DEFAULT_MODULE_ID: batch})
    outlook = made.policy.assess(batch[Columns.OBS])  # type: ignore[operator]
    logs = torch.log_softmax(outlook.logits, -1)
    taken = logs.gather(1, batch[Columns.ACTIONS][:, None])[:, 0]
    ratio, gains = (taken - moved).exp(), batch[Postprocessing.ADVANTAGES]
    surrogate = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
    off = (outlook.value - batch[Postprocessing.VALUE_TARGETS]).square().mean()
    entropy = -(logs.exp() * logs).sum(-1).mean()
    kept = batch[REMAINING_BIN] != NO_BIN
    posterior = functional.cross_entropy(outlook.posterior[kept], batch[REMAINING_BIN][kept])
    expected = -surrogate + 0.5 * off - 0.003 * entropy + 0.1 * posterior
    assert float(losses[DEFAULT_MODULE_ID]) == pytest.approx(float(expected), rel=1e-5)


def test_the_loss_of_cloning_is_the_cross_entropy_of_what_is_taught() -> None:
    made = session(cloning=True)
    decisions = made.decisions(made.sample(ClusterProgress()))
    batch = decisions.batch(torch.arange(len(decisions)))
    outputs = made.learner.module.forward_train({DEFAULT_MODULE_ID: batch})
    losses = made.learner.compute_losses(fwd_out=outputs, batch={DEFAULT_MODULE_ID: batch})
    outlook = made.policy.assess(batch[Columns.OBS])  # type: ignore[operator]
    off = (outlook.value - batch[Postprocessing.VALUE_TARGETS]).square().mean()
    kept = batch[REMAINING_BIN] != NO_BIN
    posterior = functional.cross_entropy(outlook.posterior[kept], batch[REMAINING_BIN][kept])
    imitation = functional.cross_entropy(outlook.logits, batch[TAUGHT])
    expected = imitation + 0.5 * off + 0.1 * posterior
    assert float(losses[DEFAULT_MODULE_ID]) == pytest.approx(float(expected), rel=1e-5)


def test_decisions_are_those_of_the_fragment() -> None:
    made = session()
    fragment = made.sample(ClusterProgress())
    decisions = made.decisions(fragment)
    kept = np.flatnonzero(fragment.decides)
    assert len(decisions) == len(kept) < fragment.decisions
    numbers = torch.randperm(len(decisions))[:7]
    batch = decisions.batch(numbers)
    rows = kept[numbers.numpy()]
    np.testing.assert_array_equal(batch[Columns.ACTIONS], fragment.actions.flat[rows])
    masks = fragment.memory.masks[:16].reshape(fragment.decisions, -1)
    np.testing.assert_array_equal(batch[Columns.OBS]["action_mask"], masks[rows])
    left = torch.from_numpy(fragment.remaining.reshape(fragment.decisions, -1)[rows])
    bins = torch.where(left < 0, torch.tensor(NO_BIN), bins_of(left))
    np.testing.assert_array_equal(batch[REMAINING_BIN], bins)
    gains = decisions.columns[Postprocessing.ADVANTAGES]
    assert float(gains.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(gains.std()) == pytest.approx(1.0, rel=0.05)


def test_no_step_follows_a_policy_that_has_gone_too_far() -> None:
    for most_kl, expected in ((1e-9, 2), (1e9, 12)):  # the first step's KL is 0
        made = session(minibatch_size=10_000, num_epochs=12, learning_rate=0.05)
        decisions = made.decisions(made.sample(ClusterProgress()))
        _, steps = made.learner.learn(decisions, passes=12, size=10_000, most_kl=most_kl, steps=0)
        assert steps == expected


def test_gradients_are_clipped() -> None:
    made = session(max_gradient_norm=1e-3)
    decisions = made.decisions(made.sample(ClusterProgress()))
    made.learner.learn(decisions, passes=1, size=10_000, most_kl=1.0, steps=0)
    norm = torch.nn.utils.get_total_norm(
        [p.grad for p in made.policy.parameters() if p.grad is not None]
    )
    assert float(norm) == pytest.approx(1e-3, rel=1e-2)
    assert made.learner.gradient_norm > 1e-2


def test_a_gradient_that_is_not_finite_is_told() -> None:
    made = session()
    decisions = made.decisions(made.sample(ClusterProgress()))
    columns = dict(decisions.columns)
    columns[Postprocessing.ADVANTAGES] = columns[Postprocessing.ADVANTAGES] * float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        made.learner.learn(
            Decisions(decisions.memory, decisions.rows, columns),
            passes=1, size=99, most_kl=1.0, steps=0,
        )  # fmt: skip


def test_cloning_takes_the_teachers_ways_and_its_prospects() -> None:
    made, progress = (
        session(cloning=True, jobs=40, fragment=64, minibatch_size=64),
        ClusterProgress(),
    )
    found = []
    for _ in range(9):
        metrics, _, rate = made.learn(made.sample(progress), progress)
        assert rate == 4e-3
        found.append(metrics)
        progress.iteration += 1
    first, last = found[0], found[-1]
    assert last["cloning_cross_entropy"] < 0.5 * first["cloning_cross_entropy"]
    assert last["cloning_agreement"] > 0.9
    assert last["posterior_cross_entropy"] < first["posterior_cross_entropy"]
    explained = [metrics["vf_explained_var"] for metrics in found]
    assert np.mean(explained[-4:]) > max(explained[0], 0.2)
    assert not made.cloning(progress)


class Forbidden(FirstFit):
    """Starts jobs that are not there."""

    def begin(self, episode: SchedulingEpisode) -> Forbidden:
        return self

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        return 0


def test_a_teacher_that_does_what_is_not_allowed_is_refused() -> None:
    made = ClusterSession(training(cloning=CLONING), environment, Forbidden())
    with pytest.raises(InputError, match="field 'teacher': does what is not allowed"):
        made.decisions(made.sample(ClusterProgress()))


def test_what_is_asked_for_and_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no teacher to imitate"):
        ClusterSession(training(cloning=CLONING), environment, None)
    with pytest.raises(InputError, match="RandomJobs has no curriculum"):
        ClusterSession(training(curriculum_decisions=9), environment, None)
