"""A bandwidth plan as shell files, two for each server: one applies it, one takes it back."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation
from experiments.papers.enforcement.hosts import Hosts, ServerPlan, server_plans

_FAILED = "the plan could not be applied and was taken back"


@dataclass(frozen=True)
class EnforcementFile:
    """A file for one server."""

    name: str
    text: str


@dataclass(frozen=True)
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
    checks: Sequence[str]
    apply: Sequence[str]
    clean: Sequence[str]

    def files(self, server: str, notes: Sequence[str]) -> tuple[EnforcementFile, EnforcementFile]:
        """`<server>.apply.sh` and `<server>.clean.sh`; `notes` are further lines of the heads."""
        apply_name, clean_name = f"{server}.apply.sh", f"{server}.clean.sh"
        checks = [
            "[ \"$(id -u)\" -eq 0 ] || refuse 'only root may change queues and routes'",
            *(
                f"command -v {name} >/dev/null || refuse 'the program {name} is missing'"
                for name in self.programs
            ),
        ]
        refuse = ['refuse() { echo "$0: $*" >&2; exit 1; }']
        apply = [
            *_head([*self.about, "", f"To take it back: sh {clean_name}", *notes]),
            *refuse,
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
        clean = [
            *_head([f"Takes back what {apply_name} did; may run at any time, any number of times.",
                    *notes]),
            *refuse,
            *checks,
            "",
            *self.clean,
        ]  # fmt: skip
        return (
            EnforcementFile(apply_name, "\n".join(apply) + "\n"),
            EnforcementFile(clean_name, "\n".join(clean) + "\n"),
        )


def command(text: str, *words: object) -> str:
    """One shell command: each `{}` of its text is one of the words, quoted where it needs to be."""
    return text.format(*(shlex.quote(str(word)) for word in words))


def attempt(text: str, *words: object) -> str:
    """A command that may fail: there may be nothing to take back."""
    return f"{command(text, *words)} 2>/dev/null || true"


def comment(text: str) -> str:
    """`text` as one line of comment, whatever it contains."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"# {plain}" if plain else "#"


def _head(lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *(comment(line) for line in lines), "set -eu", ""]


@runtime_checkable
class Backend(Protocol):
    """What turns the plan of a server into commands."""

    def script(self, plan: ServerPlan) -> Script:
        """What the server runs."""


def enforcement_files(
    allocation: BandwidthAllocation,
    network: Network,
    hosts: Hosts,
    backend: Backend,
    notes: Sequence[str] = (),
) -> list[EnforcementFile]:
    """`<server>.apply.sh` and `<server>.clean.sh` of every server, in the order of the servers.

    The same arguments give the same files. The rates of `allocation` are bytes/s on the line, as
    the capacities of `network` are; `experiments.papers.enforcement.hosts` says what of them
    reaches a program.

    Args:
        allocation: the rate of every channel.
        network: the channels.
        hosts: the machines behind the servers of `network`.
        backend: makes the commands.
        notes: further lines of comment at the head of every file.

    Raises:
        InputError: the plan is not feasible, or cannot be enforced on these machines.
    """
    plans = server_plans(allocation, network, hosts)
    return [file for plan in plans for file in backend.script(plan).files(plan.host.name, notes)]
