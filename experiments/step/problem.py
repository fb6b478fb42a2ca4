"""From a config to a `StepProblem`: the graph, the topology, the costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from envs.bandwidth.env import BandwidthEnv
from envs.bounds import Count, Positive, bounded
from envs.cost import TracedCost
from envs.errors import InputError, require_one_of
from envs.files import read_content
from envs.forms import Form, read_form
from envs.graphs.op_graph import OpGraph
from envs.graphs.readers import (
    READERS,
    GraphReader,
    OnnxReader,
    PipeDreamReader,
    read_graph_file,
)
from envs.graphs.readers.graph_file import GraphFile
from envs.graphs.storage import graph_hash
from envs.graphs.zoo import capture_zoo_model, zoo_graph
from envs.graphs.zoo_models import ZooModel, ZooShape, ZooSizes, zoo_model
from envs.hardware.topology import Topology
from envs.joint.env import JointEnv
from envs.placement.env import PlacementEnv
from envs.step.order import OrderRule
from envs.step.problem import CostModel, StepProblem
from envs.step.step import Communication
from envs.step.timeline import single_device_peak
from envs.synchronisation.link_graph import LinkGraph
from envs.units import MICROSECOND, MILLISECOND, NANOSECOND
from experiments.config.targets import build, build_as, no_such_thing, object_in_file
from experiments.run.artifacts import to_json
from experiments.run.provenance import Provenance, file_hash, text_hash
from models.step.kernel_cost import SPEC_FILE, LearnedCost

if TYPE_CHECKING:
    from envs.graphs.capture import Workload

Node = Mapping[str, Any]

BUILDING = "building the problem (the first capture of a model takes a while)"


@dataclass(frozen=True)
class TimeUnit:
    name: str
    seconds: float

    def of(self, seconds: float) -> float:
        """`seconds` in this unit."""
        return seconds / self.seconds


SECOND = TimeUnit("s", 1.0)
# By `GraphFile.provenance["time_unit"]`. A file with a unit of its own is read as seconds.
_UNITS = {"ms": MILLISECOND, "us": MICROSECOND, "ns": NANOSECOND, "the file's own": 1.0}


def time_unit_of(file: GraphFile) -> TimeUnit:
    """The unit of the file's times, seconds where it names none.

    Raises:
        InputError: it names one that is not known.
    """
    name = file.provenance.get("time_unit")
    if name is None:
        return SECOND
    require_one_of(name, _UNITS, file=f"graph {file.graph.name!r}", field="time_unit")
    return TimeUnit(str(name), _UNITS[str(name)])


@runtime_checkable
class GraphSource(Protocol):
    """Where a graph comes from."""

    def load(self) -> GraphFile:
        """The graph, and the topology that came with it."""

    def inputs(self) -> dict[str, str]:
        """SHA-256 of what it is made from, by name."""


@runtime_checkable
class ModelSource(Protocol):
    """A model whose training step can be captured."""

    def capture(self) -> OpGraph:
        """The graph, traced now."""

    def inputs(self) -> dict[str, str]:
        """SHA-256 of what it is made from, by name."""


@runtime_checkable
class RunnableSource(Protocol):
    """A model whose captured step can be run."""

    def workload(self, parts: int) -> Workload:
        """The module, its loss, and its data of one of so many equal parts of a micro-batch."""


@dataclass(frozen=True)
class ZooGraph:
    """A model of the zoo; what is null is the model's own (`envs.graphs.zoo_models.ZOO`).

    Args:
        name: a model of the zoo.
        batch: samples in one step, over all micro-batches.
        sequence: tokens of a sample.
        micro_batches: equal parts of the batch; a good placement pipelines them.
        head: what the model is trained for: masked_lm, causal_lm, ..., or none.
        optimizer: adam, adamw, momentum or sgd.
        dtype: of weights, activations and optimizer state: float32, float16 or bfloat16.
        one_operator: modules of which every call is one operator: dotted paths, with *, or classes.
        layers: of a transformer; of its encoder and of its decoder.
        hidden: width between the layers of a transformer; its feed-forward networks follow.
        heads: of attention, which divide hidden; null: as wide as the model's own.
        vocabulary: different tokens of a text.
        cache: take the graph from the disk cache, or capture it and keep it there.

    Raises:
        InputError: a value the model cannot have.
    """

    name: str
    batch: int | None = None
    sequence: int | None = None
    micro_batches: int | None = None
    head: str | None = None
    optimizer: str = "adam"
    dtype: str = "float32"
    one_operator: Sequence[str] = ()
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocabulary: int | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        model = self._model()
        for key in self._shape():
            object.__setattr__(self, key, getattr(model, key))

    def capture(self) -> OpGraph:
        """The graph, traced now."""
        return capture_zoo_model(self._model())

    def load(self) -> GraphFile:
        """The graph, traced now or read from the cache; no topology comes with it."""
        graph = zoo_graph(self.name, **self._shape()) if self.cache else self.capture()
        return GraphFile(graph, None, {"format": "zoo"})

    def workload(self, parts: int) -> Workload:
        """See `RunnableSource`.

        Raises:
            InputError: the parts are not equal.
        """
        from envs.graphs.zoo_modules import workload

        model = self._model()
        if model.samples % parts:
            fault = f"a micro-batch of {model.samples} does not divide over {parts} replicas"
            raise InputError(fault, field="batch")
        return workload(replace(model, batch=model.batch // parts))

    @property
    def model(self) -> dict[str, object]:
        """What `zoo_node` makes a source of again."""
        return {"name": self.name, **self._shape()}

    def inputs(self) -> dict[str, str]:
        """The model's name and shape."""
        return {f"model {self.name}": text_hash(to_json(self._shape()))}

    def _model(self) -> ZooModel:
        return zoo_model(self.name, **self._shape())

    def _shape(self) -> ZooShape:
        """What was asked; sizes are named where they are not the model's own."""
        asked = {key: getattr(self, key) for key in ZooShape.__annotations__}
        own = [key for key in ZooSizes.__annotations__ if asked[key] is None]
        return cast(ZooShape, {key: x for key, x in asked.items() if key not in own})


class _ZooModel(Form):
    name: str
    batch: int
    sequence: int | None
    micro_batches: int
    head: str | None
    optimizer: str
    dtype: str
    one_operator: Sequence[str]
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocabulary: int | None = None


def zoo_node(model: Mapping[str, Any]) -> dict[str, object]:
    """The config of the model of the zoo that a file describes: a name and its shape, no more.

    Raises:
        InputError: no such model, or a key or value that it cannot have.
    """
    ZooGraph(**read_form(_ZooModel, model).model_dump())
    if any("${" in str(value) for value in model.values()):
        raise InputError("${...} is not resolved in a file", field="model")
    name = f"{ZooGraph.__module__}.{ZooGraph.__name__}"
    return {"_target_": name, **model, "cache": True}


@bounded
@dataclass(frozen=True)
class StoredGraph:
    """A graph file: one of our own, or a published one.

    Args:
        path: the file.
        reader: its reader; null recognises the format by the content.
        micro_batches: of a profile of layers or an ONNX model: the training step in as many parts;
            null: the graph as it stands in the file.
        dims: of an ONNX model: sizes of its open dimensions by their names.
    """

    path: str
    reader: GraphReader | None = None
    micro_batches: Count | None = None
    dims: Mapping[str, int] | None = None

    def load(self) -> GraphFile:
        """The graph and, where the file names its devices, their topology.

        Raises:
            InputError: from the reader, or only a profile can be cut into micro-batches.
        """
        readers: Sequence[GraphReader] = READERS if self.reader is None else (self.reader,)
        for key, kinds in (("micro_batches", PipeDreamReader | OnnxReader), ("dims", OnnxReader)):
            given = getattr(self, key)
            if given is None:
                continue
            more: dict[str, Any] = {"training": True} if key == "micro_batches" else {}
            readers = [
                replace(reader, **{key: given}, **more)
                for reader in readers
                if isinstance(reader, kinds)
            ]
            content = read_content(self.path)
            if not any(reader.accepts(content) for reader in readers):
                known = "a PipeDream profile or an ONNX model" if more else "an ONNX model"
                message = f"config key 'graph.{key}': only {known} takes it"
                raise InputError(message, file=self.path)
        return read_graph_file(self.path, readers)

    def inputs(self) -> dict[str, str]:
        return {Path(self.path).name: file_hash(self.path)}


class FromGraph:
    """The devices, capacities and links that the graph's own file gives."""

    def __call__(self, file: GraphFile) -> Topology:
        """The topology of the file.

        Raises:
            InputError: the file gives none.
        """
        if file.topology is None:
            raise InputError(
                f"config key 'topology': graph {file.graph.name!r} comes without devices; "
                "name a topology"
            )
        return file.topology


@dataclass(frozen=True, eq=False)
class OwnDevices:
    """The topology of the graph's own file, `otherwise` where the file brings none."""

    otherwise: Topology

    def __call__(self, file: GraphFile) -> Topology:
        return self.otherwise if file.topology is None else file.topology


@bounded
@dataclass(frozen=True, eq=False)
class TightMemory:
    """The topology `base`, each device with a share of what the step needs on one device alone."""

    base: Topology
    share: Positive = 0.3  # of the peak memory of the step on one device, for each device

    def __call__(self, file: GraphFile) -> Topology:
        memory = self.share * single_device_peak(file.graph)
        devices = [
            replace(device, spec=replace(device.spec, memory_bytes=memory))
            for device in self.base.devices
        ]
        name = f"{self.base.name}, {self.share:g} of one device's peak"
        return replace(self.base, name=name, devices=tuple(devices))


def topology_file(path: str) -> Topology:
    """The topology a YAML file describes, in the form of the rows of `conf/topology/_table.yaml`.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    return object_in_file(path, "topology", Topology)


def network_file(path: str) -> Topology | LinkGraph:
    """The topology, or the links between vertices, that a YAML file describes.

    Args:
        path: of the YAML file.

    Raises:
        InputError: as `topology_file`.
    """
    kinds: Sequence[type[Topology | LinkGraph]] = (Topology, LinkGraph)
    return object_in_file(path, "topology", *kinds)


@dataclass(frozen=True)
class LoadedProblem:
    """A problem, the hashes of what it was made from, and the unit of its times there."""

    problem: StepProblem
    inputs: Mapping[str, str]
    time_unit: TimeUnit
    model: Mapping[str, object] | None = None  # of the zoo, whose graph it is

    def facts(self) -> dict[str, object]:
        """What it is about, for `result.json`."""
        graph, topology = self.problem.graph, self.problem.topology
        return {
            "graph": graph.name,
            "topology": topology.name,
            "operators": graph.num_operators,
            "devices": topology.num_devices,
        }

    def unseen(self) -> LoadedProblem:
        """The same without what was worked out from the graph before."""
        step = self.problem
        return replace(self, problem=replace(step, graph=replace(step.graph)))

    def stamp_on(self, provenance: Provenance) -> Provenance:
        """`provenance` with these inputs."""
        return provenance.with_inputs(**self.inputs)


def communication_of(node: Node) -> Communication:
    """The communication model that `node` describes."""
    return build_as(Communication, node, "communication", "communication model")


def order_rule_of(node: Node) -> OrderRule:
    """The order rule that `node` describes."""
    rule: OrderRule = build_as(Callable, node, "order", "order rule")  # type: ignore[arg-type]
    return rule


def load_problem(env: Node, graph: Node, topology: Node, cost: Node) -> LoadedProblem:
    """The problem that an environment brings along, or else the one the other groups describe.

    Raises:
        InputError: from the environment, the graph, the topology or the costs.
    """
    if not env.get("_partial_"):
        return _own_problem(env)
    source = build_as(GraphSource, graph, "graph", "source of graphs")
    file = source.load()
    built = build(topology, "topology")
    devices = built(file) if callable(built) else built
    if not isinstance(devices, Topology):
        raise no_such_thing("topology", topology, "topology")
    inputs = {**source.inputs(), f"topology {devices.name}": text_hash(to_json(topology))}
    model = source.model if isinstance(source, ZooGraph) else None
    return replace(problem_of(file, devices, cost, inputs), model=model)


@dataclass(kw_only=True)
class ProblemConfig:
    """What describes the problem of a command; groups are objects by `_target_`."""

    env: Any
    graph: Any
    topology: Any
    cost: Any

    def load(self) -> LoadedProblem:
        """As `load_problem`."""
        return load_problem(self.env, self.graph, self.topology, self.cost)


def problem_of(
    file: GraphFile, devices: Topology, cost: Node, inputs: Mapping[str, str]
) -> LoadedProblem:
    """The problem of a graph on devices; `inputs` are hashes of what they were made from.

    Raises:
        InputError: the graph has no operators, or from the costs.
    """
    if file.graph.num_operators == 0:
        raise InputError(f"graph {file.graph.name!r} has no operators")
    costs = build_as(CostModel, cost, "cost", "cost model")
    problem = StepProblem.build(file.graph, devices, costs)
    made_from = dict(inputs)
    if isinstance(costs, TracedCost):
        traces = costs.inputs().items()
        made_from |= {f"trace {name}".rstrip(): file_hash(path) for name, path in traces}
    if isinstance(costs, LearnedCost):
        made_from["learned cost"] = file_hash(costs.folder / SPEC_FILE)
    made_from |= {
        f"graph {file.graph.name}": graph_hash(file.graph),
        "cost": text_hash(to_json(cost)),
    }
    return LoadedProblem(problem, made_from, time_unit_of(file))


def _own_problem(node: Node) -> LoadedProblem:
    env = build(node)
    if not isinstance(env, PlacementEnv | BandwidthEnv | JointEnv):
        raise InputError(f"config key 'env': {node.get('_target_')} is no environment of a step")
    env.reset(seed=0)
    problem = env.instance.problem
    inputs = {f"graph {problem.graph.name}": graph_hash(problem.graph)}
    return LoadedProblem(problem, inputs, SECOND)
