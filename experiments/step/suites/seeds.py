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
class Summary:
    """One method over all seeds; infeasible runs stand apart."""

    method: str
    step_times: tuple[float, ...]  # seconds, of the feasible runs
    infeasible: int
    search_s: float  # mean

    @property
    def mean(self) -> float:
        """Seconds; NaN without a feasible run."""
        return float(np.mean(self.step_times)) if self.step_times else float("nan")

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval of the mean, seconds."""
        return half_width(self.step_times)

    def cells(self) -> tuple[str, ...]:
        if not self.step_times:
            return (self.method, "none fits", "", "", "", str(self.infeasible), "")
        return (
            self.method,
            f"{self.mean * 1e3:.1f} ms",
            f"± {self.half_width * 1e3:.1f} ms",
            f"{min(self.step_times) * 1e3:.1f} ms",
            f"{max(self.step_times) * 1e3:.1f} ms",
            str(self.infeasible),
            f"{self.search_s:.1f} s",
        )

    def document(self) -> dict[str, object]:
        return {
            "method": self.method,
            "step_time_s": list(self.step_times),
            "mean_step_time_s": self.mean,
            "half_width_95_s": self.half_width,
            "infeasible": self.infeasible,
            "mean_search_s": self.search_s,
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
        summaries = summarize(documents)
        problem = {key: documents[0][key] for key in ("graph", "topology", "lower_bound_s")}
        title = f"{problem['graph']} on {problem['topology']}, {len(documents)} seeds"
        table = Table(title, COLUMNS, [summary.cells() for summary in summaries])
        methods = [summary.document() for summary in summaries]
        return Report([table], {}, {"seeds": list(self.seeds), **problem, "methods": methods})


def summarize(documents: Sequence[Document]) -> list[Summary]:
    """The results of the jobs, method by method."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for document in documents:
        for row in document["methods"]:
            rows.setdefault(row["method"], []).append(row)
    return [
        Summary(
            method=method,
            step_times=tuple(row["step_time_s"] for row in found if row["feasible"]),
            infeasible=sum(not row["feasible"] for row in found),
            search_s=float(np.mean([row["search_s"] for row in found])),
        )
        for method, found in rows.items()
    ]


def _overrides(job: Mapping[str, Any], prefix: str = "") -> tuple[str, ...]:
    """The items of `job`, nested ones as dotted keys, as arguments of its app."""
    found: list[str] = []
    for key, value in job.items():
        if isinstance(value, Mapping):
            found += _overrides(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={'null' if value is None else value}")
    return tuple(found)
