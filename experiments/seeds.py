"""The main job, or a training run, over several seeds: means and 95 % confidence intervals.

make seeds
python -m experiments.seeds seeds=[0,1,2] +job.budget_s=30
make team
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from envs.errors import InputError
from experiments.main import MainConfig
from experiments.run.app import RESULT_FILE, Result, Run, run_app
from experiments.run.artifacts import to_json, write_text
from experiments.run.overrides import check_command_line
from experiments.run.provenance import file_hash, stamp
from experiments.run.tables import console_table, markdown_table
from experiments.run.targets import SEEDS
from experiments.train import TrainConfig

COLUMNS = ("method", "step time", "95 % interval", "best", "worst", "infeasible", "search time")
CONFIDENCE = 0.95
APPS: Mapping[str, type[Any]] = {"main": MainConfig, "train": TrainConfig}


@dataclass
class SeedsConfig:
    """`conf/seeds.yaml`; `job` holds overrides of the config of `app`."""

    app: str
    seeds: list[int]
    job: dict[str, Any]
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if len(self.seeds) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"config key 'seeds': {self.seeds} are not two or more different ones")
        if self.app not in APPS:
            raise InputError(f"config key 'app': {self.app!r} is none of {', '.join(APPS)}")
        check_command_line(_overrides(self.job), self.app, APPS[self.app])
        for seed in self.seeds:
            if not 0 <= seed < SEEDS:
                raise InputError(f"config key 'seeds': {seed} is not in 0..{SEEDS - 1}")


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
        """Half of the 95 % confidence interval of the mean (Student's t), seconds."""
        if len(self.step_times) < 2:
            return float("nan")
        quantile = stats.t.ppf(0.5 + CONFIDENCE / 2, len(self.step_times) - 1)
        return float(quantile * stats.sem(self.step_times))

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
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
        """The row as numbers."""
        return {
            "method": self.method,
            "step_time_s": list(self.step_times),
            "mean_step_time_s": self.mean,
            "half_width_95_s": self.half_width,
            "infeasible": self.infeasible,
            "mean_search_s": self.search_s,
        }


def repeat(config: SeedsConfig, run: Run) -> Result:
    """Run the app once per seed, each in its own process and folder, and sum up."""
    provenance = run.provenance
    documents = []
    for seed in config.seeds:
        run.console.print(f"seed {seed}")
        folder = run.folder / f"seed_{seed}"
        _job(config.app, folder, seed, config.job)
        result = folder / RESULT_FILE
        provenance = provenance.with_inputs(**{f"seed_{seed}": file_hash(result)})
        documents.append(json.loads(result.read_text()))
    summaries = summarize(documents)
    cells = [summary.cells() for summary in summaries]
    title = f"{documents[0]['graph']} on {documents[0]['topology']}, {len(documents)} seeds"
    table = console_table(title, COLUMNS)
    for row in cells:
        table.add_row(*row)
    run.console.print(table)
    header = f"<!-- {to_json(stamp({}, provenance, kind='table'))}-->\n\n"
    write_text(run.folder / "table.md", f"{header}# {title}\n\n{markdown_table(COLUMNS, cells)}")
    values = {
        "seeds": list(config.seeds),
        "graph": documents[0]["graph"],
        "topology": documents[0]["topology"],
        "lower_bound_s": documents[0]["lower_bound_s"],
        "methods": [summary.document() for summary in summaries],
    }
    return Result(values, provenance, shown=())


def summarize(documents: Sequence[Mapping[str, Any]]) -> list[Summary]:
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


def _job(app: str, folder: Path, seed: int, overrides: Mapping[str, Any]) -> None:
    """The app in a process of its own; its table and progress go where ours go."""
    command = [sys.executable, "-m", f"experiments.{app}", f"seed={seed}"]
    command += [f"hydra.run.dir={folder}", *_overrides(overrides)]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise InputError(f"{app} with seed {seed} ended with code {done.returncode}")


def _overrides(job: Mapping[str, Any]) -> list[str]:
    """The items of `job` as arguments of its app."""
    flat = _flat(job).items()
    return [f"{key}={'null' if value is None else value}" for key, value in flat]


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


if __name__ == "__main__":
    sys.exit(run_app("seeds", SeedsConfig, repeat))
