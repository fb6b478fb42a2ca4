"""A run is never silent for long: it says what it compiles, and that it is still at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

SILENT_S = 2.0  # seconds without a word after which a run says the first time that it works
EVERY_S = 10.0  # and after that
POLL_S = 0.25


class RunConsole(Console):
    """A console that knows when something was last written on it.

    `live` says that something on it moves by itself, as bars on a terminal do.
    """

    def __init__(self, **options: Any) -> None:
        self.written = time.monotonic()
        self.live = False
        super().__init__(**options)

    def print(self, *objects: Any, **options: Any) -> None:
        self.written = time.monotonic()
        super().print(*objects, **options)


@contextmanager
def heartbeat(console: RunConsole, what: str) -> Iterator[None]:
    """Inside, the console says which kernels are compiled, and after some silence that `what` runs.

    Kernels are compiled once, for they are kept on the disk.
    """
    from envs.compilation import compiling, telling  # numba takes a while: not for an app's help

    start = time.monotonic()
    ended = threading.Event()
    kernels = 0

    def compiles(name: str) -> None:
        nonlocal kernels
        kernels += 1
        if kernels == 1:
            console.print(f"compiling kernels (once): {name}", highlight=False)
        elif time.monotonic() - console.written >= SILENT_S:
            console.print(f"compiling kernels (once): {kernels}, {name}", highlight=False)

    def beat() -> None:
        silence = SILENT_S
        while not ended.wait(POLL_S):
            now = time.monotonic()
            if not console.live and now - console.written >= silence:
                kernel = compiling()
                doing = what if kernel is None else f"compiling kernels (once): {kernels}, {kernel}"
                console.print(f"{doing}: {now - start:.0f} s", highlight=False)
                silence = EVERY_S

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        with telling(compiles):
            yield
    finally:
        ended.set()
        thread.join()
