"""Step problems as arrays, many in one file: what is needed to place and simulate, without names.

A problem is restored with the same times, memory and structure. Its operators are called by their
numbers, parameters are those of an operator together, and physical links beyond the ports are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError, refused_in
from envs.files import parse_json
from envs.graphs.op_graph import OpGraph
from envs.graphs.storage import FLOAT_COLUMNS, INT_COLUMNS
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem

_PARAMETERS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
_GRAPH = (*INT_COLUMNS, *FLOAT_COLUMNS)
_TOPOLOGY = ("link_class", "class_latency", "class_bandwidth", "send_port", "receive_port")
_PROBLEM = ("op_seconds", "transfer_seconds", "capacity")


def problem_arrays(problem: StepProblem) -> dict[str, NDArray[Any]]:
    """The columns of `problem`, and `header`: its texts as JSON in bytes."""
    graph, topology = problem.graph, problem.topology
    owner, row = np.unique(graph.parameter_owner, return_inverse=True)
    header = {
        "graph": graph.name,
        "topology": topology.name,
        "specs": [
            asdict(spec) for spec in {d.spec.name: d.spec for d in topology.devices}.values()
        ],
        "devices": [[d.name, d.spec.name, d.server] for d in topology.devices],
        **{name: getattr(topology, name) for name in ("class_names", "port_names")},
        **{name: getattr(problem, name) for name in ("orders", "memory_moves")},
    }
    summed = {name: np.bincount(row.reshape(-1), getattr(graph, name)) for name in _PARAMETERS}
    return {
        **{name: getattr(graph, name) for name in _GRAPH},
        **{name: total.astype(np.float64) for name, total in summed.items()},
        "parameter_owner": owner,
        **{name: getattr(topology, name) for name in _TOPOLOGY},
        **{name: getattr(problem, name) for name in _PROBLEM},
        "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
    }


def restored_problem(arrays: Mapping[str, NDArray[Any]], file: object) -> StepProblem:
    """The problem of such arrays; `file` is for messages.

    Raises:
        InputError: an array or a text is missing or wrong.
    """
    with refused_in(file):
        try:
            header = parse_json(arrays["header"].tobytes(), file)
            specs = {spec["name"]: DeviceSpec(**spec) for spec in header["specs"]}
            topology = Topology(
                name=header["topology"],
                devices=tuple(
                    Device(name, specs[spec], at) for name, spec, at in header["devices"]
                ),
                **_texts(header, "class_names", "port_names"),
                **_columns(arrays, _TOPOLOGY),
            )
            graph = OpGraph(
                name=header["graph"],
                op_names=tuple(map(str, range(len(arrays["kind"])))),
                parameter_names=tuple(map(str, range(len(arrays["parameter_owner"])))),
                **_columns(arrays, _GRAPH),
            )
            named = _texts(header, "orders", "memory_moves")
            return StepProblem(graph, topology, **_columns(arrays, _PROBLEM), **named)
        except KeyError as error:
            raise InputError("is missing", field=str(error.args[0])) from error
        except (TypeError, ValueError) as error:
            raise InputError(f"is no stored problem ({error})") from error


def _columns(arrays: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: arrays[name] for name in names}


def _texts(header: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: tuple(header[name]) for name in names}
