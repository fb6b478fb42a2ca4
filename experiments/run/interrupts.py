"""Ctrl-C and SIGTERM: a run ends within seconds, whatever it is doing.

The first signal raises KeyboardInterrupt, so that files are closed and processes ended. Python sees
a signal only between two of its own steps; what is deep in a solver is ended by a thread that the
system wakes, after `PATIENCE_S`, along with the processes it has started.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from experiments.run.loading import SIGNALS, WORD

ALL_ANEW = "no checkpoint was written yet, it has to begin again"
PATIENCE_S = 2.0  # between a signal and the end by force


_how: dict[Path, str] = {}  # of the process, as signals are


@contextmanager
def goes_on(how: str, *work: Path) -> Iterator[None]:
    """What is said if this is interrupted, and its work is kept in one of these folders."""
    global _how  # noqa: PLW0603
    before, _how = _how, dict.fromkeys(work, how)
    yield
    _how = before  # after an interrupt it is still to be said


def last_word() -> str:
    """Of a run that was interrupted."""
    kept = [how for work, how in _how.items() if any(path.is_dir() for path in work.glob("*"))]
    return ": ".join((WORD, *(kept or [ALL_ANEW] * bool(_how))[:1]))


class Interrupts:
    """For the time of a run, signals are interrupts that do not fail to end it.

    Attributes:
        first: the signal that came first; None: none came.
    """

    def __init__(self, *, last: bool) -> None:
        """`last`: nothing comes after the run, so its end is watched to the end of the process."""
        self.first: int | None = None
        self._last, self._raised = last, False
        self._before: dict[signal.Signals, object] = {}

    @property
    def exit_code(self) -> int:
        """As shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.first or signal.SIGINT)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the business of another thread
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._interrupt)
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._wake = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name=WORD, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before or (self._last and self.first is not None):
            return
        signal.set_wakeup_fd(self._wake)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave
        self._write.close()  # which ends the thread

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        if self.first is None:
            self.first = number
        with suppress(OSError):  # where a library has taken the wake-up of signals for itself
            self._write.send(bytes([number]))
        if not self._raised:  # what cleans up is not interrupted again
            self._raised = True
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Wait for a signal; `PATIENCE_S` after it the process ends, if it still is there."""
        with self._read:
            while self.first is None:
                came = self._read.recv(1)
                if not came:
                    return
                if came[0] in SIGNALS:
                    self.first = came[0]
            until = time.monotonic() + PATIENCE_S
            while (left := until - time.monotonic()) > 0.0:
                self._read.settimeout(left)
                with suppress(TimeoutError):
                    if not self._read.recv(1):
                        return
            _end(self.first)


def _end(number: int) -> None:
    os.write(2, f"{last_word()}\n".encode())
    end_with_children(128 + number)


def end_with_children(code: int) -> None:
    """End this process at once, and all that it has started."""
    for child in _descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os._exit(code)


def _descendants(process: int) -> Iterator[int]:
    """Processes that a process has started, and those that they have; known on Linux alone."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text(encoding="ascii").split()]
        except OSError:  # the thread has ended
            continue
        for child in children:
            yield from _descendants(child)
            yield child
