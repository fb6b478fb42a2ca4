"""The time before there is a run, as while modules load: little is imported here."""

import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORD = "interrupted"
COUNTED = ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")  # read by libraries as they load
MOST_DIGITS = 4  # of a number of threads


def end_at_once_on_signals() -> None:
    """There is nothing to end but the process."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: _end(number))


def _end(number: int) -> None:
    os.write(2, f"{WORD}\n".encode())
    os._exit(128 + number)


def environment_fault() -> str | None:
    """What is wrong with the environment, which libraries would tell by a traceback."""
    for name in COUNTED:
        value = os.environ.get(name, "1")
        digits = value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS
        if not digits or int(value) == 0:
            return f"environment variable {name}: {value!r} is no number of threads"
    return None
