"""A run is never silent for long: it says what it compiles, and that it is still at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from experiments.run.loading import EVERY_S, SILENT_S, loaded

POLL_S = 0.25


class RunConsole(Console):
    """A console that knows when something was last written on it.

    `live` says that something on it moves by itself, as bars on a terminal do; `doing` is what is
    being done, for the time that nothing else is said.
    """

    def __init__(self, **options: Any) -> None:
        self.written = time.monotonic()
        self.live, self.doing = False, ""
        super().__init__(**options)

    def print(self, *objects: Any, **options: Any) -> None:
        self.written = time.monotonic()
        super().print(*objects, **options)

    def say(self, text: str) -> None:
        """A line of plain words, which the terminal may wrap."""
        self.print(text, highlight=False, soft_wrap=True)


@contextmanager
def heartbeat(console: RunConsole, what: str) -> Iterator[None]:
    """Inside, the console says what is compiled, and after some silence that `what` runs.

    Seconds are those since the beginning of the run, the loading of its modules included.
    """
    start = loaded() or time.monotonic()
    from envs.compilation import compiling, telling  # numba takes a while: not for an app's help

    ended = threading.Event()

    def beat() -> None:
        silence = SILENT_S
        while not ended.wait(POLL_S):
            now = time.monotonic()
            if not console.live and now - console.written >= silence:
                compiled = compiling()
                doing = (what, console.doing, compiled and f"compiling {compiled}")
                told = f"{', '.join(filter(None, doing))}: {now - start:.0f} s since its start"
                console.say(told)
                silence = EVERY_S

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        with telling(console.say):
            yield
    finally:
        ended.set()
        thread.join()
