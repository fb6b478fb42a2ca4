"""Recipes of `conf/experiment`: each composes as its own second line says, and trains."""

from __future__ import annotations

import shlex
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import yaml
from commands import ran
from refusals import Refuses
from small_split import one_of_several, write_posterior

from experiments.command_line import job_of
from experiments.config.command_words import with_recipes
from experiments.config.composing import check_command_line
from experiments.config.verbs import JOBS
from experiments.learning import train_cluster
from experiments.learning.one_problem import TrainConfig
from experiments.learning.train_cluster import TrainClusterConfig
from experiments.train import main
from tests.paths import CONF

RECIPES = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
DATA = ["splits.itp.data=data", "splits.philly.data=data"]  # where there is no MESHWRIGHT_DATA
TINY = [
    "clusters=[]", "env.windows.jobs_per_gpu=[0.5,0.5]", "env.windows.stages.first_gpus=16",
    "env.windows.stages.gpus=16", "env.windows.max_share=0.5", "env.observation.window=6",
    "env.observation.running=16", "env.observation.shares=32", "env.observation.history=1",
    "model.hidden=8", "model.rounds=1", "model.heads=2", "agent.num_envs=2", "agent.steps=16",
    "training.evaluation_episodes=1", "training.evaluate_every=1", "training.max_steps=64",
]  # fmt: skip


def words_of(name: str) -> list[str]:
    """The arguments in the second line of a recipe; a folder takes the place of <>."""
    line = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()[1]
    start = "# python -m experiments.train "
    assert line.startswith(start)
    filled = line.removeprefix(start).replace("<run folder of task=durations>", "posterior")
    return [*shlex.split(filled), *([] if name == "cluster_philly" else DATA[:1]),
            *([] if name == "cluster_itp" else DATA[1:])]  # fmt: skip


@cache
def composed(name: str, *more: str) -> TrainClusterConfig:
    """For reading alone."""
    words = [*words_of(name), *more]
    return check_command_line(words, "train_cluster", TrainClusterConfig).config


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_composes_and_is_about_clusters(name: str) -> None:
    words = words_of(name)
    assert words[0] == f"+experiment={name}"
    assert job_of("train", words) is JOBS["train_cluster"]
    config = composed(name)
    assert config.overheads["restart_s"] == 60.0
    assert config.interference["_target_"] == "envs.cluster.interference.analytic.SharedBottleneck"
    stages = config.env["windows"]["stages"]
    assert (stages["load"], stages["gpus"]) == ([0.7, 1.3], 512)
    sizes = {node["nodes"] * node["gpus_per_node"] for node in config.clusters}
    assert (min(sizes), max(sizes)) == (16, 512)
    for split in config.splits.values():
        assert split.overheads["restart_s"] == config.overheads["restart_s"]
        assert split.interference == config.interference
    assert (config.expert or {}).get("_target_") == (
        None
        if name in ("ablation_no_expert", "cluster_nonpreemptive_known")
        else "agents.cluster.migrating.expert.MigrationExpert"
    )


CHANGES: dict[str, dict[str, object]] = {  # of cluster_unknown, by recipe: key, what it becomes
    "cluster_nonpreemptive": {"env.actions.preempt_after_s": None},
}  # fmt: skip


def flat(node: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {k: v for key, item in node.items() for k, v in flat(item, f"{prefix}{key}.").items()}


@pytest.mark.parametrize("name", CHANGES)
def test_a_recipe_differs_from_the_whole_in_what_it_says(name: str) -> None:
    whole, changed = (
        {
            group: value
            for part in ("env", "agent", "model", "expert", "overheads", "interference")
            for group, value in flat(getattr(composed(recipe), part), f"{part}.").items()
        }
        for recipe in ("cluster_unknown", name)
    )
    assert whole.keys() == changed.keys()
    assert {key: changed[key] for key in whole if whole[key] != changed[key]} == CHANGES[name]


def test_information_traces_and_teachers() -> None:
    for name in RECIPES:
        known = composed(name).env["observation"]["known_durations"]
        assert known == (name in ("cluster_known", "cluster_nonpreemptive_known"))
    assert list(composed("cluster_unknown").splits) == ["itp", "philly"]
    assert list(composed("cluster_itp").splits) == ["itp"]
    assert list(composed("cluster_philly").splits) == ["philly"]
    expert = composed("cluster_known").expert
    assert expert["priority"]["_target_"].endswith("RemainingService")
    alone = composed("ablation_no_expert")
    assert alone.env["observation"]["expert"] is None
    assert alone.teacher == alone.reference == composed("cluster_unknown").expert


def test_the_command_line_comes_after_the_recipe() -> None:
    assert composed("cluster_known", "overheads.restart_s=5").overheads["restart_s"] == 5.0
    words = ["+experiment=cluster_known", "env=placement"]
    assert job_of("train", words) is JOBS["train_one_problem"]
    assert with_recipes(["+experiment=nowhere", "seed=1"]) == ["+experiment=nowhere", "seed=1"]


def test_a_run_that_is_resumed_is_of_the_app_whose_keys_its_config_has(tmp_path: Path) -> None:
    resumed = ["env=placement", f"resume='{tmp_path}'"]
    for schema, job in ((TrainClusterConfig, "train_cluster"), (TrainConfig, "train_one_problem")):
        keys = {field.name: None for field in fields(schema)}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(keys))
        assert job_of("train", resumed) is JOBS[job]


@pytest.mark.parametrize(("words", "job"), [
    ("task=cluster env=cluster_mixed", "train_cluster"), ("env=cluster_mixed", "train_cluster"),
    ("task=durations", "train_durations"), ("model=durations", "train_durations"),
    ("task=problems", "train_problems"), ("env=labelled_problems", "train_problems"),
    ("task=one_problem graph=gpt2", "train_one_problem"), ("graph=gpt2", "train_one_problem"),
    ("task=environment", "train"), ("task=guess.task", "train"),
    ("env=problems task=cluster", "train_cluster"),
])  # fmt: skip
def test_a_task_is_named_or_told_by_what_only_it_takes(words: str, job: str) -> None:
    assert job_of("train", words.split()) is JOBS[job]


def test_an_unknown_recipe_is_told(refuses: Refuses) -> None:
    refuses(main, ["+experiment=cluster_unknwon", "env=cluster_mixed"], "cluster_unknown")


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("cluster_itp", ["expert.priority.path=posterior"]),
        pytest.param(
            "cluster_nonpreemptive",
            ["expert.priority.path=posterior", "~splits.philly"],
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "cluster_nonpreemptive_known",
            ["~splits.philly", "training.cloning.iterations=1"],
            marks=pytest.mark.proof,
        ),
    ],
)
def test_a_small_one_trains(
    work: Path, recipe: str, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[Path] = []  # what an export holds is tested in test_cluster_export.py
    monkeypatch.setattr(
        train_cluster, "export_trained", lambda policy, folder, *_, **__: exported.append(folder)
    )
    write_posterior(work)
    found = ran(main, f"+experiment={recipe}", *TINY, *one_of_several(work), *more)
    assert (found["iterations"], found["steps"]) == (2, 64)
    assert found["untrained_score"] > 0
    assert len(exported) == 1
