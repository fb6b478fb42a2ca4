"""An exported policy that is shown an adviser's action brings its adviser along."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from exported_schedulers import MODEL, eager, environment, exported, played, trained_config
from hydra.utils import instantiate
from small_clusters import Speeds

from agents.cluster.checkpoint import (
    CheckpointScheduler,
    Trimmed,
    most_probable_action,
)
from agents.cluster.checkpoint_adviser import described
from agents.cluster.migrating.adviser import MigrationAdviser
from agents.cluster.migrating.learned_priority import NAMES, from_folder
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import (
    AttainedServiceClasses,
    RemainingService,
    RemainingTime,
)
from agents.cluster.replay import replay
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.routing import MixedRacks
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads, Schedule
from envs.cluster.workload.trace import Trace
from envs.files import read_json
from experiments.config.config_source import SHIPPED_CONFIGS
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalPolicy
from models.durations.network import DurationPosterior, save_durations
from models.export.checkpoint import export_plan, load_checkpoint
from tests.refusal import refusal

pytestmark = [pytest.mark.slow, pytest.mark.proof]

TYPES = ("V100", "P100", "K80")
CLUSTER = Cluster.uniform(6, 2, nodes_per_rack=1, gpu_types=TYPES)
OVERHEADS = Overheads(5.0, 0.0)
FOLLOWS = replace(MODEL, initial_scale=0.1, initial_advice_weight=8.0)
LISTENS = replace(MODEL, initial_scale=1.0, initial_advice_weight=1.0)
WEIGHTS = {**dict.fromkeys(NAMES, 0.0), "runs": 0.2, "gpus": -0.85, "ahead_together": -0.5}


class Alternating:
    """Odd jobs come to the last scheduler."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> Any:
        return (np.arange(len(trace)) % 2 * (schedulers - 1)).astype(np.int32)


def jobs(seed: int = 0, number: int = 40) -> Trace:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 3_000, number))
    return Trace.of("drawn", submit, rng.integers(60, 2_400, number), rng.integers(1, 4, number))


def speeds(trace: Trace) -> Speeds:
    return Speeds(np.random.default_rng(1).uniform(0.2, 1.0, (len(trace), 3)))


def posterior(folder: Path) -> Path:
    torch.manual_seed(3)
    config = instantiate(SHIPPED_CONFIGS.node("model/durations"), hidden=8, readout=8)
    save_durations(DurationPosterior(config), folder, {"seed": 3})
    return folder


def order_of(kind: str, folder: Path) -> Callable[[], Any]:
    if kind == "learned_gittins":
        path = str(posterior(folder / "posterior"))
        return partial(from_folder, path=path, weights=WEIGHTS)
    if kind == "attained_service_classes":
        return partial(AttainedServiceClasses, first=600.0)
    return {"remaining_time": RemainingTime, "remaining_service": RemainingService}[kind]


class Made(NamedTuple):
    folder: Path
    policy: HierarchicalPolicy
    adviser: MigrationAdviser


def made(folder: Path, kind: str, model: Any = FOLLOWS) -> Made:
    adviser = MigrationAdviser(order_of(kind, folder), 1.33, 120.0)
    env = environment(
        CLUSTER, jobs(), trained_config(), adviser, schedulers=2, partition=MixedRacks()
    )
    target = folder / "checkpoint"
    policy = exported(target, env, trained_config(), model, described(adviser))
    return Made(target, policy, adviser)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a learned order; the folder that it was exported from is no longer there."""
    folder = tmp_path_factory.mktemp("learned")
    found = made(folder, "learned_gittins")
    (folder / "posterior").rename(folder / "elsewhere")
    path = str(folder / "elsewhere")
    order = partial(from_folder, path=path, weights=WEIGHTS)
    return found._replace(adviser=replace(found.adviser, priority=order))


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a policy that does otherwise now and then."""
    return made(tmp_path_factory.mktemp("listening"), "attained_service_classes", LISTENS)


def scheduler(folder: Path, schedulers: int = 1, **more: Any) -> CheckpointScheduler:
    arguments: dict[str, Any] = {
        "window": 512, "partition": MixedRacks(), "routing": Alternating(), "forwards": 1,
        "forward_s": 0.0, "seed": 0, **more,
    }  # fmt: skip
    return CheckpointScheduler(str(folder), schedulers=schedulers, **arguments)


def environment_of(adviser: Any, schedulers: int, trace: Trace) -> ClusterParallelEnv:
    return environment(
        CLUSTER, trace, trained_config(), adviser, schedulers=schedulers, partition=MixedRacks(),
        routing=Alternating(), rates=speeds(trace), overheads=OVERHEADS,
    )  # fmt: skip


def assert_same(found: Schedule, expected: Schedule) -> None:
    np.testing.assert_array_equal(found.finish, expected.finish)
    np.testing.assert_array_equal(found.preemptions, expected.preemptions)


@pytest.mark.parametrize("schedulers", [pytest.param(1, marks=pytest.mark.proof), 2])
def test_a_policy_that_follows_makes_the_schedule_of_its_adviser(
    learned: Made, tmp_path: Path, schedulers: int
) -> None:
    trace = jobs()
    expected = played(
        environment_of(learned.adviser, schedulers, trace), lambda seen: int(seen["advised"][0])
    )
    assert expected.preemptions.sum() > 0
    shutil.copytree(learned.folder, tmp_path / "moved")
    agent = scheduler(tmp_path / "moved", schedulers, window=16)  # as many as the environment shows
    assert agent.knows == "predictions"
    found = agent.play(CLUSTER, trace, rates=speeds(trace), overheads=OVERHEADS)
    assert_same(found, expected)
    other = MigrationAdviser(partial(AttainedServiceClasses, first=600.0), 1.33, 120.0)
    by_other = played(
        environment_of(other, schedulers, trace), lambda seen: int(seen["advised"][0])
    )
    assert by_other.finish.tolist() != expected.finish.tolist()


@pytest.mark.parametrize(
    ("kind", "knows"),
    [
        ("attained_service_classes", "predictions"),
        ("remaining_time", "durations"),
        ("remaining_service", "durations"),
    ],
)
def test_replays_what_a_policy_of_its_own_mind_plays(
    listening: Made, tmp_path: Path, kind: str, knows: str
) -> None:
    adviser = MigrationAdviser(order_of(kind, tmp_path), 1.33, 120.0)
    folder = tmp_path / "c"
    shutil.copytree(listening.folder, folder)
    spec = read_json(folder / "spec.json")
    told = described(adviser)
    assert told is not None
    spec["adviser"] = told.document
    (folder / "spec.json").write_text(json.dumps(spec))
    trace = jobs(1, 14)
    expected = played(environment_of(adviser, 2, trace), eager(listening.policy))
    advised = played(environment_of(adviser, 2, trace), lambda seen: int(seen["advised"][0]))
    assert expected.finish.tolist() != advised.finish.tolist()
    agent = scheduler(folder, 2)
    assert agent.knows == knows
    assert_same(agent.play(CLUSTER, trace, rates=speeds(trace), overheads=OVERHEADS), expected)


def test_the_spec_describes_the_adviser_and_lists_what_it_reads(learned: Made) -> None:
    spec = load_checkpoint(learned.folder).spec
    assert spec["adviser"] == {
        "kind": "migration",
        "gain": 1.33,
        "least_run_s": 120.0,
        "priority": {"kind": "learned_gittins", "weights": WEIGHTS},
    }
    files = {path.name: sha256_of(path) for path in (learned.folder / "durations").iterdir()}
    assert spec["folders"] == {"durations": files}
    assert "durations.safetensors" in files
    assert "adviser's action" in (learned.folder / "README.md").read_text()
    assert scheduler(learned.folder).greedy is most_probable_action


def without_folder(folder: Path) -> None:
    shutil.rmtree(folder / "durations")


def damaged(folder: Path) -> None:
    with (folder / "durations" / "durations.safetensors").open("ab") as file:
        file.write(b"x")


def unlisted(folder: Path) -> None:
    spec = read_json(folder / "spec.json")
    spec["folders"] = {}
    (folder / "spec.json").write_text(json.dumps(spec))


def elsewhere(folder: Path) -> None:
    spec = read_json(folder / "spec.json")
    spec["folders"] = {"..": {}}
    (folder / "spec.json").write_text(json.dumps(spec))


@pytest.mark.parametrize(
    ("change", "file", "told"),
    [
        (without_folder, "durations/durations.safetensors", "missing"),
        (damaged, "durations/durations.safetensors", "sha256 differs"),
        (unlisted, "spec.json", "does not list durations"),
        (elsewhere, "spec.json", "must list the files of durations"),
    ],
)
def test_durations_that_are_missing_or_damaged(
    learned: Made, tmp_path: Path, change: Callable[[Path], None], file: str, told: str
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(learned.folder, folder)
    change(folder)
    with refusal(told) as caught:
        scheduler(folder)
    assert caught.value.file == folder / file


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ((), None, "adviser"),
        (("kind",), "os.system", "adviser.kind"),
        (("gain",), 0.5, "adviser.gain"),
        (("gain",), "much", "adviser.gain"),
        (("least_run_s",), float("inf"), "adviser.least_run_s"),
        (("priority",), [], "adviser.priority"),
        (("priority", "kind"), "os.system", "adviser.priority.kind"),
        (("priority", "kind"), "attained_service_classes", "adviser.priority.first"),
        (("priority", "weights"), 1.0, "adviser.priority.weights"),
        (("priority", "weights", "gpus"), True, "adviser.priority.weights.gpus"),
        (("priority", "weights", "luck"), 1.0, "adviser.priority.weights.luck"),
        (("priority",), {"kind": "attained_service_classes", "first": 0}, "adviser.priority.first"),
    ],
)
def test_an_adviser_that_is_not_known(
    learned: Made, tmp_path: Path, path: tuple[str, ...], value: Any, field: str
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(learned.folder, folder)
    changed(folder, ("adviser", *path), value)
    with refusal() as caught:
        scheduler(folder)
    assert (caught.value.file, caught.value.field) == (folder / "spec.json", field)


def planned(folder: Path, kind: str) -> tuple[Path, Migrating]:
    """The checkpoint of a plan, and the plan."""
    plan = Migrating(order_of(kind, folder)(), 1.33, 120.0, 600.0)
    return export_plan(described(plan), folder / "checkpoint", "# A plan", {"seed": 3}), plan


@pytest.mark.parametrize(
    ("kind", "knows"), [("learned_gittins", "predictions"), ("remaining_service", "durations")]
)
def test_a_plan_alone_decides_as_it_does_anywhere(tmp_path: Path, kind: str, knows: str) -> None:
    folder, plan = planned(tmp_path, kind)
    trace = jobs()
    settings: dict[str, Any] = {"rates": speeds(trace), "overheads": OVERHEADS}
    expected = replay(plan, CLUSTER, trace, **settings)
    assert expected.preemptions.sum() > 0
    shutil.move(folder, tmp_path / "moved")
    shutil.rmtree(tmp_path / "posterior", ignore_errors=True)
    agent = scheduler(tmp_path / "moved")
    assert agent.knows == knows
    assert_same(agent.play(CLUSTER, trace, **settings), expected)
    four = Cluster.uniform(4, 4, gpu_types=(*TYPES, "A100"))  # any types
    assert agent.play(four, trace, rates=NoInterference(), overheads=OVERHEADS).finished.all()


def test_several_schedulers_do_what_the_plan_advises(tmp_path: Path) -> None:
    folder, _ = planned(tmp_path, "attained_service_classes")
    trace = jobs()
    adviser = MigrationAdviser(partial(AttainedServiceClasses, first=600.0), 1.33, 120.0)
    expected = played(environment_of(adviser, 2, trace), lambda seen: int(seen["advised"][0]))
    agent = scheduler(folder, 2, window=16)
    found = agent.play(CLUSTER, trace, rates=speeds(trace), overheads=OVERHEADS)
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ((), None, "plan"),
        (("kind",), "os.system", "plan.kind"),
        (("wake_s",), 0.0, "plan.wake_s"),
        (("wake_s",), "soon", "plan.wake_s"),
        (("least_run_s",), 0.0, "plan.least_run_s"),
        (("priority", "weights"), 1.0, "plan.priority.weights"),
    ],
)
def test_a_plan_that_is_not_known(
    tmp_path: Path, path: tuple[str, ...], value: Any, field: str
) -> None:
    folder, _ = planned(tmp_path, "learned_gittins")
    changed(folder, ("plan", *path), value)
    with refusal() as caught:
        scheduler(folder)
    assert (caught.value.file, caught.value.field) == (folder / "spec.json", field)


def changed(folder: Path, path: tuple[str, ...], value: Any) -> None:
    """Write another value into a spec."""
    spec = read_json(folder / "spec.json")
    node = spec
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    (folder / "spec.json").write_text(json.dumps(spec))


class Mine:
    """An order that nobody else has."""

    knows = "nothing"


def test_what_cannot_go_into_a_checkpoint_is_refused_before_training() -> None:
    assert described(None) is None
    for foreign in (MigrationAdviser(Mine, 1.33, 600.0), Mine()):  # type: ignore[arg-type]
        with refusal("Mine cannot go into a checkpoint"):
            described(foreign)  # type: ignore[arg-type]
    with refusal("no such file"):
        described(MigrationAdviser(partial(from_folder, "absent", WEIGHTS), 1.33, 600.0))


def test_an_adviser_needs_a_policy_that_takes_its_advice(tmp_path: Path) -> None:
    env = environment(CLUSTER, jobs(), trained_config(), schedulers=2, partition=MixedRacks())
    adviser = described(MigrationAdviser(RemainingTime, 1.33, 600.0))
    with refusal("shown nobody's advice"):
        exported(tmp_path / "c", env, trained_config(), MODEL, adviser)
    assert not (tmp_path / "c").exists()


def test_trimming_renumbers_the_advice(learned: Made) -> None:
    env = environment_of(learned.adviser, 2, jobs(2))
    seen, _ = env.reset(seed=0)
    trimmed = 0
    while env.agents:
        for graph in seen.values():
            short = Trimmed(graph, graph["action_mask"], env.episode.action_table)
            assert short.actions[short.observation["advised"]] == graph["advised"]
            trimmed += short.observation["advised"] != graph["advised"]
        seen, *_ = env.step({agent: int(seen[agent]["advised"][0]) for agent in env.agents})
    assert trimmed > 10
