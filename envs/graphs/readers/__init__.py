"""Readers of published graphs; `read_graph_file` recognises the format by content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.errors import InputError, refused_in
from envs.files import read_content
from envs.graphs.readers.dnn_partitioning import DnnPartitioningReader
from envs.graphs.readers.graph_file import GraphFile, GraphReader
from envs.graphs.readers.kineto import KinetoReader
from envs.graphs.readers.moirai import MoiraiReader
from envs.graphs.readers.onnx_model import OnnxReader
from envs.graphs.readers.pipedream import PipeDreamReader
from envs.graphs.storage import FORMAT, UNITS, load_with_unit

__all__ = [
    "READERS",
    "DnnPartitioningReader",
    "GraphFile",
    "GraphReader",
    "KinetoReader",
    "MoiraiReader",
    "OnnxReader",
    "PipeDreamReader",
    "StoredGraphReader",
    "read_graph_file",
]


@dataclass(frozen=True)
class StoredGraphReader:
    """Files of `envs.graphs.storage.save_graph`; they hold a graph and no topology."""

    format: str = FORMAT

    def accepts(self, content: bytes) -> bool:
        """An .npz archive, or JSON that names the format."""
        return content.startswith(b"PK") or f'"{FORMAT}"'.encode() in content[:4096]

    def read(self, path: Path) -> GraphFile:
        graph, unit = load_with_unit(path)
        named = {} if unit == UNITS["time"] else {"time_unit": unit}
        return GraphFile(graph, None, {"format": FORMAT, "file": path.name, **named})


READERS: tuple[GraphReader, ...] = (
    StoredGraphReader(),
    MoiraiReader(),
    DnnPartitioningReader(),
    PipeDreamReader(),
    KinetoReader(),
    OnnxReader(),
)


def read_graph_file(path: str | Path, readers: Sequence[GraphReader] = READERS) -> GraphFile:
    """The graph in `path`, by the first of `readers` that accepts its content.

    Readers name the record and the field of what is wrong; the file is named here.

    Raises:
        InputError: no reader accepts it, or the one that does finds a fault.
    """
    content = read_content(path)
    with refused_in(path):
        if not content:
            raise InputError("is empty")
        for reader in readers:
            if reader.accepts(content):
                return reader.read(Path(path))
        known = ", ".join(reader.format for reader in readers)
        raise InputError(f"is a graph file of no known format ({known})")
