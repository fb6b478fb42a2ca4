"""Runs commands in one process and writes the figures of each, one JSON line a command.

    python worker.py <commands.json> <figures.jsonl>

It stands alone, for an older tree runs it too: the tree to run is on PYTHONPATH, and its root in
the file of commands.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")
# What ends by the clock on a page ends by work here, so that two runs agree.
WORK = {
    '"training.budget_s=60"': '"training.budget_s=null", "training.max_steps=64"',
    "budget_s=10)": "budget_s=600, deterministic_limit=20)",
}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and words in a document, by the dotted way to them."""
    rows = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in rows:
        at = f"{key}.{name}" if key else str(name)
        if isinstance(inner, dict | list):
            yield from leaves(inner, at)
        else:
            yield at, inner


def ran(words: list[str], folder: str) -> Figures:
    """The figures in every `result.json` that a command leaves below its folder."""
    from meshwright.command import main

    named = [word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")]
    folder = named[0] if named else folder
    places = [f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}"]
    sys.argv = ["meshwright", *words]
    code = main([*words, *places[bool(named) :]])
    if code != 0:
        raise RuntimeError(f"exit code {code}")
    found: Figures = {}
    for path in sorted(Path(folder).rglob("result.json")):
        within = path.parent.relative_to(folder).as_posix()
        key = "" if within == "." else f"{within}:"
        found |= {key + name: value for name, value in leaves(json.loads(path.read_text()))}
    return found


def printed(page: Path) -> Figures:
    """The numbers that each Python block of a page prints, executed one after another."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found: Figures = {}
    text = page.read_text()
    for seconds, work in WORK.items():
        text = text.replace(seconds, work)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    for number, block in enumerate(blocks):
        message = io.StringIO()
        with contextlib.redirect_stdout(message):
            exec(compile(block, str(page), "exec"), namespace)
        numbers = NUMBER.findall(message.getvalue())
        found |= {f"block{number}.{n}": float(x) for n, x in enumerate(numbers)}
    return found


def decided(name: str, states: Path) -> Figures:
    """What a shipped checkpoint decides in stored states."""
    import meshwright

    policy = meshwright.load(name)
    asked = json.loads(states.read_text())[name]
    return dict(leaves([policy.decide(state).document() for state in asked]))


def figures_of(command: str, root: Path, folder: str) -> Figures:
    first, *rest = shlex.split(command)
    if first == "blocks":
        return printed(root / rest[0])
    if first == "decide":
        return decided(rest[0], Path(rest[1]))
    return ran([first, *rest], folder)


def work(given: Path, message: Path) -> None:
    job = json.loads(given.read_text())
    with message.open("w") as file:
        for number, command in enumerate(job["commands"]):
            print(f"--- {command}", flush=True)
            begin, row = time.perf_counter(), {"command": command}
            try:
                row["figures"] = figures_of(command, Path(job["root"]), f"run{number}")
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                row["error"] = f"{type(error).__name__}: {error}"
            row["seconds"] = time.perf_counter() - begin
            file.write(json.dumps(row, default=str) + "\n")
            file.flush()


if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]))
