"""Every command that a page or the Makefile names can be composed as it stands."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.entries import entries
from envs.errors import InputError
from experiments.config.composing import CONFIG_FILE, check_command_line
from experiments.run.app import Variant, chosen_variant
from experiments.study.multirun import check_sweep
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


def fault_of(app: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> InputError | None:
    """What is wrong with `python -m experiments.<app> <words>`, as far as composing it tells."""

    def compose(
        config_name: str,
        schema: type[Any],
        task: Any,
        arguments: list[str] | None = None,
        variants: dict[str, Variant] | None = None,
    ) -> int:
        given = sys.argv[1:] if arguments is None else arguments
        chosen = chosen_variant(variants or {}, given) or Variant(config_name, schema, task)
        if "-m" in words:
            check_sweep(chosen.config_name, chosen.schema, given)
        else:
            check_command_line(given, chosen.config_name, chosen.schema)
        return 0

    monkeypatch.setattr("experiments.run.app.run_app", compose)
    monkeypatch.setattr(sys, "argv", [app, *(word for word in words if not word.startswith("-"))])
    try:
        with pytest.raises(SystemExit):
            runpy.run_module(f"experiments.{app}", run_name="__main__", alter_sys=True)
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
    commands: list[tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for app, rest in commands:
        fault = fault_of(app, words_of(rest, folder), monkeypatch)
        # what lies in the reader's files is not the page's matter
        assert fault is None or fault.file is not None, f"experiments.{app} {rest}: {fault}"


def test_the_page_of_commands_names_every_app() -> None:
    named = {app for app, _ in commands_of(ROOT / "docs" / "apps.md")}
    apps = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {"__init__"}
    assert apps - named == set()


@pytest.mark.proof
def test_commands_of_the_catalogue_can_be_composed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in entries():
        for app, rest in COMMAND.findall(entry.command):
            fault = fault_of(app, words_of(rest, folder), monkeypatch)
            assert fault is None or fault.file is not None, f"{entry.name}: {fault}"
