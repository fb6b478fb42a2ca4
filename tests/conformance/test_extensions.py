"""The examples of `docs/extend.md`: their own tests, and what registered classes promise."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from hypothesis import given

from envs.step.problem import StepProblem
from examples.extend.planner.round_robin import RoundRobin
from examples.extend.queue_policy.widest_first import WidestFirst
from experiments.config.composing import check_command_line
from experiments.studies.running import StudyConfig
from tests.agents.cluster import test_further_policies as policies
from tests.agents.cluster.further_policies import POLICIES
from tests.agents.cluster.small_clusters import LowestNodes
from tests.agents.placement.random_problems import problems
from tests.asking import planned
from tests.conformance import test_environments as environments
from tests.conformance import test_planners as planners
from tests.paths import ROOT
from tests.strength import examples

EXTEND = ROOT / "examples/extend"
BLOCK = re.compile(r"^```(python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [(kind, text) for kind, text in BLOCK.findall((ROOT / "docs/extend.md").read_text())]
LEARNED = ("model", "task")  # whose examples import torch and Ray
OWN = [
    pytest.param(path, marks=[pytest.mark.slow] if path.parent.name in LEARNED else [])
    for path in sorted(EXTEND.rglob("test_*.py"))
]
OF_ENVIRONMENTS = {
    name: test
    for name, test in vars(environments).items()
    if name.startswith("test_") and [*inspect.signature(test).parameters] == ["env"]
}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.parent.name)
def test_an_example_passes_its_own_tests(path: Path) -> None:
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@examples(40)
@given(problem=problems())
def test_the_planner_keeps_the_promises_of_planners(problem: StepProblem) -> None:
    planners.check(problem, planned(RoundRobin(groups=6), problem, planners.BUDGET))


@pytest.mark.parametrize(
    "promise",
    [
        policies.test_the_same_again,
        lambda name: policies.test_the_future_is_not_read(name, 0),
        policies.test_failing_nodes_and_restarts,
        policies.test_jobs_without_gpus_and_fractional_jobs,
    ],
)
def test_the_policy_keeps_the_promises_of_policies(
    promise: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, WidestFirst.name, lambda: WidestFirst(LowestNodes()))
    promise(WidestFirst.name)


@pytest.mark.parametrize("promise", OF_ENVIRONMENTS.values(), ids=OF_ENVIRONMENTS)
@pytest.mark.parametrize("name", ["Recompute", "RecomputeToy"])
def test_the_environment_keeps_the_promises_of_environments(
    name: str, promise: Callable[[Any], None]
) -> None:
    env = gym.make(f"examples/{name}-v0", render_mode="rgb_array").unwrapped
    env.action_space.seed(0)
    promise(env)


def test_the_study_composes() -> None:
    file = EXTEND / "study/planners_on_a_toy.yaml"
    study = check_command_line([f"study={file}"], "study", StudyConfig).config.study
    assert len(study.cells(0)) == 2 * 3 * 1 * 2


def statements(source: str) -> set[str]:
    """Its top-level statements, without docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            del node.body[0]
    return {ast.unparse(node) for node in tree.body}


@pytest.mark.parametrize(("kind", "text"), SHOWN)
def test_code_on_the_page_is_that_of_an_example(kind: str, text: str) -> None:
    files = [path.read_text() for path in EXTEND.rglob("*.py" if kind == "python" else "*.yaml")]
    if kind == "python":
        assert any(statements(text) <= statements(file) for file in files)
    else:
        assert yaml.safe_load(text) in map(yaml.safe_load, files)
