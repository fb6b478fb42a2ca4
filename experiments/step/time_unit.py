"""The unit of time of a graph file; inside, every time is in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from envs.errors import InputError
from envs.graphs.readers.graph_file import GraphFile
from envs.units import MILLISECOND


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time."""

    name: str
    seconds: float

    def of(self, seconds: float) -> float:
        """`seconds` in this unit."""
        return seconds / self.seconds


SECOND = TimeUnit("s", 1.0)
# By `GraphFile.provenance["time_unit"]`. A file with a unit of its own is read as seconds.
_UNITS = {"ms": TimeUnit("ms", MILLISECOND), "the file's own": TimeUnit("the file's own", 1.0)}


def time_unit_of(file: GraphFile) -> TimeUnit:
    """The unit of the file's times, seconds where it names none.

    Raises:
        InputError: it names one that is not known.
    """
    name = file.provenance.get("time_unit")
    if name is None:
        return SECOND
    if name not in _UNITS:
        raise InputError(
            f"has times in an unknown unit {name!r} (known: {', '.join(_UNITS)})",
            file=f"graph {file.graph.name!r}",
            field="time_unit",
        )
    return _UNITS[str(name)]
