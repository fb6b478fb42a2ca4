"""The cells of a study at work: what is done is not done again, whoever was killed doing it.

A cell leaves its result in a folder named by its key, written last and at once. It runs in this
process, or where one of Hydra's launchers has it run: in processes of this machine (joblib) or of a
Ray cluster whose machines see the folder of cells.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf.errors import OmegaConfBaseException

from envs.errors import InputError, in_one_line
from envs.files import read_json
from experiments.config.command_words import TRUST, own_flags, quoted, use_flags
from experiments.config.composing import (
    check_command_line,
    hydra_over_configs,
    hydra_words,
    missing_plugin,
)
from experiments.config.config_source import job_keys
from experiments.config.verbs import without_choice
from experiments.run.artifacts import write_json
from experiments.run.display import ProgressDisplay
from experiments.run.interrupts import end_with_children
from experiments.run.job import loaded_job, run_quietly
from experiments.run.one_run import RESULT_FILE
from experiments.run.provenance import Provenance, stamp
from experiments.studies.study import STUDY_KEY, Cell

CONFIG = "study"  # of conf
FAILURE_FILE = "failure.json"
FAILED = "failure"  # the key of the reason
CHECKPOINTS = "checkpoints"  # of a run that can be taken up where it was killed
WATCH_S, BUSY_S = 0.5, 30.0
MOST_LOST = 3  # workers, before a study is given up


def record_of(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """What a cell came to: its result, or why there is none; None: it is still to be done."""
    for name in (RESULT_FILE, FAILURE_FILE):
        path = folder / cell.key / name
        if path.is_file():
            found = read_json(path)
            if not isinstance(found, dict):
                raise InputError("is no result of a cell: delete it", file=path)
            return found
    return None


def check(cells: Sequence[Cell], folder: Path) -> None:
    """Compose one cell of each solver and of each problem, before anything runs.

    Raises:
        InputError: naming the cell.
    """
    seen: set[object] = set()
    for cell in cells:
        about = {(cell.verb, cell.solver, cell.variant), (cell.verb, cell.problem)}
        if about <= seen:
            continue
        seen |= about
        job = cell.job
        try:
            words = without_choice(job.verb, cell.command(folder), job_keys(job.config))
            made = check_command_line(words, job.config, loaded_job(job)[0])
            require_data(made.config)
        except InputError as error:
            awaited = (str(folder / key) in str(error) for key in cell.reads)
            if not any(awaited):  # the file is missing that another cell is to leave
                raise InputError(str(error), file=STUDY_KEY, record=cell.name) from error


def require_data(part: object) -> None:
    """Have every part of a config that stands for published files refuse to be without them."""
    if hasattr(part, "require_data"):
        part.require_data()
    elif isinstance(part, Mapping):
        for inner in part.values():
            require_data(inner)
    elif hasattr(part, "__dataclass_fields__"):
        for key in part.__dataclass_fields__:
            require_data(getattr(part, key))


def run_cell(cell: Cell, folder: Path, flags: Sequence[str] = ()) -> None:
    """Run a cell and keep what it came to; bad input is kept as the reason of its failure.

    Raises:
        InputError: another process is at it for long.
    """
    own, words = folder / cell.key, cell.command(folder)
    missing = [key for key in cell.reads if not (folder / key / RESULT_FILE).is_file()]
    with _alone(folder / f"{cell.key}.lock"), (folder / f"{cell.key}.log").open("a") as log:
        if record_of(cell, folder) is not None:
            return
        if any((own / CHECKPOINTS).glob("*")):  # of a run that was killed
            words = [*(flag for flag in flags if flag.startswith(TRUST)), f"resume={quoted(own)}"]
        elif own.exists():
            shutil.rmtree(own)
        try:
            if missing:
                raise InputError(f"reads a cell that has no result: {missing[0]}")
            run_quietly(cell.job, words, log)
        except (InputError, MemoryError) as error:
            about = {FAILED: in_one_line(error), "words": list(cell.words)}
            document = stamp(about, Provenance(cell.seed), kind="failure")
            write_json(own / FAILURE_FILE, document)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Inside, no other process is: one whose starter was killed is about to end."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + BUSY_S
    with lock.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise InputError("another run is at this cell", file=lock) from error
                time.sleep(0.05)
            except OSError:  # a file system without locks
                break
        yield


@dataclass(frozen=True)
class Task:
    """What a launcher calls with the number of a cell, maybe in another process."""

    cells: Sequence[Cell]
    folder: Path
    flags: Sequence[str]
    driver: int  # the process that launched this one

    def __call__(self, config: Any) -> None:
        if os.getpid() != self.driver:
            _end_with_parent()
            use_flags(self.flags)
        run_cell(self.cells[int(config.cell)], self.folder, self.flags)


_watching = threading.Event()


def _end_with_parent() -> None:
    """End this process, with all it has started, as soon as the one that started it is gone."""
    if _watching.is_set():
        return
    _watching.set()
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        end_with_children(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def run_cells(
    cells: Sequence[Cell], folder: Path, display: ProgressDisplay, launcher: Sequence[str] = ()
) -> int:
    """Do what is not done yet, none before those it reads; `launcher` are words of Hydra's.

    Returns how many workers were lost; their cells were begun again.

    Raises:
        InputError: the launcher is not installed, or loses workers again and again.
    """
    todo = [cell for cell in cells if record_of(cell, folder) is None]
    if len(todo) < len(cells):
        display.console.say(f"{len(cells) - len(todo)} of {len(cells)} cells were done before")
    lost = 0
    while todo:
        waiting = {cell.key for cell in todo}
        ready = [cell for cell in todo if not waiting & set(cell.reads)]
        try:
            if launcher:
                _launch(ready, folder, display, launcher)
            for cell in ready:
                _run_here(cell, folder, display)
        except BrokenProcessPool as error:
            lost += 1
            if lost > MOST_LOST:
                raise InputError(
                    f"{lost} workers were killed, the last with {todo[0].name}"
                ) from error
            display.console.say("a worker was killed: its cells are begun again")
        todo = [cell for cell in todo if record_of(cell, folder) is None]
    return lost


def _run_here(cell: Cell, folder: Path, display: ProgressDisplay) -> None:
    """Run a cell, or tell what has become of it elsewhere."""
    start = time.perf_counter()
    if record_of(cell, folder) is None:
        task = display.begin(cell.name, cell.budget)
        run_cell(cell, folder, own_flags())
        display.end(task, f"done, {time.perf_counter() - start:.1f} s")
    if reason := (record_of(cell, folder) or {}).get(FAILED):
        display.console.say(f"{cell.name}: no result: {reason}")


def _launch(
    cells: Sequence[Cell], folder: Path, display: ProgressDisplay, words: Sequence[str]
) -> None:
    """Have one of Hydra's launchers run cells; `display` learns how many have ended."""
    task = Task(list(cells), folder, own_flags(), os.getpid())
    own = [*words, f"hydra.sweep.dir={quoted(folder)}", "hydra.sweep.subdir=."]
    ended = threading.Event()

    def tell() -> None:
        shown, start = display.begin(f"{len(cells)} cells"), time.perf_counter()
        while not ended.wait(1.0):
            done = sum(record_of(cell, folder) is not None for cell in cells)
            display.update(shown, time.perf_counter() - start, f"{done}/{len(cells)}")
        display.end(shown, f"done, {time.perf_counter() - start:.1f} s")

    telling = threading.Thread(target=tell, daemon=True)
    with hydra_over_configs() as loader:
        try:
            config = loader.load_configuration(
                CONFIG, hydra_words(own, loader, CONFIG), RunMode.MULTIRUN
            )
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(loader, Callbacks(config)), task_function=task,
                config=config,
            )  # fmt: skip
            telling.start()
            for job in launcher.launch([[f"+cell={n}"] for n in range(len(cells))], 0):
                job.return_value  # noqa: B018, which raises what the task has raised
        except (HydraException, OmegaConfBaseException, ModuleNotFoundError) as error:
            raise missing_plugin(error) or InputError(in_one_line(error)) from error
        finally:
            ended.set()
            if telling.is_alive():
                telling.join()
