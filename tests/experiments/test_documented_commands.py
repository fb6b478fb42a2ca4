"""Every command that a page or the Makefile names can be composed as it stands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.utils import get_class

from docs.entries import entries
from envs.errors import InputError
from experiments.command_line import job_of
from experiments.config.command_words import command_words, listed
from experiments.config.composing import CONFIG_FILE, check_command_line
from experiments.config.config_source import job_keys
from experiments.config.verbs import LISTED, VERBS, expanded, of_verb, without_choice
from experiments.studies.multirun import check_sweep
from tests.paths import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMAND = re.compile(
    r"(?:(?<!\$ )python -m experiments\.|^meshwright |`meshwright )(?!-)(\w+)((?:\\\n|[^\n`])*)",
    re.MULTILINE,
)
PLACEHOLDER = re.compile(r"<([^<>]*)>")


def commands_of(page: Path) -> Iterator[tuple[str, str]]:
    """(app, what follows it) of every command in a page, lines that go on joined."""
    for app, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
        yield app, re.sub(r"\$\(\w+\)", "", rest.replace("\\\n", " "))


DAILY = ("README.md", "apps.md", "start.md", "synchronise.md")  # pages; the others in `make proof`


def first_named() -> Iterator[tuple[Path, list[tuple[str, str]]]]:
    """Every page with the commands that none before it names; forms with ... are none."""
    known: set[str] = set()
    for page in PAGES:
        new = {
            " ".join([app, *rest.split()]): (app, rest)
            for app, rest in commands_of(page)
            if not any(word in rest for word in ("...", "|", "--config-dir"))
        }
        yield page, [command for text, command in new.items() if text not in known]
        known |= set(new)


def words_of(rest: str, folder: Path) -> list[str]:
    """The words of a command, with a folder or a file where the page leaves one to the reader."""

    def some(match: re.Match[str]) -> str:
        return str(folder if "folder" in match[1] else folder / "some.json")

    return [os.path.expandvars(x) for x in shlex.split(PLACEHOLDER.sub(some, rest), comments=True)]


def fault_of(app: str, rest: list[str]) -> InputError | None:
    """What is wrong with `python -m experiments.<app> <rest>`, as far as composing it tells."""
    app, rest = expanded(app, rest)
    rest = of_verb(app, rest)
    words, flags, _ = command_words(listed(LISTED.get(app), rest))
    job = job_of(app, words)
    words = without_choice(app, words, job_keys(job.config))
    schema = get_class(job.schema)
    try:
        if "-m" in flags:
            check_sweep(job.config, schema, words)
        else:
            check_command_line(words, job.config, schema)
    except InputError as error:
        return error
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that could be anything a command asks for."""
    (tmp_path / CONFIG_FILE).write_text("{}\n")
    (tmp_path / "some.json").write_text("{}\n")
    return tmp_path


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(commands, id=page.name, marks=() if page.name in DAILY else pytest.mark.proof)
        for page, commands in first_named()
    ],
)
def test_commands_name_apps_options_and_keys_that_exist(
    commands: list[tuple[str, str]], folder: Path
) -> None:
    for app, rest in commands:
        fault = fault_of(app, words_of(rest, folder))
        # what lies in the reader's files is not the page's matter
        assert fault is None or fault.file is not None, f"experiments.{app} {rest}: {fault}"


def test_the_page_of_commands_names_every_app() -> None:
    named = {app for app, _ in commands_of(ROOT / "docs" / "apps.md")}
    assert set(VERBS) - named == set()


@pytest.mark.proof
def test_commands_of_the_catalogue_can_be_composed(folder: Path) -> None:
    for entry in entries():
        for app, rest in COMMAND.findall(entry.command):
            fault = fault_of(app, words_of(rest, folder))
            assert fault is None or fault.file is not None, f"{entry.name}: {fault}"
