"""Learned schedulers and every policy of their class on windows that nobody has trained on.

python -m experiments.generalise split=itp
python -m experiments.generalise split=philly checkpoints=[runs/0/checkpoint,runs/1/checkpoint]

Paired by window: the mean, median and 99th percentile of a learned scheduler's completion times
over those of the baseline that is best on that very window, and of the one that is best overall.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from experiments.app import Result, Run, run_app
from experiments.artifacts import write_figure
from experiments.generalise_picture import draw_ratios
from experiments.generalise_statistics import Interval, best_overall, bootstrap
from experiments.provenance import Provenance, file_hash
from experiments.split_baselines import (
    CLASSES,
    Baseline,
    BaselineRuns,
    Outcome,
    baselines_of,
    bound_s,
    replayed,
)
from experiments.split_windows import Split, SplitConfig, SplitWindow
from experiments.tables import TABLE_FILE, Section, write_tables
from experiments.targets import build, no_such_thing

FloatArray = NDArray[np.float64]

PICTURE_FILE = "ratios.png"
LEARNED = "checkpoint"
MEASURES = {"mean": "mean_jct_s", "p50": "p50_jct_s", "p99": "p99_jct_s"}
POLICY_COLUMNS = (
    "policy",
    "mean JCT / window's best",
    "95 % interval",
    "best on",
    "preemptions/job",
)
WINDOW_COLUMNS = ("window", "jobs", "bound", "best baseline", "its mean JCT", "checkpoint", "ratio")
RATIO_COLUMNS = ("against", "mean JCT", "p50", "p99")
PER_WINDOW = "the best baseline of each window"
CAPTION = (
    "Ratios are means over windows (and seeds); intervals are 95 % percentile bootstrap over "
    "windows and seeds. Below 1 the first of the two is faster."
)
WIDTH = 132  # characters of a table where there is no terminal


@dataclass
class GeneraliseConfig:
    """`conf/generalise.yaml`."""

    split: SplitConfig
    window: str
    information: str
    agents: dict[str, Any]
    placements: dict[str, Any]
    rules: dict[str, list[str]]
    placement: Any
    checkpoints: list[str]
    scheduler: Any
    samples: int
    cache: str
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"config key 'samples': {self.samples} is below 1")
        if self.information not in CLASSES:
            known = ", ".join(CLASSES)
            told = f"{self.information!r} is unknown (known: {known})"
            raise InputError(f"config key 'information': {told}")


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that was measured, W windows."""

    windows: Sequence[SplitWindow]
    bounds: FloatArray  # (W,) proved, of the mean JCT, seconds
    baselines: Sequence[Baseline]
    outcomes: Sequence[Sequence[Outcome]]  # of each baseline, on each window
    learned: Sequence[Sequence[Outcome]]  # of each checkpoint, on each window

    def values(self, measure: str) -> FloatArray:
        """(baselines, W) of one field of `Outcome`."""
        return np.array([[getattr(o, measure) for o in row] for row in self.outcomes], np.float64)

    @property
    def winners(self) -> NDArray[np.int64]:
        """(W,) the baseline with the least mean JCT on each window."""
        winners: NDArray[np.int64] = self.values("mean_jct_s").argmin(axis=0)
        return winners

    @property
    def overall(self) -> int:
        """The baseline that is best overall."""
        return best_overall(self.values("mean_jct_s"))

    def ratios(self, measure: str, baseline: int | None) -> FloatArray:
        """(W, checkpoints) to one baseline, None: to the best of each window by mean JCT."""
        number = len(self.windows)
        chosen = self.winners if baseline is None else np.full(number, baseline)
        yardstick = self.values(measure)[chosen, np.arange(number)]
        found = np.array([[getattr(o, measure) for o in row] for row in self.learned], np.float64)
        ratios: FloatArray = (found / yardstick).T
        return ratios


def generalise(config: GeneraliseConfig, run: Run) -> Result:
    """Replay everything, compare, write the table and the picture."""
    split = Split(config.split)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    schedulers = [scheduler_of(config, folder) for folder in config.checkpoints]
    windows = split.windows(config.window)
    if not windows:
        told = f"no window {config.window!r} has {config.split.least_jobs} jobs"
        raise InputError(f"config key 'split.least_jobs': {told}")
    runs = BaselineRuns(Path(config.cache))
    outcomes: list[list[Outcome]] = [[] for _ in baselines]
    learned: list[list[Outcome]] = [[] for _ in schedulers]
    for number, window in enumerate(windows, start=1):
        for row, (_, outcome) in zip(
            outcomes, runs.outcomes(window.problem, baselines), strict=True
        ):
            row.append(outcome)
        least = min(row[-1].mean_jct_s for row in outcomes)
        news = f"{window.name} ({number} of {len(windows)}): best baseline {least:,.0f} s"
        for row, scheduler in zip(learned, schedulers, strict=True):
            row.append(replayed(window.problem, scheduler))
            news += f", checkpoint {row[-1].mean_jct_s / least:.3f}"
        run.console.print(news, highlight=False, soft_wrap=True)
    bounds = np.array([bound_s(window.problem) for window in windows])
    found = Comparison(windows, bounds, baselines, outcomes, learned)
    provenance = run.provenance.with_inputs(**config.split.inputs, **_hashes(config.checkpoints))
    return report(found, config, run, provenance)


def scheduler_of(config: GeneraliseConfig, folder: str) -> Any:
    """The exported scheduler of a folder.

    Raises:
        InputError: it is none, or it may look at more than the class allows.
    """
    scheduler = build({**config.scheduler, "checkpoint": folder}, "scheduler")
    if not hasattr(scheduler, "knows"):
        raise no_such_thing("scheduler", config.scheduler, "scheduler of clusters")
    if scheduler.knows not in CLASSES[config.information]:
        told = f"it sees durations, the class is {config.information!r}"
        raise InputError(f"config key 'checkpoints': {told}", file=folder)
    return scheduler


def report(found: Comparison, config: GeneraliseConfig, run: Run, provenance: Provenance) -> Result:
    """The tables, the picture and the numbers behind them."""
    intervals = compared(found, config.samples, config.seed)
    tables = [
        (
            "Every baseline against the best of each window",
            POLICY_COLUMNS,
            policy_rows(found, config),
        ),
        ("Windows", WINDOW_COLUMNS, window_rows(found)),
    ]
    if found.learned:
        cells = [(name, *(i.text() for i in row.values())) for name, row in intervals.items()]
        tables.insert(0, (f"{len(found.learned)} checkpoints", RATIO_COLUMNS, cells))
    name = config.split.name
    title = f"{name}, {config.window} windows, {config.information} durations"
    sections = [Section(*table) for table in tables]
    write_tables(run, title, CAPTION, sections, provenance, WIDTH)
    picture = draw_ratios(
        [window.name for window in found.windows],
        found.bounds / found.values("mean_jct_s").min(axis=0),
        (found.values("mean_jct_s") / found.values("mean_jct_s").min(axis=0))[found.overall],
        found.baselines[found.overall].name,
        found.ratios("mean_jct_s", None) if found.learned else None,
        title,
    )
    write_figure(run.folder / PICTURE_FILE, picture, provenance)
    values: dict[str, object] = {
        "split": name,
        "window": config.window,
        "information": config.information,
        "windows": window_documents(found),
        "best_overall": found.baselines[found.overall].name,
        "baselines": len(found.baselines),
        "checkpoints": list(config.checkpoints),
        "mean_gap_to_bound": float(
            np.mean(1.0 - found.bounds / found.values("mean_jct_s").min(axis=0))
        ),
        "ratios": {n: {m: asdict(i) for m, i in row.items()} for n, row in intervals.items()},
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / PICTURE_FILE),
    }
    shown = ["split", "best_overall", "mean_gap_to_bound", "table"]
    if found.learned:
        against = intervals[PER_WINDOW]["mean"]
        values |= {"ratio": against.mean, "below_one": against.below_one}
        shown[2:2] = ["ratio", "below_one"]
    return Result(values, provenance, shown)


def compared(found: Comparison, samples: int, seed: int) -> dict[str, dict[str, Interval]]:
    """By yardstick and measure, how the checkpoints compare; empty without one."""
    if not found.learned:
        return {}
    yardsticks = {PER_WINDOW: None, found.baselines[found.overall].name: found.overall}
    return {
        name: {
            measure: bootstrap(found.ratios(field, baseline), samples, seed)
            for measure, field in MEASURES.items()
        }
        for name, baseline in yardsticks.items()
    }


def policy_rows(found: Comparison, config: GeneraliseConfig) -> list[tuple[str, ...]]:
    """Every policy with its best placement rule, the best policy first."""
    means = found.values("mean_jct_s")
    ratios = means / means.min(axis=0)
    wins = np.bincount(found.winners, minlength=len(ratios))
    rows: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for index in np.argsort(ratios.mean(axis=1), kind="stable"):
        baseline = found.baselines[index]
        if baseline.policy in seen:
            continue
        seen.add(baseline.policy)
        same = [i for i, other in enumerate(found.baselines) if other.policy == baseline.policy]
        interval = bootstrap(ratios[index][:, None], config.samples, config.seed)
        moved = sum(o.preemptions for o in found.outcomes[index])
        jobs = sum(o.jobs for o in found.outcomes[index])
        rows.append((
            baseline.name, f"{interval.mean:.3f}", f"[{interval.low:.3f}, {interval.high:.3f}]",
            f"{wins[same].sum()} of {len(found.windows)}", f"{moved / jobs:.1f}",
        ))  # fmt: skip
    return rows


def window_documents(found: Comparison) -> list[dict[str, object]]:
    """Every window as numbers."""
    documents = []
    for w, window in enumerate(found.windows):
        best = int(found.winners[w])
        documents.append({
            **window.document(),
            "lower_bound_s": float(found.bounds[w]),
            "best": found.baselines[best].name,
            "baselines": {
                b.name: asdict(found.outcomes[i][w]) for i, b in enumerate(found.baselines)
            },
            "checkpoints": [asdict(row[w]) for row in found.learned],
        })  # fmt: skip
    return documents


def window_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Every window, with its best baseline."""
    ratios = found.ratios("mean_jct_s", None) if found.learned else None
    rows: list[tuple[str, ...]] = []
    for w, window in enumerate(found.windows):
        best = int(found.winners[w])
        mean = np.mean([row[w].mean_jct_s for row in found.learned]) if found.learned else np.nan
        rows.append((
            window.name,
            f"{len(window.problem.trace):,}",
            f"{found.bounds[w]:,.0f}",
            found.baselines[best].name,
            f"{found.outcomes[best][w].mean_jct_s:,.0f}",
            "" if ratios is None else f"{mean:,.0f}",
            "" if ratios is None else f"{ratios[w].mean():.3f}",
        ))  # fmt: skip
    return rows


def _hashes(checkpoints: Sequence[str]) -> Mapping[str, str]:
    return {f"{LEARNED} {folder}": file_hash(Path(folder) / "spec.json") for folder in checkpoints}


if __name__ == "__main__":
    sys.exit(run_app("generalise", GeneraliseConfig, generalise))
