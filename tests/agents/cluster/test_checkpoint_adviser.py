"""An exported policy that is shown an expert's action brings the expert along."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from exported_schedulers import (
    CLUSTER,
    MODEL,
    OVERHEADS,
    assert_same,
    eager,
    edited,
    exported,
    jobs,
    played,
    scheduler,
    settings,
    shared,
    trained_config,
)
from hydra.utils import instantiate

from agents.cluster.checkpoint import Trimmed, most_probable_action
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
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace
from experiments.config.config_source import SHIPPED_CONFIGS
from models.artifacts import sha256_of
from models.cluster.hierarchical import HierarchicalPolicy
from models.durations.network import DurationPosterior, save_durations
from models.export.checkpoint import SPEC_FILE, export_plan, load_checkpoint
from tests.refusal import refusal

pytestmark = [pytest.mark.slow, pytest.mark.proof]

FOLLOWS = replace(MODEL, initial_scale=0.1, initial_advice_weight=8.0)
LISTENS = replace(MODEL, initial_scale=1.0, initial_advice_weight=1.0)
WEIGHTS = {**dict.fromkeys(NAMES, 0.0), "runs": 0.2, "gpus": -0.85, "ahead_together": -0.5}


TRACE = jobs(0, 40, 3_000, (60, 2_400))
CLASSES = partial(AttainedServiceClasses, first=600.0)


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
        return CLASSES
    return {"remaining_time": RemainingTime, "remaining_service": RemainingService}[kind]


class Made(NamedTuple):
    folder: Path
    policy: HierarchicalPolicy
    adviser: MigrationAdviser


def made(folder: Path, kind: str, model: Any = FOLLOWS) -> Made:
    adviser = MigrationAdviser(order_of(kind, folder), 1.33, 120.0)
    target = folder / "checkpoint"
    env = shared(TRACE, 2, adviser)
    return Made(target, exported(target, env, trained_config(), model, described(adviser)), adviser)


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


def suggested(adviser: Any, schedulers: int, trace: Trace = TRACE) -> Schedule:
    """Everybody does what the expert policy would."""
    return played(shared(trace, schedulers, adviser), lambda seen: int(seen["advised"][0]))


@pytest.mark.parametrize("schedulers", [pytest.param(1, marks=pytest.mark.proof), 2])
def test_a_policy_that_follows_makes_the_schedule_of_its_adviser(
    learned: Made, tmp_path: Path, schedulers: int
) -> None:
    expected = suggested(learned.adviser, schedulers)
    assert expected.preemptions.sum() > 0
    shutil.copytree(learned.folder, tmp_path / "moved")
    agent = scheduler(tmp_path / "moved", schedulers, window=16)  # as many as the environment shows
    assert agent.knows == "predictions"
    assert_same(agent.play(CLUSTER, TRACE, **settings(TRACE)), expected)
    by_other = suggested(MigrationAdviser(CLASSES, 1.33, 120.0), schedulers)
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
    spec = described(adviser)
    assert spec is not None
    folder = edited(listening.folder, tmp_path / "c", SPEC_FILE, ["adviser"], spec.document)
    trace = jobs(1, 14, 3_000, (60, 2_400))
    expected = played(shared(trace, 2, adviser), eager(listening.policy))
    assert expected.finish.tolist() != suggested(adviser, 2, trace).finish.tolist()
    agent = scheduler(folder, 2)
    assert agent.knows == knows
    assert_same(agent.play(CLUSTER, trace, **settings(trace)), expected)


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


def listing(folders: Any) -> Callable[[Path], object]:
    return lambda folder: edited(folder, folder, SPEC_FILE, ["folders"], folders)


@pytest.mark.parametrize(
    ("change", "file", "told"),
    [
        (without_folder, "durations/durations.safetensors", "missing"),
        (damaged, "durations/durations.safetensors", "sha256 differs"),
        (listing({}), SPEC_FILE, "does not list durations"),
        (listing({"..": {}}), SPEC_FILE, "must list the files of durations"),
    ],
)
def test_durations_that_are_missing_or_damaged(
    learned: Made, tmp_path: Path, change: Callable[[Path], object], file: str, told: str
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(learned.folder, folder)
    change(folder)
    with refusal(told) as caught:
        scheduler(folder)
    assert caught.value.file == folder / file


def planned(folder: Path, kind: str) -> tuple[Path, Migrating]:
    """The checkpoint of a plan, and the plan."""
    plan = Migrating(order_of(kind, folder)(), 1.33, 120.0, 600.0)
    return export_plan(described(plan), folder / "checkpoint", "# A plan", {"seed": 3}), plan


WRONG: list[tuple[str, Any, str]] = [
    ("adviser", None, "adviser"),
    ("adviser.kind", "os.system", "adviser.kind"),
    ("adviser.gain", 0.5, "adviser.gain"),
    ("adviser.gain", "much", "adviser.gain"),
    ("adviser.least_run_s", float("inf"), "adviser.least_run_s"),
    ("adviser.priority", [], "adviser.priority"),
    ("adviser.priority.kind", "os.system", "adviser.priority.kind"),
    ("adviser.priority.kind", "attained_service_classes", "adviser.priority.first"),
    ("adviser.priority.weights", 1.0, "adviser.priority.weights"),
    ("adviser.priority.weights.gpus", True, "adviser.priority.weights.gpus"),
    ("adviser.priority.weights.luck", 1.0, "adviser.priority.weights.luck"),
    ("adviser.priority", {"kind": CLASSES.func.name, "first": 0}, "adviser.priority.first"),
    ("plan", None, "plan"),
    ("plan.kind", "os.system", "plan.kind"),
    ("plan.wake_s", 0.0, "plan.wake_s"),
    ("plan.wake_s", "soon", "plan.wake_s"),
    ("plan.least_run_s", 0.0, "plan.least_run_s"),
    ("plan.priority.weights", 1.0, "plan.priority.weights"),
]


@pytest.mark.parametrize(("path", "value", "field"), WRONG)
def test_a_spec_that_is_not_known(
    learned: Made, tmp_path: Path, path: str, value: Any, field: str
) -> None:
    source = planned(tmp_path, "learned_gittins")[0] if path[0] == "p" else learned.folder
    folder = edited(source, tmp_path / "c", SPEC_FILE, path.split("."), value)
    with refusal() as caught:
        scheduler(folder)
    assert (caught.value.file, caught.value.field) == (folder / SPEC_FILE, field)


@pytest.mark.parametrize(
    ("kind", "knows"), [("learned_gittins", "predictions"), ("remaining_service", "durations")]
)
def test_a_plan_alone_decides_as_it_does_anywhere(tmp_path: Path, kind: str, knows: str) -> None:
    folder, plan = planned(tmp_path, kind)
    expected = replay(plan, CLUSTER, TRACE, **settings(TRACE))
    assert expected.preemptions.sum() > 0
    shutil.move(folder, tmp_path / "moved")
    shutil.rmtree(tmp_path / "posterior", ignore_errors=True)
    agent = scheduler(tmp_path / "moved")
    assert agent.knows == knows
    assert_same(agent.play(CLUSTER, TRACE, **settings(TRACE)), expected)
    four = Cluster.uniform(4, 4, gpu_types=(*CLUSTER.gpu_types, "A100"))  # any types
    assert agent.play(four, TRACE, rates=NoInterference(), overheads=OVERHEADS).finished.all()


def test_several_schedulers_do_what_the_plan_suggests(tmp_path: Path) -> None:
    agent = scheduler(planned(tmp_path, "attained_service_classes")[0], 2, window=16)
    expected = suggested(MigrationAdviser(CLASSES, 1.33, 120.0), 2)
    assert_same(agent.play(CLUSTER, TRACE, **settings(TRACE)), expected)


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
    env = shared(TRACE, 2)
    adviser = described(MigrationAdviser(RemainingTime, 1.33, 600.0))
    with refusal("shown nobody's advice"):
        exported(tmp_path / "c", env, trained_config(), MODEL, adviser)
    assert not (tmp_path / "c").exists()


def test_trimming_renumbers_the_advice(learned: Made) -> None:
    env = shared(jobs(2, 40, 3_000, (60, 2_400)), 2, learned.adviser)
    seen, _ = env.reset(seed=0)
    trimmed = 0
    while env.agents:
        for graph in seen.values():
            short = Trimmed(graph, graph["action_mask"], env.episode.action_table)
            assert short.actions[short.observation["advised"]] == graph["advised"]
            trimmed += short.observation["advised"] != graph["advised"]
        seen, *_ = env.step({agent: int(seen[agent]["advised"][0]) for agent in env.agents})
    assert trimmed > 10
