"""The time before there is a run, as while modules load: little is imported here."""

import os
import signal
import sys
import threading
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORD = "interrupted"
COUNTED = ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")  # read by libraries as they load
MOST_DIGITS = 4  # of a number of threads
SILENT_S, EVERY_S = 2.0, 10.0  # seconds without a word before the first, and between two
LOADING_S = 6.0  # before the first word while modules load, which is seldom long

_loaded = threading.Event()
_began: float | None = None


def end_at_once_on_signals() -> None:
    """There is nothing to end but the process."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: _end(number))


def _end(number: int) -> None:
    os.write(2, f"{WORD} while loading: nothing was begun\n".encode())
    os._exit(128 + number)


def say_that_it_loads() -> None:
    """On standard error, from now until `loaded` is called, where that takes a while."""
    global _began  # noqa: PLW0603
    _began = time.monotonic()
    threading.Thread(target=_say, args=(_began,), name="loading", daemon=True).start()


def _say(began: float) -> None:
    silence = LOADING_S
    while not _loaded.wait(silence):
        os.write(2, f"loading: {time.monotonic() - began:.0f} s since its start\n".encode())
        silence = EVERY_S


def loaded() -> float | None:
    """From now on a run speaks; when the process began to load for it, None: it did not."""
    global _began
    began, _began = _began, None
    _loaded.set()
    return began


def prepare_command(package: str, typed: list[str]) -> None:
    """Before the module of `python -m <package>.<command> ...` is found, which may load long.

    `typed` is the whole command line of the process. The command itself runs once the package is
    imported: a thread could import nothing of it before.
    """
    name = typed[typed.index("-m") + 1].removeprefix(f"{package}.")
    if "." in name:
        return
    end_at_once_on_signals()
    if (fault := environment_fault()) is not None:
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(2)
    say_that_it_loads()


def environment_fault() -> str | None:
    """What is wrong with the environment, which libraries would tell by a traceback."""
    for name in COUNTED:
        value = os.environ.get(name, "1")
        digits = value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS
        if not digits or int(value) == 0:
            return f"environment variable {name}: {value!r} is no number of threads"
    return None
