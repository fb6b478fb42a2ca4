"""Kernels are compiled at their first call: which one is, and a clock that leaves it out.

numba tells of every kernel that it compiles, and nothing of those that its cache on disk has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

Told = Callable[[str], None]  # the name of a kernel that begins to be compiled

# Options of a kernel that only kernels call: it has no way in from Python, which takes a quarter of
# the time to compile. `tests/envs/test_compilation.py` finds those that are marked wrongly.
INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Options of a kernel that becomes part of those that call it, in loops where every step counts.
INLINED = {
    "cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy",
    "forceinline": True, "_nrt": False,
}  # fmt: skip


class _Watch(event.Listener):  # type: ignore[misc]
    """Sums the seconds of compiling; a kernel inside another is part of it."""

    def __init__(self) -> None:
        self.kernels, self.seconds = 0, 0.0
        self.told: list[Told] = []
        self.names: list[str] = []  # of kernels that are being compiled, each inside the one before
        self._began = 0.0
        self._owner = 0  # thread; numba's lock lets one compile at a time

    def on_start(self, happened: Any) -> None:
        name = str(getattr(happened.data.get("dispatcher"), "__name__", "a kernel"))
        if not self.names:
            self._began, self._owner = time.perf_counter(), threading.get_ident()
        self.names.append(name)
        self.kernels += 1
        for told in self.told:
            told(name)

    def on_end(self, happened: Any) -> None:
        self.names.pop()
        if not self.names:
            self.seconds += time.perf_counter() - self._began

    def so_far(self) -> float:
        """Seconds of compiling, those of a kernel that is being compiled included."""
        running = bool(self.names) and self._owner == threading.get_ident()
        return self.seconds + (time.perf_counter() - self._began if running else 0.0)


_watch = _Watch()
event.register("numba:compile", _watch)


def clock() -> float:
    """Seconds of a clock that stands still while this process compiles kernels."""
    return time.perf_counter() - _watch.so_far()


def kernels_compiled() -> int:
    """By this process so far; what the cache has does not count."""
    return _watch.kernels


def compiling() -> str | None:
    """The kernel that is being compiled now; None: none is."""
    names = _watch.names[:1]
    return names[0] if names else None


@contextmanager
def telling(told: Told) -> Iterator[None]:
    """Inside, `told` is called whenever a kernel begins to be compiled."""
    _watch.told.append(told)
    try:
        yield
    finally:
        _watch.told.remove(told)
