"""A bandwidth plan as shell files, two for each server: one applies it, one takes it back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from experiments.papers.enforcement.hosts import ServerPlan

_FAILED = "the plan could not be applied and was taken back"


@dataclass
class Script:
    """What one server runs; lines are shell commands or comments.

    Attributes:
        about: the comment at the head.
        programs: what must be installed.
        checks: what must hold before anything is changed.
        apply: what puts the plan in place of nothing.
        clean: what takes it back; does nothing where there is no plan.
    """

    about: Sequence[str]
    programs: Sequence[str]
    checks: list[str] = field(default_factory=list)
    apply: list[str] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)

    def files(self, server: str, notes: Sequence[str] = ()) -> dict[str, str]:
        """`<server>.apply.sh` and `<server>.clean.sh`; `notes` are further lines of the heads."""
        apply_name, clean_name = f"{server}.apply.sh", f"{server}.clean.sh"
        checks = [
            'refuse() { echo "$0: $*" >&2; exit 1; }',
            "[ \"$(id -u)\" -eq 0 ] || refuse 'only root may change queues and routes'",
            *(f"command -v {name} >/dev/null || refuse 'the program {name} is missing'"
              for name in self.programs),
        ]  # fmt: skip
        apply = [
            *_head([*self.about, "", f"To take it back: sh {clean_name}", *notes]),
            *checks,
            *self.checks,
            "",
            "# An earlier plan goes first; a plan that fails half way is taken back.",
            "clean() {",
            *(f"  {line}" if line else "" for line in self.clean),
            "}",
            "clean",
            f"trap 'clean; echo \"$0: {_FAILED}\" >&2' EXIT",
            "trap 'exit 130' HUP INT TERM  # not every shell runs the line above on a signal",
            *self.apply,
            "",
            "trap - EXIT HUP INT TERM",
        ]
        undo = f"Takes back what {apply_name} did; may run at any time, any number of times."
        clean = [*_head([undo, *notes]), *checks, "", *self.clean]
        return {apply_name: "\n".join([*apply, ""]), clean_name: "\n".join([*clean, ""])}


def comment(text: str) -> str:
    """`text` as one line of comment, whatever it contains."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"# {plain}" if plain else "#"


def attempt(command: str) -> str:
    """A command that may fail: there may be nothing to take back."""
    return f"{command} 2>/dev/null || true"


def _head(lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *map(comment, lines), "set -eu", ""]


@runtime_checkable
class Backend(Protocol):
    """What turns the plan of a server into commands."""

    def script(self, plan: ServerPlan) -> Script:
        """What the server runs."""
