"""A given training run of a transformer, simulated: seconds, memory, and how to launch it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from agents.hybrid.degrees import CHOICES, DegreeSearch, TrainingProblem
from agents.hybrid.uniform import uniform_plan
from envs.bounds import Count
from envs.errors import InputError, refused_in, require_one_of
from envs.graphs.transformer import TransformerSize
from envs.graphs.zoo_models import ZOO, zoo_model
from envs.hardware.devices import device_spec
from envs.hybrid.launching import launch_arguments
from envs.hybrid.links import Servers, usual_cards, usual_link
from envs.hybrid.plan import HybridPlan, peak_memory
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import pipeline_of, simulate
from envs.hybrid.timing import layer_seconds
from envs.hybrid.training_run import Precision, Recompute, Schedule, TrainingRun
from envs.hybrid.transformer_row import KernelCost, TransformerRow
from envs.network.allreduce import LINKS
from envs.step.pipeline import play
from envs.units import GIBI, GIGA, parse_bandwidth, read_quantity
from experiments.config.targets import build, build_as
from experiments.pictures.step import draw_pipeline
from experiments.reporting.tables import Table, write_tables
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.training_constants import read_constants
from experiments.step.problem import GraphSource, ZooGraph
from experiments.step.simulating_captured import captured_run, captured_step

PICTURE_FILE = "step.png"
MOST_DRAWN = 2000  # actions
SHOWN = (
    "model", "parameters", "device", "devices", "network", "step_time_s", "tokens_per_s",
    "compute_s", "tensor_s", "pipeline_s", "bubble_s", "data_s", "optimizer_s", "flop_utilisation",
    "peak_memory_bytes", "fits", "picture",
)  # fmt: skip

# Keys of a graph that a run says otherwise; a graph's batch is that of all replicas.
_RUNS = {"batch": "micro_batch and global_batch", "micro_batches": "micro_batch and global_batch"}

Choice = Literal[
    "tensor", "pipeline", "micro_batch", "recompute", "zero", "sequence_parallel"
]  # fmt: skip
_FAMILIES = ("gpt", "bert", "llama", "t5")  # of the zoo, that are known by their sizes
_SIZES = ("hidden", "layers", "heads", "vocabulary", "sequence")


@dataclass(kw_only=True)
class SimulateConfig:
    """`conf/simulate.yaml`."""

    graph: Any
    cost: Any
    device: str = "A100-80GB"  # a kind of the catalogue
    per_server: Count = 8  # devices of a server
    # between those of a server: NVLink 3, PCIe 4, ...; null: what the device mostly has
    link: str | None = None
    cards: Count | None = None  # network cards of a server; null: as such servers mostly have
    card_bandwidth: str | None = None  # of each, one direction; null: likewise
    devices: Count | None = None  # of all; null: tensor x pipeline x data
    # what is chosen for so many devices, the rest stays as given: tensor, pipeline, micro_batch,
    # recompute (with its layers), zero, sequence_parallel
    choose: list[Choice] = field(default_factory=list)
    tensor: Count = 1  # devices that share every block
    pipeline: Count = 1  # stages
    data: Count = 1  # replicas
    expert: Count = 1  # devices of the replicas among which experts are divided
    sequence_parallel: bool = False  # norms and residuals are shared too
    micro_batch: Count = 1  # samples of one micro-batch of one replica
    global_batch: Count | None = None  # samples of a step; null: one micro-batch of each replica
    schedule: Schedule = "1f1b"  # 1f1b, gpipe or interleaved
    chunks: Count = 1  # stages of a device under the interleaved schedule
    recompute: Recompute = "none"  # in the backward pass: none, selective (scores), full (blocks)
    # with full, of the first blocks of each stage; null: all
    recompute_layers: Annotated[int, Ge(0)] | None = None
    # of products: fp32, tf32, fp16 or bf16, these with float32 master weights
    precision: Precision = "bf16"
    fused_attention: bool = True  # attention is one kernel, which keeps no scores
    # kernels as Megatron-LM's; else every operator is one, as in eager PyTorch
    fused_kernels: bool = True
    zero: Literal[0, 1, 2, 3] = 0  # what replicas divide: optimizer state, gradients, parameters
    # the embedding and the head counted; []: equal numbers of blocks
    layers_per_stage: list[Count] = field(default_factory=list)
    overlap: bool = False  # gradients are summed beside the backward pass
    calibration: str | None = None  # a file of constants that `experiments.calibrate` wrote
    launch: str | None = None  # print the arguments of megatron, torchtitan or deepspeed
    seed: int
    json: bool


@dataclass(frozen=True, eq=False, repr=False)
class Simulated:
    """What a step of a run is like.

    Attributes:
        step_time_s: seconds, the sum of the next six.
        compute_s: of kernels of the busiest devices.
        tensor_s: of their sums among tensor parallel devices.
        pipeline_s: that transfers between stages add.
        bubble_s: that stages wait for each other.
        data_s: that sums over replicas, and parameters collected from them, add.
        optimizer_s: that the update adds.
        memory: of each stage's device, bytes by what they are for.
    """

    row: TransformerRow
    problem: HybridProblem
    plan: HybridPlan
    step_time_s: float
    compute_s: float
    tensor_s: float
    pipeline_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float
    memory: tuple[Mapping[str, float], ...]

    def __repr__(self) -> str:
        held, room = self.peak_memory_bytes / GIBI, self.row.servers.device.memory_bytes / GIBI
        return (
            f"Simulated {self.row.run.model.name} on {self.row.run.devices} "
            f"{self.row.servers.device.name}: {self.step_time_s:.4g} s a step, "
            f"{held:.1f} of {room:.0f} GiB"
        )

    @property
    def peak_memory_bytes(self) -> float:
        """Of the fullest device."""
        return max(sum(stage.values()) for stage in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every device holds what it needs."""
        return self.peak_memory_bytes <= self.row.servers.device.memory_bytes


def simulated(row: TransformerRow) -> Simulated:
    """A step of a run.

    Raises:
        InputError: stages do not divide the layers.
    """
    problem, plan = row.problem(), uniform_plan(row)
    pipeline = pipeline_of(problem, plan)
    ranks = range(row.run.pipeline)
    rate = [layer_seconds(problem, s, slice(s.first, s.end)) for s in plan.stages]
    busy = [float(sum(column.sum(axis=0).max() for column in found)) for found in rate]
    kernels = [
        sum(part.forward_s + part.backward_s for part in row.priced[s.first : s.end])
        for s in plan.stages
    ]
    passes = np.array([(part.forward_s, part.backward_s) for part in row.priced])
    waited = np.maximum(row.gathering_s()[:, None] - passes, 0.0).sum(axis=1)
    shares = row.run.tensor > 1 or row.run.expert > 1
    slowest = max(ranks, key=lambda rank: sum(busy[rank :: row.run.pipeline]))
    count = row.run.micro_batches
    compute = count * sum(kernels[slowest :: row.run.pipeline])
    working = count * sum(busy[slowest :: row.run.pipeline])
    own = plan.stages[slowest :: row.run.pipeline]
    gathered = count * sum(float(waited[s.first : s.end].sum()) for s in own)
    whole = simulate(problem, plan).step_time
    alone = min(play(replace(pipeline, communication=0.0), plan.orders).makespan, whole)
    passing = min(play(pipeline, plan.orders).makespan, whole)
    update = max(
        float(problem.held[row.run.tensor].update[s.first : s.end, s.devices[0]].sum())
        for s in plan.stages
    )
    return Simulated(
        row, problem, plan,
        step_time_s=whole,
        compute_s=compute,
        tensor_s=max(working - compute - gathered, 0.0) if shares else 0.0,
        pipeline_s=max(passing - alone, 0.0),
        bubble_s=max(alone - working, 0.0),
        data_s=gathered + max(whole - passing - update, 0.0),
        optimizer_s=min(update, whole - passing),
        memory=tuple(_memory(row, problem, plan)),
    )  # fmt: skip


def _memory(
    row: TransformerRow, problem: HybridProblem, plan: HybridPlan
) -> list[dict[str, float]]:
    """Bytes of a device of every rank."""
    peak = peak_memory(problem, plan)
    found = []
    for rank in range(row.run.pipeline):
        stages = [stage for stage, at in zip(plan.stages, plan.rank, strict=True) if at == rank]
        parts = [part for stage in stages for part in row.parts[stage.first : stage.end]]
        states = [row.states(part) for part in parts]
        parameters, gradients, optimizer = (sum(column) for column in zip(*states, strict=True))
        kept = float(peak[stages[0].devices[0]]) - parameters - gradients - optimizer
        found.append(
            {
                "parameters": parameters,
                "gradients": gradients,
                "optimizer": optimizer,
                "activations": kept,
                "computed again": row.working_bytes(),
                "framework": row.constants.framework_bytes,
            }
        )
    return found


def transformer_of(node: Mapping[str, Any]) -> TransformerSize | None:
    """The sizes of what a group `graph` describes; None: no transformer by its sizes.

    Raises:
        InputError: it says what the run says.
    """
    name = str(node.get("name"))
    if name in ZOO and ZOO[name].family in _FAMILIES:
        for key, other in _RUNS.items():
            if node.get(key) is not None:
                raise InputError(f"belongs to the run: give {other}", field=f"graph.{key}")
    graph = build(node, "graph")
    if isinstance(graph, TransformerSize):
        return graph
    if not isinstance(graph, ZooGraph) or ZOO[graph.name].family not in _FAMILIES:
        return None
    own = zoo_model(
        graph.name, layers=graph.layers, hidden=graph.hidden, heads=graph.heads,
        vocabulary=graph.vocabulary, sequence=graph.sequence,
    )  # fmt: skip
    sizes = {key: getattr(own, key) for key in _SIZES}
    return TransformerSize(own.family, **sizes, name=own.name)


def servers_of(config: SimulateConfig) -> Servers:
    """The servers that a config describes.

    Raises:
        InputError: naming the key.
    """
    device = device_spec(config.device)
    link = config.link or usual_link(device)
    require_one_of(link, tuple(LINKS), field="link")
    cards, bandwidth = usual_cards(device)
    if config.card_bandwidth is not None:
        bandwidth = read_quantity(
            parse_bandwidth, config.card_bandwidth, key="card_bandwidth", at_least=1.0
        )
    return Servers(device, config.per_server, LINKS[link], config.cards or cards, bandwidth)


def row_of(config: SimulateConfig, model: TransformerSize, cost: KernelCost) -> TransformerRow:
    """The run of a model that a config describes, on its servers.

    Raises:
        InputError: naming the key.
    """
    with refused_in("config"):
        servers = servers_of(config)
        given = {key.name: getattr(config, key.name) for key in fields(TrainingRun)[1:]}
        given["global_batch"] = config.global_batch or config.micro_batch * config.data
        given["layers_per_stage"] = tuple(config.layers_per_stage)
        run = TrainingRun(model, **given)
    return TransformerRow(
        run,
        servers,
        cost,
        fused=config.fused_kernels,
        constants=read_constants(config.calibration),
        overlap=config.overlap,
    )


_SHOWN_OF_A_RUN = (
    "tensor", "pipeline", "data", "expert", "micro_batch", "global_batch", "schedule", "recompute",
    "recompute_layers", "precision", "zero", "sequence_parallel",
)  # fmt: skip
MOST_LISTED = 10


def chosen(
    row: TransformerRow, devices: int, choices: Sequence[str]
) -> tuple[TransformerRow, Table]:
    """The fastest run that fits on so many devices, and the best ones beside it.

    Raises:
        InputError: none fits.
    """
    problem = TrainingProblem(row, devices, choices)
    found = DegreeSearch().ranking(problem)
    if not found:
        reason = f"no run fits into the memory of {devices} {row.servers.device.name}"
        raise InputError(reason, field="choose")
    columns = [*CHOICES[:2], "data", *CHOICES[2:4], "recompute_layers", *CHOICES[4:]]
    rows = [
        [
            *("" if (x := getattr(run, name)) is None else str(x) for name in columns),
            f"{seconds:.4g}",
            f"{peak / GIBI:.1f}",
        ]
        for seconds, peak, run in found[:MOST_LISTED]
    ]
    table = Table("The fastest runs that fit", [*columns, "seconds", "memory, GiB"], rows)
    return replace(row, run=found[0][2]), table


def run_of(
    config: SimulateConfig, model: TransformerSize, cost: KernelCost
) -> tuple[TransformerRow, list[Table]]:
    """The run that a config describes, with what it chooses, and tables of what was chosen from.

    Raises:
        InputError: naming the key, or nothing that may be chosen fits.
    """
    row = row_of(config, model, cost)
    if config.choose:
        row, table = chosen(row, config.devices or row.run.devices, config.choose)
        return row, [table]
    if config.devices not in (None, row.run.devices):
        reason = (
            f"{config.devices} are not the {row.run.devices} that the degrees multiply to: give "
            "other degrees, or choose="
        )
        raise InputError(reason, field="devices")
    return row, []


def simulating(config: SimulateConfig, run: Run) -> Result:
    """Simulate, draw, print."""
    with refused_in("config"):
        model = transformer_of(config.graph)
    if model is None:
        return simulating_captured(config, run)
    if config.choose:
        run.begin("choosing how to train")
    cost = build_as(KernelCost, config.cost, "cost", "cost of kernels")
    row, tables = run_of(config, model, cost)
    run.begin("pricing the step")
    found = simulated(row)
    training, servers = row.run, row.servers
    held = [sum(row.stages[rank :: training.pipeline]) for rank in range(training.pipeline)]
    flop = sum(row.flop(part) for part in row.parts) * training.micro_batches
    flop *= training.tensor * training.data
    tokens = training.global_batch * model.sequence
    peak = row.servers.device.peak_flops[row.execution(row.servers.device).rate]
    title = f"{model.name} on {training.devices} {row.servers.device.name}"
    values: dict[str, object] = {
        "model": model.name,
        "parameters": row.parameter_count,
        "device": servers.device.name,
        "devices": training.devices,
        "network": f"{servers.cards} cards of {servers.card_bandwidth / GIGA:g} GB/s a server",
        "run": {key: getattr(training, key) for key in _SHOWN_OF_A_RUN},
        "micro_batches": training.micro_batches,
        "tokens_per_s": tokens / found.step_time_s,
        **{name: getattr(found, name) for name in vars(found) if name.endswith("_s")},
        "flop_utilisation": flop / (found.step_time_s * peak * training.devices),
        "peak_memory_bytes": found.peak_memory_bytes,
        "fits": found.fits,
        "stages": [
            {"layers": layers, "memory_bytes": dict(memory)}
            for layers, memory in zip(held, found.memory, strict=True)
        ],
        "picture": None,
    }
    columns = ["stage", "layers", *found.memory[0], "sum, GiB"]
    rows = [
        [str(number), str(layers), *(f"{x / GIBI:.2f}" for x in memory.values()),
         f"{sum(memory.values()) / GIBI:.2f}"]
        for number, (layers, memory) in enumerate(zip(held, found.memory, strict=True))
    ]  # fmt: skip
    tables.append(Table("Memory of a device, GiB", columns, rows))
    write_tables(run, title, tables, run.provenance)
    shown: tuple[str, ...] = SHOWN
    if config.launch is not None:
        launch = launch_arguments(training, config.launch)
        values["launch"] = asdict(launch)
        values["launch_words"] = shlex.join(launch.arguments)
        shown = (*SHOWN, "launch_words")
    if 2 * training.micro_batches * len(found.plan.stages) <= MOST_DRAWN:
        pipeline = pipeline_of(found.problem, found.plan)
        played = play(pipeline, found.plan.orders)
        heading = f"{title}: one step takes {found.step_time_s:.4g} s"
        picture = run.folder / PICTURE_FILE
        write_figure(picture, draw_pipeline(played, pipeline, heading), run.provenance)
        values["picture"] = str(picture)
    return Result(values, run.provenance, shown)


_BY_SIZE_ALONE = (
    "expert", "sequence_parallel", "micro_batch", "global_batch", "chunks", "zero", "choose",
    "layers_per_stage", "launch", "calibration", "precision", "recompute_layers",
)  # fmt: skip


def simulating_captured(config: SimulateConfig, run: Run) -> Result:
    """Simulate a graph that was captured, or read from a file.

    Raises:
        InputError: it asks for what is known of transformers by their sizes alone.
    """
    own = {key.name: key for key in fields(SimulateConfig)}
    with refused_in("config"):
        for name in _BY_SIZE_ALONE:
            default = own[name].default
            plain = [] if default is MISSING else default
            if getattr(config, name) != plain:
                raise InputError("is known of transformers by their sizes alone", field=name)
        if config.recompute == "selective" or config.schedule == "interleaved":
            wrong = "recompute" if config.recompute == "selective" else "schedule"
            raise InputError("is known of transformers by their sizes alone", field=wrong)
        servers = servers_of(config)
    run.begin("building the graph (a first capture takes a while)")
    source = build_as(GraphSource, config.graph, "graph", "graph")
    graph = source.load().graph
    degrees = config.tensor, config.pipeline, config.data
    run.begin("pricing the step")
    problem, plan = captured_run(
        graph, servers, build(config.cost, "cost"), degrees, config.schedule,
        recompute=config.recompute == "full", overlap=config.overlap,
    )  # fmt: skip
    values = {
        "model": graph.name,
        "device": servers.device.name,
        "devices": problem.num_devices,
        **captured_step(problem, plan),
    }
    provenance = run.provenance.with_inputs(**source.inputs())
    shown = ("model", "device", "devices", "step_time_s", "peak_memory_bytes", "fits")
    return Result(values, provenance, shown)
