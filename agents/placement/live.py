"""An exported placement policy decides where the operators of a graph run, told as plain data."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from agents.decision import Decision, Form, Location, Name, StateError, form
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

GROUPS = 64  # of the fused graph, at most
STARTING = (4, 1, 5, 6, 7, 0, 2, 3)  # of `envs.placement.facts.PlacementFacts.starts`
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
class PlacementDecider:
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
            checkpoint=checkpoint, groups=GROUPS, samples=len(STARTING), starts=STARTING,
            rounds=1, moves=0, temperature=0.0, search=None, levels=(), descent=0.0,
            guided=0.0, seed=0,
        )  # fmt: skip
        self.most_operators, self.most_devices = most_operators, most_devices
        self._form = Form(LiveStep, "A training step and the devices for it")
        self._lock = threading.Lock()

    @property
    def schema(self) -> dict[str, Any]:
        return self._form.schema()

    @property
    def answer_schema(self) -> dict[str, Any]:
        return Form(PlacementAnswer, "Where the operators run").schema()

    def decide(self, state: Mapping[str, Any]) -> Decision:
        """What to do in `state`, whose graph and topology may be objects of `envs` as well."""
        graph, topology = state.get("graph"), state.get("topology")
        if isinstance(graph, OpGraph) and isinstance(topology, Topology):
            return self._decide(graph, topology)
        if isinstance(graph, OpGraph):
            told = self._form.read({**state, "graph": {}})
            return self._decide(graph, _topology(told["topology"]))
        return self._told(self._form.read(dict(state)))

    def decide_json(self, text: bytes) -> Decision:
        return self._told(self._form.read_json(text))

    @property
    def example(self) -> dict[str, Any]:
        graph = synthetic_training_graph(np.random.default_rng(0), 2, 2, 1)
        pcie = {"medium": "PCIe", "bandwidth": "15.75GB/s", "latency": "2us"}
        server = {"device": "V100-16GB", "count": 2, "pcie": pcie}
        return {"graph": graph_document(graph), "topology": {"servers": [server]}}

    def warm(self) -> None:
        self.decide(self.example)

    def _told(self, state: LiveStep) -> Decision:
        try:
            graph = graph_of(state["graph"])
        except InputError as error:
            raise _at(("graph",), error) from error
        return self._decide(graph, _topology(state["topology"]))

    def _decide(self, graph: OpGraph, topology: Topology) -> Decision:
        for field, found, most in (
            ("graph", graph.num_operators, self.most_operators),
            ("topology", topology.num_devices, self.most_devices),
        ):
            if found < 1 or (most is not None and found > most):
                bound = "at least 1" if found < 1 else f"at most {most}"
                what = "operators" if field == "graph" else "devices"
                raise StateError(((field,), f"{found} {what}, this decider takes {bound}"))
        problem = StepProblem.build(graph, topology, CostByGraph())
        with self._lock:
            return self._play(problem)

    def _play(self, problem: StepProblem) -> Decision:
        grouped = GroupedProblem.of(problem, self.planner.groups)
        answer, incumbent = Answer(self.planner, grouped), StepIncumbent(problem)
        plans, _ = answer.best_first()
        chances, group = answer.chances, grouped.fusion.group
        answer.fit(incumbent, plans, Budget(FITTING_S, 1))
        plan = incumbent.plan
        if plan is None:
            device = grouped.fusion.expand(plans[0])
            plan = Plan(Placement(device), BestOrder(problem).order(device))
        placed = np.zeros(grouped.num_groups, np.int64)
        placed[group] = plan.placement.device
        names = problem.topology.device_names
        actions = [
            {
                "action": "place",
                "group": number,
                "operators": [problem.graph.op_names[op] for op in np.flatnonzero(group == number)],
                "device": names[device],
                "probability": float(chance[device]),
                "log_probabilities": {
                    names[d]: float(np.log(chance[d])) for d in np.flatnonzero(chance)
                },
            }
            for number, (device, chance) in enumerate(zip(placed, chances, strict=True))
        ]
        return Decision(actions, self._content(problem, plan, actions))

    def _content(
        self, problem: StepProblem, plan: Plan, actions: list[dict[str, Any]]
    ) -> dict[str, Any]:
        simulator = BestOrder(problem)
        violations = plan.violations(problem, simulator)
        step_time = simulator.step_time(plan.placement.device, plan.order)
        bound = lower_bound(problem)
        mark = {"kind": PLAN_KIND, "schema_version": PLAN_VERSION}
        return {
            "kind": "meshwright.placement_decision",
            "schema_version": 1,
            "actions": actions,
            "plan": {**plan.document(problem), **mark},
            "feasible": not violations,
            "violations": violations,
            "step_time_s": step_time if np.isfinite(step_time) else None,
            "lower_bound_s": bound.seconds if np.isfinite(bound.seconds) else None,
        }


def _topology(told: LiveTopology) -> Topology:
    name = told.get("name", "live")
    try:
        servers = [_server(server) for server in told["servers"]]
        if len(servers) == 1:
            return single_server(name, servers[0])
        if "network" not in told:
            raise StateError((("topology", "network"), "is missing: what joins the servers?"))
        return mixed(name, servers, told["network"])
    except StateError:
        raise
    except InputError as error:
        raise _at(("topology",), error) from error


def _server(told: LiveServer) -> PcieServer:
    switches, nics = told.get("switches", 1), told.get("nics", 1)
    if "nvlink" not in told:
        if "island" in told:
            raise InputError("goes with nvlink", field="island")
        return PcieServer(told["device"], told["count"], told["pcie"], switches, nics)
    island = told.get("island", told["count"])
    return NvlinkServer(
        told["device"], told["count"], island, told["nvlink"], told["pcie"], switches, nics
    )


def _at(location: Location, error: InputError) -> StateError:
    where = " ".join(str(part) for part in (error.record, error.field) if part is not None)
    return StateError((location, f"{where}: {error.message}" if where else error.message))
