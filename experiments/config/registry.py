"""What a name in a config group stands for: `name -> module:Class`.

A name here needs no file: its config node is the class with the defaults of its signature, read
without importing it (`experiments.config.signatures`). To add a policy, a solver, a rule or a cost
is one row here. What differs from the defaults is a file of the group's folder in `conf`.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.config.papers import PAPERS
from experiments.config.signatures import PREFIX, local

ZOO = (
    "bert", "bert_base", "bert_large", "gpt", "gpt2", "gpt2_large", "gpt2_medium", "gpt2_xl",
    "llama", "llama_7b", "moe", "resnet50", "t5", "t5_small", "vgg19", "vit", "vit_base",
)  # fmt: skip
PARTIAL = "partial "  # before what the program calls with arguments of its own

_CORE: Mapping[str, Mapping[str, str]] = {
    "agent": {
        # step planners
        "contiguous": "agents.placement.baselines:ContiguousSplit",
        "cp_sat": "agents.placement.cp_sat:CpSat",
        "dp": "agents.partition.dp:ContiguousDP",
        "fusion_milp": "agents.placement.fusion_milp:FusionMilp",
        "heft": "agents.placement.list_planners:Heft",
        "learned": "agents.placement.policy:LearnedPlanner",
        "local_search": "agents.placement.local_search:LocalSearch",
        "m_etf": "agents.placement.list_planners:MEtf",
        "m_sct": "agents.placement.list_planners:MSct",
        "milp": "agents.placement.milp:Milp",
        "random": "agents.placement.baselines:RandomPlacement",
        "single_device": "agents.placement.baselines:SingleDevice",
        # bandwidth, alone and with the placement
        "alternation": "agents.bandwidth.joint:Alternation",
        "convex": "agents.bandwidth.convex:ConvexRates",
        "joint_milp": "agents.bandwidth.weights:JointMilp",
        "placement_alone": "agents.bandwidth.joint:PlacementAlone",
        "proportional": "agents.bandwidth.rules:ProportionalShares",
        "shared_placement": "agents.bandwidth.shared_placement:SharedPlacement",
        "square_root": "agents.bandwidth.rules:SquareRootShares",
        "uniform": "agents.bandwidth.rules:UniformShares",
        # stages, replicas and shards
        "alpa": "agents.hybrid.alpa:Alpa",
        "dapple": "agents.hybrid.dapple:Dapple",
        "fused_stages": "agents.hybrid.fusion:FusedStages",
        "pipedream": "agents.hybrid.pipedream:PipeDream",
        "sbp": "agents.hybrid.sharding:SBP",
        "spp": "agents.hybrid.spp:SPP",
        # synchronisation
        "double_tree": "agents.synchronisation.classical:DoubleTree",
        "forest": "agents.synchronisation.forest:Forest",
        "halving_doubling": "agents.synchronisation.classical:HalvingDoubling",
        "hierarchical": "agents.synchronisation.classical:Hierarchical",
        "parameter_server": "agents.synchronisation.classical:ParameterServer",
        "ring": "agents.synchronisation.classical:Ring",
        # schedulers of a cluster
        "afs": (
            "agents.cluster.rounds:RoundBasedPolicy "
            "shares=agents.cluster.elastic:ApatheticFutureShare"
        ),
        "contiguous_speed": (
            "agents.placement.baselines:ContiguousSplit "
            "shares=agents.placement.baselines:SpeedShares"
        ),
        "finish_time_fairness": (
            "agents.cluster.rounds:RoundBasedPolicy shares=agents.cluster.shares:FinishTimeFairness"
        ),
        "las_gavel": (
            "agents.cluster.rounds:RoundBasedPolicy "
            "shares=agents.cluster.shares:LeastAttainedService"
        ),
        "max_min": (
            "agents.cluster.rounds:RoundBasedPolicy shares=agents.cluster.shares:MaxMinFairness"
        ),
        "migrating_srsf": (
            "agents.cluster.migrating.policy:Migrating "
            "priority=agents.cluster.migrating.priorities:RemainingService"
        ),
        "migrating_srtf": (
            "agents.cluster.migrating.policy:Migrating "
            "priority=agents.cluster.migrating.priorities:RemainingTime"
        ),
        "optimus": "agents.cluster.rounds:RoundBasedPolicy shares=agents.cluster.elastic:Optimus",
        "checkpoint": "agents.cluster.checkpoint:CheckpointScheduler",
        "easy": "agents.cluster.queue:EASY",
        "fifo": "agents.cluster.queue:FIFO",
        "fifo_backfill": "agents.cluster.queue:FIFOBackfill",
        "gandiva": "agents.cluster.gandiva:Gandiva",
        "gittins": "agents.cluster.prediction:Gittins",
        "joint_choice": "agents.cluster.joint_choice:JointChoice",
        "las_2d": "agents.cluster.queue:LAS2D",
        "las_2d_tiresias": "agents.cluster.queue:LAS2DTiresias",
        "migrating_las": "agents.cluster.migrating.policy:Migrating",
        "qssf": "agents.cluster.prediction:QuasiShortestServiceFirst",
        "sjf": "agents.cluster.queue:SJF",
        "sjf_strict": "agents.cluster.queue:SJFStrict",
        "srsf": "agents.cluster.queue:SRSF",
        "srtf": "agents.cluster.queue:SRTF",
        "themis": "agents.cluster.themis:Themis",
        # learners
        "ppo_cluster": "agents.rllib.config:PPO",
    },
    "action": {
        "convert": "experiments.cluster.trace_actions:Convert",
        "fit": "experiments.cluster.trace_actions:Fit",
        "summary": "experiments.cluster.trace_actions:Summarise",
        "synthesise": "experiments.cluster.trace_actions:Synthesise",
    },
    "expert": {"las": "agents.cluster.migrating.expert:MigrationExpert"},
    "communication": {
        "allocated": "envs.step.allocated:Allocated",
        "fair": "envs.step.fair:Fair",
        "single_port": "envs.step.step:Ports",
    },
    "cost": {
        "by_graph": "envs.cost:CostByGraph",
        "kineto": "envs.cost:TracedCost",
        "learned": "models.step.kernel_cost:LearnedCost",
        "roofline": "envs.cost:RooflineCost",
        "tabulated": "envs.cost:TabulatedCost",
    },
    "env": {
        "bandwidth": "envs.bandwidth.env:BandwidthEnv.of_plan",
        "bandwidth_toy": "envs.bandwidth.env:toy_environment",
        "placement_toy": "envs.placement.env:toy_environment",
    },
    "graph": {
        "captured": "experiments.step.captured_models:Captured",
        "file": "experiments.step.problem:StoredGraph",
        "mixtral": "envs.graphs.transformer:mixtral",
        "opt": "envs.graphs.transformer:opt",
        "switch": "envs.graphs.transformer:switch",
        **dict.fromkeys(ZOO, "experiments.step.problem:ZooGraph"),
    },
    "interference": {"none": "envs.cluster.interference.rates:NoInterference"},
    "layers": {"transformer": "experiments.execution.layers:Transformer"},
    "model": {
        "channels": "models.step.channels:ChannelPolicyConfig",
        "durations": "models.durations.network:DurationConfig",
        "hierarchical": "models.cluster.hierarchical:HierarchicalConfig",
        "perceptron": "models.perceptron:PerceptronConfig",
        "interference": "models.interference.fit:FitConfig",
        "kernel_cost": "models.step.kernel_cost:KernelCostConfig",
        "cells": "models.cluster.cells:CellsConfig",
        "pairs": "models.cluster.pairs:PairsConfig",
        "placer": "models.step.placer:PlacerConfig",
        "placer_continued": "agents.rllib.step.plans:Continued",
        "priority": "agents.cluster.migrating.weight_search:WeightSearchConfig",
    },
    "order": {
        "one_f_one_b": "envs.step.order:OneFOneB",
        "topological": "envs.step.order:TopologicalOrder",
    },
    "placement": {
        "best_fit": "agents.cluster.rules.gangs:BestFit",
        "best_fit_fractional": "agents.cluster.rules.shared_gpus:SharedGpuPlacement",
        "count": "agents.cluster.rules.gangs:Count",
        "dot_product": (
            "agents.cluster.rules.shared_gpus:SharedGpuPlacement "
            "rule=agents.cluster.rules.fractional:DotProduct"
        ),
        "fgd": (
            "agents.cluster.rules.shared_gpus:SharedGpuPlacement "
            "rule=agents.cluster.rules.fragmentation:FragmentationGradientDescent"
        ),
        "first_fit_fractional": (
            "agents.cluster.rules.shared_gpus:SharedGpuPlacement "
            "rule=agents.cluster.rules.fractional:FirstFit"
        ),
        "gpu_packing": (
            "agents.cluster.rules.shared_gpus:SharedGpuPlacement "
            "rule=agents.cluster.rules.fractional:GpuPacking"
        ),
        "random_fractional": (
            "agents.cluster.rules.shared_gpus:SharedGpuPlacement "
            "rule=agents.cluster.rules.fractional:RandomFit"
        ),
        "first_fit": "agents.cluster.rules.gangs:FirstFit",
        "helios_consolidate": "agents.cluster.rules.gangs:HeliosConsolidate",
        "least_interference": "agents.cluster.rules.gangs:LeastInterference",
        "random": "agents.cluster.rules.gangs:Random",
        "spread": "agents.cluster.rules.gangs:Spread",
        "yarn": "agents.cluster.rules.gangs:Yarn",
    },
    "priority": {"learned": "agents.cluster.migrating.learned_priority:from_folder"},
    "problem": {
        "joint": "experiments.step.objectives:Joint",
        "latency": "experiments.step.objectives:Latency",
        "makespan": "experiments.step.objectives:Makespan",
        "max_load": "experiments.step.objectives:MaxLoad",
    },
    "task": {"environment": "agents.rllib.environments:EnvironmentTask"},
    "topology": {
        "file": "experiments.step.problem:network_file",
        "from_graph": "experiments.step.problem:FromGraph",
    },
    "tracking": {
        "files": "experiments.learning.tracking:TensorBoard",
        "mlflow": "experiments.learning.tracking:MLflow",
        "wandb": "experiments.learning.tracking:WandB",
    },
    "workload": {"file": "experiments.cluster.trace_source:read_workload"},
}


def _with_papers() -> dict[str, dict[str, str]]:
    found = {group: dict(rows) for group, rows in _CORE.items()}
    for paper in PAPERS:
        for group, rows in paper.groups.items():
            found.setdefault(group, {}).update({x: paper.row(row) for x, row in rows.items()})
    return found


GROUPS: Mapping[str, Mapping[str, str]] = _with_papers()
# What a file may have made, though no group has a name for it.
OF_FILES = (
    "envs.cluster.simulation.incidents:Failures",
    "envs.synchronisation.link_graph:described",
)
# Groups whose options are no objects but parts of a config, with the defaults of a dataclass.
RECORDS: Mapping[str, str] = {
    "trace": "experiments.cluster.trace_source.TraceConfig",
    "study": "experiments.studies.study.Study",
}
# What a group is about, for `--help`.
GROUP_HELP: Mapping[str, str] = {
    "action": "what to do",
    "expert": "whose action a cluster's environment shows",
    "agent": "who decides: a name, or anybody's class by its dotted name",
    "baselines": "planners on the same problem, in the table and the learning curve",
    "communication": "how transfers share the network; a plan with bandwidth brings its own",
    "cost": "how long operators and transfers take",
    "distribution": "where problems are drawn from",
    "env": "where the problem comes from: a toy brings its own",
    "graph": "a name, or the path of a graph file",
    "interference": "how jobs slow each other down",
    "layers": "layers in a row with the names that the plan has",
    "learner": "where sampling and learning take place",
    "model": "what is learned: a name, or anybody's class by its dotted name",
    "order": "the order of a plan file that gives none",
    "placement": "where a gang starts, for policies that leave it open",
    "problem": "what is to be small, and what is decided",
    "split": "traces, clusters, windows",
    "study": "what is run and compared",
    "task": "what is trained: environment, or a task of your own by its dotted name",
    "topology": "a name, from_graph, or the path of a topology file",
    "trace": "the jobs: trace.path and trace.format, or trace.format=synthetic",
    "tracking": "where metrics go",
    "training": "how long it is learned, imitation, the evaluations",
    **{group: words for paper in PAPERS for group, words in paper.help.items()},
}


def dotted(row: str) -> str:
    """The dotted name of `module:Class`, behind which arguments may stand."""
    return PREFIX + local(row.removeprefix(PARTIAL).partition(" ")[0]).replace(":", ".")


def arguments_of(row: str) -> dict[str, str]:
    """The dotted names of the objects that a row gives its class, by argument."""
    words = (word.partition("=") for word in row.split(" "))
    return {key: dotted(value) for key, _, value in words if value}


def names_in_row(row: str) -> list[str]:
    """Every dotted name of a row."""
    return [dotted(row), *arguments_of(row).values()]
