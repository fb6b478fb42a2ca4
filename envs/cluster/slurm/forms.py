"""What Slurm's programs print, as plain values: fields are read in the form in which they come.

Numbers are numbers or, from Slurm 23.02 on, `{"set": true, "infinite": false, "number": 4}`; states
are a word or a list of words; GPUs stand in texts such as `gres:gpu:v100:4` and `gres/gpu=4`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from envs.errors import InputError

_GPUS = re.compile(r"(?:^|[,/:])gpu(?::([^:=,()]+))??(?:[:=](\d+))?(?=[,(]|$)")
_RANGES = re.compile(r"([^,\[\]]+)(?:\[([\d,-]+)\])?([^,\[\]]*)(?:,|$)")
MOST_NAMES = 100_000  # in one list of hosts or of tasks
UNKNOWN = {"", "Unknown", "None", "N/A", "(null)"}


def number(value: Any) -> float | None:
    """A number in either form; None: not set, or infinite."""
    if isinstance(value, Mapping):
        told = value.get("set", True) and not value.get("infinite", False)
        value = value.get("number") if told else None
    return float(value) if isinstance(value, int | float) else None


def words(value: Any) -> set[str]:
    """A word, a text of words or a list of them, in capitals."""
    listed = value if isinstance(value, list) else str(value or "").replace("+", " ").split()
    return {str(word).upper() for word in listed}


def gpus_in(text: Any) -> tuple[int, str | None]:
    """How many GPUs a text of resources names, and of which type if of one; typed ones count once.

    >>> gpus_in("billing=4,gres/gpu=4,gres/gpu:v100=4")
    (4, 'v100')
    >>> gpus_in("gpu:v100:4(IDX:0-2,7)")
    (4, 'v100')
    """
    plain = str(text or "").replace("(null):", "").replace("gres:", "")
    plain = re.sub(r"\([^)]*\)", "", plain)
    found = [(kind, int(count or 1)) for kind, count in _GPUS.findall(plain)]
    typed = [(kind, count) for kind, count in found if kind]
    kinds = {kind for kind, _ in typed}
    number = max(sum(n for _, n in typed), sum(n for kind, n in found if not kind))
    return number, kinds.pop() if len(kinds) == 1 else None


def hosts_in(text: str) -> list[str]:
    """The names in a list of hosts: `n[1-2,07],m` are n1, n2, n07 and m.

    Raises:
        InputError: it is no such list, or one of too many names.
    """
    found: list[str] = []
    for before, ranges, behind in _RANGES.findall(text if text not in UNKNOWN else ""):
        found += [f"{before}{one}{behind}" for one in numbers_in(ranges)] if ranges else [before]
        if len(found) > MOST_NAMES:
            raise InputError(f"more than {MOST_NAMES} names", record=text[:80])
    return found


def numbers_in(ranges: str) -> Iterator[str]:
    """`1-3,07` are 1, 2, 3 and 07, with the zeros of the first; `0-9:2%4` are every second."""
    for part in ranges.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        try:
            start, end, by = int(first), int(last or first), int(step or 1)
            for one in range(start, min(end, start + by * MOST_NAMES) + 1, by):
                yield str(one).zfill(len(first))
        except ValueError as error:
            raise InputError("is no list of numbers such as 0-3,7", record=ranges[:80]) from error


def instant(text: str) -> float | None:
    """Seconds since 1970 of a time as Slurm writes it, in the time of this machine."""
    if text in UNKNOWN:
        return None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError as error:
        raise InputError(f"{text!r} is no time such as 2026-05-01T12:30:00") from error
