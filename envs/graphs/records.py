"""`OpGraph` as JSON records: an object per operator, tensor and parameter, for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import numpy as np

from envs.errors import InputError
from envs.graphs.op_graph import NONE, FloatArray, IntArray, Kind, OpGraph, Phase
from envs.units import DTYPES

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
        name=str(document.get("name")),
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


def _texts_of(records: list[Json], what: str, key: str) -> list[str]:
    return _column(records, what, key, str)


def texts(document: Json, key: str) -> tuple[str, ...]:
    """Field `key` as names; InputError when it is no list of them."""
    values = document.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError("is not a list of names", field=key)
    return tuple(values)
