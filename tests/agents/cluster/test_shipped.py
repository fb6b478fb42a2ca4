"""Schedulers that come with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agents.cluster.checkpoint_expert import plan_of
from agents.cluster.shipped import SHIPPED, scheduler_folder, shipped_schedulers
from models.export.checkpoint import load_checkpoint
from tests.refusal import refusal

pytestmark = pytest.mark.slow

NAME = "unknown_durations"
TEXTS = {".json", ".yaml", ".md"}
LARGEST = 200_000  # bytes of a folder
INSIDE = r"(?<![\w.~:/-])/[\w.-]+"  # an absolute path


def test_one_is_shipped() -> None:
    assert NAME in shipped_schedulers()


@pytest.mark.parametrize("name", shipped_schedulers())
def test_its_files_are_few_those_of_its_hashes_and_name_no_folder_of_a_machine(name: str) -> None:
    spec = load_checkpoint(SHIPPED / name).spec
    assert "plan" in spec
    files = [path for path in (SHIPPED / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST
    listed = {*spec["sha256"], "spec.json"}
    for folder, inside in spec.get("folders", {}).items():
        listed |= {f"{folder}/{file}" for file in inside}
    assert {path.relative_to(SHIPPED / name).as_posix() for path in files} == listed
    for path in files:
        if path.suffix in TEXTS:
            assert not re.findall(INSIDE, path.read_text(encoding="utf-8")), path.name


def test_its_information_class_is_that_of_its_name() -> None:
    expert, plan = plan_of(load_checkpoint(scheduler_folder(NAME)))
    assert expert.knows == plan.knows == "predictions"


def test_a_folder_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert scheduler_folder(NAME) == SHIPPED / NAME
    (tmp_path / NAME).mkdir()
    assert scheduler_folder(NAME) == Path(NAME)
    assert scheduler_folder("none/such") == Path("none/such")  # refused when it is loaded


def test_an_unknown_name_lists_those_there_are() -> None:
    with refusal(r"neither a folder nor shipped.*unknown_durations"):
        scheduler_folder("nobody")
