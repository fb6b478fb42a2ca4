"""Windows of a trace, split by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from envs.errors import InputError
from experiments.cluster.baselines import Outcome, baselines_of, bound_s, check_class, replayed_on
from experiments.cluster.split_windows import TEST, Split, SplitConfig
from experiments.run.artifacts import require_no_input, write_text
from experiments.run.one_run import Result, Run

Best = Mapping[str, tuple[str, Outcome]]  # by window, the best baseline and what it came to
FOUND = ("best", "mean_jct_s", "gap")  # what only baselines tell


def facts_of(chosen: Split, best: Best) -> dict[str, Any]:
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
        parts = trace.parts(TEST)
        if not parts:
            jobs = len(trace.windows[TEST].trace)
            left_out[name] = f"its test window has {jobs} jobs, fewer than {config.least_jobs}"
            continue
        reached = proved = 0.0
        for part in parts:
            bound, jobs = bound_s(part.problem), part.about["jobs"]
            row = {**part.about, "lower_bound_s": round(bound, 1)}
            if best:
                row["best"], found = best[part.name]
                row["mean_jct_s"] = round(found.mean_jct_s, 1)
                row["gap"] = round(1.0 - bound / found.mean_jct_s, 4)
                reached += row["mean_jct_s"] * jobs
                proved += row["lower_bound_s"] * jobs
            test.append(row)
        if best:
            gaps[name] = {"gap": round(1.0 - proved / reached, 4)}
    facts = {"windows": windows, "left_out": left_out, "test": test}
    return {**facts, "gaps": gaps} if best else facts


def check_facts(written: Mapping[str, Any], found: Mapping[str, Any]) -> None:
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


FACTS_FILE = "facts.yaml"
HEADER = (
    "# Written by experiments.split split={name} fix=true before any training; without it "
    "compared.\n"
    "# mean_jct_s: of the best of {count} policies of the class {information} with their placement "
    "rules; lower_bound_s: of the\n"
    "# mean JCT, proved (agents/cluster/lower_bound.py); gap: 1 - bound / best. Times in seconds.\n"
)


@dataclass(kw_only=True)
class SplitAppConfig:
    """`conf/split_app.yaml`."""

    split: SplitConfig
    # true: replay the baselines and write the facts; false: compare those that were written
    fix: bool = False
    information: str = "unknown"  # of the baselines: unknown durations, or known
    agents: dict[str, Any]
    placements: dict[str, Any]
    # placement rules of some agents; others meet every rule
    rules: dict[str, Sequence[str]] = field(
        default_factory=lambda: {
            "gittins": ("best_fit", "yarn", "least_interference"),
            "qssf": ("best_fit", "yarn", "least_interference"),
            "las_gavel": ("best_fit", "least_interference"),
            "max_min": ("best_fit", "least_interference"),
            "max_min_20min": ("best_fit", "least_interference"),
            "optimus": ("best_fit", "least_interference"),
            "finish_time_fairness": ("best_fit", "least_interference"),
        }
    )
    placement: Any
    # folder of outcomes of baselines, kept by the hash of all they depend on
    cache: str = "outputs/baselines"
    # file that the facts are written to; null: facts.yaml in the run folder
    output: str | None = None
    seed: int
    json: bool


def split(config: SplitAppConfig, run: Run) -> Result:
    """Write the facts of a split, or compare those that were written."""
    check_class(config.information, "information")
    chosen = Split(config.split)
    path = run.folder / FACTS_FILE if config.output is None else Path(config.output)
    require_no_input([path], [chosen.data / name for name in config.split.inputs], "output")
    provenance = run.provenance.with_inputs(**config.split.inputs)
    if not config.fix:
        check_facts(config.split.facts, facts_of(chosen, {}))
        count = len(chosen.windows(TEST))
        return Result({"split": config.split.name, "windows": count, "agree": True}, provenance)
    baselines = baselines_of(config.information, config.agents, config.placements, config.rules)
    windows = chosen.windows(TEST)
    asked = [(baseline, [window.problem for window in windows]) for baseline in baselines]
    rows = replayed_on(asked, Path(config.cache), run)
    best = {
        window.name: min(
            ((baseline.name, row[w]) for baseline, row in zip(baselines, rows, strict=True)),
            key=lambda pair: pair[1].mean_jct_s,
        )
        for w, window in enumerate(windows)
    }
    facts = facts_of(chosen, best)
    policies = len({baseline.policy for baseline in baselines})
    header = HEADER.format(name=config.split.name, count=policies, information=config.information)
    text = header + yaml.safe_dump(facts, sort_keys=False, width=200, default_flow_style=None)
    write_text(path, text)
    gaps = {f"gap {name}": found["gap"] for name, found in facts["gaps"].items()}
    return Result(
        {"split": config.split.name, "windows": len(best), "facts": str(path), **gaps}, provenance
    )
