"""Commands that are run in this process, and what they leave."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from envs.files import read_json
from experiments.command_line import run_job
from tests.paths import ROOT

Command = str | Callable[[list[str]], int]  # the config of a job, or the main of a verb


def code_of(command: Command, *words: str) -> int:
    """What it ends with."""
    return run_job(command, words) if isinstance(command, str) else command([*words])


def result(run: str | Path = "run") -> dict[str, Any]:
    """What a run left in its folder."""
    found: dict[str, Any] = read_json(Path(run) / "result.json")
    assert isinstance(found, dict)
    return found


def ran(command: Command, *words: str, run: str | Path = "run") -> dict[str, Any]:
    """The result of a command that ends well, in the folder `run`."""
    assert code_of(command, *words, f"hydra.run.dir={run}") == 0
    return result(run)


@contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """As the fixture `work`, for what several tests look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["app"])
        yield folder


def is_drawn(*pictures: str | Path) -> bool:
    """Whether all of them are pictures that can be looked at."""
    return all(Image.open(BytesIO(Path(x).read_bytes())).size[0] > 500 for x in pictures)


def environment(*folders: Path) -> dict[str, str]:
    """Of a process that finds this checkout, and before it modules in `folders`."""
    path = ":".join(map(str, [*folders, ROOT]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
