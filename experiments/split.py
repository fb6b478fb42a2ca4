"""Fix a split before training: its windows, the best baseline on each, and a proved lower bound.

python -m experiments.split split=itp                  # check: the facts are those of the files
python -m experiments.split split=itp fix=true output=conf/split/facts/itp.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from experiments.cluster.baselines import baselines_of, check_class, replayed_on
from experiments.cluster.split_facts import check_facts, facts_of
from experiments.cluster.split_windows import TEST, Split, SplitConfig
from experiments.run.app import main_of
from experiments.run.artifacts import require_no_input, write_text
from experiments.run.one_run import Result, Run

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
    values = {"split": config.split.name, "windows": len(best), "facts": str(path), **gaps}
    return Result(values, provenance)


main = main_of("split")
