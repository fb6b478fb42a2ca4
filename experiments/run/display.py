"""Progress on a console: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from experiments.run.one_run import RunConsole

PLAIN_EVERY_S = 10.0  # seconds between two plain lines of one task


class ProgressDisplay:
    """Tasks that run for a known time, each with a word on where it stands; `words` are names.

    On a terminal every task is a bar; elsewhere a line is printed when a task begins and ends, and
    every `PLAIN_EVERY_S` seconds in between.
    """

    def __init__(self, console: RunConsole, words: Mapping[str, str] | None = None) -> None:
        self.console, self.words = console, words or {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TimeElapsedColumn(),
            TextColumn("{task.fields[news]}"),
            console=console,
            transient=True,
        )
        self._said: dict[TaskID, float] = {}
        self._names: dict[TaskID, str] = {}
        self._seconds: dict[TaskID, float | None] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bars.start()
            self.console.live = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.console.live = False
            self._bars.stop()

    def begin(self, name: str, seconds: float | None = None, iterations: int = 0) -> TaskID:
        """A new task, expected to take `seconds`, and so many iterations at least."""
        name = self.words.get(name, name)
        least = f", {iterations} iterations at least" if iterations else ""
        task = self._bars.add_task(name, total=seconds, news="")
        self._names[task], self._seconds[task] = name, seconds
        self._name_running()
        self._say(task, "begins" + (f", {seconds:.0f} s" if seconds is not None else "") + least)
        return task

    def update(self, task: TaskID, seconds: float, news: str) -> None:
        """`seconds` have passed; `news` says where the task stands."""
        self._bars.update(task, completed=seconds, news=news)
        if time.monotonic() - self._said[task] >= PLAIN_EVERY_S:
            total = self._seconds[task]
            of = "" if total is None else f" of {total:.0f}"
            self._say(task, f"{seconds:.0f}{of} s{news and f', {news}'}")

    def end(self, task: TaskID, news: str) -> None:
        """The task is over."""
        self._bars.remove_task(task)
        self._print(task, news)
        del self._names[task]
        self._name_running()

    def _name_running(self) -> None:
        self.console.doing = " and ".join(self._names.values())

    def _say(self, task: TaskID, text: str) -> None:
        self._said[task] = time.monotonic()
        if not self.console.is_terminal:
            self._print(task, text)

    def _print(self, task: TaskID, text: str) -> None:
        self.console.say(f"{self._names[task]}: {text}")
