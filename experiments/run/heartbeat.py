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
    """Inside, the console says what is compiled, and after some silence that `what` runs.

    Seconds are those since the beginning of the run.
    """
    from envs.compilation import compiling, telling  # numba takes a while: not for an app's help

    start = time.monotonic()
    ended = threading.Event()

    def beat() -> None:
        silence = SILENT_S
        while not ended.wait(POLL_S):
            now = time.monotonic()
            if not console.live and now - console.written >= silence:
                compiled = compiling()
                doing = what if compiled is None else f"{what}, compiling {compiled}"
                console.print(f"{doing}: {now - start:.0f} s since its start", highlight=False)
                silence = EVERY_S

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        with telling(lambda line: console.print(line, highlight=False)):
            yield
    finally:
        ended.set()
        thread.join()
