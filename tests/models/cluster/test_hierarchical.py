from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cluster_observations import (
    CONFIG,
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
    names = ("servers", "racks", "running", "pending", "shares")
    larger = replace(
        sizes,
        **{name: getattr(sizes, name) + n for name, n in zip(names, more, strict=True)},
    )
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
    seen = random_cluster(default_rng(2), SIZES)
    names = {"pending": ["pending"], "running": ["running", "share"]}.get(empty, list(seen))
    for key in seen:
        if any(key.startswith(name) for name in names):
            seen[key] = np.zeros_like(seen[key])
    if empty == "running":
        seen["share_index"] = np.repeat([[SIZES.running], [SIZES.servers]], SIZES.shares, axis=1)
    logits, value, _ = outlook(policy, seen)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(value).all()
    if empty != "everything":
        padded = outlook(policy, seen, packed=False)
        allowed = seen["action_mask"] == 1
        gone = "pending" if empty == "pending" else "running"
        allowed &= ~_actions_of(gone, SIZES)
        close(padded.logits[:, allowed], logits[:, allowed])
        close(padded.value, value)


def _actions_of(kind: str, sizes: Sizes) -> NDArray[np.bool_]:
    groups = sizes.servers + sizes.racks + 1
    first = sizes.pending * (groups + sizes.peers)
    number = np.arange(sizes.actions)
    return number < first if kind == "pending" else (number >= first) & (number < number[-1])


def renamed(
    seen: Observation, sizes: Sizes, rng: np.random.Generator
) -> tuple[Observation, NDArray[np.int64]]:
    """The same cluster with all nodes in another order, and the old number of every action."""
    order = {
        name: rng.permutation(getattr(sizes, field))
        for name, field in (
            ("pending", "pending"), ("running", "running"), ("share", "shares"),
            ("server", "servers"), ("rack", "racks"), ("peer", "peers"),
        )
    }  # fmt: skip
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
    policy = make_policy()
    seen = random_cluster(default_rng(4), SIZES)
    groups = SIZES.servers + SIZES.racks + 1
    starts = SIZES.pending * groups
    seen["action_mask"][:starts].reshape(SIZES.pending, groups)[1] = 0
    seen["action_mask"][:starts].reshape(SIZES.pending, groups)[1, 3] = 1  # one choice alone
    before = outlook(policy, seen).logits[0]
    job = before[:starts].view(SIZES.pending, groups).logsumexp(1)
    assert float(before[groups + 3]) == pytest.approx(float(job[1]), abs=1e-5)
    fewer = {**seen, "action_mask": seen["action_mask"].copy()}
    allowed = np.flatnonzero(fewer["action_mask"][:groups])
    fewer["action_mask"][allowed[0]] = 0  # the job keeps its logit where it has fewer groups
    after = outlook(policy, fewer).logits[0]
    close(after[:groups].logsumexp(0), job[0])
    assert float(after[allowed[1]]) > float(before[allowed[1]])


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
    seen = random_cluster(default_rng(6), SIZES)
    seen["action_mask"][:] = 1
    logits = outlook(make_policy(config), seen).logits[0]
    groups = SIZES.servers + SIZES.racks + 1
    start = logits[: SIZES.pending * groups].view(SIZES.pending, groups)
    assert float(start.softmax(1).max()) == pytest.approx(1 / groups, rel=0.05)
    things = torch.cat([start.logsumexp(1), logits[SIZES.pending * groups :]])
    assert float(things.max() - things.min()) < 0.1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_index_weight_starts_the_short_and_stops_the_long(sign: float) -> None:
    config = replace(CONFIG, initial_scale=0.0, initial_index_weight=sign)
    policy = make_policy(config)
    seen = random_cluster(default_rng(7), SIZES)
    seen["action_mask"][:] = 1
    logits, _, posterior = outlook(policy, seen)
    index = GittinsIndex().feature(posterior)[0]
    groups = SIZES.servers + SIZES.racks + 1
    start = logits[0, : SIZES.pending * groups].view(SIZES.pending, groups).logsumexp(1)
    close(start, sign * index[: SIZES.pending])
    first = SIZES.pending * (groups + SIZES.peers)
    close(logits[0, first:-1], -sign * index[SIZES.pending :])


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
    longer = {**seen, "pending_features": seen["pending_features"].copy()}
    longer["pending_features"][0, -1] += 1.0  # of its history
    after = policy.assess(stacked(longer)).posterior.detach()
    assert not torch.equal(after[0, 0], before[0, 0])
    close(after[0, 1:], before[0, 1:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_felt_across_the_cluster(variant: str) -> None:
    """A running job's features reach the choice of a group through messages alone."""
    policy = make_policy(VARIANTS[variant])
    seen = random_cluster(default_rng(9), SIZES)
    seen["action_mask"][:] = 1
    seen["share_index"][:] = [[0], [2]]  # all edges are those of job 0 on server 2
    groups = SIZES.servers + SIZES.racks + 1

    def choice(one: Observation) -> Tensor:
        logits = outlook(policy, one).logits[0, : SIZES.pending * groups]
        return logits.view(SIZES.pending, groups).log_softmax(1)

    other = {**seen, "running_features": seen["running_features"].copy()}
    other["running_features"][0, 5:9] += 1.0
    moved = (choice(other) - choice(seen)).abs()
    if variant == "no messages":
        assert float(moved.max()) < 1e-6
    else:
        assert float(moved.max()) > 1e-4
    far = {**seen, "server_features": seen["server_features"].copy()}
    far["server_features"][5, 3:9] += 1.0  # no job runs there: only racks and the whole tell
    stop = slice(groups * SIZES.pending + SIZES.pending * SIZES.peers, -1)
    change = (outlook(policy, far).logits - outlook(policy, seen).logits)[0, stop].abs()
    assert (float(change.max()) > 1e-6) == (variant == "whole")


def test_without_interference_its_features_are_not_read() -> None:
    rng = default_rng(10)
    seen = random_cluster(rng, SIZES)
    other = {name: array.copy() for name, array in seen.items()}
    for name, columns in (
        ("cluster_features", [7]), ("rack_features", [7]), ("server_features", [6]),
        ("running_features", [18, 19, 20]), ("pending_features", [18, 19, 20]),
    ):  # fmt: skip
        other[name][..., columns] += 1.0
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
    policy = make_policy()
    seen = random_cluster(default_rng(12), SIZES)
    other = {**seen, "state_features": seen["state_features"] + 1.0}
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
    policy = make_policy()
    seen = random_cluster(default_rng(15), SIZES)
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
    without = spaces.Dict({k: v for k, v in observation.items() if k != "rack_features"})
    with refusal("field 'rack_features'"):
        CONFIG.policy(without, action)
    narrow: dict[str, spaces.Space[Any]] = dict(observation.spaces)
    narrow["pending_features"] = spaces.Box(0, 1, (4, 20), np.float32)
    with refusal("field 'pending_features': jobs of 20"):
        CONFIG.policy(spaces.Dict(narrow), action)
    peers: dict[str, spaces.Space[Any]] = dict(observation.spaces)
    peers["peer_features"] = spaces.Box(0, 1, (2, 7), np.float32)
    with refusal("field 'peer_features': peers of 7 columns"):
        CONFIG.policy(spaces.Dict(peers), action)


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
