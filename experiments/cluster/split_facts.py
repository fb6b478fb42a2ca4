"""The facts of a split: its windows, and the best baseline and a proved bound on each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.errors import InputError
from experiments.cluster.baselines import Outcome, bound_s
from experiments.cluster.split_windows import TEST, Split, SplitWindow

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
        rows = [_row(part, best) for part in parts]
        test += rows
        if best:
            reached = sum(row["mean_jct_s"] * row["jobs"] for row in rows)
            proved = sum(row["lower_bound_s"] * row["jobs"] for row in rows)
            gaps[name] = {"gap": round(1.0 - proved / reached, 4)}
    facts = {"windows": windows, "left_out": left_out, "test": test}
    return {**facts, "gaps": gaps} if best else facts


def _row(part: SplitWindow, best: Best) -> dict[str, Any]:
    bound = bound_s(part.problem)
    row = {**part.about, "lower_bound_s": round(bound, 1)}
    if best:
        name, found = best[part.name]
        row |= {"best": name, "mean_jct_s": round(found.mean_jct_s, 1)}
        row["gap"] = round(1.0 - bound / found.mean_jct_s, 4)
    return row


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
