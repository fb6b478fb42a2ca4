"""Graphs on disk: `.npz` (arrays beside a JSON header), or readable `.json` / `.json.gz`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.files import write_atomically
from envs.graphs.op_graph import OpGraph
from envs.graphs.records import Json, from_records, texts, to_records

FORMAT = "meshwright.graph"
SCHEMA_VERSION = 1
UNITS = {"time": "s", "size": "byte", "work": "FLOP"}

TEXT_COLUMNS = ("op_names", "parameter_names", "profile_classes", "link_classes")
INT_COLUMNS = (
    "kind", "phase", "micro_batch", "replica", "op_dtype", "colocation", "mirror",
    "tensor_dtype", "producer", "consumer_ptr", "consumer", "parameter_owner",
)  # fmt: skip
FLOAT_COLUMNS = (
    "flop", "bytes_read", "bytes_written", "tensor_bytes", "parameter_bytes", "gradient_bytes",
    "optimizer_bytes",
)  # fmt: skip
TABLE_COLUMNS = ("profile_seconds", "link_seconds")


def save_graph(
    graph: OpGraph, path: str | Path, provenance: Mapping[str, object] | None = None
) -> None:
    """Write `graph` to `path` atomically; the suffix chooses `.npz`, `.json` or `.json.gz`.

    `provenance` is any JSON mapping: where the graph came from. A table entry of infinity (the
    device class cannot run the operator) is `null` in JSON.

    Raises:
        InputError: the suffix is none of the three.
    """
    path = Path(path)
    for suffix, encode in _ENCODERS.items():
        if path.name.endswith(suffix):
            write_atomically(path, encode(graph, _header(graph, provenance or {})))
            return
    raise InputError(f"the suffix must be one of {', '.join(_ENCODERS)}", file=path)


def load_graph(path: str | Path) -> OpGraph:
    """The graph in a file written by `save_graph`; the content tells the form, not the suffix.

    Raises:
        InputError: the file is missing, truncated, of another format or version, its content does
            not match its hash, or a record of it is wrong (naming record and field).
    """
    path = Path(path)
    content, header = _open(path)
    try:
        graph = _from_arrays(content, header) if _is_archive(content) else from_records(header)
    except InputError as error:
        raise InputError(
            error.message, file=path, record=error.record, field=error.field
        ) from error
    recorded = header.get("sha256")
    if recorded is not None and recorded != graph_hash(graph):
        raise InputError("the content does not match the recorded hash", file=path, field="sha256")
    return graph


def load_provenance(path: str | Path) -> Json:
    """The provenance recorded in a graph file.

    Raises:
        InputError: as `load_graph`.
    """
    provenance = _open(Path(path))[1].get("provenance")
    if not isinstance(provenance, dict):
        raise InputError("is not a mapping", file=path, field="provenance")
    return provenance


def graph_hash(graph: OpGraph) -> str:
    """SHA-256 over every column; the graph's name is no column."""
    digest = hashlib.sha256()
    for column in TEXT_COLUMNS:
        digest.update(json.dumps([column, getattr(graph, column)]).encode())
    for column in (*INT_COLUMNS, *FLOAT_COLUMNS, *TABLE_COLUMNS):
        values = np.ascontiguousarray(getattr(graph, column), dtype=_dtype(column))
        shape = values.shape if values.size else (0,)
        digest.update(f"{column}{shape}".encode() + values.tobytes())
    return digest.hexdigest()


def _header(graph: OpGraph, provenance: Mapping[str, object]) -> Json:
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "name": graph.name,
        "units": UNITS,
        "provenance": dict(provenance),
        "profile_classes": list(graph.profile_classes),
        "link_classes": list(graph.link_classes),
    }


def _dtype(column: str) -> np.dtype[np.int64] | np.dtype[np.float64]:
    return np.dtype("<i8") if column in INT_COLUMNS else np.dtype("<f8")


def _is_archive(content: bytes) -> bool:
    return content.startswith(b"PK")


def _open(path: Path) -> tuple[bytes, Json]:
    """The (decompressed) content and its checked JSON header."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", file=path) from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"is truncated or damaged ({error})", file=path) from error
    text = content
    try:
        if _is_archive(content):
            text = _read_archive(content, ("header",), np.uint8)["header"].tobytes()
        header = json.loads(text.decode())
    except InputError as error:
        raise InputError(error.message, file=path, field=error.field) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no graph file: not JSON ({error})", file=path) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"is no graph file: 'format' is not {FORMAT!r}", file=path)
    if header.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"is {header.get('schema_version')!r}, this release reads {SCHEMA_VERSION}",
            file=path,
            field="schema_version",
        )
    return content, header


def _encode_archive(graph: OpGraph, header: Json) -> bytes:
    header |= {
        "sha256": graph_hash(graph),
        "op_names": list(graph.op_names),
        "parameter_names": list(graph.parameter_names),
    }
    arrays = {
        column: np.asarray(getattr(graph, column), dtype=_dtype(column))
        for column in (*INT_COLUMNS, *FLOAT_COLUMNS, *TABLE_COLUMNS)
    }
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez_compressed(buffer, allow_pickle=False, header=text, **arrays)
    return buffer.getvalue()


def _read_archive(
    content: bytes, columns: Sequence[str], dtype: type[np.generic]
) -> dict[str, NDArray[np.generic]]:
    arrays: dict[str, NDArray[np.generic]] = {}
    column = None
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise InputError("is truncated or damaged (no whole zip archive)")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for column in columns:
                if column not in archive:
                    raise InputError("is missing", field=column)
                arrays[column] = archive[column]
    except InputError:
        raise
    except Exception as error:  # zipfile and numpy raise many kinds on damaged archives
        raise InputError(f"is truncated or damaged ({error})", field=column) from error
    for column, values in arrays.items():
        dimensions = 2 if column in TABLE_COLUMNS else 1
        if values.dtype != dtype or values.ndim != dimensions:
            raise InputError(
                f"is a {values.ndim}-dimensional array of {values.dtype}, not a "
                f"{dimensions}-dimensional one of {np.dtype(dtype)}",
                field=column,
            )
    return arrays


def _from_arrays(content: bytes, header: Json) -> OpGraph:
    columns = {
        **_read_archive(content, INT_COLUMNS, np.int64),
        **_read_archive(content, (*FLOAT_COLUMNS, *TABLE_COLUMNS), np.float64),
    }
    text = {column: texts(header, column) for column in TEXT_COLUMNS}
    return OpGraph(name=str(header.get("name")), **text, **columns)  # type: ignore[arg-type]


def _encode_json(graph: OpGraph, header: Json) -> bytes:
    document = header | to_records(graph)
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


_ENCODERS: dict[str, Callable[[OpGraph, Json], bytes]] = {
    ".npz": _encode_archive,
    ".json": _encode_json,
    ".json.gz": lambda graph, header: gzip.compress(_encode_json(graph, header), mtime=0),
}
