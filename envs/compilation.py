"""Kernels are compiled at their first call: a line that says so, and a clock that leaves it out.

numba tells of every kernel that it compiles, and nothing of those that its cache on disk has.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba import njit
from numba.core import event

Told = Callable[[str], None]  # a line: what begins to be compiled, and how long that takes

SHORT_S = 1.0  # seconds of compiling that nothing is said of
STILL_S = 10.0  # between two lines that say that it goes on, where no run says so
SAID = "MESHWRIGHT_COMPILES"  # of the environment: subjects told of, for processes of one run too
STEP, CLUSTER = "the simulator of a training step", "the cluster simulator"
ROOMS = {  # by the rooms of the house
    **dict.fromkeys(("cluster", "durations", "interference", "rllib"), CLUSTER),
    **dict.fromkeys(("bandwidth", "graphs", "hybrid", "joint", "partition", "pipeline",
                     "placement", "step"), STEP),
    **dict.fromkeys(("coflows", "network", "synchronisation"), "the network simulator"),
}  # fmt: skip


def _both(**options: Any) -> tuple[Any, Any]:
    """Decorators of kernels: of those that Python calls, and of those that only kernels call.

    The latter have no way in from Python, which takes a quarter of the time to compile.
    `tests/envs/test_compilation.py` finds those that are marked wrongly.
    """
    common = {"cache": True, "nogil": True, **options}
    return njit(**common), njit(**common, no_cpython_wrapper=True, no_cfunc_wrapper=True)


_UNCHECKED = {"boundscheck": False, "error_model": "numpy"}
_LEAN = {**_UNCHECKED, "_nrt": False}  # allocates nothing

compiled, compiled_inner = _both()
unchecked, unchecked_inner = _both(**_UNCHECKED)
lean, lean_inner = _both(**_LEAN)
joined, joined_inner = _both(forceinline=True)  # a part of those that call it
inlined, inlined_inner = _both(**_LEAN, forceinline=True)  # in loops where every step counts
pasted = njit(cache=True, inline="always")  # before types are known


def subject(module: str) -> str:
    """What a kernel belongs to, by the module that it stands in."""
    room = module.removeprefix("meshwright.").partition(".")[2].partition(".")[0]
    return ROOMS.get(room, "kernels")


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Watch(event.Listener):  # type: ignore[misc]
    """Sums the seconds of compiling; a kernel inside another is part of it."""

    def __init__(self) -> None:
        self.kernels, self.seconds = 0, 0.0
        self.told: list[Told] = [_on_stderr]  # the last of them is
        self.subjects: list[str] = []  # of kernels that are compiled, each inside the one before
        self._watched = False  # by a thread that says how long it takes
        self._began = 0.0
        self._owner = 0  # thread; numba's lock lets one compile at a time

    def on_start(self, happened: Any) -> None:
        kernel = getattr(happened.data.get("dispatcher"), "py_func", None)
        if not self.subjects:
            self._began, self._owner = time.perf_counter(), threading.get_ident()
        self.subjects.append(subject(str(getattr(kernel, "__module__", ""))))
        self.kernels += 1
        if self.so_far() < SHORT_S:
            return
        what, said = self.subjects[0], os.environ.get(SAID, "")
        if what not in said.split(","):
            os.environ[SAID] = f"{said},{what}"
            about = ", a minute or more where all of it is" if what in {CLUSTER, STEP} else ""
            self.told[-1](f"compiling what is new of {what}{about}")
        if not self._watched and self.told[-1] is _on_stderr:
            self._watched = True
            threading.Thread(target=self._still, name="compiling", daemon=True).start()

    def _still(self) -> None:
        kernels = -1
        while self.subjects or kernels != self.kernels:
            kernels = self.kernels
            time.sleep(STILL_S)
            if self.subjects and self.told[-1] is _on_stderr:
                seconds = self.seconds + time.perf_counter() - self._began
                _on_stderr(f"still compiling {self.subjects[0]}: {seconds:.0f} s")
        self._watched = False

    def on_end(self, happened: Any) -> None:
        self.subjects.pop()
        if not self.subjects:
            self.seconds += time.perf_counter() - self._began

    def so_far(self) -> float:
        """Seconds of compiling, those of a kernel that is being compiled included."""
        running = bool(self.subjects) and self._owner == threading.get_ident()
        return self.seconds + (time.perf_counter() - self._began if running else 0.0)


_watch = _Watch()
event.register("numba:compile", _watch)


def clock() -> float:
    """Seconds of a clock that stands still while this process compiles kernels."""
    return time.perf_counter() - _watch.so_far()


def compiling() -> str | None:
    """What is being compiled now; None: nothing is."""
    subjects = _watch.subjects[:1]
    return subjects[0] if subjects else None


@contextmanager
def telling(told: Told) -> Iterator[None]:
    """Inside, what begins to be compiled is told to `told`; elsewhere on standard error."""
    _watch.told.append(told)
    try:
        yield
    finally:
        _watch.told.remove(told)
