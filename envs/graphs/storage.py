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
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.files import parse_json, read_content, write_atomically
from envs.graphs.op_graph import NONE, FloatArray, IntArray, Kind, OpGraph, Phase
from envs.units import DTYPES, parse_seconds

FORMAT = "meshwright.graph"
SCHEMA_VERSION = 1
UNITS = {"time": "s", "size": "byte", "work": "FLOP"}  # of what is written
TIME_UNITS = ("s", "ms", "us", "ns")  # that times are read in

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
        InputError: the file is missing, truncated, of another format or version, in a unit that is
            not known, its content does not match its hash, or a record of it is wrong (naming
            record and field).
    """
    path = Path(path)
    content, header = _open(path)
    try:
        graph = _from_arrays(content, header) if _is_archive(content) else from_records(header)
    except InputError as error:
        raise InputError(
            error.message, file=path, record=error.record, field=error.field
        ) from error
    return _checked(graph, header, path)


def graph_document(graph: OpGraph) -> Json:
    """The graph as the JSON object that `save_graph` writes to a .json file."""
    return _header(graph, {}) | to_records(graph)


def graph_of(document: Json, name: str = "graph") -> OpGraph:
    """The graph of such an object, which came from somewhere that is called `name`.

    Raises:
        InputError: as `load_graph`.
    """
    _check_header(document, name)
    try:
        graph = from_records(document)
    except InputError as error:
        raise InputError(
            error.message, file=name, record=error.record, field=error.field
        ) from error
    return _checked(graph, document, name)


def _checked(graph: OpGraph, header: Json, path: str | Path) -> OpGraph:
    """The graph with its times in seconds, once its hash is the recorded one."""
    recorded = header.get("sha256")
    if recorded is not None and recorded != graph_hash(graph):
        raise InputError("the content does not match the recorded hash", file=path, field="sha256")
    seconds = parse_seconds(f"1{time_unit(path, header)}")
    if seconds == 1.0:
        return graph
    profile, link = graph.profile_seconds * seconds, graph.link_seconds * seconds
    return replace(graph, profile_seconds=profile, link_seconds=link)


def load_time_unit(path: str | Path) -> str:
    """The unit, of `TIME_UNITS`, in which a graph file has its times; `load_graph` gives seconds.

    Raises:
        InputError: as `load_graph`.
    """
    path = Path(path)
    return time_unit(path, _open(path)[1])


def time_unit(path: str | Path, header: Json) -> str:
    """The unit of times that a header names, seconds where it names none.

    Raises:
        InputError: a unit is not known.
    """
    units = header.get("units", UNITS)
    if not isinstance(units, dict):
        raise InputError("is not a mapping", file=path, field="units")
    known = {**{what: (unit,) for what, unit in UNITS.items()}, "time": TIME_UNITS}
    for what, unit in units.items():
        if what not in known:
            told = f"unknown key (known: {', '.join(known)})"
            raise InputError(told, file=path, field=f"units.{what}")
        if unit not in known[what]:
            told = f"{unit!r} is not one of {', '.join(known[what])}"
            raise InputError(told, file=path, field=f"units.{what}")
    return str(units.get("time", UNITS["time"]))


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
    content = text = read_content(path)
    if _is_archive(content):
        try:
            text = _read_archive(content, ("header",), np.uint8)["header"].tobytes()
        except InputError as error:
            raise InputError(error.message, file=path, field=error.field) from error
    header = parse_json(text, path)
    _check_header(header, path)
    return content, header


def _check_header(header: object, path: str | Path) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"is no graph file: 'format' is not {FORMAT!r}", file=path)
    if header.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"is {header.get('schema_version')!r}, this release reads {SCHEMA_VERSION}",
            file=path,
            field="schema_version",
        )


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
    return OpGraph(name=_name(header), **text, **columns)  # type: ignore[arg-type]


def _encode_json(graph: OpGraph, header: Json) -> bytes:
    document = header | to_records(graph)
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


_ENCODERS: dict[str, Callable[[OpGraph, Json], bytes]] = {
    ".npz": _encode_archive,
    ".json": _encode_json,
    ".json.gz": lambda graph, header: gzip.compress(_encode_json(graph, header), mtime=0),
}


Element = TypeVar("Element")
Number = TypeVar("Number", np.int64, np.float64)
Json = dict[str, object]


def to_records(graph: OpGraph) -> Json:
    """Keys `operators`, `tensors` and `parameters`; operators are named, infinity is None."""
    names = graph.op_names
    operators = [
        {
            "name": names[op],
            "kind": Kind(graph.kind[op]).name,
            "phase": Phase(graph.phase[op]).name,
            "micro_batch": int(graph.micro_batch[op]),
            "replica": int(graph.replica[op]),
            "flop": float(graph.flop[op]),
            "bytes_read": float(graph.bytes_read[op]),
            "bytes_written": float(graph.bytes_written[op]),
            "dtype": DTYPES[graph.op_dtype[op]],
            "colocation": int(graph.colocation[op]),
            "mirror": names[graph.mirror[op]] if graph.mirror[op] != NONE else None,
            "profile_seconds": _row(graph.profile_seconds, op),
        }
        for op in range(graph.num_operators)
    ]
    tensors = [
        {
            "producer": names[graph.producer[tensor]],
            "consumers": [names[op] for op in graph.consumers(tensor)],
            "bytes": float(graph.tensor_bytes[tensor]),
            "dtype": DTYPES[graph.tensor_dtype[tensor]],
            "link_seconds": _row(graph.link_seconds, tensor),
        }
        for tensor in range(graph.num_tensors)
    ]
    parameters = [
        {
            "name": name,
            "owner": names[graph.parameter_owner[index]],
            "parameter_bytes": float(graph.parameter_bytes[index]),
            "gradient_bytes": float(graph.gradient_bytes[index]),
            "optimizer_bytes": float(graph.optimizer_bytes[index]),
        }
        for index, name in enumerate(graph.parameter_names)
    ]
    return {"operators": operators, "tensors": tensors, "parameters": parameters}


def _row(table: FloatArray, index: int) -> list[float | None]:
    """One row of a table for JSON; infinity is None, an absent table an empty row."""
    if not table.shape[1]:
        return []
    return [float(value) if np.isfinite(value) else None for value in table[index]]


def from_records(document: Json) -> OpGraph:
    """The graph of the records `to_records` makes, with `name`, `profile_classes`, `link_classes`.

    Raises:
        InputError: naming record and field.
    """
    operators = _records(document, "operators")
    tensors = _records(document, "tensors")
    parameters = _records(document, "parameters")
    op_names = tuple(_texts_of(operators, "operators", "name"))
    number: dict[str, int] = {}
    for index, name in enumerate(op_names):
        if number.setdefault(name, index) != index:
            raise InputError(f"{name!r} stands twice", record=f"operators[{index}]", field="name")
    kinds = {kind.name: int(kind) for kind in Kind}
    phases = {phase.name: int(phase) for phase in Phase}
    dtypes = {name: index for index, name in enumerate(DTYPES)}
    profile_classes, link_classes = (texts(document, f"{x}_classes") for x in ("profile", "link"))

    def ints(records: list[Json], what: str, key: str) -> IntArray:
        return _array(_column(records, what, key, int), what, key, np.int64)

    def floats(records: list[Json], what: str, key: str) -> FloatArray:
        return _array(_column(records, what, key, (int, float)), what, key, np.float64)

    def looked_up(records: list[Json], what: str, key: str, known: Mapping[str, int]) -> IntArray:
        values = _texts_of(records, what, key)
        for index, value in enumerate(values):
            if value not in known:
                raise InputError(f"unknown {value!r}", record=f"{what}[{index}]", field=key)
        return np.array([known[value] for value in values], dtype=np.int64)

    def table(records: list[Json], what: str, key: str, classes: tuple[str, ...]) -> FloatArray:
        rows = _column(records, what, key, list)
        for index, row in enumerate(rows):
            if len(row) != len(classes) or not all(x is None or _is_number(x) for x in row):
                raise InputError(
                    f"{row} is not {len(classes)} numbers or nulls",
                    record=f"{what}[{index}]",
                    field=key,
                )
        values = [[np.inf if x is None else x for x in row] for row in rows]
        return np.array(values, dtype=np.float64).reshape(len(rows), len(classes))

    uses = _column(tensors, "tensors", "consumers", list)
    for index, names in enumerate(uses):
        unknown = [name for name in names if not isinstance(name, str) or name not in number]
        if unknown:
            raise InputError(
                f"unknown {unknown[0]!r}", record=f"tensors[{index}]", field="consumers"
            )
    rows = [sorted(number[name] for name in names) for names in uses]
    flat = [consumer for row in rows for consumer in row]
    mirrors = _column(operators, "operators", "mirror", (str, type(None)))
    for index, mirror in enumerate(mirrors):
        if mirror is not None and mirror not in number:
            raise InputError(f"unknown {mirror!r}", record=f"operators[{index}]", field="mirror")
    return OpGraph(
        name=_name(document),
        op_names=op_names,
        kind=looked_up(operators, "operators", "kind", kinds),
        phase=looked_up(operators, "operators", "phase", phases),
        micro_batch=ints(operators, "operators", "micro_batch"),
        replica=ints(operators, "operators", "replica"),
        flop=floats(operators, "operators", "flop"),
        bytes_read=floats(operators, "operators", "bytes_read"),
        bytes_written=floats(operators, "operators", "bytes_written"),
        op_dtype=looked_up(operators, "operators", "dtype", dtypes),
        colocation=ints(operators, "operators", "colocation"),
        mirror=np.array(
            [NONE if name is None else number[name] for name in mirrors], dtype=np.int64
        ),
        tensor_bytes=floats(tensors, "tensors", "bytes"),
        tensor_dtype=looked_up(tensors, "tensors", "dtype", dtypes),
        producer=looked_up(tensors, "tensors", "producer", number),
        consumer_ptr=np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        consumer=np.array(flat, dtype=np.int64),
        parameter_names=tuple(_texts_of(parameters, "parameters", "name")),
        parameter_bytes=floats(parameters, "parameters", "parameter_bytes"),
        gradient_bytes=floats(parameters, "parameters", "gradient_bytes"),
        optimizer_bytes=floats(parameters, "parameters", "optimizer_bytes"),
        parameter_owner=looked_up(parameters, "parameters", "owner", number),
        profile_classes=profile_classes,
        profile_seconds=table(operators, "operators", "profile_seconds", profile_classes),
        link_classes=link_classes,
        link_seconds=table(tensors, "tensors", "link_seconds", link_classes),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _records(document: Json, key: str) -> list[Json]:
    records = document.get(key)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InputError("is not a list of records", field=key)
    return records


def _column(
    records: list[Json], what: str, key: str, kind: type[Element] | tuple[type[Element], ...]
) -> list[Element]:
    """Field `key` of every record, checked to be of type `kind`."""
    for index, record in enumerate(records):
        value = record.get(key)
        if key not in record or not isinstance(value, kind) or isinstance(value, bool):
            fault = f"{value!r} has the wrong type" if key in record else "is missing"
            raise InputError(fault, record=f"{what}[{index}]", field=key)
    return [cast(Element, record[key]) for record in records]


def _array(
    values: list[Element], what: str, key: str, dtype: type[Number]
) -> np.ndarray[tuple[int, ...], np.dtype[Number]]:
    try:
        return np.array(values, dtype=dtype)
    except OverflowError as error:
        raise InputError(f"holds a number out of range ({error})", record=what, field=key) from None


def _name(document: Json) -> str:
    name = document.get("name")
    if not isinstance(name, str):
        raise InputError(f"{name!r} is no text", field="name")
    return name


def _texts_of(records: list[Json], what: str, key: str) -> list[str]:
    return _column(records, what, key, str)


def texts(document: Json, key: str) -> tuple[str, ...]:
    """Field `key` as names; InputError when it is no list of them."""
    values = document.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError("is not a list of names", field=key)
    return tuple(values)
