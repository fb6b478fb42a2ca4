"""Runs a command, and ends it with the one who asked for it: python guard.py <lock> <command ...>.

Whoever starts this holds the other end of its standard input. When that end is closed, as it is
however its holder dies, the whole process group is killed: the command and all it has started.
On Linux the command is killed as well where this process alone is. The lock file is held as long as
the command lives, so that no second one of the same lock runs beside it. Only the standard library
is used: this is started by its path, in an interpreter without packages.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from types import FrameType

PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h


def guard(lock: str, command: list[str]) -> int:
    """Returns the exit code of the command; ends by the signal that ended it, if one has."""
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    with open(lock, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _left_to_the_command)  # its group has the signal as well
        code = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(held.fileno(),),  # the lock, which ends with the last that holds it
            preexec_fn=_end_with_this_process,  # noqa: PLW1509, the other thread only reads
        ).wait()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _end_with_the_starter() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


_LIBRARY = ctypes.CDLL(None)


def _end_with_this_process() -> None:
    if sys.platform == "linux":
        _LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _left_to_the_command(number: int, frame: FrameType | None) -> None:
    pass


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1], sys.argv[2:]))
