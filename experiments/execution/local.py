"""Commands in processes of this machine that end when this process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.run.threads import THREAD_VARIABLES

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


class LocalProcess:
    """A command in a process of this machine, with all that it starts.

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
