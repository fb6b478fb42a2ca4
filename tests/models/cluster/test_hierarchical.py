from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cluster_observations import (
    CONFIG,
    MASKED,
    Observation,
    Sizes,
    moved_actions,
    padded_cluster,
    random_cluster,
)
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray
from torch import Tensor

from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from models.architecture import Architecture
from models.cluster.batch import ClusterBatch
from models.cluster.hierarchical import HierarchicalConfig, HierarchicalPolicy, Outlook
from models.durations.network import GittinsIndex
from models.layout import cluster_layout
from tests.refusal import refusal
from tests.strength import SEEDS, examples

VARIANTS = {
    "whole": CONFIG,
    "flat": replace(CONFIG, hierarchy=False),
    "no messages": replace(CONFIG, rounds=0),
}
SIZES = Sizes(peers=2, state=6)
GROUPS = SIZES.servers + SIZES.racks + 1  # where a job may start
STARTS = SIZES.pending * GROUPS
clusters = st.builds(
    Sizes,
    servers=st.integers(1, 9),
    racks=st.integers(1, 4),
    running=st.integers(1, 8),
    pending=st.integers(1, 6),
    shares=st.integers(1, 12),
    peers=st.just(2),
    state=st.just(6),
)


@pytest.fixture(scope="module", params=VARIANTS)
def policy(request: pytest.FixtureRequest) -> HierarchicalPolicy:
    return make_policy(VARIANTS[request.param])


def make_policy(
    config: HierarchicalConfig = CONFIG, sizes: Sizes = SIZES, seed: int = 0
) -> HierarchicalPolicy:
    torch.manual_seed(seed)
    return config.policy(*sizes.spaces())


def stacked(*seen: Observation) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.stack([one[name] for one in seen])) for name in seen[0]}


def outlook(policy: HierarchicalPolicy, *seen: Observation, packed: bool = True) -> Outlook:
    with torch.inference_mode():
        return policy.assess(stacked(*seen), packed=packed)


def random_seen(seed: int, **arrays: Any) -> Observation:
    """A random cluster of `SIZES` with other values in some arrays."""
    seen = random_cluster(default_rng(seed), SIZES)
    for name, values in arrays.items():
        seen[name][:] = values
    return seen


def raised(seen: Observation, **where: Any) -> Observation:
    """The same with 1 added at some places of some arrays."""
    other = {name: array.copy() for name, array in seen.items()}
    for name, at in where.items():
        other[name][at] += 1.0
    return other


def starts(logits: Tensor) -> Tensor:
    """(W, groups) of the only observation."""
    return logits[0, :STARTS].view(SIZES.pending, GROUPS)


def close(first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, atol=2e-5, rtol=1e-5)


def same(
    first: Outlook, second: Outlook, actions: Any = slice(None), jobs: Any = slice(None)
) -> None:
    """The second is the first but for the order of actions and jobs, of which it has more."""
    close(first.logits, second.logits[:, actions])
    close(first.value, second.value)
    close(first.posterior, second.posterior[:, jobs])


@examples(15)
@given(SEEDS, clusters)
def test_any_sizes_give_one_finite_logit_per_action(
    policy: HierarchicalPolicy, seed: int, sizes: Sizes
) -> None:
    seen = random_cluster(default_rng(seed), sizes)
    found = outlook(policy, seen)
    jobs = sizes.pending + sizes.running
    assert [one.shape for one in found] == [(1, sizes.actions), (1,), (1, jobs, 26)]
    assert all(torch.isfinite(numbers).all() for numbers in found)
    probability = found.logits.softmax(-1)[0].numpy()
    allowed = seen["action_mask"] == 1
    assert (probability[~allowed] == 0.0).all()
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)


@examples(15)
@given(SEEDS, clusters, st.lists(st.integers(0, 5), min_size=5, max_size=5))
def test_padding_changes_nothing(
    policy: HierarchicalPolicy, seed: int, sizes: Sizes, more: list[int]
) -> None:
    names = zip(MASKED.values(), more, strict=True)
    larger = replace(sizes, **{name: getattr(sizes, name) + n for name, n in names})
    seen = random_cluster(default_rng(seed), sizes)
    plain = outlook(policy, seen)
    for packed in (True, False):
        wide = outlook(policy, padded_cluster(seen, sizes, larger), packed=packed)
        jobs = [*range(sizes.pending), *(larger.pending + np.arange(sizes.running)).tolist()]
        same(plain, wide, moved_actions(sizes, larger), jobs)


def test_a_batch_of_different_clusters_is_each_by_itself(policy: HierarchicalPolicy) -> None:
    rng = default_rng(1)
    full = replace(SIZES, servers=12, racks=5, running=9, pending=7, shares=20)
    seen = []
    for size in (1, 2, 4):
        some = replace(
            SIZES, servers=3 * size, racks=size, running=2 * size, pending=size, shares=4 * size
        )
        seen.append(padded_cluster(random_cluster(rng, some), some, full))
    for packed in (True, False):
        alone = zip(*(outlook(policy, one, packed=packed) for one in seen), strict=True)
        together = outlook(policy, *seen, packed=packed)
        for found, expected in zip(together[:2], alone, strict=False):
            close(found, torch.cat(expected))


@pytest.mark.parametrize("empty", ["pending", "running", "everything"])
def test_without_jobs_there_is_an_answer_all_the_same(
    policy: HierarchicalPolicy, empty: str
) -> None:
    seen = random_seen(2)
    names = {"pending": ["pending"], "running": ["running", "share"]}.get(empty, list(seen))
    for key in seen:
        if key.startswith(tuple(names)):
            seen[key] = np.zeros_like(seen[key])
    if empty == "running":
        seen["share_index"] = np.repeat([[SIZES.running], [SIZES.servers]], SIZES.shares, axis=1)
    logits, value, _ = outlook(policy, seen)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(value).all()
    if empty != "everything":
        padded = outlook(policy, seen, packed=False)
        number, stops = np.arange(SIZES.actions), SIZES.pending * (GROUPS + SIZES.peers)
        gone = number < stops if empty == "pending" else (number >= stops) & (number < number[-1])
        allowed = (seen["action_mask"] == 1) & ~gone
        close(padded.logits[:, allowed], logits[:, allowed])
        close(padded.value, value)


def renamed(
    seen: Observation, sizes: Sizes, rng: np.random.Generator
) -> tuple[Observation, NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The same cluster with all nodes in another order; the old numbers of actions and nodes."""
    counts = {**MASKED, "peer": "peers"}
    order = {name: rng.permutation(getattr(sizes, count)) for name, count in counts.items()}
    out = dict(seen)
    for name, new in order.items():
        for key in (f"{name}_features", f"{name}_mask"):
            if key in out:
                out[key] = out[key][new]
    out["server_rack"] = np.argsort(order["rack"])[seen["server_rack"]][order["server"]]
    job, server = seen["share_index"][:, order["share"]]
    out["share_index"] = np.stack(
        [np.argsort(order["running"])[job], np.argsort(order["server"])[server]]
    )
    groups = sizes.servers + sizes.racks + 1
    group = [*order["server"], *(sizes.servers + order["rack"]), groups - 1]
    start = order["pending"][:, None] * groups + np.array(group)
    first = sizes.pending * groups
    forward = first + order["pending"][:, None] * sizes.peers + order["peer"]
    stop = first + sizes.pending * sizes.peers + order["running"]
    old = np.concatenate([start.ravel(), forward.ravel(), stop, [sizes.actions - 1]])
    out["action_mask"] = seen["action_mask"][old]
    return out, old, order


@examples(15)
@given(SEEDS, clusters)
def test_renaming_nodes_permutes_the_logits_alone(
    policy: HierarchicalPolicy, seed: int, sizes: Sizes
) -> None:
    rng = default_rng(seed)
    seen = random_cluster(rng, sizes)
    other, old, order = renamed(seen, sizes, rng)
    jobs = [*order["pending"], *(sizes.pending + order["running"])]
    same(outlook(policy, other), outlook(policy, seen), old, jobs)


@examples(15)
@given(SEEDS, st.permutations(range(3)))
def test_the_order_of_gpu_types_does_not_matter(
    policy: HierarchicalPolicy, seed: int, order: list[int]
) -> None:
    seen = random_cluster(default_rng(seed), SIZES)
    other = dict(seen)
    for name, first in (("server", 11), ("running", 25), ("pending", 25), ("peer", 7)):
        columns = np.arange(seen[f"{name}_features"].shape[1])
        columns[first : first + 3] = first + np.array(order)
        other[f"{name}_features"] = seen[f"{name}_features"][:, columns]
    same(outlook(policy, other), outlook(policy, seen))


@pytest.mark.parametrize(
    "sizes",
    [
        replace(SIZES, servers=4, racks=1, running=8),
        replace(SIZES, servers=400, racks=25, running=800),
        replace(SIZES, peers=0, state=0),
    ],
    ids=["four servers", "four hundred", "one scheduler alone"],
)
def test_one_network_serves_all(sizes: Sizes) -> None:
    seen = random_cluster(default_rng(3), sizes)
    assert outlook(make_policy(), seen).logits.shape == (1, sizes.actions)


def test_a_start_is_the_job_times_the_group_given_the_job() -> None:
    policy, seen = make_policy(), random_seen(4)
    allowed = seen["action_mask"][:STARTS].reshape(SIZES.pending, GROUPS)
    allowed[1] = np.arange(GROUPS) == 3  # one choice alone
    before = starts(outlook(policy, seen).logits)
    job = before.logsumexp(1)
    assert float(before[1, 3]) == pytest.approx(float(job[1]), abs=1e-5)
    first, second = np.flatnonzero(allowed[0])[:2]
    allowed[0, first] = 0  # the job keeps its logit where it has fewer groups
    after = starts(outlook(policy, seen).logits)
    close(after[0].logsumexp(0), job[0])
    assert float(after[0, second]) > float(before[0, second])


def test_a_speed_weight_starts_at_the_fastest_gpus() -> None:
    config = replace(CONFIG, initial_scale=0.0, initial_speed_weight=5.0)
    sizes = replace(SIZES, servers=3, types=3)
    seen = random_cluster(default_rng(5), sizes)
    seen["server_features"][:, 11:] = np.eye(3)
    seen["server_features"][:, 10] = [0.5, 1.0, 0.25]
    seen["action_mask"][:] = 1
    speeds = seen["pending_features"][:, 25:28]
    logits = outlook(make_policy(config, sizes), seen).logits[0, : sizes.pending * 7]
    ratio = logits.view(sizes.pending, 7)[:, :3].diff(dim=1)
    close(ratio, torch.from_numpy(5.0 * np.diff(speeds, axis=1)))


def test_the_start_is_nearly_uniform_over_jobs_and_their_groups() -> None:
    config = replace(CONFIG, initial_scale=0.01, initial_index_weight=0.0, initial_speed_weight=0.0)
    logits = outlook(make_policy(config), random_seen(6, action_mask=1)).logits
    start = starts(logits)
    assert float(start.softmax(1).max()) == pytest.approx(1 / GROUPS, rel=0.05)
    things = torch.cat([start.logsumexp(1), logits[0, STARTS:]])
    assert float(things.max() - things.min()) < 0.1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_index_weight_starts_the_short_and_stops_the_long(sign: float) -> None:
    config = replace(CONFIG, initial_scale=0.0, initial_index_weight=sign)
    logits, _, posterior = outlook(make_policy(config), random_seen(7, action_mask=1))
    index = GittinsIndex().feature(posterior)[0]
    close(starts(logits).logsumexp(1), sign * index[: SIZES.pending])
    close(logits[0, STARTS + SIZES.pending * SIZES.peers : -1], -sign * index[SIZES.pending :])


def test_the_posterior_is_a_property_of_the_job_and_its_history_alone() -> None:
    policy = make_policy()
    rng = default_rng(8)
    seen = random_cluster(rng, SIZES)
    before = outlook(policy, seen).posterior
    other = random_cluster(rng, SIZES)
    for name in ("running_features", "pending_features", "running_mask", "pending_mask"):
        other[name] = seen[name]
    for columns in (10, slice(11, None)):  # the order of types is one by their servers
        other["server_features"][:, columns] = seen["server_features"][:, columns]
    close(outlook(policy, other).posterior, before)
    longer = raised(seen, pending_features=(0, -1))  # of its history
    after = outlook(policy, longer).posterior
    assert not torch.equal(after[0, 0], before[0, 0])
    close(after[0, 1:], before[0, 1:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_felt_across_the_cluster(variant: str) -> None:
    """A running job's features reach the choice of a group through messages alone."""
    policy, stops = make_policy(VARIANTS[variant]), slice(STARTS + SIZES.pending * SIZES.peers, -1)
    # All edges are those of job 0 on server 2.
    seen = random_seen(9, action_mask=1, share_index=[[0], [2]])

    def choice(one: Observation) -> Tensor:
        return starts(outlook(policy, one).logits).log_softmax(1)

    other = raised(seen, running_features=(0, slice(5, 9)))
    moved = float((choice(other) - choice(seen)).abs().max())
    assert moved < 1e-6 if variant == "no messages" else moved > 1e-4
    # No job runs there: only racks and the whole tell.
    far = raised(seen, server_features=(5, slice(3, 9)))
    change = (outlook(policy, far).logits - outlook(policy, seen).logits)[0, stops].abs()
    assert (float(change.max()) > 1e-6) == (variant == "whole")


def test_without_interference_its_features_are_not_read() -> None:
    seen, jobs = random_seen(10), (..., [18, 19, 20])
    other = raised(
        seen, cluster_features=(..., [7]), rack_features=(..., [7]), server_features=(..., [6]),
        running_features=jobs, pending_features=jobs,
    )  # fmt: skip
    for reads in (True, False):
        policy = make_policy(replace(CONFIG, use_interference=reads))
        first, second = outlook(policy, seen), outlook(policy, other)
        assert torch.equal(first.logits, second.logits) != reads
        assert torch.equal(first.value, second.value) != reads


def test_what_is_said_outright_about_jobs_and_types() -> None:
    sizes = Sizes(servers=3, racks=1, running=2, pending=1, shares=3, types=2, history=0)
    seen = random_cluster(default_rng(11), sizes)
    servers = seen["server_features"]
    servers[:, 11:] = [[1, 0], [1, 0], [0, 1]]
    servers[:, 10] = [1.0, 1.0, 0.5]
    servers[:, 0], servers[:, 2] = 1.0, [0.5, 0.25, 0.0]  # of 8 GPUs each: 4, 2, 0 free
    jobs = seen["pending_features"], seen["running_features"]
    jobs[0][0, :2], jobs[0][0, 25:] = [6 / 8, 6 / 24], [0.5, 1.0]
    jobs[1][:, :2] = [8 / 8, 8 / 24]
    jobs[1][:, 25:] = [[0.4, 1.0], [0.3, 0.9]]
    seen["share_index"] = np.array([[0, 0, 1], [0, 2, 2]])
    seen["share_features"][:, 1] = [0.25, 0.75, 1.0]
    batch = ClusterBatch(stacked(seen), packed=True, use_interference=True)
    whole = [(6 / 6) / 2, 0.0, (4 / 6) / 2, 0.0, 0.5, 0.0, 0.5, 0.0]
    close(batch.job_types[:1], torch.tensor([whole]))
    present = 0.25 * 0.4 + 0.75 * 1.0
    room = [(6 / 8) / 2, 0.0, (4 / 8) / 2, 0.0, 0.0]
    expected = [[*room, present, -present, 1.0], [*room, 0.9, -0.9, 1.0]]
    close(batch.job_types[1:], torch.tensor(expected))


def test_the_critic_reads_the_state_where_there_is_one() -> None:
    policy, seen = make_policy(), random_seen(12)
    other = raised(seen, state_features=...)
    first, second = outlook(policy, seen), outlook(policy, other)
    assert torch.equal(first.logits, second.logits)
    assert not torch.equal(first.value, second.value)
    del other["state_features"]
    assert torch.isfinite(outlook(policy, other).value).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_receives_a_gradient(variant: str) -> None:
    policy = make_policy(VARIANTS[variant])
    rng = default_rng(14)
    batch = stacked(*(random_cluster(rng, SIZES) for _ in range(8)))
    logits, value, posterior = policy.assess(batch)
    chosen = batch["action_mask"] != 0
    loss = logits.log_softmax(-1)[chosen].square().mean() + value.sum()
    (loss + posterior.log_softmax(-1)[..., 0].mean()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_weights_and_whole_policies_survive_storage() -> None:
    policy, seen = make_policy(), random_seen(15)
    fresh = make_policy(seed=1)
    assert not torch.equal(outlook(fresh, seen).logits, outlook(policy, seen).logits)
    fresh.load_state_dict(policy.state_dict())
    for twin in (fresh, pickle.loads(pickle.dumps(policy))):
        assert torch.equal(outlook(twin, seen).logits, outlook(policy, seen).logits)


def test_foreign_spaces_are_named() -> None:
    (seen, action), box = SIZES.spaces(), partial(spaces.Box, 0, 1, dtype=np.float32)
    assert isinstance(CONFIG, Architecture)
    without = {name: space for name, space in seen.items() if name != "rack_features"}
    for observation, actions, message in (
        (seen, spaces.MultiDiscrete([2, 2]), "chooses one action"),
        (seen, spaces.Discrete(int(action.n) + 1), "field 'action_mask': .* do not go with"),
        (without, action, "field 'rack_features'"),
        ({**seen, "pending_features": box((4, 20))}, action, "'pending_features': jobs of 20"),
        ({**seen, "peer_features": box((2, 7))}, action, "'peer_features': peers of 7 columns"),
    ):
        with refusal(message):
            CONFIG.policy(spaces.Dict(observation), actions)


@pytest.mark.parametrize("preempt_after_s", [None, 60.0])
def test_policies_read_what_environments_show(preempt_after_s: float | None) -> None:
    actions = ClusterActions(preempt_after_s=preempt_after_s, longest_wait_s=3600.0)
    several, alone = ClusterParallelEnv(schedulers=2, actions=actions), ClusterEnv(actions=actions)
    agent = several.possible_agents[0]
    policy = CONFIG.policy(several.observation_space(agent), several.action_space(agent))
    for field in cluster_layout(policy.widths):
        box = several.observation_space(agent)[field.name]
        assert box.dtype == field.dtype
        assert box.shape is not None
        assert [a for a, b in zip(box.shape, field.shape, strict=True) if a != b] == [
            size for size, b in zip(box.shape, field.shape, strict=True) if isinstance(b, str)
        ]
    seen, _ = several.reset(seed=0)
    rng = default_rng(16)
    for _ in range(40):
        logits = outlook(policy, *seen.values()).logits
        mask = torch.from_numpy(np.stack([one["action_mask"] for one in seen.values()]))
        chosen = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        assert (mask.gather(1, chosen.unsqueeze(1)) == 1).all()
        seen, *_ = several.step(dict(zip(seen, chosen.tolist(), strict=True)))
    one, _ = alone.reset(seed=0)
    for _ in range(10):
        one, *_ = alone.step(rng.choice(np.flatnonzero(one["action_mask"])))
    assert outlook(policy, one).logits.shape == (1, len(one["action_mask"]))
