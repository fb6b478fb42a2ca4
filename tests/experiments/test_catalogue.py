"""Every option of `conf/env` and `conf/agent` has its page, and each says where it is from."""

from __future__ import annotations

import importlib

import gymnasium as gym

from experiments.catalogue.entries import KNOWLEDGE, Docstring, entries, gymnasium_id
from experiments.catalogue.pages import page_path, page_text, pages, picture_path
from tests.paths import ROOT

SOURCES = {
    "problems",
    "labelled_problems",
    "joint_problems",
    "one_problem",
    "decisions",
}  # of whole problems, and of single decisions: no environments


def test_each_option_has_its_page() -> None:
    known = {page.path for page in pages()}
    for group, kinds in (("env", {"environment"}), ("agent", {"planner", "learner", "scheduler"})):
        options = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        mine = {entry.name: entry for entry in entries() if entry.kind in kinds}
        assert set(mine) == options - SOURCES
        assert {page_path(entry) for entry in mine.values()} <= known


def test_each_registered_environment_is_on_a_page() -> None:
    importlib.import_module("envs")
    told = {gymnasium_id(entry) for entry in entries() if entry.kind == "environment"}
    ids = {name for name in gym.registry if name.startswith("meshwright/")}
    pettingzoo = {"Joint-v0", "JointToy-v0", "ClusterParallel-v0", "ClusterParallelToy-v0"}
    pettingzoo |= {"AllocationParallel-v0"}
    assert told == ids | pettingzoo


def test_an_entry_says_what_it_knows_guarantees_and_comes_from() -> None:
    for entry in entries():
        assert all((entry.summary, entry.knows, entry.fact("Guarantees"))), entry.name
        assert entry.fact("Source"), entry.name
        assert entry.command.startswith(("meshwright ", "python -c ")), entry.name
        text = page_text(entry)
        assert entry.command in text
        assert picture_path(entry) in text
        if picture_path(entry).startswith("pictures/"):
            assert (ROOT / "docs" / picture_path(entry)).is_file(), entry.name


def test_a_scheduler_is_told_by_its_class_of_information() -> None:
    by_name = {entry.name: entry.knows for entry in entries()}
    assert by_name["fifo"] == by_name["max_min"] == KNOWLEDGE["nothing"]
    assert by_name["gittins"] == by_name["migrating_learned"] == KNOWLEDGE["predictions"]
    assert by_name["srtf"] == by_name["migrating_srsf"] == by_name["afs"] == KNOWLEDGE["durations"]


def test_facts_are_taken_out_of_a_docstring() -> None:
    class Documented:
        """First line
        goes on.

        More.

        Guarantees:
            A lot,
            and more.

        Args:
            left: out.

        ## Source
        A paper.

        ## Version History
        v0
        """

    doc = Docstring.of(Documented)
    assert doc.first == "First line goes on."
    assert doc.facts == {"Guarantees": "A lot,\nand more.", "Source": "A paper."}
    assert "left" not in doc.body
    assert "More." in doc.body
    assert "v0" in doc.body
