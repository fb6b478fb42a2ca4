"""Fix a split before training: its windows, the best baseline on each, and a proved lower bound.

python -m experiments.split split=itp                  # check: the facts are those of the files
python -m experiments.split split=itp fix=true output=conf/split/facts/itp.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envs.errors import InputError
from experiments.cluster.baselines import Outcome, baselines_of, bound_s
from experiments.cluster.comparison import Comparison, Contenders
from experiments.cluster.split_windows import TEST, Split, SplitConfig, SplitWindow
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import write_text
from experiments.run.display import ProgressDisplay
from experiments.run.grid import Grid

FACTS_FILE = "facts.yaml"
HEADER = (
    "# Written by experiments.split split={name} fix=true before any training; without it "
    "compared.\n"
    "# mean_jct_s: of the best of {count} policies of the class {information} with their placement "
    "rules; lower_bound_s: of the\n"
    "# mean JCT, proved (agents/cluster/lower_bound.py); gap: 1 - bound / best. Times in seconds.\n"
)
FOUND = ("best", "mean_jct_s", "gap")  # what only baselines tell


@dataclass
class SplitAppConfig:
    """`conf/split_app.yaml`."""

    split: SplitConfig
    fix: bool
    information: str
    agents: dict[str, Any]
    placements: dict[str, Any]
    rules: dict[str, list[str]]
    placement: Any
    cache: str
    output: str | None
    seed: int
    json: bool


def split(config: SplitAppConfig, run: Run) -> Result:
    """Write the facts of a split, or compare those that were written."""
    chosen = Split(config.split)
    provenance = run.provenance.with_inputs(**config.split.inputs)
    if not config.fix:
        compare(config.split.facts, facts_of(chosen, {}))
        count = len(chosen.windows(TEST))
        return Result({"split": config.split.name, "windows": count, "agree": True}, provenance)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    contenders = Contenders(baselines, [], [], frozenset())
    windows = chosen.windows(TEST)
    replays = contenders.replays(windows, Path(config.cache))
    with ProgressDisplay(run.console) as display:
        cells = [cell for row in replays for cell in row]
        outcomes = Grid(1, run.provenance).run(cells, display)
    best = best_of(contenders.compared(windows, replays, outcomes))
    facts = facts_of(chosen, best)
    policies = len({baseline.policy for baseline in baselines})
    text = HEADER.format(
        name=config.split.name, count=policies, information=config.information
    ) + yaml.safe_dump(facts, sort_keys=False, width=200)
    path = Path(config.output) if config.output is not None else run.folder / FACTS_FILE
    write_text(path, text)
    gaps = {f"gap {name}": found["gap"] for name, found in facts["gaps"].items()}
    values = {"split": config.split.name, "windows": len(best), "facts": str(path), **gaps}
    return Result(values, provenance)


def best_of(found: Comparison) -> dict[str, tuple[str, Outcome]]:
    """By window, the baseline with the least mean JCT."""
    rows = zip(found.windows, found.winners.tolist(), strict=True)
    return {
        window.name: (found.baselines[row].name, found.outcomes[row][number])
        for number, (window, row) in enumerate(rows)
    }


def facts_of(chosen: Split, best: Mapping[str, tuple[str, Outcome]]) -> dict[str, Any]:
    """The windows of time of all traces, and what is known of the parts of the test windows."""
    config = chosen.config
    windows: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    test: list[dict[str, Any]] = []
    gaps: dict[str, Any] = {}
    for name, trace in chosen.traces.items():
        windows[name] = {
            key: {"start_s": w.start_s, "end_s": w.end_s, "jobs": len(w.trace)}
            for key, w in trace.windows.items()
        }
        sizes = {"window_jobs": config.window_jobs, "least_jobs": config.least_jobs}
        parts = trace.parts(TEST, **sizes)
        if not parts:
            jobs = len(trace.windows[TEST].trace)
            left_out[name] = f"its test window has {jobs} jobs, fewer than {config.least_jobs}"
            continue
        rows = [_row(part, best) for part in parts]
        test += rows
        if best:
            reached = sum(row["mean_jct_s"] * row["jobs"] for row in rows)
            proved = sum(row["lower_bound_s"] * row["jobs"] for row in rows)
            gaps[name] = {"gap": round(1.0 - proved / reached, 4)}
    facts = {"windows": windows, "left_out": left_out, "test": test}
    return {**facts, "gaps": gaps} if best else facts


def _row(part: SplitWindow, best: Mapping[str, tuple[str, Outcome]]) -> dict[str, Any]:
    bound = bound_s(part.problem)
    row = {**part.document(), "lower_bound_s": round(bound, 1)}
    if best:
        name, found = best[part.name]
        row |= {"best": name, "mean_jct_s": round(found.mean_jct_s, 1)}
        row["gap"] = round(1.0 - bound / found.mean_jct_s, 4)
    return row


def compare(written: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise where facts that were written differ from those of the files.

    Raises:
        InputError: naming the key, both values.
    """
    for key in ("windows", "left_out", "test"):
        if key not in written:
            raise InputError(f"config key 'split.facts.{key}' is missing: run with fix=true")
    if len(written["test"]) != len(found["test"]):
        message = f"{len(written['test'])} windows, the files have {len(found['test'])}"
        raise InputError(f"config key 'split.facts.test': {message}")
    pairs = [(f"windows.{n}", written["windows"].get(n), w) for n, w in found["windows"].items()]
    pairs.append(("left_out", written["left_out"], found["left_out"]))
    for number, (row, now) in enumerate(zip(written["test"], found["test"], strict=True)):
        pairs.append((f"test[{number}]", {k: v for k, v in row.items() if k not in FOUND}, now))
    for where, before, now in pairs:
        if before != now:
            raise InputError(f"config key 'split.facts.{where}': {before}, the files give {now}")


if __name__ == "__main__":
    sys.exit(run_app("split_app", SplitAppConfig, split))
