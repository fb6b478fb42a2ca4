"""Exams of schedulers in training: each seed, and the interquartile mean of all."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from envs.errors import InputError

METRICS_FILE = "metrics.csv"
RESAMPLED, QUANTILES = 2_000, (0.025, 0.975)
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Exams:
    """The exams of one run."""

    name: str
    decisions: FloatArray  # (K,) of all schedulers, when they were examined
    scores: FloatArray  # (K,) mean JCT / the reference's
    clones: float  # decisions of cloning; 0 without


def read_exams(run_folder: Path) -> Exams:
    """The exams of a run, from its metrics.

    Raises:
        InputError: the folder holds no training of schedulers, or one without any exam.
    """
    path = run_folder / METRICS_FILE
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        read = [
            (float(row["charts/decisions"]), float(row["exam/score"]), row["charts/cloning"])
            for row in rows
        ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"holds no exams of schedulers ({error})", file=path) from error
    examined = [(decisions, score) for decisions, score, _ in read if not np.isnan(score)]
    clones = max([decisions for decisions, _, cloning in read if float(cloning)], default=0.0)
    decisions, scores = np.array(examined, np.float64).reshape(-1, 2).T
    return Exams(run_folder.name, decisions, scores, clones)


def interquartile_mean(scores: FloatArray) -> FloatArray:
    """(K,) of (S, K): the mean of the middle half of S seeds.

    Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice" (NeurIPS
    2021), section 4.3.
    """
    mean: FloatArray = stats.trim_mean(scores, 0.25, axis=0)
    return mean


def interval(scores: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Ends (K,) of the 95 % bootstrap interval of `interquartile_mean` over (S, K) seeds."""
    chosen = rng.integers(len(scores), size=(RESAMPLED, len(scores)))
    means = np.stack([interquartile_mean(scores[rows]) for rows in chosen])
    low, high = np.quantile(means, QUANTILES, axis=0)
    return low, high


def common(runs: Sequence[Exams]) -> tuple[FloatArray, FloatArray]:
    """(K,) decisions at which all runs were examined, and (S, K) scores there."""
    shared = runs[0].decisions
    for run in runs[1:]:
        shared = np.intersect1d(shared, run.decisions)
    scores = [run.scores[np.searchsorted(run.decisions, shared)] for run in runs]
    return shared, np.stack(scores)


def draw_exams(runs: Sequence[Exams], title: str) -> Figure:
    """Scores over decisions; 1 is the reference."""
    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        colour, width = ("#9ecae1", 1.0) if len(runs) > 1 else ("#08519c", 2.0)
        axes.plot(run.decisions, run.scores, color=colour, linewidth=width, marker=".")
    if len(runs) > 1:
        decisions, scores = common(runs)
        mean = interquartile_mean(scores)
        low, high = interval(scores, np.random.default_rng(0))
        axes.fill_between(decisions, low, high, color="#08519c", alpha=0.2, linewidth=0)
        label = f"interquartile mean of {len(runs)} seeds, 95 % interval"
        axes.plot(decisions, mean, color="#08519c", linewidth=2.2, label=label)
    axes.axhline(1.0, color="black", linewidth=1.0, linestyle="--", label="reference")
    clones = max(run.clones for run in runs)
    if clones:
        axes.axvline(clones, color="#d95f02", linewidth=1.0, linestyle=":", label="end of cloning")
    axes.set_xlabel("decisions")
    axes.set_ylabel("mean JCT / reference's")
    axes.grid(color="#e5e5e5", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=8)
    axes.set_title(title, fontsize=11, loc="left")
    return figure
