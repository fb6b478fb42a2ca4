"""`suite=seeds`: the main job, or a training run, over several seeds; means and 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.errors import require_one_of
from experiments.study.grid import AppCell, Document
from experiments.study.statistics import half_width
from experiments.study.suite import SUITE_KEY, Check, Report, check_several_seeds
from experiments.study.tables import Table

COLUMNS = ("method", "step time", "95 % interval", "best", "worst", "infeasible", "search time")
SCHEMAS = {
    "main": "experiments.learning.one_problem.MainConfig",
    "train": "experiments.learning.one_problem.TrainConfig",
}


@dataclass(frozen=True)
class Seeds:
    """One app with several seeds, everything else equal.

    Args:
        title: for a reader.
        app: main or train.
        seeds: one run each.
        job: overrides of the app's config, nested or dotted.
    """

    title: str
    app: str
    seeds: Sequence[int]
    job: Mapping[str, Any]

    own = ("seed=", "json=", "hydra.")
    left_out = ()

    def __post_init__(self) -> None:
        require_one_of(self.app, SCHEMAS, file=SUITE_KEY, field="app")
        check_several_seeds(self.seeds)

    def checks(self) -> Iterator[Check]:
        yield Check(self.app, self.app, SCHEMAS[self.app], _overrides(self.job))

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        asked = _overrides(self.job)
        return [
            AppCell(f"seed {one}", self.app, (*asked, f"seed={one}"), folder / f"seed_{one}")
            for one in self.seeds
        ]

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        documents = list(found.values())
        methods = summarize(documents)
        problem = {key: documents[0][key] for key in ("graph", "topology", "lower_bound_s")}
        title = f"{problem['graph']} on {problem['topology']}, {len(documents)} seeds"
        table = Table(title, COLUMNS, [_cells(method) for method in methods])
        return Report([table], {}, {"seeds": list(self.seeds), **problem, "methods": methods})


def summarize(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """The results of the jobs, method by method; infeasible runs stand apart."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for document in documents:
        for row in document["methods"]:
            rows.setdefault(row["method"], []).append(row)
    summaries = []
    for method, found in rows.items():
        times = [row["step_time_s"] for row in found if row["feasible"]]
        summaries.append(
            {
                "method": method,
                "step_time_s": times,
                "mean_step_time_s": float(np.mean(times)) if times else float("nan"),
                "half_width_95_s": half_width(times),
                "infeasible": len(found) - len(times),
                "mean_search_s": float(np.mean([row["search_s"] for row in found])),
            }
        )
    return summaries


def _cells(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of `COLUMNS`."""
    method, times, infeasible = summary["method"], summary["step_time_s"], summary["infeasible"]
    if not times:
        return (method, "none fits", "", "", "", str(infeasible), "")
    mean, half = summary["mean_step_time_s"], summary["half_width_95_s"]
    mean, half, best, worst = (f"{x * 1e3:.1f} ms" for x in (mean, half, min(times), max(times)))
    search = f"{summary['mean_search_s']:.1f} s"
    return (method, mean, f"± {half}", best, worst, str(infeasible), search)


def _overrides(job: Mapping[str, Any], prefix: str = "") -> tuple[str, ...]:
    """The items of `job`, nested ones as dotted keys, as arguments of its app."""
    found: list[str] = []
    for key, value in job.items():
        if isinstance(value, Mapping):
            found += _overrides(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={'null' if value is None else value}")
    return tuple(found)
