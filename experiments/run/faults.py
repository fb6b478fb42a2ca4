"""What ends a run early: one line and an exit code, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from envs.errors import InputError, in_one_line
from experiments.run.interrupts import Interrupts, last_word

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
NOT_UTF8 = "is no text in this locale: set PYTHONUTF8=1, or a locale of UTF-8"


def exit_code_of(work: Callable[[], None], *, last: bool) -> int:
    """The exit code of some work; `last`: the process ends with it.

    0; 2 for bad input, or what this machine has no room for; 130 where it was interrupted, 143 by
    SIGTERM; 130 where the reader of its output has seen enough, as in `... | head`.
    """
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # which in a C locale take ASCII alone
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with Interrupts(last=last) as interrupts:
        try:
            work()
            sys.stdout.flush()
        except BrokenPipeError:
            _settle_stdout()
            return EXIT_INTERRUPTED
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or interrupts.first is not None:
                _say(last_word())
                return interrupts.exit_code
            fault = fault_of(error)
            if fault is None:
                raise
            _say(f"error: {in_one_line(fault)}")
            _settle_stdout()
            return EXIT_BAD_INPUT
    return 0


def fault_of(error: BaseException) -> InputError | None:
    """What a user can mend; None of a fault of this program."""
    cause = in_one_line(error)
    fault = None
    if isinstance(error, BrokenPipeError):  # the reader of our output has seen enough
        return None
    if isinstance(error, InputError):
        fault = error
    elif isinstance(error, MemoryError):
        cause = cause or "out of memory"
        fault = InputError(f"the input is too large for this machine's memory ({cause})")
    elif isinstance(error, RecursionError):
        fault = InputError("the input is nested too deeply")
    elif isinstance(error, UnicodeEncodeError):
        fault = InputError(f"{cause}: {NOT_UTF8}")
    elif isinstance(error, OSError):
        exit_code_of = f"cannot be read or written ({error.strerror or cause})"
        fault = InputError(exit_code_of, file=error.filename or "standard output, or another file")
    elif os.strerror(errno.ENOSPC) in cause:  # as libraries in other languages tell it
        fault = InputError(f"the disk is full ({cause})")
    return fault


def _open_closed_streams() -> None:
    """A stream that whoever started this has closed leads nowhere, and not to the next file."""
    for name in ("stdin", "stdout", "stderr"):  # each opened takes the least number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115


def require_text(words: Sequence[str]) -> None:
    """Refuse words, or a working folder, that are no text in this locale, as with ASCII alone.

    Raises:
        InputError: one is not, or the working folder has been removed.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise InputError("the working folder has been removed") from error
    for word in (*words, here):
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InputError(f"{word!a} {NOT_UTF8}")


def _say(line: str) -> None:
    """A last word, where anybody listens."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _settle_stdout() -> None:
    """What is left to print, and cannot be, goes nowhere at the end of the process."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
