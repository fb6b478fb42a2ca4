"""Hostile command lines over all apps: refused in one line, or done as asked; nothing else."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from envs.files import read_json
from experiments.command_line import main_of
from tests.proof.hostile_files import make_all

LIST = yaml.safe_load(Path(__file__).with_name("hostile_inputs.yaml").read_text(encoding="utf-8"))
BEYOND_S = 10.0  # seconds of the processor that no refusal takes, beyond a budget
COMPILING_S = 20.0  # more for what is done, which may compile its kernels first
RUN = "run"  # the folder that a run may write into
DAILY = 10  # of the list, in `make test`,
QUICK = {
    "compare",
    "evaluate",
    "packing",
    "trace",
}  # of apps that load neither torch nor Ray


class Case(NamedTuple):
    """A command line; what its error line says, or what it finds."""

    app: str
    words: str
    expected: str | Mapping[str, Any]


CASES = [Case(app, words, found) for app, own in LIST.items() for words, found in own.items()]


class Ended(NamedTuple):
    code: int
    err: str
    seconds: float  # of the processor


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    make_all(folder)
    return folder


@pytest.fixture
def here(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(files)
    monkeypatch.syspath_prepend(files)
    yield files
    shutil.rmtree(files / RUN, ignore_errors=True)


def ended(case: Case) -> Ended:
    """How the app ends, in this process; anything but an exit is an error of the test."""
    words = shlex.split(case.words)
    if not any(word.startswith(("hydra.run.dir", "resume=", "-")) for word in words):
        words.append(f"hydra.run.dir={RUN}")
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = [case.app, *words]
    start = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            sys.exit(main_of(case.app)())
    except SystemExit as end:
        return Ended(int(end.code or 0), err.getvalue(), time.process_time() - start)
    finally:
        sys.argv = before
    raise AssertionError(f"{case.app} {case.words} did not exit")


def names_in(expected: str) -> list[str]:
    """The file, record, field or key that a refusal has to name; without one, all that it says."""
    files = re.findall(r"[\w.-]+\.(?:csv|gz|json|npz|onnx|parquet|txt|xls|yaml|yml)\b", expected)
    keys = re.findall(r"(?:config key|field|option|value) '?([^':\s()]+)", expected)
    return [*files, *keys] or [expected]


def content(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below, but those of the run, with its size and when it was changed."""
    found = {}
    for base, folders, names in os.walk(folder):
        if Path(base) == folder and RUN in folders:
            folders.remove(RUN)
        for name in names:
            status = os.lstat(Path(base) / name)
            found[f"{base}/{name}"] = (status.st_size, status.st_mtime_ns)
    return found


def check(case: Case, folder: Path) -> None:
    before = content(folder)
    found = ended(case)
    line = f"{case.app} {case.words}"
    last = (found.err.strip().splitlines() or [""])[-1]
    assert "Traceback" not in found.err, line
    assert content(folder) == before, f"{line} changed files outside of its run folder"
    refused = isinstance(case.expected, str)
    assert found.seconds < BEYOND_S + (0.0 if refused else COMPILING_S), line
    if isinstance(case.expected, str):
        assert found.code == 2, line
        assert last.startswith("error: "), line
        silent = [name for name in names_in(case.expected) if name not in last]
        assert not silent, f"{line}: {last!r} does not name {silent}"
        assert not (folder / RUN / "result.json").exists(), line
        return
    assert found.code == 0, f"{line}: {last}"
    result = read_json(folder / RUN / "result.json")
    assert {key: result.get(key) for key in case.expected} == case.expected, line


def spread(cases: Sequence[Case], number: int) -> list[Case]:
    """So many of a list, evenly."""
    return [cases[k * len(cases) // number] for k in range(number)]


def test_a_sample_of_the_hostile_inputs_is_refused_in_one_line(here: Path) -> None:
    refused = [case for case in CASES if case.app in QUICK and isinstance(case.expected, str)]
    for case in spread(refused, DAILY):
        check(case, here)


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.app} {case.words}")
def test_a_hostile_input_is_refused_in_one_line_or_done_as_asked(case: Case, here: Path) -> None:
    check(case, here)
    shutil.rmtree(here / RUN, ignore_errors=True)


@pytest.mark.proof
def test_the_list_is_about_every_app() -> None:
    apps = {path.stem for path in Path("experiments").glob("*.py")} - {"__init__", "command_line"}
    assert len(CASES) >= 300
    assert apps <= set(LIST)
