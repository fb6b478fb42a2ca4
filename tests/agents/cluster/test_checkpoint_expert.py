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
    assert_plays,
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

from agents.cluster.checkpoint import Trimmed
from agents.cluster.checkpoint_expert import described
from agents.cluster.migrating.expert import MigrationExpert
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

FOLLOWS = replace(MODEL, initial_scale=0.1, initial_expert_weight=8.0)
LISTENS = replace(MODEL, initial_scale=1.0, initial_expert_weight=1.0)
WEIGHTS = {**dict.fromkeys(NAMES, 0.0), "runs": 0.2, "gpus": -0.85, "ahead_together": -0.5}
TRACE = jobs(0, 40, 3_000, (60, 2_400))
DURATIONS = "durations/durations.safetensors"
CLASSES = partial(AttainedServiceClasses, first=600.0)
ORDERS: dict[str, Callable[[], Any]] = {
    "attained_service_classes": CLASSES,
    "remaining_time": RemainingTime,
    "remaining_service": RemainingService,
}


def learned_order(folder: Path) -> Callable[[], Any]:
    """By a fresh posterior, unless it is there."""
    if not folder.exists():
        torch.manual_seed(3)
        config = instantiate(SHIPPED_CONFIGS.node("model/durations"), hidden=8, readout=8)
        save_durations(DurationPosterior(config), folder, {"seed": 3})
    return partial(from_folder, path=str(folder), weights=WEIGHTS)


def expert_by(order: Callable[[], Any]) -> MigrationExpert:
    return MigrationExpert(order, 1.33, 120.0)


class Made(NamedTuple):
    folder: Path
    policy: HierarchicalPolicy
    expert: MigrationExpert


def made(folder: Path, order: Callable[[], Any], model: Any) -> Made:
    target, expert = folder / "checkpoint", expert_by(order)
    env = shared(TRACE, 2, expert)
    return Made(target, exported(target, env, trained_config(), model, described(expert)), expert)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a learned order; the folder that it was exported from is no longer there."""
    folder = tmp_path_factory.mktemp("learned")
    found = made(folder, learned_order(folder / "posterior"), FOLLOWS)
    elsewhere = (folder / "posterior").rename(folder / "elsewhere")
    return found._replace(expert=expert_by(learned_order(elsewhere)))


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a policy that does otherwise now and then."""
    return made(tmp_path_factory.mktemp("listening"), CLASSES, LISTENS)


def suggested(expert: Any, schedulers: int, trace: Trace = TRACE) -> Schedule:
    """Everybody does what the expert policy would."""
    return played(shared(trace, schedulers, expert), lambda seen: int(seen["advised"][0]))


@pytest.mark.parametrize("schedulers", [1, 2])
def test_a_policy_that_follows_makes_the_schedule_of_its_expert(
    learned: Made, tmp_path: Path, schedulers: int
) -> None:
    expected = suggested(learned.expert, schedulers)
    assert expected.preemptions.sum() > 0
    shutil.copytree(learned.folder, tmp_path / "moved")
    agent = scheduler(tmp_path / "moved", schedulers, window=16)  # as many as the environment shows
    assert agent.knows == "predictions"
    assert_plays(agent, TRACE, expected)
    by_other = suggested(expert_by(CLASSES), schedulers)
    assert by_other.finish.tolist() != expected.finish.tolist()


@pytest.mark.parametrize("kind", ORDERS)
def test_replays_what_a_policy_of_its_own_mind_plays(
    listening: Made, tmp_path: Path, kind: str
) -> None:
    expert = expert_by(ORDERS[kind])
    spec = described(expert)
    assert spec is not None
    folder = edited(listening.folder, tmp_path / "c", SPEC_FILE, ["adviser"], spec.document)
    trace = jobs(1, 14, 3_000, (60, 2_400))
    expected = played(shared(trace, 2, expert), eager(listening.policy))
    assert expected.finish.tolist() != suggested(expert, 2, trace).finish.tolist()
    agent = scheduler(folder, 2)
    assert agent.knows == ("durations" if "remaining" in kind else "predictions")
    assert_plays(agent, trace, expected)


def test_the_spec_describes_the_expert_and_lists_what_it_reads(learned: Made) -> None:
    spec = load_checkpoint(learned.folder).spec
    assert spec["adviser"] == {
        "kind": "migration",
        "gain": 1.33,
        "least_run_s": 120.0,
        "priority": {"kind": "learned_gittins", "weights": WEIGHTS},
    }
    files = {path.name: sha256_of(path) for path in (learned.folder / "durations").iterdir()}
    assert spec["folders"] == {"durations": files}
    assert Path(DURATIONS).name in files
    assert "expert's action" in (learned.folder / "README.md").read_text()


def listing(folders: Any) -> Callable[[Path], object]:
    return lambda folder: edited(folder, folder, SPEC_FILE, ["folders"], folders)


@pytest.mark.parametrize(
    ("change", "file", "words"),
    [
        (lambda folder: shutil.rmtree(folder / "durations"), DURATIONS, "missing"),
        (lambda folder: (folder / DURATIONS).open("ab").write(b"x"), DURATIONS, "sha256 differs"),
        (listing({}), SPEC_FILE, "does not list durations"),
        (listing({"..": {}}), SPEC_FILE, "must list the files of durations"),
    ],
)
def test_durations_that_are_missing_or_damaged(
    learned: Made, tmp_path: Path, change: Callable[[Path], object], file: str, words: str
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(learned.folder, folder)
    change(folder)
    with refusal(words) as caught:
        scheduler(folder)
    assert caught.value.file == folder / file


def planned(folder: Path, order: Callable[[], Any]) -> tuple[Path, Migrating]:
    """The checkpoint of a plan, and the plan."""
    plan = Migrating(order(), 1.33, 120.0, 600.0)
    return export_plan(described(plan), folder / "checkpoint", "# A plan", {"seed": 3}), plan


WRONG: list[tuple[str, Any]] = [
    ("adviser", None),
    ("adviser.kind", "os.system"),
    ("adviser.gain", 0.5),
    ("adviser.gain", "much"),
    ("adviser.least_run_s", float("inf")),
    ("adviser.priority", []),
    ("adviser.priority.kind", "os.system"),
    ("adviser.priority.weights", 1.0),
    ("adviser.priority.weights.gpus", True),
    ("adviser.priority.weights.luck", 1.0),
    ("plan", None),
    ("plan.kind", "os.system"),
    ("plan.wake_s", 0.0),
    ("plan.wake_s", "soon"),
    ("plan.least_run_s", 0.0),
    ("plan.priority.weights", 1.0),
]
NO_FIRST: list[tuple[str, Any]] = [  # queue
    ("adviser.priority.kind", "attained_service_classes"),
    ("adviser.priority", {"kind": CLASSES.func.name, "first": 0}),
]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        *((path, value, path) for path, value in WRONG),
        *((path, value, "adviser.priority.first") for path, value in NO_FIRST),
    ],
)
def test_a_spec_that_is_not_known(
    learned: Made, tmp_path: Path, path: str, value: Any, field: str
) -> None:
    source = learned.folder
    if path.startswith("plan"):
        source, _ = planned(tmp_path, learned_order(tmp_path / "posterior"))
    folder = edited(source, tmp_path / "c", SPEC_FILE, path.split("."), value)
    with refusal() as caught:
        scheduler(folder)
    assert (caught.value.file, caught.value.field) == (folder / SPEC_FILE, field)


@pytest.mark.parametrize("kind", ["learned_gittins", "remaining_service"])
def test_a_plan_alone_decides_as_it_does_anywhere(tmp_path: Path, kind: str) -> None:
    order = ORDERS[kind] if kind in ORDERS else learned_order(tmp_path / "posterior")
    folder, plan = planned(tmp_path, order)
    expected = replay(plan, CLUSTER, TRACE, **settings(TRACE))
    assert expected.preemptions.sum() > 0
    shutil.move(folder, tmp_path / "moved")
    shutil.rmtree(tmp_path / "posterior", ignore_errors=True)
    agent = scheduler(tmp_path / "moved")
    assert agent.knows == ("durations" if kind in ORDERS else "predictions")
    assert_plays(agent, TRACE, expected)
    four = Cluster.uniform(4, 4, gpu_types=(*CLUSTER.gpu_types, "A100"))  # any types
    assert agent.play(four, TRACE, rates=NoInterference(), overheads=OVERHEADS).finished.all()


def test_several_schedulers_do_what_the_plan_suggests(tmp_path: Path) -> None:
    agent = scheduler(planned(tmp_path, CLASSES)[0], 2, window=16)
    assert_plays(agent, TRACE, suggested(expert_by(CLASSES), 2))


class Mine:
    """An order that nobody else has."""

    knows = "nothing"


def test_what_cannot_go_into_a_checkpoint_is_refused_before_training() -> None:
    assert described(None) is None
    foreign: list[Any] = [expert_by(Mine), Mine()]
    for expert in foreign:
        with refusal("Mine cannot go into a checkpoint"):
            described(expert)
    with refusal("no such file"):
        described(expert_by(partial(from_folder, "absent", WEIGHTS)))


def test_an_expert_needs_a_policy_that_sees_its_action(tmp_path: Path) -> None:
    expert = described(expert_by(RemainingTime))
    with refusal("not shown an expert's action"):
        exported(tmp_path / "c", shared(TRACE, 2), trained_config(), MODEL, expert)
    assert not (tmp_path / "c").exists()


def test_trimming_renumbers_the_action(learned: Made) -> None:
    env = shared(jobs(2, 40, 3_000, (60, 2_400)), 2, learned.expert)
    seen, _ = env.reset(seed=0)
    trimmed = 0
    while env.agents:
        for graph in seen.values():
            short = Trimmed(graph, graph["action_mask"], env.episode.action_table)
            assert short.actions[short.observation["advised"]] == graph["advised"]
            trimmed += short.observation["advised"] != graph["advised"]
        seen, *_ = env.step({agent: int(seen[agent]["advised"][0]) for agent in env.agents})
    assert trimmed > 10
