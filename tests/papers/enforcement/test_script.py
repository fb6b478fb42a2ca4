"""Shell files: words reach programs as they are, and a plan that fails half way is taken back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from recorded_shell import calls

from experiments.papers.enforcement.scripts import Script, attempt, command, comment

AWKWARD = ["a b", "$(touch x)", "`id`", "'", '"', ";", "#", "*", "\\", "x\ny", "-n", "", "ü"]


def script(*apply: str, clean: str = "ip clean") -> Script:
    return Script(["About."], ["ip"], ["ip check"], apply, [clean])


def test_every_word_reaches_the_program_as_it_is(tmp_path: Path) -> None:
    text = script(command("tc" + " {}" * len(AWKWARD), *AWKWARD)).files("node", [])[0].text
    made = calls(tmp_path, text)
    assert ["tc", *AWKWARD] in made
    assert not (tmp_path / "x").exists()


@given(st.text())
def test_a_comment_is_one_line(text: str) -> None:
    line = comment(text)
    assert line.startswith("#")
    assert len(line.splitlines()) == 1


def test_checks_come_first_then_the_clean_up_then_the_plan(tmp_path: Path) -> None:
    apply, clean = script("ip one", "ip two").files("node", ["A note."])
    assert (apply.name, clean.name) == ("node.apply.sh", "node.clean.sh")
    made = [words for words in calls(tmp_path, apply.text) if words[0] == "ip"]
    assert made == [["ip", "check"], ["ip", "clean"], ["ip", "one"], ["ip", "two"]]
    made = [words for words in calls(tmp_path, clean.text) if words[0] == "ip"]
    assert made == [["ip", "clean"]]
    for text in (apply.text, clean.text):
        assert text.startswith("#!/bin/sh\n")
        assert "# A note.\n" in text


def test_a_plan_that_fails_half_way_is_taken_back(tmp_path: Path) -> None:
    text = script("ip one", "ip two", "ip three").files("node", [])[0].text
    made = calls(tmp_path, text, failing="two", expected=1)
    assert made[-3:] == [["ip", "one"], ["ip", "two"], ["ip", "clean"]]


def test_a_plan_that_is_interrupted_is_taken_back(tmp_path: Path) -> None:
    text = script("ip one", "kill -INT $$", "ip two").files("node", [])[0].text
    made = calls(tmp_path, text, expected=130)
    assert made[-2:] == [["ip", "one"], ["ip", "clean"]]


def test_nothing_is_changed_where_a_check_fails(tmp_path: Path) -> None:
    text = script("ip one").files("node", [])[0].text
    made = calls(tmp_path, text, failing="check", expected=1)
    assert made[-1] == ["ip", "check"]


def test_only_root_may_run_either_file(tmp_path: Path) -> None:
    for file in script("ip one").files("node", []):
        made = calls(tmp_path, file.text, answers={"id": "1000"}, expected=1)
        assert made == [["id", "-u"]]


def test_a_missing_program_is_refused(tmp_path: Path) -> None:
    needy = Script([], ["no-such-program"], [], ["ip one"], ["ip clean"])
    for file in needy.files("node", []):
        assert calls(tmp_path, file.text, expected=1) == [["id", "-u"]]


def test_an_attempt_may_fail(tmp_path: Path) -> None:
    text = script(clean=attempt("ip gone")).files("node", [])[1].text
    assert ["ip", "gone"] in calls(tmp_path, text, failing="gone")
