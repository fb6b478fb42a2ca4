"""Where the commands of a grid run: what an executor is, and the one of this machine."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from envs.errors import InputError

THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes started inside use one thread."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Work:
    """One command, and the files it has to do with, by absolute paths.

    Attributes:
        arguments: of a Python interpreter.
        folder: that it writes.
        log: what it prints is appended to it; it lies in the folder above `folder`.
        reads: folders of other commands that it reads.
        limit_s: seconds after which it is killed; None: never.
    """

    arguments: tuple[str, ...]
    folder: Path
    log: Path
    reads: tuple[Path, ...] = ()
    limit_s: float | None = None

    @property
    def lock(self) -> Path:
        """Held while it runs: no two commands write one folder at a time."""
        return self.folder.with_name(f"{self.folder.name}.lock")


class WorkerLost(Exception):  # noqa: N818, no error of a command
    """What ran a command is gone, and nothing is known of how the command ended."""


class Running(Protocol):
    """A command that was started."""

    def poll(self) -> int | None:
        """Its exit code, below 0 where a signal ended it; None while it runs.

        Raises:
            WorkerLost: it has not ended, but what ran it has.
        """

    def stop(self) -> None:
        """Ask it, and all it has started, to end."""

    def kill(self) -> None:
        """End it and all it has started, and wait for that."""


@runtime_checkable
class Executor(Protocol):
    """What runs commands: each in a process of its own, with one thread."""

    @property
    def workers(self) -> int:
        """How many commands run at a time."""

    def start(self, work: Work) -> Running: ...


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, `workers` at a time; they end when this process does."""

    workers: int  # runs at a time

    def start(self, work: Work) -> Running:
        """Start a command as soon as no other holds its lock."""
        return LocalProcess(work)


class LocalProcess:
    """A command in a process of this machine; see `Running`.

    `environment` are its variables beside those for one thread; None: those of this process.
    """

    def __init__(
        self, work: Work, environment: Mapping[str, str] | None = None, directory: str | None = None
    ) -> None:
        self._limit_s, self._began = work.limit_s, time.monotonic()
        guard = [sys.executable, "-I", "-S", str(GUARD), str(work.lock)]
        with work.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, sys.executable, *work.arguments],
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**(environment or os.environ), **dict.fromkeys(THREAD_VARIABLES, "1")},
                start_new_session=True,  # a signal to its group reaches all it has started
            )

    def poll(self) -> int | None:
        if self._limit_s is not None and time.monotonic() - self._began > self._limit_s:
            self.kill()
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def stop(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        self._process.wait()

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def wait_until_free(lock: Path, seconds: float) -> None:
    """Wait until no command holds `lock`: one whose starter was killed is about to end.

    Raises:
        InputError: it is held for longer.
    """
    if not lock.exists():
        return
    until = time.monotonic() + seconds
    with lock.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() > until:
                    raise InputError("is held by another run of this cell", file=lock) from error
                time.sleep(0.05)
            else:
                return
