"""Apps in sequence, each in a process of its own; what has been done is not done again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from envs.errors import InputError
from experiments.run.app import RESULT_FILE
from experiments.run.provenance import file_hash
from experiments.step.search import THREAD_VARIABLES


@dataclass(frozen=True)
class Stage:
    """One run of an app, done once its result is there.

    Attributes:
        name: for a reader.
        app: a module of `experiments`.
        overrides: of the app's config, without its run folder.
        folder: the run folder.
        resumable: whether the app goes on, with `resume=<folder>`, where it was killed.
    """

    name: str
    app: str
    overrides: tuple[str, ...]
    folder: Path
    resumable: bool = False

    @property
    def done(self) -> bool:
        """Whether the app has ended well."""
        return (self.folder / RESULT_FILE).is_file()

    def result(self) -> dict[str, Any]:
        """What the app found.

        Raises:
            InputError: it left no result, or a damaged one.
        """
        path = self.folder / RESULT_FILE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"is no result of a stage ({error})", file=path) from error
        if not isinstance(document, dict):
            raise InputError("is no result of a stage", file=path)
        return document

    def sha256(self) -> str:
        """Of the result."""
        return file_hash(self.folder / RESULT_FILE)

    def command(self) -> list[str]:
        """The app's command line; what a killed run that cannot go on has left is removed."""
        from agents.rllib.restore import has_checkpoint

        words = [sys.executable, "-m", f"experiments.{self.app}"]
        if self.resumable and has_checkpoint(self.folder):
            return [*words, f"resume={quoted(self.folder)}"]
        if self.folder.exists():
            shutil.rmtree(self.folder)
        return [*words, *self.overrides, f"hydra.run.dir={quoted(self.folder)}"]


def run_stages(stages: Sequence[Stage], console: Console) -> int:
    """Run the stages one after the other; what they print goes where our own output goes.

    Returns:
        0, or the exit code of the stage that failed: those after it are not begun.
    """

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    before = sum(stage.done for stage in stages)
    if before:
        say(f"{before} of {len(stages)} stages were done before")
    for number, stage in enumerate(stages, start=1):
        if stage.done:
            continue
        place, began = f"[{number}/{len(stages)}] {stage.name}", time.monotonic()
        command = stage.command()
        say(f"{place}: begins")
        code = _run(command)
        if code == 0 and not stage.done:
            say(f"{place}: left no {RESULT_FILE} in {stage.folder}")
            return 1
        if code != 0:
            say(f"{place}: failed with code {code}: {shlex.join(command)}")
            return code
        say(f"{place}: done, {time.monotonic() - began:.0f} s")
    return 0


def quoted(value: object) -> str:
    """A value in Hydra's quotes."""
    return "'" + str(value).replace("'", r"\'") + "'"


def _run(command: Sequence[str]) -> int:
    """The exit code of a process that does not outlive this one; 128 + n after signal n."""
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    with _terminated_as_interrupted():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return code if code >= 0 else 128 - code


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
