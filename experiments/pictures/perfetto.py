"""Events of a trace in Chrome's format, which Perfetto shows; times are in seconds here."""

from __future__ import annotations

from envs.units import MICROSECOND

Event = dict[str, object]


def process(number: int, name: str) -> Event:
    """What a process is called."""
    return {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


def thread(number: int, thread: int, name: str) -> Event:
    """What a thread of a process is called."""
    named = {"ph": "M", "name": "thread_name", "args": {"name": name}}
    return {**named, "pid": number, "tid": thread}


def happened(
    name: str, kind: str, place: tuple[int, int], start: float, end: float, /, **arguments: object
) -> Event:
    """What took its time on a thread of a process."""
    return {
        "ph": "X", "name": name, "cat": kind, "pid": place[0], "tid": place[1],
        "ts": float(start) / MICROSECOND, "dur": float(end - start) / MICROSECOND,
        "args": arguments,
    }  # fmt: skip
