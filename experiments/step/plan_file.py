"""Plans on disk: JSON, by the names of operators and devices, so that anybody can write one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np

from agents.step.problems import ALLOCATED
from envs.arrays import IntArray
from envs.errors import InputError
from envs.files import read_json
from envs.graphs.op_graph import OpGraph, Phase
from envs.graphs.storage import graph_hash
from envs.hardware.network import Network
from envs.hardware.topology import Topology
from envs.step.allocated import Allocated
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.rematerialise import Residence
from envs.step.step import Communication
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from experiments.step.problem import communication_of

KIND = "meshwright.plan"
KEYS = (
    "kind", "schema_version", "units", "provenance", "graph", "topology", "placement", "order",
    "bandwidth", "residence",
)  # fmt: skip
SCHEMA_VERSION = 1
BANDWIDTH_SCHEMA_VERSION = 2  # readers of version 1 know no bandwidth and would leave it out
RESIDENCE_SCHEMA_VERSION = 3  # nor do those of version 2 know that anything is not kept


def write_plan(
    path: Path,
    plan: Plan,
    problem: StepProblem,
    provenance: Provenance,
    allocation: BandwidthAllocation | None = None,
) -> None:
    """Write `plan`, and the bandwidth it is allocated, atomically.

    The document: `graph` {name, sha256}, `topology` (its name), `placement` {operator: device},
    `order` [operators, first to last], beside kind, schema version, units and provenance. With an
    allocation the schema version is 2 and there is `bandwidth` {channel: bytes/s}, of all channels
    of the topology's network. Where not everything is kept it is 3 and there is `residence`
    {forward operator: recompute or offload}, of the others `keep`.
    """
    document = plan.document(problem)
    version = SCHEMA_VERSION
    if allocation is not None:
        names = problem.topology.network.channel_names
        document["bandwidth"] = dict(zip(names, allocation.rate.tolist(), strict=True))
        version = BANDWIDTH_SCHEMA_VERSION
    if plan.residence is not None:
        version = RESIDENCE_SCHEMA_VERSION
    write_json(path, stamp(document, provenance, kind="plan", schema_version=version))


def read_plan(path: str | Path, problem: StepProblem, order_rule: OrderRule) -> Plan:
    """The plan in a file, for `problem`; where it gives no order, `order_rule` does.

    `graph` and `topology` may be left out; where given they must be those of the problem.

    Raises:
        InputError: naming the file, the record (operator) and the field that is wrong: no plan
            file, another graph or topology, an unknown operator or device, an operator missing or
            standing twice, an order that runs an operator before its input, a residence that is
            none or not of a forward operator.
    """
    document = _document(path)
    graph = problem.graph
    _same_problem(document, problem, path)
    device = _placement(document.get("placement"), graph, problem.topology, path)
    residence = _residence(document.get("residence"), graph, path)
    if document.get("order") is None:
        return Plan(Placement(device), order_rule(graph, device), residence)
    order = _order(document["order"], graph, path)
    _check_topological(order, graph, path)
    return Plan(Placement(device), order, residence)


def read_kept_plan(path: str | Path, problem: StepProblem, order_rule: OrderRule) -> Plan:
    """As `read_plan`, where nothing is known of memory moves.

    Raises:
        InputError: as `read_plan`, or the plan does not keep everything.
    """
    plan = read_plan(path, problem, order_rule)
    if plan.residence is not None:
        fault = "what is computed again or moved to the host is not known here"
        raise InputError(fault, file=path, field="residence")
    return plan


def read_bandwidth(path: str | Path, network: Network) -> BandwidthAllocation | None:
    """The bandwidth in a plan file, None where the file has no `bandwidth`.

    Channels that the file leaves out get nothing.

    Raises:
        InputError: naming the file, the record (channel or link) and the field that is wrong: no
            plan file, an unknown channel, a rate that is no number or negative, a link that would
            carry more than its capacity.
    """
    rates = _document(path).get("bandwidth")
    if rates is None:
        return None
    field = "bandwidth"
    if not isinstance(rates, dict):
        raise InputError("is not a mapping of channels to bytes/s", file=path, field=field)
    channels = {name: number for number, name in enumerate(network.channel_names)}
    found = np.zeros(network.num_channels)
    for name, rate in rates.items():
        if name not in channels:
            known = ", ".join(network.channel_names)
            raise InputError(
                f"unknown channel (known: {known})", file=path, record=name, field=field
            )
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not number or not 0 <= rate <= sys.float_info.max:
            fault = f"{shortened(rate)} is not a rate in bytes/s, 0 or more"
            raise InputError(fault, file=path, record=name, field=field)
        found[channels[name]] = rate
    allocation = BandwidthAllocation(found)
    if allocation.violations(network):
        excess = network.incidence @ found - network.link_capacity
        link = int(np.argmax(excess / network.link_capacity))
        fault = f"the channels over this link are given {excess[link]:.6g} bytes/s too many"
        raise InputError(fault, file=path, record=network.link_names[link], field=field)
    return allocation


def _document(path: str | Path) -> dict[str, object]:
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InputError(f"is no plan file: 'kind' is not {KIND!r}", file=path, field="kind")
    known = (SCHEMA_VERSION, BANDWIDTH_SCHEMA_VERSION, RESIDENCE_SCHEMA_VERSION)
    version = document.get("schema_version")
    if version not in known or isinstance(version, bool | float):
        raise InputError(
            f"is {version!r}, this release reads {', '.join(map(str, known))}",
            file=path,
            field="schema_version",
        )
    for key in document:
        if key not in KEYS:
            told = f"unknown key (known: {', '.join(KEYS)})"
            raise InputError(told, file=path, field=key)
    since = {"bandwidth": BANDWIDTH_SCHEMA_VERSION, "residence": RESIDENCE_SCHEMA_VERSION}
    for key, first in since.items():
        if version < first and key in document:
            fault = f"needs schema_version {first}, the file has {version}"
            raise InputError(fault, file=path, field=key)
        if version == first and document.get(key) is None:
            fault = f"is missing: a plan with schema_version {version} has it"
            raise InputError(fault, file=path, field=key)
    return document


def _same_problem(document: Mapping[str, object], problem: StepProblem, path: str | Path) -> None:
    described = document.get("graph")
    if described is not None and not isinstance(described, dict):
        raise InputError("is not a mapping with 'name' and 'sha256'", file=path, field="graph")
    if described is not None and described.get("sha256") not in (None, graph_hash(problem.graph)):
        raise InputError(
            f"the plan was made for another graph ({described.get('name')!r}, "
            f"this one is {problem.graph.name!r}; their SHA-256 differ)",
            file=path,
            field="graph",
        )
    topology = document.get("topology")
    if topology is not None and topology != problem.topology.name:
        raise InputError(
            f"the plan was made for topology {topology!r}, this one is {problem.topology.name!r}",
            file=path,
            field="topology",
        )


def _placement(placement: object, graph: OpGraph, topology: Topology, path: str | Path) -> IntArray:
    if not isinstance(placement, dict):
        raise InputError(
            "is missing or not a mapping of operators to devices", file=path, field="placement"
        )
    operators = {name: number for number, name in enumerate(graph.op_names)}
    devices = {device.name: number for number, device in enumerate(topology.devices)}
    found = np.full(graph.num_operators, -1, dtype=np.int64)
    for name, device in placement.items():
        if name not in operators:
            raise InputError("unknown operator", file=path, record=name, field="placement")
        if not isinstance(device, str) or device not in devices:
            raise InputError(
                f"unknown device {device!r} (known: {', '.join(devices)})",
                file=path,
                record=name,
                field="placement",
            )
        found[operators[name]] = devices[device]
    missing = np.flatnonzero(found < 0)
    if len(missing):
        raise InputError(
            f"is not placed (and {len(missing) - 1} more)" if len(missing) > 1 else "is not placed",
            file=path,
            record=graph.op_names[missing[0]],
            field="placement",
        )
    return found


def _residence(residence: object, graph: OpGraph, path: str | Path) -> IntArray | None:
    if residence is None:
        return None
    field = "residence"
    if not isinstance(residence, dict):
        raise InputError("is not a mapping of operators", file=path, field=field)
    operators = {name: number for number, name in enumerate(graph.op_names)}
    found = np.zeros(graph.num_operators, dtype=np.int64)
    known = {move.name.lower(): int(move) for move in Residence}
    for name, move in residence.items():
        if name not in operators:
            raise InputError("unknown operator", file=path, record=name, field=field)
        if not isinstance(move, str) or move not in known:
            fault = f"{shortened(move)} is none of {', '.join(known)}"
            raise InputError(fault, file=path, record=name, field=field)
        if graph.phase[operators[name]] != Phase.FORWARD:
            raise InputError("is no forward operator", file=path, record=name, field=field)
        found[operators[name]] = known[move]
    return found


def _order(order: object, graph: OpGraph, path: str | Path) -> IntArray:
    if not isinstance(order, list):
        raise InputError("is not a list of operators", file=path, field="order")
    operators = {name: number for number, name in enumerate(graph.op_names)}
    seen: set[str] = set()
    for name in order:
        if not isinstance(name, str) or name not in operators:
            raise InputError("unknown operator", file=path, record=name, field="order")
        if name in seen:
            raise InputError("stands twice", file=path, record=name, field="order")
        seen.add(name)
    for name in graph.op_names:
        if name not in seen:
            raise InputError("is not ordered", file=path, record=name, field="order")
    return np.array([operators[name] for name in order], dtype=np.int64)


def _check_topological(order: IntArray, graph: OpGraph, path: str | Path) -> None:
    position = np.empty(graph.num_operators, dtype=np.int64)
    position[order] = np.arange(graph.num_operators)
    edges = graph.edges
    wrong = np.flatnonzero(position[edges[:, 0]] >= position[edges[:, 1]])
    if len(wrong):
        before, after, _ = edges[wrong[0]]
        raise InputError(
            f"is ordered before its input {graph.op_names[before]!r}",
            file=path,
            record=graph.op_names[after],
            field="order",
        )


def plan_communication(
    node: Mapping[str, Any], allocation: BandwidthAllocation | None, overrides: Sequence[str]
) -> Communication:
    """The communication model of config node `node` for a plan with `allocation`.

    A plan without bandwidth is simulated as the node says. A plan with bandwidth is simulated
    through pipes of its own rates, in place of the config's default model or of the rates that
    `communication=allocated` would give.

    Raises:
        InputError: the command line asks for a model that knows no allocation, for a plan that has
            one; or `node` is no communication model.
    """
    model = communication_of(node)
    if allocation is None:
        return model
    asked = any(override.lstrip("+~").startswith("communication") for override in overrides)
    if asked and not isinstance(model, Allocated):
        raise InputError(
            f"config key 'communication': the plan allocates bandwidth, which {model.name!r} does "
            "not know; leave the key out, or the 'bandwidth' out of the plan file"
        )
    return Allocated(ALLOCATED, allocation)
