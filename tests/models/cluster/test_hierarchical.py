from __future__ import annotations

import pickle
from dataclasses import replace
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


def make_policy(config: HierarchicalConfig = CONFIG, sizes: Sizes = SIZES) -> HierarchicalPolicy:
    torch.manual_seed(0)
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


@examples(15)
@given(SEEDS, clusters)
def test_any_sizes_give_one_finite_logit_per_action(
    policy: HierarchicalPolicy, seed: int, sizes: Sizes
) -> None:
    seen = random_cluster(default_rng(seed), sizes)
    logits, value, posterior = outlook(policy, seen)
    assert logits.shape == (1, sizes.actions)
    assert posterior.shape == (1, sizes.pending + sizes.running, 26)
    assert value.shape == (1,)
    for numbers in (logits, value, posterior):
        assert torch.isfinite(numbers).all()
    probability = logits.softmax(-1)[0].numpy()
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
        close(wide.logits[:, moved_actions(sizes, larger)], plain.logits)
        close(wide.value, plain.value)
        jobs = [*range(sizes.pending), *(larger.pending + np.arange(sizes.running)).tolist()]
        close(wide.posterior[:, jobs], plain.posterior)


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
        together = outlook(policy, *seen, packed=packed)
        for number, one in enumerate(seen):
            alone = outlook(policy, one, packed=packed)
            close(together.logits[number], alone.logits[0])
            close(together.value[number], alone.value[0])


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
) -> tuple[Observation, NDArray[np.int64]]:
    """The same cluster with all nodes in another order, and the old number of every action."""
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
    return out, old


@examples(15)
@given(SEEDS, clusters)
def test_renaming_nodes_permutes_the_logits_alone(
    policy: HierarchicalPolicy, seed: int, sizes: Sizes
) -> None:
    rng = default_rng(seed)
    seen = random_cluster(rng, sizes)
    other, old = renamed(seen, sizes, rng)
    plain, again = outlook(policy, seen), outlook(policy, other)
    close(again.logits, plain.logits[:, old])
    close(again.value, plain.value)


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
    plain, again = outlook(policy, seen), outlook(policy, other)
    close(again.logits, plain.logits)
    close(again.value, plain.value)
    close(again.posterior, plain.posterior)


@pytest.mark.parametrize("servers", [4, 400])
def test_one_network_serves_four_and_four_hundred_servers(servers: int) -> None:
    sizes = replace(SIZES, servers=servers, racks=max(1, servers // 16), running=2 * servers)
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
    before = policy.assess(stacked(seen)).posterior.detach()
    close(outlook(policy, seen).posterior, before)
    other = random_cluster(rng, SIZES)
    for name in ("running_features", "pending_features", "running_mask", "pending_mask"):
        other[name] = seen[name]
    for columns in (10, slice(11, None)):  # the order of types is one by their servers
        other["server_features"][:, columns] = seen["server_features"][:, columns]
    close(policy.assess(stacked(other)).posterior.detach(), before)
    longer = raised(seen, pending_features=(0, -1))  # of its history
    after = policy.assess(stacked(longer)).posterior.detach()
    assert not torch.equal(after[0, 0], before[0, 0])
    close(after[0, 1:], before[0, 1:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_felt_across_the_cluster(variant: str) -> None:
    """A running job's features reach the choice of a group through messages alone."""
    policy = make_policy(VARIANTS[variant])
    # All edges are those of job 0 on server 2.
    seen = random_seen(9, action_mask=1, share_index=[[0], [2]])

    def choice(one: Observation) -> Tensor:
        return starts(outlook(policy, one).logits).log_softmax(1)

    other = raised(seen, running_features=(0, slice(5, 9)))
    moved = float((choice(other) - choice(seen)).abs().max())
    assert moved < 1e-6 if variant == "no messages" else moved > 1e-4
    # No job runs there: only racks and the whole tell.
    far = raised(seen, server_features=(5, slice(3, 9)))
    stop = slice(STARTS + SIZES.pending * SIZES.peers, -1)
    change = (outlook(policy, far).logits - outlook(policy, seen).logits)[0, stop].abs()
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


def test_a_policy_for_several_schedulers_serves_one_alone() -> None:
    policy = make_policy()
    alone = replace(SIZES, peers=0, state=0)
    seen = random_cluster(default_rng(13), alone)
    assert outlook(policy, seen).logits.shape == (1, alone.actions)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_receives_a_gradient(variant: str) -> None:
    policy = make_policy(VARIANTS[variant])
    rng = default_rng(14)
    batch = stacked(*(random_cluster(rng, SIZES) for _ in range(8)))
    logits, value, posterior = policy.assess(batch)
    chosen = batch["action_mask"] != 0
    loss = logits.log_softmax(-1)[chosen].square().mean() + value.sum()
    (loss + posterior.log_softmax(-1)[..., 0].mean()).backward()
    silent = [
        name
        for name, parameter in policy.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().max() > 0
    ]
    assert silent == []


def test_weights_and_whole_policies_survive_storage() -> None:
    policy, seen = make_policy(), random_seen(15)
    torch.manual_seed(1)
    fresh = CONFIG.policy(*SIZES.spaces())
    assert not torch.equal(outlook(fresh, seen).logits, outlook(policy, seen).logits)
    fresh.load_state_dict(policy.state_dict())
    for twin in (fresh, pickle.loads(pickle.dumps(policy))):
        assert torch.equal(outlook(twin, seen).logits, outlook(policy, seen).logits)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden": 1}, "hidden"),
        ({"rounds": -1}, "rounds"),
        ({"heads": 0}, "heads"),
        ({"initial_scale": -0.1}, "initial_scale"),
    ],
)
def test_senseless_settings_are_named(change: dict[str, Any], field: str) -> None:
    with refusal(f"field '{field}'"):
        replace(CONFIG, **change)


def test_foreign_spaces_are_named() -> None:
    observation, action = SIZES.spaces()
    assert isinstance(CONFIG, Architecture)
    with refusal("chooses one action"):
        CONFIG.policy(observation, spaces.MultiDiscrete([2, 2]))
    with refusal(r"field 'action_mask': .* do not go with"):
        CONFIG.policy(observation, spaces.Discrete(int(action.n) + 1))
    without = {k: v for k, v in observation.items() if k != "rack_features"}
    with refusal("field 'rack_features'"):
        CONFIG.policy(spaces.Dict(without), action)
    for name, shape, told in (
        ("pending_features", (4, 20), "jobs of 20"),
        ("peer_features", (2, 7), "peers of 7 columns"),
    ):
        other = {**observation, name: spaces.Box(0, 1, shape, np.float32)}
        with refusal(f"field '{name}': {told}"):
            CONFIG.policy(spaces.Dict(other), action)


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
