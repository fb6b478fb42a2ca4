"""Every fault of a command line is one line that names the key and the alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from envs.errors import InputError
from experiments.cluster.evaluate_cluster import CompareConfig, EvaluateClusterConfig
from experiments.cluster.windows import SplitWindowsConfig
from experiments.config.composing import check_command_line
from experiments.config.registry import GROUPS, dotted
from experiments.config.targets import build, check_targets
from experiments.step.evaluate_step import EvaluateConfig
from tests.paths import CONF
from tests.refusal import refusal

SINGLE = "agent=agents.placement.baselines.SingleDevice"


def check(*arguments: str) -> EvaluateConfig:
    return check_command_line([SINGLE, *arguments], "evaluate", EvaluateConfig).config


def test_defaults_compose() -> None:
    config = check()
    assert config.graph["name"] == "bert_large"
    assert config.topology["name"] == "mixed_v100_p100"
    assert config.communication["name"] == "single_port"


def test_a_name_of_the_zoo_takes_overrides() -> None:
    config = check("graph=llama_7b", "graph.batch=1", "graph.sequence=64", "graph.micro_batches=1")
    assert (config.graph["batch"], config.graph["sequence"]) == (1, 64)


@pytest.mark.parametrize("name", ["graph file.npz", "it's=odd, (really).json"])
def test_a_graph_may_be_a_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("{}")
    config = check(f"graph={path}", "topology=from_graph")
    assert config.graph["path"] == str(path)


def test_a_relative_path_becomes_absolute(work: Path) -> None:
    (work / "graph.json").write_text("{}")
    assert check("graph=graph.json").graph["path"] == str(work / "graph.json")


@pytest.mark.parametrize(
    ("app", "schema", "choice"),
    [
        ("evaluate", EvaluateConfig, "communication=fair"),
        ("split_windows", SplitWindowsConfig, "split=synthetic"),
        ("evaluate_cluster", EvaluateClusterConfig, "interference=analytic"),
    ],
)
def test_any_group_takes_a_file_in_its_form(
    app: str, schema: type, choice: str, tmp_path: Path
) -> None:
    group, option = choice.split("=")
    file, row = CONF / group / f"{option}.yaml", GROUPS.get(group, {}).get(option)
    text = f"_target_: {dotted(row)}\nname: {option}\n" if row else file.read_text()
    (tmp_path / "my own.yaml").write_text(text)
    named = check_command_line([choice], app, schema).config
    given = check_command_line([f"{group}={tmp_path / 'my own.yaml'}"], app, schema)
    assert getattr(given.config, group) == getattr(named, group)
    assert given.choices[group] == "my own.yaml"
    (tmp_path / "my own.yaml").write_text("defaults: [../../other]\n")
    with refusal("defaults"):
        check_command_line([f"{group}={tmp_path / 'my own.yaml'}"], app, schema)


def test_an_agent_of_any_package_takes_arguments() -> None:
    target = "agents.placement.baselines.RandomPlacement"
    config = check_command_line(
        [f"agent={target}", "agent.groups=8", "agent.samples=3", "agent.seed=1"],
        "evaluate",
        EvaluateConfig,
    ).config
    assert config.agent == {"_target_": target, "groups": 8, "samples": 3, "seed": 1}


def test_a_network_that_is_a_text_is_refused_when_it_is_built() -> None:
    with refusal():
        build(check("topology.network=3 4").topology)


def test_only_what_fits_is_named() -> None:
    with refusal("did you mean srtf") as caught:
        check_command_line(["+agent@agents.mine=srft"], "compare", CompareConfig)
    assert "fifo_backfill" in str(caught.value)
    assert "alpa" not in str(caught.value)


@dataclass(frozen=True)
class Sized:
    """A target to check."""

    size: int
    scale: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError("negative size", field="size")


def target(**arguments: object) -> dict[str, object]:
    return {"_target_": f"{__name__}.Sized", **arguments}


def test_an_integer_is_a_number_but_a_boolean_is_no_integer() -> None:
    check_targets(target(size=1, scale=2), "thing")
    with refusal(r"thing\.size"):
        check_targets(target(size=True), "thing")


def test_nested_targets_are_checked_with_their_path() -> None:
    with refusal(r"thing\.parts\[1\]\.colour.*size"):
        check_targets({"parts": [target(size=1), target(size=1, colour=2)]}, "thing")


def test_a_missing_argument_is_named() -> None:
    with refusal(r"thing\.size.*missing"):
        check_targets(target(), "thing")
    check_targets(target(_partial_=True), "thing")


def test_what_a_constructor_refuses_comes_out_as_it_was_said() -> None:
    with refusal("negative size") as caught:
        build(target(size=-1))
    assert caught.value.field == "size"
