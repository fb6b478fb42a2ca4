"""Plans on disk: JSON, by the names of operators and devices, so that anybody can write one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from agents.step.problems import ALLOCATED
from envs.arrays import BoolArray, IntArray
from envs.errors import InputError
from envs.files import read_json
from envs.forms import Form, read_form
from envs.graphs.op_graph import OpGraph, Phase
from envs.graphs.storage import graph_hash
from envs.hardware.network import Network
from envs.hardware.topology import Topology
from envs.step.allocated import Allocated
from envs.step.fair import Fair
from envs.step.order import OrderRule
from envs.step.plans import MOST_WEIGHT, BandwidthAllocation, PairWeights, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.rematerialise import Residence
from envs.step.step import Communication
from experiments.run.artifacts import write_json
from experiments.run.provenance import Provenance, stamp
from experiments.step.problem import communication_of

MOST_NAMED = 40  # channels that a fault names
SCHEMA_VERSION = 1
BANDWIDTH_SCHEMA_VERSION = 2  # readers of version 1 know no bandwidth and would leave it out
RESIDENCE_SCHEMA_VERSION = 3  # nor do those of version 2 know that anything is not kept
WEIGHTS_SCHEMA_VERSION = 4  # nor those of version 3 that transfers have weights

SINCE = {
    "bandwidth": BANDWIDTH_SCHEMA_VERSION,
    "residence": RESIDENCE_SCHEMA_VERSION,
    "weights": WEIGHTS_SCHEMA_VERSION,
}
ARROW = " -> "  # between the two devices of a pair
Allocation = BandwidthAllocation | PairWeights


class _Graph(Form):
    name: str | None = None
    sha256: str | None = None


class _Document(Form):
    kind: Literal["meshwright.plan"]
    schema_version: Annotated[int, Ge(1), Le(4)]
    units: Any = None
    provenance: Any = None
    graph: _Graph | None = None
    topology: str | None = None
    placement: dict[str, str]
    order: list[str] | None = None
    bandwidth: dict[str, Annotated[float, Ge(0)]] | None = None
    residence: dict[str, Literal["keep", "recompute", "offload"]] | None = None
    weights: dict[str, Annotated[int, Ge(1), Le(MOST_WEIGHT)]] | None = None


def write_plan(
    path: Path,
    plan: Plan,
    problem: StepProblem,
    provenance: Provenance,
    allocation: Allocation | None = None,
) -> None:
    """Write `plan`, and the bandwidth it is allocated or the weights it has, atomically.

    The document: `graph` {name, sha256}, `topology` (its name), `placement` {operator: device},
    `order` [operators, first to last], beside kind, schema version, units and provenance. With an
    allocation the schema version is 2 and there is `bandwidth` {channel: bytes/s}, of all channels
    of the topology's network. Where not everything is kept it is 3 and there is `residence`
    {forward operator: recompute or offload}, of the others `keep`. With weights it is 4 and there
    are `weights` {"device -> device": a whole number}, of the others 1.
    """
    document = plan.document(problem)
    version = SCHEMA_VERSION
    if isinstance(allocation, BandwidthAllocation):
        names = problem.topology.network.channel_names
        document["bandwidth"] = dict(zip(names, allocation.rate.tolist(), strict=True))
        version = BANDWIDTH_SCHEMA_VERSION
    if plan.residence is not None:
        version = RESIDENCE_SCHEMA_VERSION
    if isinstance(allocation, PairWeights):
        devices, weight = problem.topology.device_names, allocation.weight
        document["weights"] = {
            f"{devices[i]}{ARROW}{devices[j]}": int(weight[i, j])
            for i, j in np.argwhere(weight > 1)
        }
        version = WEIGHTS_SCHEMA_VERSION
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
    document, graph = _document(path), problem.graph
    _same_problem(document, problem, path)
    device = _placement(document.placement, graph, problem.topology, path)
    residence = _residence(document.residence, graph, path)
    given = document.order
    order = order_rule(graph, device) if given is None else _order(given, graph, path)
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
    rates = _document(path).bandwidth
    if rates is None:
        return None
    found, channels = np.zeros(network.num_channels), network.channel_names
    found[_numbers(rates, channels, "bandwidth", path)] = [*rates.values()]
    allocation = BandwidthAllocation(found)
    if allocation.violations(network):
        excess = network.incidence @ found - network.link_capacity
        link = int(np.argmax(excess / network.link_capacity))
        fault = f"the channels over this link are given {excess[link]:.6g} bytes/s too many"
        raise InputError(fault, file=path, record=network.link_names[link], field="bandwidth")
    return allocation


def read_weights(path: str | Path, topology: Topology) -> PairWeights | None:
    """The weights of transfers in a plan file, None where the file has no `weights`.

    Pairs of devices that the file leaves out have weight 1.

    Raises:
        InputError: naming the file, the record (pair) and the field that is wrong: no plan file, an
            unknown pair, a weight that is no whole number in its bounds.
    """
    weights = _document(path).weights
    if weights is None:
        return None
    names = topology.device_names
    pairs = [f"{a}{ARROW}{b}" for a in names for b in names]
    found = PairWeights.fair(len(names))
    found.weight.ravel()[_numbers(weights, pairs, "weights", path)] = [*weights.values()]
    return found


def read_allocation(path: str | Path, topology: Topology) -> Allocation | None:
    """The weights or the bandwidth in a plan file; None: neither.

    Raises:
        InputError: as `read_weights` and `read_bandwidth`.
    """
    return read_weights(path, topology) or read_bandwidth(path, topology.network)


def _document(path: str | Path) -> _Document:
    document = read_form(_Document, read_json(path), path)
    if document.weights is not None and document.bandwidth is not None:
        fault = "stands beside 'bandwidth': transfers have weights or rates"
        raise InputError(fault, file=path, field="weights")
    for key, first in SINCE.items():
        if document.schema_version < first and key in document.model_fields_set:
            fault = f"needs schema_version {first}, the file has {document.schema_version}"
            raise InputError(fault, file=path, field=key)
        if document.schema_version == first and getattr(document, key) is None:
            fault = f"is missing: a plan with schema_version {first} has it"
            raise InputError(fault, file=path, field=key)
    return document


def _same_problem(document: _Document, problem: StepProblem, path: str | Path) -> None:
    graph, own = document.graph or _Graph(), problem.graph
    if graph.sha256 not in (None, graph_hash(own)):
        reason = f"the plan was made for another graph ({graph.name!r}, this one is {own.name!r}; "
        raise InputError(f"{reason}their SHA-256 differ)", file=path, field="graph")
    if document.topology not in (None, problem.topology.name):
        reason = f"topology {document.topology!r}, this one is {problem.topology.name!r}"
        raise InputError(f"the plan was made for {reason}", file=path, field="topology")


def _numbers(names: Iterable[str], known: Sequence[str], field: str, path: str | Path) -> list[int]:
    """The places of names among those that are known.

    Raises:
        InputError: one is not known.
    """
    number = {name: place for place, name in enumerate(known)}
    for name in names:
        if name not in number:
            thing = {"bandwidth": "channel", "weights": "pair"}.get(field, "operator")
            more = f" (known: {', '.join(known)})" if len(known) <= MOST_NAMED else ""
            raise InputError(f"unknown {thing}{more}", file=path, record=name, field=field)
    return [number[name] for name in names]


def _placement(
    placement: Mapping[str, str], graph: OpGraph, topology: Topology, path: str | Path
) -> IntArray:
    devices = topology.device_names
    found = np.full(graph.num_operators, -1, dtype=np.int64)
    numbers = _numbers(placement, graph.op_names, "placement", path)
    for number, (name, device) in zip(numbers, placement.items(), strict=True):
        if device not in devices:
            reason = f"unknown device {device!r} (known: {', '.join(devices)})"
            raise InputError(reason, file=path, record=name, field="placement")
        found[number] = devices.index(device)
    _none_missing(found < 0, graph, "placement", "is not placed", path)
    return found


def _residence(
    residence: Mapping[str, str] | None, graph: OpGraph, path: str | Path
) -> IntArray | None:
    if residence is None:
        return None
    found = np.zeros(graph.num_operators, dtype=np.int64)
    numbers = _numbers(residence, graph.op_names, "residence", path)
    found[numbers] = [Residence[move.upper()] for move in residence.values()]
    for number in numbers:
        if graph.phase[number] != Phase.FORWARD:
            name = graph.op_names[number]
            raise InputError("is no forward operator", file=path, record=name, field="residence")
    return found


def _order(names: Sequence[str], graph: OpGraph, path: str | Path) -> IntArray:
    order = np.array(_numbers(names, graph.op_names, "order", path), dtype=np.int64)
    count = np.bincount(order, minlength=graph.num_operators)
    _none_missing(count > 1, graph, "order", "stands twice", path)
    _none_missing(count < 1, graph, "order", "is not ordered", path)
    position = np.argsort(order)
    wrong = np.flatnonzero(position[graph.edges[:, 0]] >= position[graph.edges[:, 1]])
    if len(wrong):
        before, after = (graph.op_names[op] for op in graph.edges[wrong[0], :2])
        reason = f"is ordered before its input {before!r}"
        raise InputError(reason, file=path, record=after, field="order")
    return order


def _none_missing(
    wrong: BoolArray, graph: OpGraph, field: str, fault: str, path: str | Path
) -> None:
    """Refuse a field where an operator is wrong."""
    if count := int(wrong.sum()):
        more = f" (and {count - 1} more)" if count > 1 else ""
        name = graph.op_names[int(np.argmax(wrong))]
        raise InputError(f"{fault}{more}", file=path, record=name, field=field)


def plan_communication(
    node: Mapping[str, Any], allocation: Allocation | None, overrides: Sequence[str]
) -> Communication:
    """The communication model of config node `node` for a plan with `allocation`.

    A plan without bandwidth is simulated as the node says. A plan with bandwidth is simulated
    through pipes of its own rates, in place of the config's default model or of the rates that
    `communication=allocated` would give; one with weights as `communication=fair` at these.

    Raises:
        InputError: the command line asks for a model that knows no allocation, for a plan that has
            one; or `node` is no communication model.
    """
    model = communication_of(node)
    if allocation is None:
        return model
    asked = any(override.lstrip("+~").startswith("communication") for override in overrides)
    known: type[Allocated | Fair] = Allocated
    brings, section = "allocates bandwidth", "bandwidth"
    if isinstance(allocation, PairWeights):
        known, brings, section = Fair, "has weights of transfers", "weights"
    if asked and not isinstance(model, known):
        raise InputError(
            f"config key 'communication': the plan {brings}, which {model.name!r} does not know; "
            f"leave the key out, or the {section!r} out of the plan file"
        )
    if isinstance(allocation, BandwidthAllocation):
        return Allocated(ALLOCATED, allocation)
    return replace(model if isinstance(model, Fair) else Fair(), weights=allocation)
