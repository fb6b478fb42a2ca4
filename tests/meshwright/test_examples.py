"""Example scripts, the notebook and the pages of a newcomer run as they stand."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.cleanrl_ppo import train as train_in_a_loop
from meshwright.command import main
from tests.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "docs/start.md", *sorted((ROOT / "docs/flows").glob("*.md"))]
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^meshwright ((?:\\\n|[^\n])*)$", re.MULTILINE)
SHORT = "training.budget_s=5"  # seconds, in place of a minute or an hour
# What takes an hour, a Slurm, and a file that the page's own pipe makes.
NOT_HERE = {"benchmark", "drive", "trace.path=jobs.csv"}


@pytest.fixture(autouse=True)
def folder_with_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)


def lines_of_code(script: Path) -> int:
    """Lines of statements, decorators included, without docstrings, comments and blank lines."""
    tree = ast.parse(script.read_text())
    docs = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None
    ]
    message = {line for doc in docs for line in range(doc.lineno, (doc.end_lineno or 0) + 1)}
    lines = enumerate(script.read_text().splitlines(), start=1)
    return sum(bool(text.strip()) and number not in message for number, text in lines)


@pytest.mark.parametrize(
    ("name", "most"), [("place_own_module", 8), ("own_policy", 12), ("ask_checkpoint", 5)]
)
def test_a_newcomer_writes_few_lines(name: str, most: int) -> None:
    assert lines_of_code(ROOT / f"examples/{name}.py") <= most


@pytest.mark.slow
def test_an_own_policy_stands_beside_srtf(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["own_policy.py"])
        runpy.run_path("examples/own_policy.py")
    message = capsys.readouterr().out
    assert "80 jobs of trace jobs on 2x4 GPUs" in message
    assert message.index("srtf") < message.index("least_served_first")


def test_a_checkpoint_says_what_starts_now(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("examples/ask_checkpoint.py")
    actions = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["action"], one["job"]) for one in actions] == [
        ("start", "job0"),
        ("start", "job1"),
    ]


@pytest.mark.proof
def test_an_own_module_is_placed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("examples/place_own_module.py")
    assert "above the bound" in capsys.readouterr().out
    assert Path("step.png").stat().st_size > 0


@pytest.mark.proof
def test_maskable_ppo_learns_the_toy() -> None:
    pytest.importorskip("sb3_contrib")
    from examples.sb3_maskable_ppo import train

    before, after = train()
    assert after > before


@pytest.mark.proof
def test_the_loop_learns_the_toy() -> None:
    returns = train_in_a_loop()
    assert sum(returns[-4:]) / 4 > sum(returns[:4]) / 4 + 3


@pytest.mark.proof
def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = json.loads(Path("examples/tour.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["plans"]["local_search"]._repr_png_()[:4] == b"\x89PNG"
    assert "least_served_first" in names["replays"]._repr_markdown_()


def shortened(text: str) -> str:
    return re.sub(r"training\.budget_s=\d+", SHORT, text)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom_in_any_folder(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.parent.name != "flows":  # those are about the files of a checkout
        shutil.rmtree("examples")
    ran = 0
    for language, block in BLOCK.findall(page.read_text()):
        text = shortened(block)
        if language:
            exec(compile(text, f"{page.name}:\n{block}", "exec"), {})
        for rest in () if language else COMMAND.findall(text):
            words = shlex.split(rest.replace("\\\n", " "), comments=True)
            if "<" in rest or NOT_HERE & set(words):  # folders of the reader
                continue
            ran += 1
            trains = words[0] in {"main", "train"} and SHORT not in words
            monkeypatch.setattr(sys, "argv", ["meshwright", *words])
            given = [*words, SHORT] if trains else words
            assert main([*given, f"hydra.run.dir=run_{ran}"]) == 0, words
    assert ran or page.stem == "export"  # whose commands are about folders of the reader
