"""A grid of cells: what has been done is not done again, and a killed run goes on.

A cell is a run of an app in a process of its own, or a function called here. What it came to lies
on the disk as soon as it has ended, under a key: the hash of all it depends on, and of `VERSION`.
An executor says where the processes run. They end when this process does, even by SIGKILL; a cell
whose worker is lost is begun again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.progress import TaskID

from envs.errors import InputError
from envs.files import read_json
from experiments.config.command_words import TRUST, names_in, own_flags
from experiments.config.verbs import EXPERIMENTS
from experiments.run.artifacts import require_own_folder, to_json, write_json, write_text
from experiments.run.faults import EXIT_BAD_INPUT
from experiments.run.one_run import RESULT_FILE
from experiments.run.provenance import Provenance, file_hash, stamp, text_hash
from experiments.study.display import ProgressDisplay
from experiments.study.processes import Executor, Running, Work, WorkerLost, wait_until_free

VERSION = 1  # of what a cell leaves: raise it where the same inputs come to something else
FAILURE_FILE = "failure.json"
POLL_S = 0.1
PATIENCE, GRACE_S = 3.0, 300.0  # a cell may take this many budgets and so many seconds
STOP_S = 1.5  # how long a process may take to stop before it is killed
BUSY_S = 10.0  # how long to wait for a killed run's process to be gone
LOSSES = 3  # workers that may be lost under one cell before it is given up
CELLS = "$CELLS/"  # in a key: the folder of the cells, wherever it lies

Document = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class AppCell:
    """One run of an app.

    Attributes:
        name: for a reader.
        app: a module of `experiments`.
        overrides: of its config, without its run folder.
        folder: its run folder; what it prints goes to a file beside it.
        needs: cells that end before it begins.
        budget_s: seconds it is expected to take; it is killed when it takes far more.
        resumable: whether the app goes on, with `resume=<folder>`, where it was killed.
        may_fail: whether a failure is an outcome of its own, which is kept and not tried again.
    """

    name: str
    app: str
    overrides: tuple[str, ...]
    folder: Path
    needs: tuple[AppCell, ...] = ()
    budget_s: float | None = None
    resumable: bool = False
    may_fail: bool = False

    @property
    def key(self) -> str:
        """The same wherever the folder of all cells lies."""
        needs = [cell.key for cell in self.needs]
        folders = [self.folder.parent, *(cell.folder.parent for cell in self.needs)]
        cells = f"{os.path.commonpath(folders)}/"
        words = [x.replace(escaped(cells), CELLS).replace(cells, CELLS) for x in self.overrides]
        return text_hash(json.dumps([VERSION, self.app, words, needs]))

    @property
    def record(self) -> Path:
        """The file that says what the cell came to, whether or not it is there yet."""
        failure = self.folder / FAILURE_FILE
        return failure if failure.exists() else self.folder / RESULT_FILE

    def beside(self, ending: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{ending}")

    def read(self) -> Document | None:
        """What it came to; None: it is still to be done.

        Raises:
            InputError: its result is damaged.
        """
        return _document(self.record) if self.record.is_file() and self._same_key() else None

    def check_folder(self) -> None:
        """No result of other inputs lies where this cell's is to be.

        Raises:
            InputError: there is one, which doing this cell would remove.
        """
        if (self.folder / RESULT_FILE).is_file() and not self._same_key():
            message = "holds a result of other inputs: move or delete it, or begin a new run"
            raise InputError(message, file=self.folder)

    def command(self) -> list[str]:
        """The app's command line; what a killed run that cannot go on has left is removed.

        Raises:
            InputError: as `check_folder`, or another process writes the folder, or somebody's files
                lie in it.
        """
        wait_until_free(self.beside("lock"), BUSY_S)
        words = [sys.executable, "-m", f"{EXPERIMENTS}.{self.app}"]
        words += own_flags()
        if self.resumable and self._same_key():
            from agents.rllib.restore import has_checkpoint

            if has_checkpoint(self.folder):
                trusted = [f"{TRUST}={name}" for name in sorted(names_in(" ".join(self.overrides)))]
                return [*words, *trusted, f"resume={quoted(self.folder)}"]
        self.check_folder()
        if self.folder.exists():
            if not self.beside("key").is_file():  # which was written before anything of this cell
                require_own_folder(self.folder)
            shutil.rmtree(self.folder)
        write_text(self.beside("key"), self.key)
        return [*words, *self.overrides, f"hydra.run.dir={quoted(self.folder)}"]

    def work(self) -> Work:
        """Its command and its files, for an executor.

        Raises:
            InputError: as `check_folder`.
        """
        limit_s = None if self.budget_s is None else PATIENCE * self.budget_s + GRACE_S
        arguments, reads = tuple(self.command()[1:]), tuple(need.folder for need in self.needs)
        return Work(arguments, self.folder, self.beside("log"), reads, limit_s)

    def _same_key(self) -> bool:
        kept = self.beside("key")
        return kept.is_file() and kept.read_text(encoding="utf-8") == self.key


@dataclass(frozen=True, eq=False)
class FunctionCell:
    """One call of a function, whose JSON mapping is kept in `folder` under its key.

    `inputs` is all that the result depends on, as JSON.
    """

    name: str
    function: Callable[[], Document]
    folder: Path
    inputs: Document

    @property
    def record(self) -> Path:
        asked = {"version": VERSION, "inputs": self.inputs}
        return self.folder / f"{text_hash(to_json(asked))}.json"

    def read(self) -> Document | None:
        return _document(self.record) if self.record.is_file() else None


Cell = AppCell | FunctionCell


@dataclass(frozen=True)
class Fault:
    """Why a cell has no result: one line, the exit code of its app, and what that printed."""

    reason: str
    exit_code: int = EXIT_BAD_INPUT
    log: Path | None = None

    def __str__(self) -> str:
        return self.reason if self.log is None else f"{self.reason} (log: {self.log})"


@dataclass(frozen=True)
class Grid:
    """Cells at work, as many of their processes at a time as the executor has workers."""

    executor: Executor
    provenance: Provenance  # of the failures that are recorded

    def run(self, cells: Sequence[Cell], display: ProgressDisplay) -> Outcomes:
        """Do what is not done yet, in the order of the cells, but none before those it needs.

        A cell that fails stops those that need it, and no others. One whose worker is lost is begun
        again, `LOSSES` times at most; this is told and counted in `Outcomes.losses`.

        Raises:
            InputError: a cell needs one that is not among `cells`, a result is damaged, or one of
                other inputs lies in a cell's folder.
        """
        found = Outcomes(len(cells))
        for cell in cells:
            if (kept := cell.read()) is not None:
                found.documents[cell] = kept
            elif isinstance(cell, AppCell):
                cell.check_folder()
        if found.documents:
            message = f"{len(found.documents)} of {len(cells)} cells were done before"
            display.console.say(message)
        waiting = [cell for cell in cells if cell not in found.documents]
        running: list[_Started] = []
        with _terminated_as_interrupted(), _Counter(display, waiting) as counter:
            try:
                while waiting or running:
                    while len(running) < self.executor.workers and waiting:
                        ready = _next(waiting, found, bool(running))
                        if ready is None:
                            break
                        waiting.remove(ready)
                        if isinstance(ready, FunctionCell):
                            _call(ready, found)
                            counter.count(found)
                        else:
                            running.append(_Started.start(ready, self.executor, display))
                    waiting = self._collect(running, waiting, found, display)
                    if running:
                        time.sleep(POLL_S)
            finally:
                _stop(running)
        return found

    def _collect(
        self,
        running: list[_Started],
        waiting: list[Cell],
        found: Outcomes,
        display: ProgressDisplay,
    ) -> list[Cell]:
        """Take up what has ended of `running`; returns the cells that still wait."""
        for one in list(running):
            try:
                code = one.poll()
            except WorkerLost as loss:
                running.remove(one)
                display.end(one.task, _lost(one.cell, loss, found, waiting))
                continue
            if code is not None:
                running.remove(one)
                display.end(one.task, f"{self._end(one, code, found)} [{found.place}]")
        return _possible(waiting, found)

    def _end(self, one: _Started, code: int, found: Outcomes) -> str:
        """Take up what a process came to, and say it."""
        cell, fault = one.cell, None
        if code != 0:
            fault = Fault(one.reason(code), code if code > 0 else 128 - code, cell.beside("log"))
        elif not (cell.folder / RESULT_FILE).is_file():
            fault = Fault(f"left no {RESULT_FILE} in {cell.folder}", 1, cell.beside("log"))
        if fault is not None and cell.may_fail:
            document = {"reason": fault.reason, "exit_code": code, "overrides": cell.overrides}
            write_json(cell.folder / FAILURE_FILE, stamp(document, self.provenance, kind="failure"))
            fault = None
        if fault is not None:
            found.faults[cell] = fault
            return f"failed: {fault}"
        found.documents[cell] = _document(cell.record)
        took = f"done, {one.seconds:.0f} s"
        reason = found.documents[cell].get("reason")
        return f"no result: {reason}" if "exit_code" in found.documents[cell] else took


@dataclass(frozen=True)
class Outcomes:
    """What the cells of a grid came to, why some have no result, and how many workers were lost."""

    cells: int
    documents: dict[Cell, Document] = field(default_factory=dict)
    faults: dict[Cell, Fault] = field(default_factory=dict)
    losses: dict[Cell, int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{len(self.documents) + len(self.faults)}/{self.cells}"

    def hashes(self, folder: Path) -> dict[str, str]:
        """SHA-256 of what every cell left, by its folder below `folder`."""
        apps = [cell for cell in self.documents if isinstance(cell, AppCell)]
        return {str(cell.folder.relative_to(folder)): file_hash(cell.record) for cell in apps}

    def faults_line(self) -> str:
        return "; ".join(f"{cell.name}: {fault}" for cell, fault in self.faults.items())


@dataclass(frozen=True, eq=False)
class _Started:
    cell: AppCell
    running: Running
    task: TaskID
    began: float
    before: int  # bytes of the log that earlier processes have left
    display: ProgressDisplay

    @classmethod
    def start(cls, cell: AppCell, executor: Executor, display: ProgressDisplay) -> _Started:
        cell.folder.parent.mkdir(parents=True, exist_ok=True)
        work = cell.work()
        task = display.begin(cell.name, cell.budget_s)
        before = work.log.stat().st_size if work.log.exists() else 0
        return cls(cell, executor.start(work), task, time.monotonic(), before, display)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def poll(self) -> int | None:
        self.display.update(self.task, self.seconds, "")
        return self.running.poll()

    def reason(self, code: int) -> str:
        """Why it failed: what it said last where its input was bad."""
        said = self.cell.beside("log").read_bytes()[self.before :]
        lines = said.decode(errors="replace").strip().splitlines()
        if code == EXIT_BAD_INPUT and lines:
            return lines[-1].removeprefix("error: ")
        return f"ended with code {code} after {self.seconds:.0f} s"

    def over(self) -> bool:
        try:
            return self.running.poll() is not None
        except WorkerLost:
            return True


def _stop(running: Sequence[_Started]) -> None:
    """End all that still run: asked at once, killed when they take too long."""
    alive = [one for one in running if not one.over()]
    try:
        for one in alive:
            one.running.stop()
        until = time.monotonic() + STOP_S
        while time.monotonic() < until and not all(one.over() for one in alive):
            time.sleep(POLL_S)
    finally:
        for one in alive:
            one.running.kill()


def _lost(cell: AppCell, loss: WorkerLost, found: Outcomes, waiting: list[Cell]) -> str:
    """Have a cell whose worker is lost begun again, or give it up; what is said of it."""
    count = found.losses[cell] = found.losses.get(cell, 0) + 1
    if count > LOSSES:
        found.faults[cell] = Fault(f"lost {count} workers ({loss})", 1, cell.beside("log"))
        return f"given up: {found.faults[cell]}"
    waiting.insert(0, cell)
    return f"lost its worker ({loss}), is begun again ({count} of {LOSSES})"


class _Counter:
    """Calls of functions are many and short: one line of progress for all of them."""

    def __init__(self, display: ProgressDisplay, waiting: Sequence[Cell]) -> None:
        self._display = display
        self._calls = sum(isinstance(cell, FunctionCell) for cell in waiting)

    def __enter__(self) -> _Counter:
        self._began = time.monotonic()
        self._task = self._display.begin("replays") if self._calls else None
        return self

    def count(self, found: Outcomes) -> None:
        if self._task is not None:
            self._display.update(self._task, time.monotonic() - self._began, found.place)

    def __exit__(self, *error: object) -> None:
        if self._task is not None:
            self._display.end(self._task, f"{self._calls}, {time.monotonic() - self._began:.0f} s")


def _needs(cell: Cell) -> Sequence[AppCell]:
    return cell.needs if isinstance(cell, AppCell) else ()


def _next(waiting: Sequence[Cell], found: Outcomes, busy: bool) -> Cell | None:
    """The first cell that has all it needs."""
    for cell in waiting:
        if all(need in found.documents for need in _needs(cell)):
            return cell
    if busy:
        return None
    raise InputError("needs a cell that is not run", record=waiting[0].name)


def _possible(waiting: Sequence[Cell], found: Outcomes) -> list[Cell]:
    """Without the cells that need one that has failed, and those that need them."""

    def hopeless(cell: Cell) -> bool:
        return any(need in found.faults or hopeless(need) for need in _needs(cell))

    return [cell for cell in waiting if not hopeless(cell)] if found.faults else list(waiting)


def _call(cell: FunctionCell, found: Outcomes) -> None:
    """Call the function, unless another cell of the same inputs was called since."""
    kept = cell.read()
    try:
        document = cell.function() if kept is None else kept
    except InputError as error:
        found.faults[cell] = Fault(str(error))
        return
    if kept is None:
        write_json(cell.record, document)
    found.documents[cell] = document


def _document(path: Path) -> Document:
    try:
        document = read_json(path)
    except InputError as error:
        told = f"is no result of a cell ({error.message}): delete it"
        raise InputError(told, file=path) from error
    if not isinstance(document, dict):
        raise InputError("is no result of a cell: delete it", file=path)
    return document


def quoted(value: object) -> str:
    """A value in Hydra's quotes."""
    return f"'{escaped(str(value))}'"


def escaped(text: str) -> str:
    """A text between Hydra's quotes."""
    return text.replace("'", r"\'")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does; so does a terminal that is closed."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
