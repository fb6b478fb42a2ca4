"""Every name of the groups `env` and `agent` has its page, and each says where it is from."""

from __future__ import annotations

import re

import gymnasium as gym

from docs.entries import KNOWLEDGE, entries, page, section
from envs import PARALLEL
from experiments.config.config_source import options
from experiments.config.papers import PAPERS, register_environments
from tests.paths import ROOT
from tests.slurm_here import LIVE

# of whole problems: no environments
SOURCES = {"problems", "labelled_problems", "joint_problems", "one_problem"}

WITHOUT_CONFIG = {"pricing", "pricing_toy"}  # environments of papers that `env=` does not name


def test_each_name_has_its_page() -> None:
    for group, environments in (("env", True), ("agent", False)):
        mine = {entry.name for entry in entries() if (entry.kind == "environment") == environments}
        assert mine - WITHOUT_CONFIG == set(options(group)) - SOURCES


def test_each_registered_environment_is_on_a_page() -> None:
    register_environments()
    paged = {entry.id for entry in entries() if entry.kind == "environment"}
    # but the one that would need a Slurm to be drawn
    ids = {name for name in gym.registry if name.startswith("meshwright/")}
    assert paged == ids - {LIVE} | {name.split("/")[1] for name in PARALLEL}


def test_each_paper_has_its_row() -> None:
    pages = {f"experiments/papers/{paper.folder.name}/page.md" for paper in PAPERS}
    rows = (ROOT / "docs/papers/index.md").read_text()
    assert pages <= set(re.findall(r"^\| \[\w+\]\((?:\.\./)+(.*?)\)", rows, re.M))


def test_an_entry_says_what_it_knows_guarantees_and_comes_from() -> None:
    for entry in entries():
        assert all((entry.summary, entry.knows, entry.fact("Guarantees"))), entry.name
        assert entry.fact("Source"), entry.name
        assert entry.command.startswith(("meshwright ", "python -c ")), entry.name
        text = page(entry)
        assert entry.command in text
        assert entry.picture in text
        assert (
            bool(entry.curve)
            == ("Learning curve" in text)
            == (entry.kind == "environment" and entry.name not in WITHOUT_CONFIG)
        )
        if entry.picture.startswith("pictures/"):
            assert (ROOT / "docs" / entry.picture).is_file(), entry.name


def test_a_scheduler_is_told_by_its_class_of_information() -> None:
    by_name = {entry.name: entry.knows for entry in entries()}
    assert by_name["fifo"] == by_name["max_min"] == KNOWLEDGE["nothing"]
    assert by_name["gittins"] == by_name["migrating_learned"] == KNOWLEDGE["predictions"]
    assert by_name["srtf"] == by_name["migrating_srsf"] == by_name["afs"] == KNOWLEDGE["durations"]


def test_sections_are_taken_out_of_a_docstring() -> None:
    class Documented:
        """First line
        goes on.

        Guarantees:
            A lot,
            and more.

        ## Source
        A paper.

        ## Version History
        v0
        """

    assert section(Documented, "Guarantees") == "A lot, and more."
    assert section(Documented, "Source") == "A paper."
    assert section(Documented, "Knows") == ""
