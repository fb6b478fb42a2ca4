"""The commands: each one's config, its dataclass, what it runs, and what stands above its help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from experiments.config.command_words import given_keys
from experiments.config.signatures import definition, module_about

EXPERIMENTS = __name__.rpartition(".config.")[0]

# config: (dataclass and task, and for a job of its own behind another command: command and words)
_ROWS: Mapping[str, tuple[str, ...]] = {
    "aggregation": ("network.aggregation_tables:AggregationConfig:aggregation",),
    "allocate": ("cluster.allocating:AllocateConfig:allocate",),
    "allocation_study": ("cluster.allocating:StudyConfig:study", "allocate", "study=?*"),
    "asynchronous": ("guarantees.asynchronous:AsynchronousConfig:asynchronous",),
    "capture": ("step.capture:CaptureConfig:capture",),
    "claims": ("reporting.rerunning:ClaimsConfig:claims",),
    "coflows": ("network.coflow_runs:CoflowsConfig:coflows",),
    "tenants": ("network.coflow_runs:TenantsConfig:tenants", "coflows", "tenants=?*"),
    "compare": ("cluster.evaluate_cluster:CompareConfig:compare",),
    "data_pipeline": ("guarantees.data_pipeline:DataPipelineConfig:data_pipeline",),
    "dynamic": ("step.dynamic:DynamicConfig:dynamic",),
    "enforce": ("step.enforcing:EnforceConfig:enforce",),
    "evaluate": ("step.evaluate_step:EvaluateConfig:evaluate_step",),
    "split_windows": ("cluster.windows:SplitWindowsConfig:split_windows", "evaluate", "split=?*"),
    "regime_windows": (
        "cluster.windows:RegimeWindowsConfig:regime_windows", "evaluate", "regime=?*",
    ),
    "evaluate_cluster": (
        "cluster.evaluate_cluster:EvaluateClusterConfig:evaluate_cluster",
        "evaluate", "env=cluster",
    ),
    "execute": ("execution.executing:ExecuteConfig:execute",),
    "execute_profile": ("execution.profiling:ProfileConfig:profile", "execute", "profile=?*"),
    "execute_synchronisation": (
        "execution.synchronising:ExecuteSynchronisationConfig:execute_synchronisation",
        "execute", "synchronisation=?*",
    ),
    "export": ("learning.export_run:ExportConfig:export_run",),
    "export_plan": ("execution.exporting:ExportPlanConfig:export_plan", "export", "plan=?*"),
    "flows": ("network.flows:FlowsConfig:flows",),
    "main": ("learning.one_problem:MainConfig:main_job",),
    "main_cluster": (
        "learning.main_cluster:MainClusterConfig:main_cluster", "main", "env=cluster*",
    ),
    "packing": ("cluster.packing:PackingConfig:packing",),
    "placement_data": ("step.placement_data:PlacementDataConfig:placement_data",),
    "plan": ("step.plan:PlanConfig:plan",),
    "plot": ("step.plot:PlotConfig:plot",),
    "cluster_curves": ("learning.train_cluster:CurvesConfig:curves", "plot", "runs=?*"),
    "price": ("guarantees.pricing:PriceConfig:price",),
    "report": ("reporting.writing:ReportConfig:report",),  # see `LISTED`
    "schedule": ("step.schedules:ScheduleConfig:schedule",),
    "serve": ("serving.serve:ServeConfig:serving",),
    "study": ("study.running:StudyConfig:run_study",),
    "synchronise": ("network.synchronising:SynchroniseConfig:synchronise",),
    "trace": ("cluster.trace_source:TraceAppConfig:trace",),
    "train": ("learning.one_problem:TrainConfig:train_step",),
    "train_interference": (
        "learning.train_interference:TrainInterferenceConfig:train_interference",
        "train", "model=interference",
    ),
    "train_durations": (
        "learning.train_durations:TrainDurationsConfig:train_durations", "train", "model=durations",
    ),
    "train_priority": (
        "learning.train_priority:TrainPriorityConfig:train_priority", "train", "model=priority",
    ),
    "train_rule": ("learning.train_rule:TrainRuleConfig:train_rule", "train", "model=rule"),
    "train_gains": ("learning.train_gains:TrainGainsConfig:train_gains", "train", "model=gains"),
    "train_allocation": (
        "learning.train_allocation:TrainAllocationConfig:train_allocation",
        "train", "env=allocation*",
    ),
    "train_decisions": (
        "learning.train_decisions:TrainDecisionsConfig:train_decisions", "train", "env=decisions",
    ),
    "train_problems": (
        "learning.train_problems:TrainProblemsConfig:train_problems", "train", "env=*problems",
    ),
    "train_cluster": (
        "learning.train_cluster:TrainClusterConfig:train_cluster", "train", "env=cluster*",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """What runs with one config: a command, or another job behind a command.

    `words` is the pattern `group=<option>` by which a command line means this job.
    """

    config: str
    verb: str
    schema: str  # dotted name of its dataclass
    task: str  # and of what it runs
    words: str = ""

    @property
    def about(self) -> str:
        """What stands above its help."""
        found = None if not self.words else definition(self.task)
        return module_about(f"experiments.{self.verb}" if found is None else found.module)

    @property
    def summary(self) -> str:
        """The first line of it."""
        return self.about.partition("\n")[0]

    def is_meant(self, option: str, group: str) -> bool:
        """Whether `group=option` means this job."""
        named, _, pattern = self.words.partition("=")
        return group == named and fnmatchcase(option, pattern)


def _job(config: str) -> Job:
    named, *behind = _ROWS[config]
    module, schema, task = named.split(":")
    verb, words = (*behind, "", "")[:2]
    place = f"{EXPERIMENTS}.{module}"
    return Job(config, verb or config, f"{place}.{schema}", f"{place}.{task}", words)


# The key of a command whose words without a key are a list of it.
LISTED = {"report": "runs"}
# How the words begin that are a study's own; all others are of its cells' command lines.
STUDY = "study"
STUDY_WORDS = ("study", "words=", "workers=", "cells=", "resume=", "seed=", "json=", "hydra")
JOBS: Mapping[str, Job] = {config: _job(config) for config in _ROWS}
VERBS = sorted({job.verb for job in JOBS.values()})


def jobs_of(verb: str) -> list[Job]:
    """The jobs of a command, its own first."""
    found = [job for job in JOBS.values() if job.verb == verb]
    return sorted(found, key=lambda job: bool(job.words))


def chosen_job(verb: str, words: Iterable[str]) -> Job:
    """The job that the words of a command line mean; of several the first."""
    own, *others = jobs_of(verb)
    chosen = given_keys(words)
    meant = (job for job in others for group in chosen if job.is_meant(chosen[group], group))
    return next(meant, own)
