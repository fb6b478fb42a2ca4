"""Graphs on disk: `.npz` (arrays beside a JSON header), or readable `.json` / `.json.gz`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray
from pydantic import ConfigDict

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError, refused_in
from envs.files import parse_json, read_content, write_atomically
from envs.forms import Form, read_form
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.units import DTYPES, parse_seconds

FORMAT = "meshwright.graph"
SCHEMA_VERSION = 1
UNITS = {"time": "s", "size": "byte", "work": "FLOP"}  # of what is written

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
        InputError: the suffix is not one of the three.
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
        InputError: the file is missing, truncated, of another format or version, in a unit that is
            not known, its content does not match its hash, or a record of it is wrong (naming
            record and field).
    """
    return load_with_unit(path)[0]


def load_with_unit(path: str | Path) -> tuple[OpGraph, str]:
    """The same, with times in seconds, and the unit in which the file has them.

    Raises:
        InputError: as `load_graph`.
    """
    content = text = read_content(path)
    archive = content.startswith(b"PK")
    if archive:
        with refused_in(path):
            text = _read_archive(content, ("header",), np.uint8)["header"].tobytes()
    header = parse_json(text, path)
    return _checked(header, path, content if archive else None)


def graph_document(graph: OpGraph) -> Json:
    """The graph as the JSON object that `save_graph` writes to a .json file."""
    return _header(graph, {}) | to_records(graph)


def graph_of(document: Json, name: str = "graph") -> OpGraph:
    """The graph of such an object, which came from somewhere that is called `name`.

    Raises:
        InputError: as `load_graph`.
    """
    return _checked(document, name)[0]


def _checked(header: Json, file: str | Path, archive: bytes | None = None) -> tuple[OpGraph, str]:
    """The graph with its times in seconds, once its hash is the recorded one, and their unit."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"is no graph file: 'format' is not {FORMAT!r}", file=file)
    if header.get("schema_version") != SCHEMA_VERSION:
        reason = f"is {header.get('schema_version')!r}, this release reads {SCHEMA_VERSION}"
        raise InputError(reason, file=file, field="schema_version")
    with refused_in(file):
        graph = from_records(header) if archive is None else _from_arrays(archive, header)
    recorded = header.get("sha256")
    if recorded is not None and recorded != graph_hash(graph):
        raise InputError("the content does not match the recorded hash", file=file, field="sha256")
    unit = read_form(_Units, header.get("units", UNITS), file, inside="units").time
    seconds = parse_seconds(f"1{unit}")
    if seconds != 1.0:
        profile, link = graph.profile_seconds * seconds, graph.link_seconds * seconds
        graph = replace(graph, profile_seconds=profile, link_seconds=link)
    return graph, unit


class _Units(Form):
    time: Literal["s", "ms", "us", "ns"] = "s"
    size: Literal["byte"] = "byte"
    work: Literal["FLOP"] = "FLOP"


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
    names = read_form(_Named, header)
    text = {column: tuple(getattr(names, column)) for column in TEXT_COLUMNS}
    return OpGraph(name=names.name, **text, **columns)  # type: ignore[arg-type]


def _encode_json(graph: OpGraph, header: Json) -> bytes:
    document = header | to_records(graph)
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


_ENCODERS: dict[str, Callable[[OpGraph, Json], bytes]] = {
    ".npz": _encode_archive,
    ".json": _encode_json,
    ".json.gz": lambda graph, header: gzip.compress(_encode_json(graph, header), mtime=0),
}


Json = dict[str, object]


def to_records(graph: OpGraph) -> Json:
    """Keys `operators`, `tensors` and `parameters`; operators are named, infinity is None."""
    names = graph.op_names

    def values(column: str) -> list[Any]:
        found: list[Any] = np.asarray(getattr(graph, column), dtype=_dtype(column)).tolist()
        return found

    def coded(column: str, known: Sequence[str]) -> list[str]:
        return [known[code] for code in values(column)]

    def table(column: str, rows: int) -> list[list[float | None]]:
        filled = values(column) or [[]] * rows  # of an absent one all rows are empty
        return [[x if np.isfinite(x) else None for x in row] for row in filled]

    operators = _rows(
        name=names,
        kind=[Kind(code).name for code in values("kind")],
        phase=[Phase(code).name for code in values("phase")],
        **{key: values(key) for key in ("micro_batch", "replica", *FLOAT_COLUMNS[:3])},
        dtype=coded("op_dtype", DTYPES),
        colocation=values("colocation"),
        mirror=[names[op] if op != NONE else None for op in values("mirror")],
        profile_seconds=table("profile_seconds", graph.num_operators),
    )
    tensors = _rows(
        producer=coded("producer", names),
        consumers=[[names[op] for op in graph.consumers(t)] for t in range(graph.num_tensors)],
        bytes=values("tensor_bytes"),
        dtype=coded("tensor_dtype", DTYPES),
        link_seconds=table("link_seconds", graph.num_tensors),
    )
    parameters = _rows(
        name=graph.parameter_names,
        owner=coded("parameter_owner", names),
        **{key: values(key) for key in FLOAT_COLUMNS[4:]},
    )
    return {"operators": operators, "tensors": tensors, "parameters": parameters}


def _rows(**columns: Sequence[object]) -> list[Json]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


Natural = Annotated[int, Ge(-(2**63)), Lt(2**63)]
Row = Sequence[float | None]


class _Record(Form):
    model_config = ConfigDict(extra="ignore")


class _Operator(_Record):
    name: str
    kind: str
    phase: str
    micro_batch: Natural
    replica: Natural
    flop: float
    bytes_read: float
    bytes_written: float
    dtype: str
    colocation: Natural
    mirror: str | None
    profile_seconds: Row


class _Tensor(_Record):
    producer: str
    consumers: Sequence[str]
    bytes: float
    dtype: str
    link_seconds: Row


class _Parameter(_Record):
    name: str
    owner: str
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float


class _Header(_Record):
    name: str
    profile_classes: Sequence[str]
    link_classes: Sequence[str]


class _Named(_Header):
    op_names: Sequence[str]
    parameter_names: Sequence[str]


class _Records(_Header):
    operators: list[_Operator]
    tensors: list[_Tensor]
    parameters: list[_Parameter]


def from_records(document: Json) -> OpGraph:
    """The graph of the records `to_records` makes, with `name`, `profile_classes`, `link_classes`.

    Raises:
        InputError: naming record and field.
    """
    read = read_form(_Records, document)
    number: dict[str, int] = {}
    for index, operator in enumerate(read.operators):
        if number.setdefault(operator.name, index) != index:
            reason, record = f"{operator.name!r} stands twice", f"operators[{index}]"
            raise InputError(reason, record=record, field="name")

    def column(what: str, key: str) -> Any:
        return [getattr(record, key) for record in getattr(read, what)]

    def looked_up(what: str, key: str, known: Mapping[Any, int]) -> IntArray:
        for index, value in enumerate(column(what, key)):
            for one in value if isinstance(value, list) else [value]:
                if one not in known:
                    record = f"{what}[{index}]"
                    raise InputError(f"unknown {one!r}", record=record, field=key)
        flat = (x for v in column(what, key) for x in (v if isinstance(v, list) else [v]))
        return np.array([known[value] for value in flat], dtype=np.int64)

    def table(what: str, key: str, classes: Sequence[str]) -> FloatArray:
        rows = column(what, key)
        for index, row in enumerate(rows):
            if len(row) != len(classes):
                reason, record = f"{row} is not {len(classes)} numbers or nulls", f"{what}[{index}]"
                raise InputError(reason, record=record, field=key)
        values = [[np.inf if x is None else x for x in row] for row in rows]
        return np.array(values, dtype=np.float64).reshape(len(rows), len(classes))

    dtypes = {name: index for index, name in enumerate(DTYPES)}
    consumers = looked_up("tensors", "consumers", number)
    pointer = np.cumsum([0, *map(len, column("tensors", "consumers"))]).astype(np.int64)
    order = np.lexsort((consumers, np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))))
    numbers: dict[str, Any] = {}
    for key in ("micro_batch", "replica", "colocation", *FLOAT_COLUMNS[:3], *FLOAT_COLUMNS[4:]):
        what = "operators" if key in _Operator.model_fields else "parameters"
        numbers[key] = np.array(column(what, key), _dtype(key))
    return OpGraph(
        name=read.name,
        op_names=tuple(number),
        kind=looked_up("operators", "kind", {kind.name: int(kind) for kind in Kind}),
        phase=looked_up("operators", "phase", {phase.name: int(phase) for phase in Phase}),
        **numbers,
        op_dtype=looked_up("operators", "dtype", dtypes),
        mirror=looked_up("operators", "mirror", {**number, None: NONE}),
        tensor_bytes=np.array(column("tensors", "bytes"), np.float64),
        tensor_dtype=looked_up("tensors", "dtype", dtypes),
        producer=looked_up("tensors", "producer", number),
        consumer_ptr=pointer,
        consumer=consumers[order],
        parameter_names=tuple(column("parameters", "name")),
        parameter_owner=looked_up("parameters", "owner", number),
        profile_classes=tuple(read.profile_classes),
        profile_seconds=table("operators", "profile_seconds", read.profile_classes),
        link_classes=tuple(read.link_classes),
        link_seconds=table("tensors", "link_seconds", read.link_classes),
    )
