"""Figures that no change of structure may move: the tree as it is beside what was recorded.

    python -m tests.frozen [group ...] [--sample] [--record]

`frozen.json` has the commands in groups, each one folder and one process. Figures must agree to
1e-12 of their value, words exactly. Figures of the groups named in `beside` depend on the machine
(they come from torch): they are compared with those of the old tree on this machine, which keeps
what it answered. The old tree is `.frozen/`, or the folder named by FROZEN_TREE, and is made
when it is missing.
`renamed.json` says how words of commands, keys and values are called by now.

`--record` runs the old tree twice and keeps, for commands that have no figures yet, what both runs
agree on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.paths import ROOT

HERE = Path(__file__).parent
FROZEN, RENAMED = HERE / "frozen.json", HERE / "renamed.json"
OLD = Path(os.environ.get("FROZEN_TREE", ROOT / ".frozen"))
CPU = Path("/proc/cpuinfo")
WORKERS, MOST_KEYS, TOLERANCE = 2, 60, 1e-12
# What says where, when and how fast a command ran, and not what it found.
UNSTABLE = re.compile(
    r"(^|[.:])(provenance|warnings|trajectory|curve|versions|timing|timings)[.:]"
    r"|(seconds|elapsed|wall|search_s|solve_s|found_s|found_at|per_second|folder|path)\w*($|\.)"
)
Figures = dict[str, Any]
Names = Mapping[str, Any]  # renamed.json
Group = dict[str, Figures]


@dataclass(frozen=True)
class Difference:
    """A figure that is another one now, or is missing."""

    command: str
    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"  {self.command}\n    {self.key}: {self.old!r} -> {self.new!r}"


def renamed(text: str, table: Mapping[str, str]) -> str:
    """A command by its present words: whole ones, several in a row, or a key as in `agent=`."""
    if not table:
        return text
    longest_first = sorted(table, key=len, reverse=True)
    either = "|".join(re.escape(old) + r"(?!\w)" * old[-1].isalnum() for old in longest_first)
    return re.sub(rf"(?<![\w.])(?:{either})", lambda match: table[match[0]], text)


def present_key(command: str, key: str, names: Names) -> str | None:
    """A dotted key by its present name, as a whole or part by part; None: it is not told any more.

    Of `patterns` the first counts whose command begins so and whose expression is the whole key.
    """
    for begin, pattern, new in names["patterns"]:
        match = re.fullmatch(pattern, key) if command.startswith(begin) else None
        if match:
            return None if new is None else match.expand(new)
    table = names["keys"]
    if key in table:
        return str(table[key])
    return re.sub(r"[^.:]+", lambda part: table.get(part[0], part[0]), key)


def equal(old: Any, new: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two figures are one; words, truth values and nothing agree exactly."""
    if type(old) is bool or type(new) is bool or not (_is_number(old) and _is_number(new)):
        return bool(old == new) and type(old) is type(new)
    same = old == new or (math.isnan(old) and math.isnan(new))
    return same or math.isclose(old, new, rel_tol=tolerance)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def differences(
    command: str, old: Figures, new: Figures, names: Names,
    tolerance: float = TOLERANCE,
) -> list[Difference]:  # fmt: skip
    """What a command no longer says, by the keys it was frozen with."""
    found = []
    for key, value in old.items():
        expected = names["values"].get(value, value) if isinstance(value, str) else value
        present = present_key(command, key, names)
        if present is None:
            continue
        now = new.get(present, "missing")
        if not equal(expected, now, tolerance):
            found.append(Difference(command, key, expected, now))
    return found


def read_frozen() -> dict[str, Any]:
    """The commands and their figures, macros written out."""
    frozen: dict[str, Any] = json.loads(FROZEN.read_text())
    frozen["groups"] = {
        name: {_expanded(command, frozen["macros"]): keys for command, keys in group.items()}
        for name, group in frozen["groups"].items()
    }
    frozen["sample"] = [_expanded(command, frozen["macros"]) for command in frozen["sample"]]
    return frozen


def _expanded(command: str, macros: Mapping[str, str]) -> str:
    for name, words in macros.items():
        command = command.replace(f"{{{name}}}", words)
    return command


def read_names() -> dict[str, Any]:
    names: dict[str, Any] = json.loads(RENAMED.read_text())
    return names


def figures(tree: Path, python: Path, commands: Iterable[str]) -> list[dict[str, Any]]:
    """What a tree says to commands, run by one process in an empty folder; in their order."""
    places = {"data": os.environ.get("MESHWRIGHT_DATA", "")}
    asked = [_expanded(command, places) for command in commands]
    with tempfile.TemporaryDirectory(prefix="frozen-") as name:
        folder = Path(name)
        shutil.copytree(HERE / "work", folder, dirs_exist_ok=True)
        (folder / "examples").symlink_to(tree / "examples")
        given, message, log = (folder / f".{x}" for x in ("commands", "figures", "log"))
        given.write_text(json.dumps({"root": str(tree), "commands": asked}))
        with log.open("wb") as file:
            code = subprocess.run(
                [python, HERE / "worker.py", given, message], cwd=folder, check=False, stdout=file,
                stderr=file, env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            ).returncode  # fmt: skip
        rows = (
            [json.loads(line) for line in message.read_text().splitlines()]
            if message.exists()
            else []
        )
        if code or any("error" in row for row in rows):
            kept = Path(tempfile.gettempdir()) / f"frozen-{os.getpid()}-{folder.name}.log"
            kept.write_bytes(log.read_bytes())
            print(f"a command failed: see {kept}", file=sys.stderr)
        ended = {"error": f"the process ended with {code}", "seconds": 0.0}
        return [*rows, *[{"command": x, **ended} for x in asked[len(rows) :]]]


def here(commands: Iterable[str], names: Names) -> list[dict[str, Any]]:
    present = [renamed(command, names["commands"]) for command in commands]
    return figures(ROOT, Path(sys.executable), present)


def of_old_tree(commands: Iterable[str]) -> list[dict[str, Any]]:
    return figures(OLD, OLD / ".venv/bin/python", commands)


def kept_of_old_tree(commands: Iterable[str]) -> list[dict[str, Any]]:
    """What the old tree answers on this processor: asked once, then read from its folder."""
    asked = list(commands)
    work = [(str(path.relative_to(HERE)), path.read_bytes()) for path in sorted(
        (HERE / "work").rglob("*")) if path.is_file()]  # fmt: skip
    about = CPU.read_text() if CPU.exists() else platform.processor()
    processor = re.findall(r"^(?:model name|flags|Features)\s*:.*", about, re.M)[:2] or about
    data = os.environ.get("MESHWRIGHT_DATA", "")
    question = repr((asked, work, processor, (HERE / "worker.py").read_bytes(), data))
    kept = OLD / ".answers" / f"{hashlib.sha256(question.encode()).hexdigest()}.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    answers = of_old_tree(asked)
    if not any("error" in row for row in answers):
        kept.parent.mkdir(exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(answers, default=str))
        partial.replace(kept)
    return answers


def make_old_tree(commit: str) -> None:
    """The commit that the figures are of, with an environment of its own."""
    if (OLD / ".venv/.installed").exists():
        return
    print(f"making {OLD} of {commit}: minutes", file=sys.stderr)
    OLD.mkdir(exist_ok=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=OLD, input=archive.stdout, check=True)
    subprocess.run(["make", "venv"], cwd=OLD, check=True)


def check_group(group: Group, names: Names, *, beside: bool) -> tuple[list[Difference], float]:
    """What differs in a group, and the seconds it took."""
    begin = time.perf_counter()
    answers = here(group, names)
    frozen: list[Figures] = list(group.values())
    if beside:
        old = kept_of_old_tree(group)
        frozen = [
            {key: row.get("figures", {}).get(key, "not told by the old tree") for key in keys}
            for row, keys in zip(old, frozen, strict=True)
        ]
    found = []
    for command, row, keys in zip(group, answers, frozen, strict=True):
        if "error" in row:
            found.append(Difference(command, "exit", "no error", row["error"]))
        else:
            found += differences(command, keys, row["figures"], names, TOLERANCE)
    return found, time.perf_counter() - begin


def check(asked: Mapping[str, Group], beside: Collection[str]) -> int:
    """Prints a line a group and every difference; 1 where there is one."""
    names, found = read_names(), []
    slowest_first = sorted(asked.items(), key=lambda item: item[0] not in beside)
    print(f"{'group':<28}{'commands':>9}{'figures':>9}{'differ':>8}{'seconds':>9}")
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = {
            name: pool.submit(check_group, group, names, beside=name in beside)
            for name, group in slowest_first
        }
        for name, run in runs.items():
            differ, seconds = run.result()
            message = [present_key(c, k, names) for c, keys in asked[name].items() for k in keys]
            count = sum(key is not None for key in message)
            print(
                f"{name:<28}{len(asked[name]):>9}{count:>9}{len(differ):>8}{seconds:>9.0f}",
                flush=True,
            )
            found += differ
    for difference in found:
        print(difference)
    return 1 if found else 0


def stable(first: Figures, second: Figures) -> Figures:
    """At most MOST_KEYS figures that two runs agree on, evenly chosen; no path and no clock."""
    kept = {
        key: value
        for key, value in first.items()
        if not UNSTABLE.search(key)
        and not (isinstance(value, str) and ("/" in value or len(value) > 60))
        and key in second
        and equal(value, second[key], 0.0)
    }
    step = max(1, -(-len(kept) // MOST_KEYS))
    return {key: kept[key] for key in list(kept)[::step]}


def record(asked: Mapping[str, Group]) -> int:
    """Fills in commands without figures; 1 where one fails, or where recorded figures differ."""
    frozen, faults = json.loads(FROZEN.read_text()), []

    def twice(group: Group) -> list[list[dict[str, Any]]]:
        first = of_old_tree(group)
        return [first, first if all(group.values()) else of_old_tree(group)]

    with ThreadPoolExecutor(WORKERS) as pool:
        runs = {name: pool.submit(twice, group) for name, group in asked.items()}
        for name, run in runs.items():
            stored: Group = frozen["groups"][name]
            for command, first, second in zip(stored, *run.result(), strict=True):
                if message := first.get("error") or second.get("error"):
                    faults.append(Difference(command, "exit", "no error", message))
                elif stored[command]:
                    told_keys = {**first["figures"]}
                    nothing: Names = {"keys": {}, "values": {}, "patterns": []}
                    if name not in frozen["beside"]:
                        faults += differences(command, stored[command], told_keys, nothing)
                else:
                    stored[command] = stable(first["figures"], second["figures"])
                    count, seconds = len(stored[command]), first["seconds"]
                    print(f"{seconds:6.1f} s {count:4} of {len(first['figures']):5}  {command}")
            frozen["pairs"] = sum(
                len(keys) for g in frozen["groups"].values() for keys in g.values()
            )
            write_frozen(frozen)
            print(f"{name}: recorded", flush=True)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def write_frozen(frozen: Mapping[str, Any]) -> None:
    """A line a command, so that a change shows which."""
    groups = ",\n".join(
        f"  {json.dumps(name)}: {{\n"
        + ",\n".join(f"   {json.dumps(c)}: {json.dumps(keys)}" for c, keys in group.items())
        + "\n  }"
        for name, group in frozen["groups"].items()
    )
    head = json.dumps({k: v for k, v in frozen.items() if k != "groups"}, indent=1)
    FROZEN.write_text(f'{head[:-2]},\n "groups": {{\n{groups}\n }}\n}}\n')


def sample_of(frozen: Mapping[str, Any]) -> Group:
    every = {c: keys for group in frozen["groups"].values() for c, keys in group.items()}
    return {command: every[command] for command in frozen["sample"]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frozen")
    parser.add_argument("groups", nargs="*")
    parser.add_argument("--sample", action="store_true", help="a few quick commands, one process")
    parser.add_argument("--record", action="store_true", help="fill in what has no figures yet")
    given, frozen = parser.parse_args(arguments), read_frozen()
    unknown = set(given.groups) - set(frozen["groups"])
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}")
    if "MESHWRIGHT_DATA" not in os.environ:
        parser.error("set MESHWRIGHT_DATA to the folder of published data")
    if given.sample:
        return check({"sample": sample_of(frozen)}, ())
    asked = {name: g for name, g in frozen["groups"].items() if name in (given.groups or [name])}
    if given.record or set(asked) & set(frozen["beside"]):
        make_old_tree(frozen["commit"])
    return record(asked) if given.record else check(asked, frozen["beside"])


if __name__ == "__main__":
    sys.exit(main())
