"""One run of an app: what its task is given, and what it gives back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.run.loading import EVERY_S, SILENT_S, loaded
from experiments.run.provenance import Provenance

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
                line = f"{', '.join(filter(None, doing))}: {now - start:.0f} s since its start"
                console.say(line)
                silence = EVERY_S

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        with telling(console.say):
            yield
    finally:
        ended.set()
        thread.join()


ENVIRONMENT_FILE, RESULT_FILE = "environment.json", "result.json"


@dataclass(frozen=True)
class Run:
    """One run of an app: where it writes, what it prints on, and its provenance.

    `choices` maps each config group to the option that was chosen; `overrides` is the command
    line in Hydra's terms.
    """

    folder: Path
    console: RunConsole
    provenance: Provenance
    choices: Mapping[str, str]
    overrides: Sequence[str]
    begun: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Wall time since it began."""
        return time.perf_counter() - self.begun

    def begin(self, stage: str) -> None:
        """What is done from now on, as the console says where nothing else is said for long."""
        self.console.doing = stage

    def choice(self, group: str, node: Mapping[str, object]) -> str:
        """The option chosen for `group`; the `_target_` of its `node` where there is no option."""
        return self.choices.get(group) or str(node.get("_target_"))


@dataclass(frozen=True)
class Result:
    """What an app found: `values` go to `result.json`, with `provenance` over the inputs.

    `shown` are the keys printed at the end of a run without `json=true`; None: every scalar.
    `warnings` are printed on standard error, one a line, and stand in `result.json`.
    """

    values: Mapping[str, object]
    provenance: Provenance
    shown: Sequence[str] | None = None
    warnings: Sequence[str] = ()
