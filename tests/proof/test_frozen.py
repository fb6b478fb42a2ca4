"""Figures that no change of structure may move: commands, and what they printed.

`frozen.json` maps the words after `python -m experiments.` to figures of their result. Whoever
changes a figure on purpose changes it there, in the same commit, and says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

FROZEN: dict[str, dict[str, float | str]] = json.loads(
    Path(__file__).with_name("frozen.json").read_text()
)


@pytest.mark.proof
@pytest.mark.parametrize("command", FROZEN)
def test_a_command_prints_what_it_printed(command: str, data: Path, tmp_path: Path) -> None:
    app, *overrides = command.format(data=data).split()
    run = subprocess.run(
        [sys.executable, "-m", f"experiments.{app}", *overrides, "json=true",
         f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    for key, expected in FROZEN[command].items():
        exact = isinstance(expected, str)
        assert result[key] == (expected if exact else pytest.approx(expected, rel=1e-12)), key
