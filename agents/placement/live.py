"""An exported placement policy decides where operators run, on graphs given as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.decision import Decider, Decision, Name, StateError, form
from agents.placement.policy import Answer, LearnedPlanner
from agents.solver import Budget
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from agents.step.lower_bound import lower_bound
from envs.bounds import Count, bounded
from envs.cost import CostByGraph
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.graphs.storage import graph_document, graph_of
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import mixed, single_server
from envs.hardware.servers import NvlinkServer, PcieServer
from envs.hardware.topology import Topology
from envs.step.plans import Placement, Plan
from envs.step.price import BestOrder
from envs.step.problem import StepProblem

FITTING_S = 2.0  # until another plan fits, where the most probable one does not
PLAN_KIND, PLAN_VERSION = "meshwright.plan", 1
Quantity = Annotated[
    str | float, Field(description='with its unit ("25Gbps", "50GB/s", "2us"), or in bytes/s or s')
]
Size = Annotated[int, Field(ge=1, le=1024)]


@form
class LiveLink(TypedDict):
    """A link, full duplex."""

    medium: Name
    bandwidth: Quantity
    """in one direction"""
    latency: Quantity


@form
class LiveServer(TypedDict):
    """Equal devices below PCIe, where `nvlink` is given also joined all to all in islands."""

    device: Name
    """a kind of the catalogue: V100-16GB, H100, ..."""
    count: Size
    pcie: LiveLink
    """of a device, a network card or a switch"""
    nvlink: NotRequired[LiveLink]
    """between two devices of an island"""
    island: NotRequired[Annotated[int, Field(ge=1, le=1024)]]
    """devices of an island; else all"""
    switches: NotRequired[Annotated[int, Field(ge=1, le=64)]]
    """of PCIe; else 1"""
    nics: NotRequired[Annotated[int, Field(ge=0, le=64)]]
    """network cards; else 1"""


@form
class LiveTopology(TypedDict):
    """Servers around one network switch."""

    name: NotRequired[Name]
    servers: Annotated[list[LiveServer], Field(min_length=1, max_length=1024)]
    network: NotRequired[LiveLink]
    """of every network card; left out of one server"""


@form
class LiveStep(TypedDict):
    """A training step to be placed."""

    graph: dict[str, Any]
    """the object of a graph file in JSON (envs.graphs.storage.graph_document)"""
    topology: LiveTopology


@form
class GroupAction(TypedDict):
    """Where a group of operators goes, with the policy's scores."""

    action: Literal["place"]
    group: Annotated[int, Field(ge=0)]
    operators: list[str]
    device: str
    probability: Annotated[float, Field(ge=0, le=1)]
    log_probabilities: dict[str, float]
    """of every device that was allowed"""


@form
class PlacementAnswer(TypedDict):
    """Where the operators of a step run."""

    kind: Literal["meshwright.placement_decision"]
    schema_version: Literal[1]
    actions: list[GroupAction]
    plan: dict[str, Any]
    """a plan file, as experiments.evaluate reads"""
    feasible: bool
    violations: list[str]
    """a sentence each; none: feasible"""
    step_time_s: float | None
    """simulated; null: it never ends"""
    lower_bound_s: float | None
    """no plan is faster; null: there is none that fits"""


@bounded
class PlacementDecider(Decider):
    """Decides on graphs and topologies by the policy of a checkpoint folder.

    Of the plans that the policy finds most probable from eight starts, and of the splits among
    those, it is the fastest; where it does not fit into memory, the policy is asked again with less
    room. `LearnedPlanner` as `conf/agent/learned.yaml` has it looks further, and finds better
    plans. One state at a time; further threads wait their turn.

    Args:
        checkpoint: the folder, or the name of a shipped one.
        most_operators: of a graph; None: any.
        most_devices: of a topology; None: any.

    Raises:
        InputError: the folder is no checkpoint of a placement policy.
    """

    kind = "placement"

    def __init__(
        self,
        checkpoint: str,
        *,
        most_operators: Count | None = None,
        most_devices: Count | None = None,
    ) -> None:
        self.planner = LearnedPlanner(
            checkpoint=checkpoint, rounds=1, moves=0, temperature=0.0, search=None
        )
        self.most_operators, self.most_devices = most_operators, most_devices
        super().__init__(
            (LiveStep, "A training step and the devices for it"),
            (PlacementAnswer, "Where the operators run"),
        )

    def decide(self, state: Mapping[str, Any]) -> Decision:
        """What to do in `state`, whose graph and topology may be objects of `envs` as well."""
        graph, topology = state.get("graph"), state.get("topology")
        if not isinstance(graph, OpGraph):
            return super().decide(state)
        if not isinstance(topology, Topology):
            topology = _topology(self._form.read({**state, "graph": {}})["topology"])
        return self._place(graph, topology)

    @property
    def example(self) -> dict[str, Any]:
        graph = synthetic_training_graph(np.random.default_rng(0), 2, 2, 1)
        pcie = {"medium": "PCIe", "bandwidth": "15.75GB/s", "latency": "2us"}
        server = {"device": "V100-16GB", "count": 2, "pcie": pcie}
        return {"graph": graph_document(graph), "topology": {"servers": [server]}}

    def _decide(self, state: LiveStep) -> Decision:
        with _refused_at("graph"):
            graph = graph_of(state["graph"])
        return self._place(graph, _topology(state["topology"]))

    def _place(self, graph: OpGraph, topology: Topology) -> Decision:
        for field, what, found, most in (
            ("graph", "operators", graph.num_operators, self.most_operators),
            ("topology", "devices", topology.num_devices, self.most_devices),
        ):
            if found < 1 or (most is not None and found > most):
                bound = "at least 1" if found < 1 else f"at most {most}"
                raise StateError(((field,), f"{found} {what}, this decider takes {bound}"))
        problem = StepProblem.build(graph, topology, CostByGraph())
        grouped = GroupedProblem.of(problem, self.planner.groups)
        with self._lock:
            answer, incumbent = Answer(self.planner, grouped), StepIncumbent(problem)
            plans, _ = answer.best_first()
            chances, group = answer.chances, grouped.fusion.group
            answer.fit(incumbent, plans, Budget(FITTING_S, 1))
        simulator, plan = BestOrder(problem), incumbent.plan
        if plan is None:
            device = grouped.fusion.expand(plans[0])
            plan = Plan(Placement(device), simulator.order(device))
        placed, names = grouped.of_groups(plan.placement.device), problem.topology.device_names
        actions = [
            {
                "action": "place",
                "group": number,
                "operators": [graph.op_names[op] for op in np.flatnonzero(group == number)],
                "device": names[device],
                "probability": float(chance[device]),
                "log_probabilities": {
                    names[d]: float(np.log(chance[d])) for d in np.flatnonzero(chance)
                },
            }
            for number, (device, chance) in enumerate(zip(placed, chances, strict=True))
        ]
        violations = plan.violations(problem, simulator)
        step_time = simulator.step_time(plan.placement.device, plan.order)
        least_s = lower_bound(problem).seconds
        content = {
            "kind": "meshwright.placement_decision",
            "schema_version": 1,
            "actions": actions,
            "plan": {**plan.document(problem), "kind": PLAN_KIND, "schema_version": PLAN_VERSION},
            "feasible": not violations,
            "violations": violations,
            "step_time_s": step_time if np.isfinite(step_time) else None,
            "lower_bound_s": least_s if np.isfinite(least_s) else None,
        }
        return Decision(actions, content)


def _topology(live: LiveTopology) -> Topology:
    name, servers = live.get("name", "live"), live["servers"]
    if len(servers) > 1 and "network" not in live:
        raise StateError((("topology", "network"), "is missing: what joins the servers?"))
    with _refused_at("topology"):
        built = [_server(server) for server in servers]
        return mixed(name, built, live["network"]) if built[1:] else single_server(name, built[0])


def _server(live: LiveServer) -> PcieServer:
    device, count, pcie = live["device"], live["count"], live["pcie"]
    rest = live.get("switches", 1), live.get("nics", 1)
    if "nvlink" in live:
        island = live.get("island", count)
        return NvlinkServer(device, count, island, live["nvlink"], pcie, *rest)
    if "island" in live:
        raise InputError("goes with nvlink", field="island")
    return PcieServer(device, count, pcie, *rest)


@contextmanager
def _refused_at(field: str) -> Iterator[None]:
    """Errors of a part of the state are those of the state."""
    try:
        yield
    except InputError as error:
        where = " ".join(str(part) for part in (error.record, error.field) if part is not None)
        message = f"{where}: {error.message}" if where else error.message
        raise StateError(((field,), message)) from error
