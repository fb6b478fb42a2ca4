"""Shell files: checks, the plan, and that one that fails half way is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_shell import calls

from experiments.papers.enforcement.backends import Script, attempt, comment

pytestmark = pytest.mark.slow


def texts(*apply: str, clean: str = "ip clean", programs: tuple[str, ...] = ("ip",)) -> list[str]:
    script = Script(["About."], programs, ["ip check"], [*apply], [clean])
    return [*script.files("node", ["A note."]).values()]


@given(st.text())
def test_a_comment_is_one_line(text: str) -> None:
    line = comment(text)
    assert line.startswith("#")
    assert len(line.splitlines()) == 1


def test_checks_come_first_then_the_clean_up_then_the_plan(tmp_path: Path) -> None:
    apply, clean = texts("ip one", "ip two")
    made = [words for words in calls(tmp_path, apply) if words[0] == "ip"]
    assert made == [["ip", "check"], ["ip", "clean"], ["ip", "one"], ["ip", "two"]]
    assert [words for words in calls(tmp_path, clean) if words[0] == "ip"] == [["ip", "clean"]]
    for text in (apply, clean):
        assert text.startswith("#!/bin/sh\n")
        assert "# A note.\n" in text


@pytest.mark.parametrize(
    ("second", "failing", "code", "made"),
    [
        ("ip two", "two", 1, ["one", "two", "clean"]),  # taken back
        ("kill -INT $$", "nothing", 130, ["one", "clean"]),
        ("ip two", "check", 1, ["check"]),  # nothing is changed
    ],
)
def test_a_plan_that_fails_half_way_is_taken_back(
    tmp_path: Path, second: str, failing: str, code: int, made: list[str]
) -> None:
    text = texts("ip one", second, "ip three")[0]
    found = calls(tmp_path, text, failing=failing, expected=code)
    assert found[-len(made) :] == [["ip", word] for word in made]


def test_only_root_may_run_either_file_and_only_with_its_programs(tmp_path: Path) -> None:
    for text in texts("ip one"):
        assert calls(tmp_path, text, answers={"id": "1000"}, expected=1) == [["id", "-u"]]
    for text in texts("ip one", programs=("no-such-program",)):
        assert calls(tmp_path, text, expected=1) == [["id", "-u"]]


def test_an_attempt_may_fail(tmp_path: Path) -> None:
    text = texts(clean=attempt("ip gone"))[1]
    assert ["ip", "gone"] in calls(tmp_path, text, failing="gone")
