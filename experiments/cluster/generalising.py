"""Learned schedulers, baselines and references on the windows of a split, as it is or changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from pydantic import Field

from agents.cluster.shipped import scheduler_folder
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive
from envs.cluster.interference.rates import RateModel
from envs.cluster.workload.slicing import at_most_gpus
from envs.errors import InputError, refused_in, require_one_of
from envs.forms import Form, read_form
from experiments.cluster.baselines import (
    CLASSES,
    Contender,
    Outcome,
    baselines_of,
    bound_s,
    check_class,
    files_of,
    of_class,
    replayed_on,
)
from experiments.cluster.evaluate_cluster import SPEC_FILE
from experiments.cluster.split_windows import (
    Split,
    SplitConfig,
    SplitWindow,
    TracePart,
    gpus_of_a_type,
)
from experiments.config.targets import build, build_as, no_such_thing
from experiments.pictures.style import draw_rows
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.study.statistics import CONFIDENCE, Interval, bootstrap, half_width
from experiments.study.tables import TABLE_FILE, Table, write_tables

SHAPE = ("gpus_per_node", "nodes_per_rack", "gpu_types")  # of clusters


class Changes(Form):
    """Changes of a split; what is not named stays.

    Jobs that no longer fit the GPUs of one type are left out, as those of more than `max_gpus` are.
    """

    nodes: Positive = 1.0  # factor of every trace's nodes; the load stays as it is
    gpus_per_node: int = 1
    nodes_per_rack: int | None = None  # None: one rack
    gpu_types: list[str] = Field(default_factory=list)
    load: Positive = 1.0  # of all traces
    restart_s: NonNegative = 0.0  # for which a stopped job holds its GPUs before it progresses
    interference: dict[str, Any] | None = None  # another model
    schedulers: int = 1  # that share the cluster; this is of the learned scheduler alone


class Condition(NamedTuple):
    """What is left of a window of a split under named changes."""

    name: str
    changes: Mapping[str, Any]  # by the names of `Changes`
    windows: list[SplitWindow]
    jobs: int  # of the windows
    left_out: int  # jobs that would fit no GPU type, or are of windows with too few others

    @classmethod
    def of(cls, name: str, changes: Mapping[str, Any], split: Split, window: str) -> Condition:
        """The parts of a window of all traces, under the changes of this name in the config.

        Raises:
            InputError: a change is unknown or not of its type, a cluster cannot be, there is no
                such window, or too few jobs are left.
        """
        where = f"config key 'conditions.{name}'"
        read_form(Changes, changes, where)
        before = split.windows(window)
        rates = None
        if node := changes.get("interference"):
            key = f"conditions.{name}.interference"
            rates = build_as(RateModel, node, key, "interference model")
        found: list[SplitWindow] = []
        for part in split.traces.values():
            with refused_in(f"{where}, trace {part.name}"):
                found += changed(part, changes, rates, window).parts(window)
        if not found:
            told = f"no window {window!r} has {split.config.least_jobs} jobs that fit one GPU type"
            raise InputError(told, file=where)
        jobs, whole = (sum(len(x.problem.trace) for x in some) for some in (found, before))
        return cls(name, changes, found, jobs, whole - jobs)


def changed(
    part: TracePart, changes: Mapping[str, Any], rates: RateModel | None, window: str
) -> TracePart:
    """A trace of a split with one window alone, under changes; `rates` is the other model.

    The window is as long as in the split, and none of its jobs is in another.
    """
    shape = {key: changes[key] for key in SHAPE if key in changes}
    nodes = round(part.config.traces[part.name].nodes * changes.get("nodes", 1.0))
    cluster, cut = replace(part.config, **shape).cluster(max(nodes, 1)), part.windows[window]
    restart_s = float(changes.get("restart_s", part.overheads.restart_s))
    return replace(
        part,
        cluster=cluster,
        windows={window: replace(cut, trace=at_most_gpus(cut.trace, gpus_of_a_type(cluster)))},
        load=float(changes.get("load", part.load)),
        rates=rates or part.rates,
        overheads=part.overheads._replace(restart_s=restart_s),
    )


MEAN = "mean_jct_s"
MEASURES = {"mean": MEAN, "p50": "p50_jct_s", "p99": "p99_jct_s"}
PER_WINDOW, OVERALL_CONDITION = "the best baseline of each window", "the best overall"
AS_PUBLISHED, TUNED, REFERENCE = "as published", "tuned", "reference"
OVERALL, OVERALL_PUBLISHED = "best overall", "best overall as published"

POLICY_COLUMNS = {
    "policy": "{name}", "kind": "{kind}", "mean JCT / window's best": "{mean:.3f}",
    "95 % interval": "[{low:.3f}, {high:.3f}]", "best on": "{won}",
    "preemptions/job": "{moved:.1f}",
}  # fmt: skip
WINDOW_COLUMNS = {
    "window": "{name}", "jobs": "{jobs:,}", "bound": "{lower_bound_s:,.0f}",
    "best baseline": "{best}", "its mean JCT": "{least:,.0f}",
    "checkpoint": "{learned:,.0f}", "ratio": "{ratio:.3f}",
}  # fmt: skip
RATIO_COLUMNS = ("against", "which is", "mean JCT", "p50", "p99")
WINDOWS_CAPTION = (
    "Ratios are means over windows (and seeds); intervals are 95 % percentile bootstrap over "
    "windows and seeds. Below 1 the first of the two is faster. As published: with the numbers of "
    "its paper; tuned: with ours; references are policies of this project and no baselines."
)
CONDITION_COLUMNS = (
    "condition", "windows", "jobs", "left out", "best overall", OVERALL_CONDITION, PER_WINDOW,
)  # fmt: skip
CONDITIONS_CAPTION = (
    "Mean JCT of the checkpoints over that of a baseline: means over windows (and seeds), 95 % "
    "percentile bootstrap over windows and seeds. Best overall is the best of these baselines "
    "under the condition; every policy has the placement rule that is best for it there. Left out: "
    "jobs that fit no GPU type of the cluster any more, and those of windows with too few others. "
    "The times between submissions are stretched so that the load stays that of the split, unless "
    "the load is what is changed. A single window with a single checkpoint has no interval."
)


def best_overall(means: FloatArray) -> int:
    """The row of (policies, windows) mean JCTs with the least mean ratio to each window's best."""
    return int((means / means.min(axis=0)).mean(axis=1).argmin())


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that was measured, W windows. Rows are baselines, then references, then checkpoints."""

    windows: Sequence[SplitWindow]
    baselines: Sequence[Contender]
    references: Sequence[Contender]  # our own policies, which are no baselines
    outcomes: Sequence[Sequence[Outcome]]  # of each row, on each window
    tuned: Collection[str]  # agents whose numbers are not those of their papers
    samples: int  # of the bootstrap
    seed: int

    @cached_property
    def bounds(self) -> FloatArray:
        """(W,) proved, of the mean JCT, seconds."""
        return np.array([bound_s(window.problem) for window in self.windows])

    def values(self, measure: str) -> FloatArray:
        """(rows, W) of one field of `Outcome`."""
        return np.array([[getattr(o, measure) for o in row] for row in self.outcomes], np.float64)

    @property
    def winners(self) -> IntArray:
        """(W,) the baseline with the least mean JCT on each window."""
        winners: IntArray = self.values(MEAN)[: len(self.baselines)].argmin(axis=0)
        return winners

    @cached_property
    def relative(self) -> FloatArray:
        """(rows, W) mean JCT over that of each window's best baseline."""
        means = self.values(MEAN)
        ratios: FloatArray = means / means[: len(self.baselines)].min(axis=0)
        return ratios

    @property
    def learned(self) -> int:
        """How many checkpoints there are."""
        return len(self.outcomes) - len(self.baselines) - len(self.references)

    @cached_property
    def by_policy(self) -> dict[str, list[int]]:
        """The baselines of each policy: it, with every placement rule."""
        found: dict[str, list[int]] = {}
        for row, baseline in enumerate(self.baselines):
            found.setdefault(baseline.policy, []).append(row)
        return found

    def best(self, rows: Sequence[int]) -> int:
        """The one of these with the least mean ratio to each window's best."""
        return rows[int(self.relative.mean(axis=1)[rows].argmin())]

    @property
    def overall(self) -> int:
        """The baseline that is best overall."""
        return self.best(range(len(self.baselines)))

    @property
    def published(self) -> int | None:
        """The one of those with the numbers of their papers; None: all are tuned."""
        rows = [i for i, one in enumerate(self.baselines) if one.policy not in self.tuned]
        return self.best(rows) if rows else None

    def ratios(self, measure: str, baseline: int | None) -> FloatArray:
        """(W, checkpoints) to one baseline, None: to the best of each window by mean JCT."""
        values = self.values(measure)
        chosen = self.winners if baseline is None else baseline
        yardstick = values[chosen, np.arange(len(self.windows))]
        ratios: FloatArray = (values[len(values) - self.learned :] / yardstick).T
        return ratios

    def interval(self, ratios: FloatArray) -> Interval:
        return bootstrap(ratios, self.samples, self.seed)

    def policies(self) -> list[dict[str, Any]]:
        """Every policy with its best placement rule, and every reference, the best first."""
        wins = np.bincount(self.winners, minlength=len(self.baselines))
        chosen = [
            (self.best(rows), TUNED if policy in self.tuned else AS_PUBLISHED,
             f"{wins[rows].sum()} of {len(self.windows)}")
            for policy, rows in self.by_policy.items()
        ]  # fmt: skip
        contenders = [*self.baselines, *self.references]
        chosen += [(row, REFERENCE, "") for row in range(len(self.baselines), len(contenders))]
        found: list[dict[str, Any]] = []
        for row, kind, won in chosen:
            outcomes = self.outcomes[row]
            moved = sum(o.preemptions for o in outcomes) / sum(o.jobs for o in outcomes)
            interval = asdict(self.interval(self.relative[row][:, None]))
            record = {"name": contenders[row].name, "kind": kind, "won": won, "moved": moved}
            found.append(record | interval)
        return sorted(found, key=lambda record: record["mean"])

    def documents(self) -> list[dict[str, Any]]:
        """Every window as numbers."""
        ends = len(self.baselines), len(self.baselines) + len(self.references)
        names = [one.name for one in (*self.baselines, *self.references)]
        found: list[dict[str, Any]] = []
        for w, window in enumerate(self.windows):
            rows = [asdict(row[w]) for row in self.outcomes]
            played = dict(zip(names, rows[: ends[1]], strict=True))
            found.append({
                **window.about,
                "lower_bound_s": float(self.bounds[w]),
                "best": names[self.winners[w]],
                "baselines": {name: played[name] for name in names[: ends[0]]},
                "references": {name: played[name] for name in names[ends[0] :]},
                "checkpoints": rows[ends[1] :],
            })  # fmt: skip
        return found


class Summary(NamedTuple):
    """Tables, a picture and its file name, and the numbers behind both."""

    tables: Sequence[Table]
    caption: str
    file: str
    picture: Figure
    values: Mapping[str, object]
    shown: Sequence[str]


def windows_summary(found: Comparison, title: str) -> Summary:
    """Every policy and every checkpoint on the windows of a split.

    The checkpoints stand beside each window's best baseline, the best overall, and the best overall
    of those that are as published.
    """
    names = [one.name for one in found.baselines]
    overall = names[found.overall]
    published = None if found.published is None else names[found.published]
    best = found.values(MEAN)[: len(names)].min(axis=0)
    documents = found.documents()
    rows = [{**row, "least": best[w]} for w, row in enumerate(documents)]
    values: dict[str, object] = {
        "windows": documents,
        "best_overall": overall,
        "best_published": published,
        "baselines": len(names),
        "mean_gap_to_bound": float(np.mean(1.0 - found.bounds / best)),
        "ratios": {},
    }
    shown = ["best_overall", "best_published", "mean_gap_to_bound"]
    columns, first = {**WINDOW_COLUMNS, "checkpoint": "", "ratio": ""}, list[Table]()
    learned: FloatArray | None = None
    if found.learned:
        columns, learned = WINDOW_COLUMNS, found.ratios(MEAN, None)
        means = found.values(MEAN)[-found.learned :].mean(axis=0)
        for w, row in enumerate(rows):
            row |= {"learned": means[w], "ratio": learned[w].mean()}
        yardsticks: dict[str, int | None] = {PER_WINDOW: None}
        yardsticks |= {names[i]: i for i in (found.overall, found.published) if i is not None}
        ratios = {
            name: {of: found.interval(found.ratios(key, i)) for of, key in MEASURES.items()}
            for name, i in yardsticks.items()
        }
        kinds = {OVERALL: overall, OVERALL_PUBLISHED: published}
        cells = [
            (name, ", ".join(kind for kind, which in kinds.items() if which == name),
             *(interval.text() for interval in row.values()))
            for name, row in ratios.items()
        ]  # fmt: skip
        first = [Table(f"Checkpoints ({found.learned})", RATIO_COLUMNS, cells)]
        against = ratios[PER_WINDOW]["mean"]
        values |= {
            "ratios": {n: {of: asdict(x) for of, x in row.items()} for n, row in ratios.items()},
            "ratio": against.mean,
            "below_one": against.below_one,
        }
        shown[1:1] = ["ratio", "below_one"]
    tables = [
        *first,
        Table.of("Every policy against the best of each window", POLICY_COLUMNS, found.policies()),
        Table.of("Windows", columns, rows),
    ]
    drawn: dict[str, Sequence[Interval | float]]
    drawn = {f"{overall}, best overall": found.relative[found.overall].tolist()}
    if learned is not None:
        drawn[f"checkpoint, mean of {found.learned}"] = [
            Interval(mean := row.mean(), mean - half_width(row), mean + half_width(row))
            for row in learned
        ]
    picture = draw_rows(
        [row["name"] for row in rows],
        drawn,
        "mean job completion time / that of the window's best baseline",
        title,
        bound=found.bounds / best,
    )
    return Summary(tables, WINDOWS_CAPTION, "ratios.png", picture, values, shown)


def conditions_summary(rows: Sequence[tuple[Condition, Comparison]], title: str) -> Summary:
    """Mean JCTs of the checkpoints under every condition.

    They are over those of each window's best, the best overall, and each policy with the placement
    rule that is best for it.
    """
    first, second, forest = [], [], list[Interval]()
    documents: dict[str, dict[str, Any]] = {}
    better = 0
    for condition, found in rows:
        yardsticks: dict[str, int | None] = {PER_WINDOW: None, OVERALL_CONDITION: found.overall}
        yardsticks |= {policy: found.best(same) for policy, same in found.by_policy.items()}
        ratios = {n: found.interval(found.ratios(MEAN, row)) for n, row in yardsticks.items()}
        several = found.ratios(MEAN, None).size > 1  # anything that an interval could be about
        texts = {n: x.text() if several else f"{x.mean:.3f}" for n, x in ratios.items()}
        against_window, against_overall, *others = texts.values()
        best = found.baselines[found.overall].name
        jobs, left_out = condition.jobs, condition.left_out
        first.append((
            condition.name, str(len(found.windows)), f"{jobs:,}", f"{left_out:,}", best,
            against_overall, against_window,
        ))  # fmt: skip
        second.append((condition.name, *others))
        forest.append(ratios[OVERALL_CONDITION])
        better += several and ratios[OVERALL_CONDITION].below_one
        documents[condition.name] = {
            "changes": dict(condition.changes),
            "jobs": jobs,
            "left_out": left_out,
            "best_overall": best,
            "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
            "windows": found.documents(),
        }
    policies = rows[0][1].by_policy
    tables = [
        Table(f"Other conditions, checkpoints: {rows[0][1].learned}", CONDITION_COLUMNS, first),
        Table("Against each policy", ("condition", *policies), second),
    ]
    best_names = [document["best_overall"] for document in documents.values()]
    picture = draw_rows(
        [*documents],
        {"checkpoints": forest},
        "mean job completion time / that of the baseline named on the right, the best overall "
        f"({CONFIDENCE:.0%} interval)",
        title,
        beside=[f"{x.text()}  {name}" for x, name in zip(forest, best_names, strict=True)],
    )
    values = {"conditions": documents, "better": better, "of": len(rows)}
    return Summary(tables, CONDITIONS_CAPTION, "transfer.png", picture, values, ("better", "of"))


LEARNED = "checkpoint"
WIDTH = 150  # characters of a table where there is no terminal


@dataclass(kw_only=True)
class GeneraliseConfig:
    """`conf/generalise.yaml`."""

    split: SplitConfig
    window: str = "test"  # which of the split's windows
    # what may be looked at of a job that has not finished: unknown durations, or known
    information: str = "unknown"
    conditions: dict[str, Any]
    only: Sequence[str] | None = None  # names of the conditions that are tried; null: all
    agents: dict[str, Any]
    references: dict[str, Any]
    tuned: Sequence[str]
    placements: dict[str, Any]
    rules: dict[str, Sequence[str]]
    placement: Any
    # folders of exported schedulers: seeds of one recipe
    checkpoints: Sequence[str] = ()
    scheduler: Any
    samples: Count = 10000  # of the bootstrap
    cache: str = "outputs/baselines"  # folder of outcomes, kept by the hash of all they depend on
    seed: int
    json: bool

    def __post_init__(self) -> None:
        check_class(self.information, "information")
        for name in self.references:
            if name in self.agents:
                raise InputError(f"config key 'references.{name}': is among the agents as well")
        for name in self.only or ():
            require_one_of(name, self.conditions, file="config key 'only'")
        for name in self.tuned:
            if name not in self.agents:
                raise InputError(f"config key 'tuned': '{name}' is not among the agents")
        if self.only == []:
            raise InputError("config key 'only': no condition")
        if self.conditions and self.references:
            raise InputError("config key 'references': no table shows them under conditions")
        if self.conditions and not self.checkpoints:
            raise InputError("config key 'checkpoints': no checkpoint")


def exported(config: GeneraliseConfig, folder: str, schedulers: int | None) -> Contender:
    """An exported scheduler, so many sharing the cluster; None: as many as ever.

    Raises:
        InputError: the folder holds none, or it may look at more than the class allows.
    """
    node = {**config.scheduler, "checkpoint": str(folder_of(folder))}
    if schedulers is not None:
        node["schedulers"] = schedulers
    scheduler = build(node, "scheduler")
    if not hasattr(scheduler, "knows"):
        raise no_such_thing("scheduler", config.scheduler, "scheduler of clusters")
    if scheduler.knows not in CLASSES[config.information]:
        message = f"it sees durations, the class is {config.information!r}"
        raise InputError(f"config key 'checkpoints': {message}", file=folder)
    return Contender(LEARNED, None, node, lambda: scheduler)


def folder_of(checkpoint: str) -> Path:
    """The folder of an exported scheduler, or of a shipped one by its name."""
    with refused_in("config key 'checkpoints'"):
        return scheduler_folder(checkpoint)


def generalise(config: GeneraliseConfig, run: Run) -> Result:
    """Replay everything under every condition, compare, write the tables and the picture."""
    split = Split(config.split)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    references = of_class(config.information, "references", config.references, {}, {})
    changes = config.conditions or {"as_trained": {}}
    conditions = [
        Condition.of(name, changes[name], split, config.window)
        for name in changes
        if name in (config.only or changes)
    ]
    learned = {
        number: [exported(config, folder, number) for folder in config.checkpoints]
        for number in {condition.changes.get("schedulers") for condition in conditions}
    }
    rows = []
    for condition in conditions:
        problems = [window.problem for window in condition.windows]
        players = [*baselines, *references, *learned[condition.changes.get("schedulers")]]
        asked = [(player, problems) for player in players]
        outcomes = replayed_on(asked, Path(config.cache), run)
        found = Comparison(
            condition.windows, baselines, references, outcomes, config.tuned, config.samples,
            config.seed,
        )  # fmt: skip
        rows.append((condition, found))
    title = f"{config.split.name}, {config.window} windows, {config.information} durations"
    if config.conditions:
        title = f"{title}, zero-shot"
        summary = conditions_summary(rows, title)
    else:
        summary = windows_summary(rows[0][1], title)
    left_out = split.left_out(config.window)
    for name, jobs in left_out.items():
        if any(jobs.values()):
            most, least = config.split.traces[name].max_gpus, config.split.least_jobs
            run.console.print(
                f"left out of {name}: {jobs['larger']} jobs of more than {most} GPUs, "
                f"{jobs['few']} of a window with fewer than {least} jobs",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
    inputs = {
        **config.split.inputs,
        **{f"{LEARNED} {x}": file_hash(folder_of(x) / SPEC_FILE) for x in config.checkpoints},
    }
    for reference in references:
        inputs |= files_of(reference.node)
    provenance = run.provenance.with_inputs(**inputs)
    figures = {summary.file: summary.picture}
    write_tables(
        run, title, summary.tables, provenance, caption=summary.caption, width=WIDTH,
        figures=figures,
    )  # fmt: skip
    return Result(
        {
            "split": config.split.name,
            "window": config.window,
            "information": config.information,
            "checkpoints": list(config.checkpoints),
            **summary.values,
            "left_out_jobs": left_out,
            "table": str(run.folder / TABLE_FILE),
            "picture": str(run.folder / summary.file),
        },
        provenance,
        ["split", *summary.shown, "table", "picture"],
    )
