"""One training step: capture it, describe the devices, plan it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.placement.baselines import SingleDevice
from agents.solver import Budget, Result
from agents.step.problems import Evaluation, StepPlanning
from envs.arrays import IntArray
from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.graphs.readers import read_graph_file
from envs.graphs.readers.graph_file import GraphFile
from envs.graphs.storage import graph_hash
from envs.graphs.transformer import TransformerSize
from envs.hardware.builders import mixed, single_server
from envs.hardware.devices import device_spec
from envs.hardware.servers import NvlinkServer, PcieServer
from envs.hardware.topology import Topology
from envs.hybrid.transformer_row import KernelCost
from envs.placement.generator import FixedInstance
from envs.step.plans import Phases, Plan
from experiments.config.targets import build, build_as
from experiments.step.hybrid import Pipeline
from experiments.step.objectives import Objective
from experiments.step.plan import PlanConfig
from experiments.step.plan_file import write_plan
from experiments.step.planning import Planned, ask, warm_up
from experiments.step.problem import GraphSource, LoadedProblem, problem_of
from experiments.step.simulating import SimulateConfig, Simulated, run_of, simulated, transformer_of
from meshwright.composition import composed, drawn, provenance, word, writing

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from envs.graphs.capture import OptimizerFactory

Example = Any  # a tensor, a sequence of positional arguments, or a mapping of keyword arguments

MOST_DEVICES = 16  # whose memory a summary lists


def capture(
    module: torch.nn.Module,
    example: Example,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: str | OptimizerFactory = "adam",
    micro_batches: int = 1,
    dtype: str | None = None,
    name: str | None = None,
    one_operator: Sequence[str] = (),
) -> OpGraph:
    """The graph of a whole training step of `module`: forward, backward, optimizer update.

    Nothing is computed and no weight is touched: a model that is larger than this machine's memory
    can be built under `torch.device("meta")`. Needs torch.

    Args:
        module: any module; it stays as it is.
        example: what one micro-batch passes to it: a tensor, a sequence of positional arguments or
            a mapping of keyword arguments. Only shapes and types count.
        loss: the scalar loss from what the module returns; None: its `loss` where it has one, else
            the mean square of its first floating-point tensor.
        optimizer: adam, adamw, momentum or sgd, or a function of a list of parameters.
        micro_batches: how many micro-batches make one step.
        dtype: type that floating-point weights and inputs are taken to; None: as they are.
        name: of the graph; None: that of the module's class.
        one_operator: modules of which every call becomes one operator, with FLOP and bytes summed,
            and its backward pass one or two: dotted paths (with `*`), or classes such as LSTM.

    Returns:
        A graph of N operators; `envs.graphs.storage.save_graph` writes it, `plan` takes it.

    Raises:
        InputError: the example does not fit `forward`, an unknown optimizer, type or module; as
            `envs.graphs.capture.capture_training_step`.
    """
    from meshwright.capturing import captured

    return captured(module, example, loss, optimizer, micro_batches, dtype, name, one_operator)


@dataclass(frozen=True)
class Server:
    """A server of equal devices for `topology`.

    Args:
        device: a kind of `envs.hardware.devices`, such as "V100-16GB".
        count: devices in it.
        nvlink: bandwidth between any two of them in one direction, such as "50GB/s"; None: they
            talk over PCIe.
        pcie: bandwidth of a device, or a network card, to the host in one direction.
        nics: network cards.
    """

    device: str
    count: int = 1
    nvlink: str | None = None
    pcie: str = "15.75GB/s"
    nics: int = 1

    def __post_init__(self) -> None:
        device_spec(self.device)

    def build(self) -> PcieServer:
        """As the topologies of `conf/topology` name it."""
        pcie = {"medium": "PCIe", "bandwidth": self.pcie, "latency": "2us"}
        if self.nvlink is None or self.count == 1:
            return PcieServer(self.device, self.count, pcie, nics=self.nics)
        nvlink = {"medium": "NVLink", "bandwidth": self.nvlink, "latency": "2us"}
        return NvlinkServer(self.device, self.count, self.count, nvlink, pcie, nics=self.nics)


def topology(
    what: str | Path | Topology | Server | Sequence[Server],
    *,
    network: str = "25Gbps",
    name: str = "own",
) -> Topology:
    """The devices of a cluster and what lies between them.

    Args:
        what: a name of `conf/topology` ("mixed_v100_p100"), the path of a YAML file in their form,
            a `Topology`, or one's own servers around one switch.
        network: bandwidth from each network card of own servers to the switch, such as "25Gbps":
            a number without unit is bytes/s, and refused below 1 MB/s.
        name: of a topology of own servers.

    Raises:
        InputError: no such name or file, an unknown device, a bandwidth that is none.
    """
    if isinstance(what, Topology):
        return what
    if isinstance(what, str | Path):
        made = build(composed("plan", PlanConfig, [f"topology={what}"]).topology, "topology")
        if isinstance(made, Topology):
            return made
        raise InputError(f"'{what}' belongs to a graph file: give it to plan", field="topology")
    servers = [what] if isinstance(what, Server) else what
    if (
        not isinstance(servers, Sequence)
        or not servers
        or not all(isinstance(server, Server) for server in servers)
    ):
        raise InputError("is neither a name, a path nor servers", field="topology")
    if len(servers) == 1:
        return single_server(name, servers[0].build())
    link = {"medium": "Ethernet", "bandwidth": network, "latency": "5us"}
    return mixed(name, [server.build() for server in servers], link)


def read_graph(path: str | Path) -> OpGraph:
    """The graph in a file: one of our own, or a published format; the content tells which.

    Raises:
        InputError: naming the file, the record and the field that is wrong.
    """
    return read_graph_file(str(path)).graph


@dataclass(frozen=True, eq=False)
class PlanResult:
    """What a planner found, as the simulator of the step judges it. Times in seconds.

    Printed it is a summary; in a notebook it shows the step as a Gantt chart.
    """

    planner: str
    problem: str  # the objective, as in `problem=`
    loaded: LoadedProblem
    planned: Planned
    single_device: Result[Plan] | None  # the best one; None: another objective than the makespan
    seed: int

    @property
    def feasible(self) -> bool:
        """Whether there is a plan that breaks no rule and fits into the memory of the devices."""
        verdict = self.planned.verdict
        return verdict is not None and not verdict.violations

    @property
    def status(self) -> str:
        """optimal, feasible, infeasible or limit: what the planner says of its search."""
        return self.planned.found.status

    @property
    def reason(self) -> str:
        """Why there is no plan, or what is wrong with it; empty: nothing."""
        verdict = self.planned.verdict
        return "; ".join(verdict.violations) if verdict else self.planned.found.reason

    @property
    def step_time_s(self) -> float:
        """Of the plan in the simulator, or what else the objective measures; inf without one."""
        verdict = self.planned.verdict
        return float("inf") if verdict is None else verdict.objective

    @property
    def lower_bound_s(self) -> float:
        """That no plan can beat, proved; 0: none is known."""
        return self.planned.bound

    @property
    def gap(self) -> float | None:
        """How far the plan is above the bound: 0.1 is 10 %. None: no bound is known."""
        return self.step_time_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else None

    @property
    def best_single_device_s(self) -> float | None:
        """Step time of everything on the fastest device that holds it; None: none does."""
        found = self.single_device
        return None if found is None or found.solution is None else found.value

    @property
    def peak_memory_bytes(self) -> dict[str, float]:
        """By device, where the step was played; else empty."""
        evaluation = self._evaluation
        if evaluation is None:
            return {}
        names = self.loaded.problem.topology.device_names
        return dict(zip(names, evaluation.timeline.peak_memory.tolist(), strict=True))

    @cached_property
    def placement(self) -> dict[str, str]:
        """The device of every operator, by their names; empty without a plan."""
        plan, problem = self._plan, self.loaded.problem
        if plan is None:
            return {}
        devices = problem.topology.device_names
        return {
            name: devices[device]
            for name, device in zip(problem.graph.op_names, plan.placement.device, strict=True)
        }

    @property
    def device(self) -> IntArray:
        """(N,) the device of every operator, by number.

        Raises:
            InputError: there is no plan.
        """
        return self._some_plan().placement.device

    def document(self) -> dict[str, object]:
        """The figures, as `experiments.plan` writes them to `result.json`."""
        return {"planner": self.planner, "problem": self.problem, **self.planned.document()}

    def save(self, path: str | Path) -> Path:
        """Write the plan as a plan file, which `meshwright evaluate plan=<path>` takes.

        Raises:
            InputError: there is no plan, or the file cannot be written.
        """
        plan = self._some_plan()
        assert not isinstance(plan.allocation, Phases)
        stamped = self.loaded.stamp_on(provenance("plan", self.seed))
        with writing(path):
            write_plan(Path(path), plan, self.loaded.problem, stamped, plan.allocation)
        return Path(path)

    def draw(self, path: str | Path) -> Path:
        """Draw one step as a Gantt chart of devices and ports, a PNG file (`.png` may be left out).

        Raises:
            InputError: there is no plan, or the objective plays no step; the file cannot be
                written, or is to have another format.
        """
        stamped = self.loaded.stamp_on(provenance("plan", self.seed))
        return drawn(path, self._figure(), stamped)

    def __str__(self) -> str:
        step = self.loaded.problem
        rows = [
            ("planner", f"{self.planner}, {self.planned.seconds:.1f} s, {self.status}"),
            ("problem", f"{step.graph.name} ({step.graph.num_operators:,} operators) on "
             f"{step.topology.name} ({step.topology.num_devices} devices)"),
        ]  # fmt: skip
        if self._plan is not None:
            gap = "" if self.gap is None else f", {self.gap:.1%} above the bound"
            rows.append((self.problem, f"{_time(self.step_time_s)}{gap}"))
        rows.append(("lower bound", _time(self.lower_bound_s) if self.lower_bound_s else "none"))
        if self.single_device is not None:
            alone = self.best_single_device_s
            shown = "the step fits on none"
            if alone is not None:
                times = f", {alone / self.step_time_s:.2f}x the plan's" if alone > 0 else ""
                shown = _time(alone) + times
            rows.append(("best single device", shown))
        memory = self.peak_memory_bytes
        capacity = self.loaded.problem.capacity.tolist()
        for (name, peak), most in list(zip(memory.items(), capacity, strict=False))[:MOST_DEVICES]:
            rows.append((f"memory {name}", f"{peak / 2**30:.2f} of {most / 2**30:.2f} GiB"))
        if self.reason:
            rows.append(("not feasible" if self._plan is not None else "no plan", self.reason))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {shown}" for name, shown in rows)

    def __repr__(self) -> str:
        return str(self)

    def _repr_png_(self) -> bytes | None:
        """What a notebook shows; None, and so the summary, where no step was played."""
        if self._evaluation is None:
            return None
        buffer = io.BytesIO()
        self._figure().savefig(buffer, format="png")
        return buffer.getvalue()

    @property
    def _plan(self) -> Plan | None:
        return self.planned.found.solution

    def _some_plan(self) -> Plan:
        if self._plan is None:
            raise InputError(f"there is no plan: {self.reason}", file=self.planner)
        return self._plan

    @property
    def _evaluation(self) -> Evaluation | None:
        verdict = self.planned.verdict
        return None if verdict is None else verdict.evaluation

    def _figure(self) -> Figure:
        from experiments.pictures.step import draw_gantt

        self._some_plan()
        if self._evaluation is None:
            raise InputError(f"problem={self.problem} plays no step to draw", file=self.planner)
        step = self._evaluation.problem
        title = f"{step.graph.name} on {step.topology.name}: {self.planner}, "
        title += _time(self.step_time_s)
        if self.lower_bound_s > 0:
            title += f", no plan less than {_time(self.lower_bound_s)} (dotted)"
        return draw_gantt(step, self._evaluation.timeline, title, bound_s=self.lower_bound_s)


def simulate(
    model: TransformerSize | str,
    *,
    sizes: Mapping[str, int] | None = None,
    cost: KernelCost | None = None,
    **run: Any,
) -> Simulated:
    """How long a training step of a transformer takes, and what memory it needs.

    Args:
        model: by its sizes, or a name of `conf/graph`: "gpt", "llama_7b", "bert_large".
        sizes: of a model that is named, where they are not its own: hidden, layers, heads,
            vocabulary, sequence.
        cost: of kernels; None: learned from measured ones.
        run: what `meshwright simulate --help` lists: device, tensor, pipeline, data, micro_batch,
            global_batch, recompute, precision, zero, ...; `choose` and `devices` too.

    Returns:
        Seconds with their parts, memory of every stage, the plan and its layers.

    Raises:
        InputError: naming what is unknown, or does not divide.
    """
    named = isinstance(model, str)
    words = [
        *([f"graph={model}"] if named else []),
        *(word(f"graph.{key}", value) for key, value in (sizes or {}).items()),
        *(word(key, value) for key, value in run.items()),
    ]
    config = composed("simulate", SimulateConfig, words)
    size = transformer_of(config.graph) if isinstance(model, str) else model
    if size is None:
        raise InputError(f"{model} is no transformer by its sizes", field="model")
    if config.launch is not None:
        raise InputError("is the command's: mw.run('simulate', ...)", field="launch")
    return simulated(run_of(config, size, cost or build(config.cost, "cost"))[0])


def plan(
    graph: OpGraph | GraphFile | str | Path,
    topology: Topology | Server | Sequence[Server] | str | Path | None = None,
    planner: Any = None,
    *,
    budget_s: float | None = None,
    problem: str | None = None,
    seed: int | None = None,
    deterministic_limit: int | None = None,
    **arguments: Any,
) -> PlanResult:
    """Ask one planner for one plan of a step, and judge it in the simulator.

    What is left out has the value of `conf/plan.yaml`, and a planner's arguments those of
    `conf/agent/<planner>.yaml`.

    Args:
        graph: what `capture` returned, a name of `conf/graph` ("bert_large"), or the path of a
            graph file.
        topology: what `topology` takes, or "from_graph": the devices of the graph's own file.
        planner: a name of `conf/agent` ("fusion_milp", "heft", "local_search"), the dotted path of
            a class, or an `agents.solver.Solver` of a step.
        budget_s: wall time of the search in seconds, for planners that use it.
        problem: a name of `conf/problem`: makespan, max_load, latency, joint.
        seed: of what a planner draws.
        deterministic_limit: work in the planner's own units, so that two runs agree.
        arguments: of a planner that is named, `groups=[16]`.

    Raises:
        InputError: an unknown name or argument, a file that cannot be read, or no plan can exist.
    """
    numbers = {"budget_s": budget_s, "seed": seed}
    words = [
        *_named(graph, topology),
        *([f"agent={planner}"] if isinstance(planner, str) else []),
        *([f"problem={problem}"] if problem is not None else []),
        *(word(key, value) for key, value in numbers.items() if value is not None),
        word("deterministic_limit", deterministic_limit),
        *(word(f"agent.{key}", value) for key, value in arguments.items()),
    ]  # fmt: skip
    own = planner is not None and not isinstance(planner, str)
    if own and arguments:
        fault = f"{type(planner).__name__} is built already: it takes no arguments here"
        raise InputError(fault, field=next(iter(arguments)))
    config = composed("plan", PlanConfig, words)
    if str(config.problem.get("_target_")).endswith(Pipeline.__name__):
        asked = ", ".join(repr(one) for one in words if not one.endswith("null"))
        raise InputError(f"plans stages, not operators: mw.run('plan', {asked})", field="problem")
    objective = build_as(Objective, config.problem, "problem", "objective of a plan")
    agent = planner if own else build(config.agent, "agent")
    name = planner if isinstance(planner, str) else type(agent).__name__
    loaded = _loaded(graph, topology, config)
    budget = Budget(config.budget_s, config.deterministic_limit)
    planned = ask(warm_up(agent, objective, name), objective, loaded, budget, name)
    alone = None
    if objective.name == "makespan":
        alone = SingleDevice().solve(StepPlanning(loaded.problem), budget)
    return PlanResult(name, objective.name, loaded, planned, alone, config.seed)


@bounded
def one_problem(
    graph: OpGraph | GraphFile | str | Path,
    topology: Topology | Server | Sequence[Server] | str | Path | None = None,
    *,
    groups: Count = 32,
) -> FixedInstance:
    """One step as what `Placement-v0` is about in every episode: its `generator`.

        env = mw.make("Placement-v0", generator=mw.one_problem("bert_large", "mixed_v100_p100"))

    Args:
        graph: as for `plan`.
        topology: as for `plan`.
        groups: that the operators are fused into, at most; an episode has a decision for each.

    Raises:
        InputError: as for `plan`, or `groups` is not positive.
    """
    config = composed("plan", PlanConfig, _named(graph, topology))
    return FixedInstance(_loaded(graph, topology, config).problem, groups)


def to_pyg(graph: OpGraph) -> Any:
    """The graph as a `torch_geometric.data.Data`; see `models.step.pyg.to_pyg`. Needs PyG."""
    from models.step.pyg import to_pyg as made

    return made(graph)


def _named(graph: object, devices: object) -> list[str]:
    """The overrides of those that are names or paths."""
    given = {"graph": graph, "topology": devices}
    return [f"{key}={one}" for key, one in given.items() if isinstance(one, str | Path)]


def _loaded(graph: Any, devices: Any, config: PlanConfig) -> LoadedProblem:
    """The problem of arguments that are objects, or else of what the config names."""
    inputs: dict[str, str] = {}
    if isinstance(graph, GraphFile):
        file = graph
    elif isinstance(graph, OpGraph):
        file = GraphFile(graph, None, {})
        inputs = {f"graph {graph.name}": graph_hash(graph)}
    elif isinstance(graph, str | Path):
        source = build_as(GraphSource, config.graph, "graph", "source of graphs")
        file, inputs = source.load(), source.inputs()
    else:
        fault = (
            f"{type(graph).__name__} is no graph, name or path: capture(module, example) makes one"
        )
        raise InputError(fault, field="graph")
    if devices is None or isinstance(devices, str | Path):
        built = build(config.topology, "topology")
        made = built(file) if callable(built) else built
    else:
        made = topology(devices)
    return problem_of(file, made, config.cost, inputs)


def _time(seconds: float) -> str:
    """In the unit that suits it."""
    units = (1.0, "s"), (1e3, "ms")
    factor, unit = next((one for one in units if seconds * one[0] >= 1.0), (1e6, "us"))
    return f"{seconds * factor:.4g} {unit}"
