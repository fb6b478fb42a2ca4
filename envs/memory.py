"""What an input would take, held against what this machine has: absurd sizes are refused."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from envs.errors import InputError

UNLIMITED = 1e18  # above it a control group's limit is none
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def machine_bytes() -> float:
    """The memory of this machine, or of the control group that this process may fill."""
    found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in _LIMITS:
        try:
            limit = float(Path(name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
        if 0 < limit < UNLIMITED:
            found = min(found, limit)
    return found


def require_memory(
    needed: float, what: str, *, file: object | None = None, field: str | None = None
) -> None:
    """Raise `InputError` where `what` would take more than the `needed` bytes this machine has."""
    if needed > machine_bytes():
        reason = f"would take about {_bytes(needed)} of memory, this machine has"
        raise InputError(f"{what} {reason} {_bytes(machine_bytes())}", file=file, field=field)


def _bytes(number: float) -> str:
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        number /= 1e3
        if number < 1e3 or unit == "PB":
            return f"{number:,.3g} {unit}"
    raise AssertionError
