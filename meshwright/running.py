"""Apps run from Python."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from envs.errors import InputError
from experiments.config.command_words import CONFIG_DIR, TRUST, given_keys
from experiments.config.verbs import EXPERIMENTS, VERBS
from experiments.run.faults import EXIT_BAD_INPUT

FAULT = "error: "


def run(verb: str, *words: str) -> dict[str, Any]:
    """Run an app as `meshwright <verb> <words>` does, in this process; what it found.

        found = mw.run("main", "env=cluster_mixed", "training.budget_s=60")
        scheduler = mw.load(found["checkpoint"])

    Args:
        verb: train, export, main, evaluate, ...: `meshwright --help` lists them.
        words: `group=option` and `key=value`, as on the command line.

    Returns:
        What the run wrote to `result.json`; `run_folder` is where everything else lies, which is
        `outputs/<verb>/<date-time>` unless `hydra.run.dir=<folder>` is among the words.

    Raises:
        InputError: an unknown verb, or what the command would tell in one line.
        KeyboardInterrupt: the run was interrupted.
    """
    if verb not in VERBS:
        raise InputError(f"{verb!r} is unknown (known: {', '.join(VERBS)})", field="verb")
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in (*CONFIG_DIR, TRUST):
            raise InputError(f"{word!r} is for the command alone", field="words")
    given = given_keys(words)
    folder = given.get("hydra.run.dir") or given.get("resume")
    if folder is None:
        folder = f"outputs/{verb}/{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        words = (*words, f"hydra.run.dir={folder}")
    overheard = _Overheard(sys.stderr)
    with contextlib.redirect_stderr(overheard):
        code = import_module(f"{EXPERIMENTS}.{verb}").main(list(words))
    if code == EXIT_BAD_INPUT:
        raise InputError(overheard.fault)
    if code != 0:
        raise KeyboardInterrupt
    document = json.loads((Path(folder.strip("'\"")) / "result.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


class _Overheard(io.TextIOBase):
    """Hands on what is written, all but the line that says what is wrong."""

    def __init__(self, stream: Any) -> None:
        self.fault = ""
        self._stream = stream

    def write(self, text: str) -> int:
        if text.startswith(FAULT):
            self.fault = text.removeprefix(FAULT).strip()
        elif not (self.fault and text == "\n"):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def isatty(self) -> bool:
        return bool(self._stream.isatty())
