"""Cells at work, each in a fresh process; one that has been done is not done again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import TaskID

from envs.errors import InputError
from experiments.run.app import RESULT_FILE
from experiments.run.artifacts import write_json
from experiments.run.display import ProgressDisplay
from experiments.run.provenance import Provenance, file_hash, stamp
from experiments.step.search import THREAD_VARIABLES
from experiments.step.suites.cell import CELLS_VARIABLE, SUITE_KEY, Cell, Outcome

FAILURE_FILE = "failure.json"
POLL_S = 0.1
PATIENCE, GRACE_S = 3.0, 300.0  # a cell may take this many budgets and so many seconds


@dataclass(eq=False)
class _Process:
    cell: Cell
    process: subprocess.Popen[bytes]
    task: TaskID
    start: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


@dataclass(frozen=True)
class CellRunner:
    """Runs cells below `folder`.

    Args:
        folder: receives the run folder of each cell, and what it printed beside it.
        seed: of every run.
        workers: processes at a time, one thread each.
        provenance: of the failures that are recorded.
    """

    folder: Path
    seed: int
    workers: int
    provenance: Provenance

    def run(self, cells: Sequence[Cell], display: ProgressDisplay) -> dict[Cell, Outcome]:
        """The outcome of every cell; each is on disk as soon as its run has ended.

        Cells run in their order, but not before those they need.

        Raises:
            InputError: a cell needs one that is not among `cells`.
        """
        done = {cell: outcome for cell in cells if (outcome := self._read(cell)) is not None}
        waiting = [cell for cell in cells if cell not in done]
        if done:
            display.console.print(f"{len(done)} of {len(cells)} cells were done before")
        running: list[_Process] = []
        try:
            while waiting or running:
                while len(running) < self.workers:
                    ready = next((c for c in waiting if set(c.needs) <= done.keys()), None)
                    if ready is None:
                        _refuse_deadlock(waiting, running)
                        break
                    waiting.remove(ready)
                    running.append(self._start(ready, display))
                time.sleep(POLL_S)
                for one in list(running):
                    if not self._ended(one):
                        display.update(one.task, one.seconds, "")
                        continue
                    running.remove(one)
                    done[one.cell] = outcome = self._outcome(one)
                    place = f"{len(done)}/{len(cells)}"
                    display.end(one.task, f"{describe(outcome)} [{place}]")
        finally:
            for one in running:
                one.process.terminate()
                one.process.wait()
        return {cell: done[cell] for cell in cells}

    def inputs(self, cells: Sequence[Cell]) -> dict[str, str]:
        """SHA-256 of what every cell left."""
        return {cell.folder: file_hash(self._record(cell)) for cell in cells}

    def _record(self, cell: Cell) -> Path:
        """The file that says what the cell came to, whether or not it is there yet."""
        folder = self.folder / cell.folder
        return folder / (FAILURE_FILE if (folder / FAILURE_FILE).exists() else RESULT_FILE)

    def _read(self, cell: Cell) -> Outcome | None:
        path = self._record(cell)
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if path.name == FAILURE_FILE:
                return Outcome.failed(str(document["reason"]))
            return Outcome.of(document)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise InputError(f"is no result of a plan ({error!r})", file=path) from error

    def _start(self, cell: Cell, display: ProgressDisplay) -> _Process:
        folder = self.folder / cell.folder
        if folder.exists():  # a run that was killed before its result
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        asked = (text.replace(CELLS_VARIABLE, str(self.folder)) for text in cell.overrides)
        command = [sys.executable, "-m", "experiments.plan", *asked]
        command += [f"seed={self.seed}", f"hydra.run.dir='{folder}'"]
        task = display.begin(cell.name, cell.budget_s)
        with self._log(cell).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
            )
        return _Process(cell, process, task, time.monotonic())

    def _ended(self, one: _Process) -> bool:
        if one.seconds > PATIENCE * one.cell.budget_s + GRACE_S:
            one.process.kill()
            one.process.wait()
        return one.process.poll() is not None

    def _outcome(self, one: _Process) -> Outcome:
        if one.process.returncode != 0:
            lines = self._log(one.cell).read_text(errors="replace").strip().splitlines()
            said = lines[-1].removeprefix("error: ") if lines else ""
            code = one.process.returncode
            reason = said if code == 2 else f"ended with code {code} after {one.seconds:.0f} s"
            document = {"reason": reason, "exit_code": code, "overrides": one.cell.overrides}
            path = self.folder / one.cell.folder / FAILURE_FILE
            write_json(path, stamp(document, self.provenance, kind="failure"))
        outcome = self._read(one.cell)
        if outcome is None:
            raise InputError("is missing although the run succeeded", file=self._record(one.cell))
        return outcome

    def _log(self, cell: Cell) -> Path:
        return self.folder / f"{cell.folder}.log"


def _refuse_deadlock(waiting: Sequence[Cell], running: Sequence[_Process]) -> None:
    if waiting and not running:
        raise InputError("needs a cell that is not run", file=SUITE_KEY, record=waiting[0].name)


def describe(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if not outcome.feasible:
        return f"no plan: {outcome.reason}"
    return f"{outcome.time(outcome.objective)} in {outcome.seconds:.1f} s"
