"""A sample of the frozen figures, and the comparison that holds the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.frozen.__main__ import FROZEN, differences, main, read_frozen, read_names, renamed

NOTHING: dict[str, Any] = {"commands": {}, "keys": {}, "values": {}, "patterns": []}
LEAST_PAIRS, LEAST_COMMANDS = 10000, 420


@pytest.mark.slow
def test_the_sample_says_what_it_said(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sample"]) == 0, capsys.readouterr().out


def test_no_figure_is_lost() -> None:
    frozen = read_frozen()
    groups = frozen["groups"].values()
    assert sum(len(keys) for group in groups for keys in group.values()) == frozen["pairs"]
    assert frozen["pairs"] >= LEAST_PAIRS
    assert sum(map(len, groups)) >= LEAST_COMMANDS
    assert all(keys for group in groups for keys in group.values())
    assert set(frozen["beside"]) <= set(frozen["groups"])
    every = {command for group in groups for command in group}
    assert set(frozen["sample"]) <= every
    assert f'"pairs": {frozen["pairs"]}' in FROZEN.read_text()


def test_every_name_in_use_is_one_that_was() -> None:
    """A line of `renamed.json` that no command, key or value meets hides a mistake in it."""
    frozen, names = read_frozen(), read_names()
    rows = [row for group in frozen["groups"].values() for row in group.items()]
    for old in names["commands"]:
        assert any(renamed(command, {old: "\0"}) != command for command, _ in rows), old
    keys = {
        part for _, figures in rows for key in figures for part in (key, *re.split("[.:]", key))
    }
    assert set(names["keys"]) <= keys
    for begin, pattern, _ in names["patterns"]:
        some = [keys for command, keys in rows if command.startswith(begin)]
        assert any(re.fullmatch(pattern, key) for keys in some for key in keys), pattern
    assert set(names["values"]) <= {x for _, keys in rows for x in keys.values() if type(x) is str}


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"a": 1.0, "b.c": "x"}, []),
        ({"a": 1.0 + 1e-13, "b.c": "x", "more": 3}, []),
        ({"a": 1.0 + 1e-11, "b.c": "x"}, ["a"]),
        ({"a": True, "b.c": "x"}, ["a"]),
        ({"a": float("nan"), "b.c": "x"}, ["a"]),
        ({"a": 1.0, "b.c": "y"}, ["b.c"]),
        ({"b.c": "x"}, ["a"]),
        ({}, ["a", "b.c"]),
    ],
)
def test_a_changed_or_missing_figure_is_told(new: dict[str, object], message: list[str]) -> None:
    assert [x.key for x in differences("run", {"a": 1.0, "b.c": "x"}, new, NOTHING)] == message


def test_nothing_is_nothing() -> None:
    old = {"nan": float("nan"), "none": None}
    assert differences("run", old, dict(old), NOTHING) == []
    assert len(differences("run", old, {"nan": None, "none": 0}, NOTHING)) == 2


def test_renamed_words_are_followed() -> None:
    table = {"agent=": "policy=", "agent=fifo": "policy=first", "evaluate env=cluster": "replay",
             "envs.cluster": "clusters", "replay": "never"}  # fmt: skip
    command = "evaluate env=cluster agent=fifo_backfill sub.agent=fifo x={_target_: envs.cluster.A}"
    assert renamed(command, table) == (
        "replay policy=fifo_backfill sub.agent=fifo x={_target_: clusters.A}"
    )
    assert renamed("evaluate env=cluster agent=fifo", table) == "replay policy=first"
    names = {
        "commands": {},
        "keys": {"a": "alpha", "b.c": "d"},
        "values": {"x": "y"},
        "patterns": [["r", "q(.)", "\\1"]],
    }
    assert differences("run", {"z.a": 1, "b.c": "x"}, {"z.alpha": 1, "d": "y"}, names) == []
    assert len(differences("run", {"z.a": 1, "b.c": "x"}, {"z.a": 1, "d": "x"}, names)) == 2
