"""The commands: a dozen verbs, the jobs behind them, and other names of some jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from experiments.config.command_words import given_keys, of_cells
from experiments.config.papers import PAPERS
from experiments.config.signatures import definition, module_about

EXPERIMENTS = __name__.rpartition(".config.")[0]

# A verb's own job, then those that words lead to: config, dataclass and task, words.
_JOBS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "main": (
        ("main", "learning.one_problem:MainConfig:main_job"),
        ("main_cluster", "learning.main_cluster:MainClusterConfig:main_cluster", "env=cluster*"),
    ),
    "plan": (
        ("plan", "step.plan:PlanConfig:plan"),
        ("schedule", "step.schedules:ScheduleConfig:schedule", "problem=schedule"),
        ("synchronise", "network.synchronising:SynchroniseConfig:synchronise",
         "problem=synchronisation"),
    ),
    "evaluate": (
        ("evaluate", "step.evaluate_step:EvaluateConfig:evaluate_step"),
        ("split_windows", "cluster.windows:SplitWindowsConfig:split_windows", "split=?*"),
        ("regime_windows", "cluster.windows:RegimeWindowsConfig:regime_windows", "regime=?*"),
        ("evaluate_cluster", "cluster.evaluate_cluster:EvaluateClusterConfig:evaluate_cluster",
         "env=cluster"),
        ("compare", "cluster.evaluate_cluster:CompareConfig:compare", "env=policies"),
        ("flows", "network.flows:FlowsConfig:flows", "flows=?*"),
    ),
    "train": (
        ("train_one_problem", "learning.one_problem:TrainConfig:train_step", "task=one_problem"),
        ("train_problems", "learning.train_problems:TrainProblemsConfig:train_problems",
         "task=problems env=*problems"),
        ("train_cluster", "learning.train_cluster:TrainClusterConfig:train_cluster",
         "task=cluster env=cluster*"),
        ("train_cells", "learning.train_cells:TrainCellsConfig:train_cells", "task=cells"),
        ("train_evolved_cells", "learning.train_cells:EvolveCellsConfig:evolve_cells",
         "task=evolved_cells"),
        ("train_durations", "learning.train_durations:TrainDurationsConfig:train_durations",
         "task=durations model=durations"),
        ("train_interference",
         "learning.train_interference:TrainInterferenceConfig:train_interference",
         "task=interference model=interference"),
        ("train_kernel_cost", "learning.train_kernel_cost:TrainKernelCostConfig:train_kernel_cost",
         "task=kernel_cost model=kernel_cost"),
        ("train_priority", "learning.train_priority:TrainPriorityConfig:train_priority",
         "task=priority model=priority"),
        ("train_rule", "learning.train_rule:TrainRuleConfig:train_rule", "task=rule model=rule"),
        ("train", "learning.train_task:TrainTaskConfig:train_task", "task=?*"),
        ("placement_data", "step.placement_data:PlacementDataConfig:placement_data", "labels=?*"),
    ),
    "study": (
        ("study", "studies.running:StudyConfig:run_study"),
        ("measured", "measured.judging:MeasuredConfig:judge", "study=measured"),
    ),
    "calibrate": (("calibrate", "measured.calibrating:CalibrateConfig:calibrating"),),
    "simulate": (("simulate", "step.simulating:SimulateConfig:simulating"),),
    "execute": (
        ("execute", "execution.executing:ExecuteConfig:execute"),
        ("execute_profile", "execution.profiling:ProfileConfig:profile", "profile=?*"),
        ("execute_synchronisation",
         "execution.synchronising:ExecuteSynchronisationConfig:execute_synchronisation",
         "synchronisation=?*"),
    ),
    "export": (
        ("export", "learning.export_run:ExportConfig:export_run"),
        ("export_plan", "execution.exporting:ExportPlanConfig:export_plan", "plan=?*"),
    ),
    "serve": (("serve", "serving.serve:ServeConfig:serving"),),
    "drive": (
        ("drive", "driving.drive:DriveConfig:drive"),
        ("rehearse", "driving.rehearsal:RehearseConfig:rehearse", "cluster=local"),
    ),
    "trace": (("trace", "cluster.trace_source:TraceAppConfig:trace"),),
    "report": (
        ("report", "studies.report:ReportConfig:report"),
        ("plot", "step.plot:PlotConfig:plot", "plan=?*"),
        ("curves", "studies.curves:CurvesConfig:curves", "curves=?*"),
        ("claims", "reporting.claims:ClaimsConfig:claims", "of=claims"),
    ),
    "capture": (("capture", "step.capture:CaptureConfig:capture"),),
}  # fmt: skip
# Other names of jobs: verb and word.
ALIASES: Mapping[str, tuple[str, str]] = {
    **{name: (verb, word) for x in PAPERS for name, (verb, _, word) in x.commands.items()},
    "claims": ("report", "of=claims"),
    "compare": ("evaluate", "env=policies"),
    "replay": ("evaluate", "env=cluster"),
    "synchronise": ("plan", "problem=synchronisation"),
}
TASK = "task"  # the group of what is trained
# The key of a command whose words without a key are a list of it.
LISTED = {"report": "runs"}
# How the words begin that are a study's own; all others are of its cells' command lines.
STUDY = "study"
STUDY_WORDS = ("study", "words=", "workers=", "cells=", "resume=", "seed=", "json=", "hydra")


@dataclass(frozen=True)
class Job:
    """What runs with one config: a command, or another job behind a command.

    `words` are patterns `group=<option>` by which a command line means this job, one for each
    group.
    """

    config: str
    verb: str
    schema: str  # dotted name of its dataclass
    task: str  # and of what it runs
    words: str = ""

    @property
    def about(self) -> str:
        """What stands above its help."""
        found = None if self.is_own else definition(self.task)
        return module_about(f"experiments.{self.verb}" if found is None else found.module)

    @property
    def summary(self) -> str:
        """The first line of it."""
        return self.about.partition("\n")[0]

    @property
    def file(self) -> str:
        """Its config's path in `conf`: of what `train task=cluster` does it is task/cluster."""
        return self.config.replace("train_", "task/")

    @property
    def is_own(self) -> bool:
        """Whether it is what the verb does where no words lead elsewhere."""
        return self.config == _JOBS[self.verb][0][0]

    def is_meant(self, option: str, group: str) -> bool:
        """Whether `group=option` means this job."""
        named = given_keys(self.words.split())
        return group in named and fnmatchcase(option, named[group])

    @property
    def groups(self) -> list[str]:
        """The groups of its words."""
        return list(given_keys(self.words.split()))


def _job(verb: str, config: str, named: str, words: str = "") -> Job:
    module, schema, task = named.split(":")
    place = f"{EXPERIMENTS}.{module}"
    return Job(config, verb, f"{place}.{schema}", f"{place}.{task}", words)


def _jobs() -> Iterator[Job]:
    """Those of papers stand before the first of the core that takes any option of a group."""
    for verb, rows in _JOBS.items():
        jobs = [_job(verb, *row) for row in rows]
        at = next((n for n, job in enumerate(jobs) if "=?*" in job.words), len(jobs))
        yield from jobs[:at]
        for paper in PAPERS:
            for config, (of, named, words) in {**paper.jobs, **paper.commands}.items():
                if of == verb:
                    yield _job(verb, config, f"papers.{paper.folder.name}.{named}", words)
        yield from jobs[at:]


JOBS: Mapping[str, Job] = {job.config: job for job in _jobs()}
VERBS = list(_JOBS)
COMMANDS = sorted({*VERBS, *ALIASES})


def expanded(command: str, words: Iterable[str]) -> tuple[str, list[str]]:
    """The verb of a command, and its words with the one that an alias stands for."""
    verb, word = ALIASES.get(command, (command, ""))
    return verb, [*([word] if word else []), *words]


def of_verb(verb: str, words: Sequence[str]) -> list[str]:
    """A verb's command line: in that of a study, words of its cells become a list."""
    own = verb == STUDY and chosen_job(verb, words).is_own
    return of_cells(words, STUDY_WORDS) if own else list(words)


def jobs_of(verb: str) -> list[Job]:
    """The jobs of a verb, its own first."""
    return [job for job in JOBS.values() if job.verb == verb]


def chosen_job(verb: str, words: Iterable[str]) -> Job:
    """The job that the words of a command line mean: of several the first, of none its own.

    Where they name a task, no other word counts.
    """
    jobs, chosen = jobs_of(verb), given_keys(words)
    chosen = {TASK: chosen[TASK]} if TASK in chosen else chosen
    meant = (job for job in jobs for group in chosen if job.is_meant(chosen[group], group))
    return next(meant, jobs[0])


def without_choice(verb: str, words: Iterable[str], keys: Iterable[str]) -> list[str]:
    """A command line without words that only lead to a job, whose config has no such key."""
    own, jobs = set(keys), jobs_of(verb)

    def leads(word: str) -> bool:
        group, _, option = word.partition("=")
        return group not in own and any(job.is_meant(option, group) for job in jobs)

    return [word for word in words if not leads(word)]
