"""Learned schedulers and every policy of their class on windows that nobody has trained on.

python -m experiments.generalise split=itp
python -m experiments.generalise split=philly checkpoints=[runs/0/checkpoint,runs/1/checkpoint]

Paired by window: the mean, median and 99th percentile of a learned scheduler's completion times
over those of the baseline that is best on that very window, of the one that is best overall, and
of the best of those that are as published. References, policies of this project, stand beside them:

python -m experiments.generalise split=itp +agent@references.migrating_learned=migrating_learned \\
    references.migrating_learned.priority.path=<run folder>/durations
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.errors import InputError
from experiments.cluster.generalise_comparison import (
    PER_WINDOW,
    Comparison,
    checked_tuned,
    exported,
    hashes,
    measured,
)
from experiments.cluster.generalise_tables import (
    POLICY_COLUMNS,
    RATIO_COLUMNS,
    WINDOW_COLUMNS,
    compared,
    policy_rows,
    ratio_rows,
    window_documents,
    window_rows,
)
from experiments.cluster.split_baselines import (
    BaselineRuns,
    baselines_of,
    check_class,
    files_of,
    of_class,
)
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.pictures.comparison import draw_ratios
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import write_figure
from experiments.run.provenance import Provenance
from experiments.run.tables import TABLE_FILE, Table, write_tables

PICTURE_FILE = "ratios.png"
CAPTION = (
    "Ratios are means over windows (and seeds); intervals are 95 % percentile bootstrap over "
    "windows and seeds. Below 1 the first of the two is faster. As published: with the numbers of "
    "its paper; tuned: with ours; references are policies of this project and no baselines."
)
WIDTH = 132  # characters of a table where there is no terminal


@dataclass
class GeneraliseConfig:
    """`conf/generalise.yaml`."""

    split: SplitConfig
    window: str
    information: str
    agents: dict[str, Any]
    references: dict[str, Any]
    tuned: list[str]
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
        check_class(self.information, "information")
        for name in self.references:
            if name in self.agents:
                raise InputError(f"config key 'references.{name}': is among the agents as well")


def generalise(config: GeneraliseConfig, run: Run) -> Result:
    """Replay everything, compare, write the table and the picture."""
    split = Split(config.split)
    tuned = checked_tuned(config.tuned, config.agents)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    references = of_class(config.information, "references", config.references, {}, {})
    checkpoints = [exported(config.scheduler, f, config.information) for f in config.checkpoints]
    windows = split.windows(config.window)
    if not windows:
        told = f"no window {config.window!r} has {config.split.least_jobs} jobs"
        raise InputError(f"config key 'split.least_jobs': {told}")

    def tell(news: str) -> None:
        run.console.print(news, highlight=False, soft_wrap=True)

    runs = BaselineRuns(Path(config.cache))
    found = measured(windows, baselines, references, checkpoints, tuned, runs, tell)
    inputs = {**config.split.inputs, **hashes(config.checkpoints)}
    for reference in references:
        inputs |= files_of(reference.node)
    return report(found, config, run, run.provenance.with_inputs(**inputs))


def report(found: Comparison, config: GeneraliseConfig, run: Run, provenance: Provenance) -> Result:
    """The tables, the picture and the numbers behind them."""
    intervals = compared(found, config.samples, config.seed)
    tables = [
        (
            "Every policy against the best of each window",
            POLICY_COLUMNS,
            policy_rows(found, config.samples, config.seed),
        ),
        ("Windows", WINDOW_COLUMNS, window_rows(found)),
    ]
    if found.learned:
        cells = ratio_rows(found, intervals)
        tables.insert(0, (f"Checkpoints ({len(found.learned)})", RATIO_COLUMNS, cells))
    name = config.split.name
    title = f"{name}, {config.window} windows, {config.information} durations"
    sections = [Table(*table) for table in tables]
    write_tables(run, title, sections, provenance, caption=CAPTION, width=WIDTH)
    picture = draw_ratios(
        [window.name for window in found.windows],
        found.bounds / found.values("mean_jct_s").min(axis=0),
        found.relative()[found.overall],
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
        "best_published": None
        if found.published is None
        else found.baselines[found.published].name,
        "baselines": len(found.baselines),
        "checkpoints": list(config.checkpoints),
        "mean_gap_to_bound": float(
            np.mean(1.0 - found.bounds / found.values("mean_jct_s").min(axis=0))
        ),
        "ratios": {n: {m: asdict(i) for m, i in row.items()} for n, row in intervals.items()},
        "table": str(run.folder / TABLE_FILE),
        "picture": str(run.folder / PICTURE_FILE),
    }
    shown = ["split", "best_overall", "best_published", "mean_gap_to_bound", "table"]
    if found.learned:
        against = intervals[PER_WINDOW]["mean"]
        values |= {"ratio": against.mean, "below_one": against.below_one}
        shown[2:2] = ["ratio", "below_one"]
    return Result(values, provenance, shown)


def main(arguments: list[str] | None = None) -> int:
    """The app."""
    return run_app("generalise", GeneraliseConfig, generalise, arguments)


if __name__ == "__main__":
    sys.exit(main())
