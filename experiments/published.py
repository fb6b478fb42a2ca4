"""What the file of a published graph brings along: its devices and its unit of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.errors import InputError
from envs.graphs.readers.graph_file import GraphFile
from envs.hardware.topology import Topology
from envs.units import MILLISECOND
from experiments.problem import StoredGraph
from experiments.targets import build


@dataclass(frozen=True, eq=False)
class OwnDevices:
    """The topology of the graph's own file, `otherwise` where the file brings none."""

    otherwise: Topology

    def __call__(self, file: GraphFile) -> Topology:
        """The topology for `file`."""
        return self.otherwise if file.topology is None else file.topology


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time; inside, every time is in seconds."""

    name: str
    seconds: float

    def of(self, seconds: float) -> float:
        """`seconds` in this unit."""
        return seconds / self.seconds


SECOND = TimeUnit("s", 1.0)
# By `GraphFile.provenance["time_unit"]`. A file with a unit of its own is read as seconds.
TIME_UNITS = {"ms": TimeUnit("ms", MILLISECOND), "the file's own": TimeUnit("the file's own", 1.0)}


def time_unit_of(graph: Mapping[str, Any]) -> TimeUnit:
    """The unit of the times of the graph that the config node `graph` describes.

    Raises:
        InputError: the file cannot be read, or names a unit that is not known.
    """
    source = build(graph)
    if not isinstance(source, StoredGraph):
        return SECOND
    name = source.load().provenance.get("time_unit")
    if name is None:
        return SECOND
    if name not in TIME_UNITS:
        raise InputError(f"has times in an unknown unit {name!r}", file=source.path)
    return TIME_UNITS[str(name)]
