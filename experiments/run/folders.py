"""Run folders: new ones, those of runs that are resumed, and whose files lie in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envs.errors import InputError
from experiments.config.composing import CONFIG_FILE
from experiments.run.one_run import RESULT_FILE


@contextmanager
def claimed(folder: Path, config: object, text: str) -> Iterator[None]:
    """Make the folder of a run, or find that of the run to `resume`; no other run writes it now.

    A run that was killed and cannot be resumed is begun again where its config is `text`.

    Raises:
        InputError: it cannot be made, or another run or somebody's files lie in it; there is no run
            to resume.
    """
    resume = getattr(config, "resume", None)
    if resume is not None:
        if not (Path(resume) / CONFIG_FILE).is_file():
            raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=resume)
        if folder.resolve() != Path(resume).resolve():
            told = f"resume={resume} goes on in its own folder, not in this one"
            raise InputError(f"config key 'hydra.run.dir': {told}", file=folder)
    elif not (folder / CONFIG_FILE).exists():
        require_own_folder(folder)
    elif hasattr(config, "resume") or not _unfinished(folder, text):
        raise InputError("holds a run already", file=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        fault = f"cannot be made a run folder ({error.strerror or error})"
        raise InputError(fault, file=folder) from error
    try:
        _lock(held, folder)
        yield
    finally:
        os.close(held)


def _lock(held: int, folder: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError("another run writes it", file=folder) from error
    except OSError:
        pass  # a file system without locks


def _unfinished(folder: Path, text: str) -> bool:
    """Whether the run of a config has begun in a folder and not ended; the first line is aside."""
    try:
        begun = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    same = begun.partition("\n")[2] == text.partition("\n")[2]
    return same and not (folder / RESULT_FILE).exists()


def require_own_folder(folder: Path) -> None:
    """Refuse a folder in which somebody's files lie; hidden ones may, as of a file browser.

    Raises:
        InputError: naming one.
    """
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if not name.startswith("."):
            raise InputError(f"is no run's folder: it holds {name}", file=folder)
