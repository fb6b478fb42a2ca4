"""What was learned: curves of training and exams, posteriors, interference, a priority."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.files import check_file
from experiments.pictures.style import (
    BLUE,
    GIVEN_UP,
    LEVEL,
    LIMIT,
    MOST_NAMED,
    NOTE,
    ORANGE,
    OTHERS,
    PALE,
    PALETTE,
    SMALL,
    TEXT,
    apart,
    colour,
    frame,
    line,
    new_figure,
    note,
    titled,
)
from experiments.run.artifacts import METRICS_FILE
from experiments.study.statistics import Interval

BOUND = "proved lower bound"
ABOVE_START = 1.1  # baselines slower than this times the curve's start are named, not drawn
CLOSE = 0.035  # labels nearer than this share of the axis are moved apart


@dataclass(frozen=True)
class Curve:
    """One training run.

    Args:
        seconds: (I,) wall time at the end of each iteration.
        mean: (I,) mean step time of the iteration's episodes, seconds.
        best: (I,) best step time found so far, seconds.
        own: (wall time, step time of the policy's most probable plan) of every exam, seconds.
        begun: whose the first of them is.
    """

    seconds: Sequence[float]
    mean: Sequence[float]
    best: Sequence[float]
    own: Sequence[tuple[float, float]] = ()
    begun: str = ""


def draw_learning_curve(
    curve: Curve, baselines: Mapping[str, float], lower_bound: float, title: str
) -> Figure:
    """The curve over wall time; every baseline and the proved bound as a horizontal line."""
    figure = new_figure(10, 5.6)
    axes = figure.add_subplot()
    seconds = np.asarray(curve.seconds, dtype=np.float64)
    mean = np.asarray(curve.mean, dtype=np.float64) * 1e3
    best = np.asarray(curve.best, dtype=np.float64) * 1e3
    own = np.array([one for one in curve.own if np.isfinite(one[1])]).reshape(-1, 2)
    axes.plot(seconds, mean, color=PALE, linewidth=1.5, label="PPO, mean plan of an iteration")
    better = np.flatnonzero(np.diff(best, prepend=np.inf) < 0.0)
    axes.plot(
        seconds, best, drawstyle="steps-post", color=BLUE, linewidth=2.2, marker="o", markersize=4,
        markevery=better.tolist(), label="PPO, best plan so far",
    )  # fmt: skip
    if len(own):
        label = f"PPO, the policy's most probable plan; at 0 {curve.begun}; dot: exported"
        axes.plot(
            own[:, 0], own[:, 1] * 1e3, "-o", markevery=[int(own[:, 1].argmin())],
            color=ORANGE, linewidth=1.6, label=label,
        )  # fmt: skip
    lines = {name: value * 1e3 for name, value in baselines.items() if np.isfinite(value)}
    low, high = _limits(lower_bound * 1e3, best, mean, own[:, 1] * 1e3, list(lines.values()))
    near = sorted((name for name in lines if lines[name] <= high), key=lines.__getitem__)
    shown = {name: lines[name] for name in near[:MOST_NAMED]}
    for name in near[MOST_NAMED:]:
        axes.axhline(lines[name], linewidth=0.8, **OTHERS)
    colours = {name: _other(number) for number, name in enumerate(shown)} | {BOUND: "black"}
    for name, value in shown.items():
        axes.axhline(value, color=colours[name], linewidth=1.1, linestyle="--")
    axes.axhline(lower_bound * 1e3, **LIMIT)
    labels = {**shown, BOUND: lower_bound * 1e3}
    for name, height in apart(labels, CLOSE * (high - low)).items():
        axes.annotate(
            f"{name}  {labels[name]:.1f}",
            (1.01, height),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=SMALL,
            color=colours[name],
            annotation_clip=False,
        )
    beyond = [f"{name} {value:.1f} ms" for name, value in lines.items() if value > high]
    nothing = [name for name, value in baselines.items() if not np.isfinite(value)]
    notes = [f"above the axis: {', '.join(beyond)}"] if beyond else []
    notes += [f"no plan: {', '.join(nothing)}"] if nothing else []
    grey = [f"{name} {lines[name]:.1f} ms" for name in near[MOST_NAMED:]]
    notes += [f"grey: {', '.join(grey)}"] if grey else []
    if notes:
        note(axes, "; ".join(notes))
    axes.set_ylim(low, high)
    axes.set_xlim(0, max(float(seconds.max(initial=0.0)), 1.0))
    axes.set_xlabel("wall time of training (s)")
    axes.set_ylabel("step time (ms)")
    frame(axes)
    _legend_below(axes, axes.lines[: 2 + bool(len(own))])
    return titled(figure, title)


def _legend_below(axes: Axes, handles: Sequence[Artist]) -> None:
    """Where it hides no curve."""
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, frameon=False,
        fontsize=SMALL,
    )  # fmt: skip


def _limits(
    bound: float, best: FloatArray, mean: FloatArray, own: FloatArray, baselines: list[float]
) -> tuple[float, float]:
    """From just under the bound to just over the curve's start; far worse baselines lie beyond."""
    curve = np.concatenate([best, mean, own])
    curve = curve[np.isfinite(curve)]
    floor = min([bound, *baselines, *curve])
    start = float(np.quantile(curve, 0.98)) if len(curve) else min(baselines, default=floor)
    start = max([start, *own])
    top = max([start, *(value for value in baselines if value <= ABOVE_START * start)])
    margin = 0.05 * max(top - floor, 0.01 * top)
    return floor - margin, top + margin


def _other(number: int) -> str:
    """Of a planner: the colours but the learner's own."""
    others = [one for one in PALETTE if one not in (BLUE, ORANGE)]
    return others[number % len(others)]


RESAMPLED, QUANTILES = 2_000, (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class Exams:
    """The exams of one run."""

    name: str
    steps: FloatArray  # (K,) of environments, when it was examined
    scores: FloatArray  # (K,) mean JCT / the reference's
    clones: float  # steps of cloning; 0 without


def read_exams(run_folder: Path, scores: Sequence[tuple[int, float]] = ()) -> Exams:
    """The exams of a run, from its metrics.

    `scores`, by iteration, adds those that are no iteration's: the first and the last.

    Raises:
        InputError: the folder holds no training of schedulers, or one without any exam.
    """
    path = run_folder / METRICS_FILE
    try:
        check_file(path)
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        read = [
            (float(row["charts/global_step"]), float(row["exam/score"]), row["charts/cloning"])
            for row in rows
        ]
    except (InputError, OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"holds no exams of schedulers ({error})", file=path) from error
    at = {0: 0.0, **{number + 1: steps for number, (steps, *_) in enumerate(read)}}
    known = {steps: score for steps, score, _ in read if not np.isnan(score)}
    known |= {at[iteration]: score for iteration, score in scores}
    examined = sorted(known.items())
    clones = max([steps for steps, _, cloning in read if float(cloning)], default=0.0)
    at_steps, found = np.array(examined, np.float64).reshape(-1, 2).T
    return Exams(run_folder.name, at_steps, found, clones)


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
    """(K,) steps at which all runs were examined, and (S, K) scores there."""
    shared = runs[0].steps
    for run in runs[1:]:
        shared = np.intersect1d(shared, run.steps)
    scores = [run.scores[np.searchsorted(run.steps, shared)] for run in runs]
    return shared, np.stack(scores)


def draw_exams(
    runs: Sequence[Exams], title: str, measure: str = "mean JCT", reference: str = "reference"
) -> Figure:
    """Scores, `measure` over the reference's, over steps; 1 is the reference."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    given_up = 0  # exams
    for run in runs:
        own, width = (PALE, 1.0) if len(runs) > 1 else (BLUE, 2.0)
        axes.plot(run.steps, run.scores, color=own, linewidth=width, marker=".")
        failed = run.steps[~np.isfinite(run.scores)]
        if len(failed):
            told = "" if given_up else "given up: jobs that never finished"
            top, across = np.full(len(failed), 0.985), axes.get_xaxis_transform()
            axes.plot(failed, top, color=BLUE, label=told, transform=across, **GIVEN_UP)
            given_up += len(failed)
    if len(runs) > 1:
        steps, scores = common(runs)
        mean = interquartile_mean(scores)
        low, high = interval(scores, np.random.default_rng(0))
        axes.fill_between(steps, low, high, color=BLUE, alpha=0.2, linewidth=0)
        label = f"interquartile mean of {len(runs)} seeds, 95 % interval"
        axes.plot(steps, mean, color=BLUE, linewidth=2.2, marker="o", markersize=4, label=label)
    axes.axhline(1.0, label=reference, **LEVEL)
    clones = max(run.clones for run in runs)
    if clones:
        axes.axvline(clones, color=ORANGE, linewidth=1.0, linestyle=":", label="end of cloning")
    axes.set_xlabel("steps")
    axes.set_ylabel(f"{measure} / reference's")
    frame(axes)
    _legend_below(axes, axes.get_legend_handles_labels()[0])
    return titled(figure, title)


def draw_reliability(
    ranks: Mapping[str, FloatArray], by_trace: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Shares of jobs below predicted quantiles, and the cross entropy on every trace.

    Args:
        ranks: by method, the chance it gave to as much work as was left, or less.
        by_trace: mean loss of each of them, by the name of the trace.
        title: of the picture.
    """
    figure = new_figure(11.0, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.3))
    asked = np.linspace(0.0, 1.0, 101)
    left.plot([0, 1], [0, 1], color=NOTE, linewidth=0.8, zorder=0)
    height = 0.8 / len(ranks)
    for index, (method, rank) in enumerate(ranks.items()):
        shares = np.searchsorted(np.sort(rank), asked, side="right") / len(rank)
        left.plot(asked, shares, color=colour(index), label=method)
        places = np.arange(len(by_trace)) + (index - (len(ranks) - 1) / 2) * height
        losses = [row[index] for row in by_trace.values()]
        right.barh(places, losses, height, color=colour(index), label=method)
    left.set(
        xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="quantile that was predicted",
        ylabel="share of the jobs that needed no more",
    )  # fmt: skip
    left.legend(frameon=False, fontsize=SMALL)
    right.set_yticks(range(len(by_trace)), list(by_trace))
    right.invert_yaxis()
    right.set(xlabel="cross entropy (nats)")
    frame(left)
    frame(right, "x")
    return titled(figure, title)


Points = Mapping[str, tuple[FloatArray, FloatArray]]  # by unseen model: measured, predicted


def draw_predicted(tables: Mapping[str, Points], title: str) -> Figure:
    """Predicted over measured rates of unseen models, a panel for every table."""
    figure = new_figure(4.2 * len(tables), 5.3)
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    for axes, (table, models) in zip(panels, tables.items(), strict=True):
        for index, (model, (measured, predicted)) in enumerate(models.items()):
            axes.scatter(
                measured, predicted, s=7, alpha=0.6, linewidths=0,
                color=colour(index), label=model,
            )  # fmt: skip
        error = np.concatenate([np.abs(a - b) for a, b in models.values()]).mean()
        axes.plot([0, 1], [0, 1], color=NOTE, linewidth=0.8, zorder=0)
        axes.set(
            xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal", xlabel="measured, alone = 1",
            ylabel="predicted", title=f"{table}: mean absolute error {error:.3f}",
        )  # fmt: skip
        axes.title.set_size(TEXT)
        frame(axes)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False,
            fontsize=SMALL, columnspacing=1.0, handletextpad=0.2, markerscale=1.6,
        )  # fmt: skip
    return titled(figure, title)


def draw_errors(
    sources: Mapping[str, Mapping[str, Mapping[int, float]]], ours: str, title: str
) -> Figure:
    """Mean absolute error on unseen models over the number of probes, a panel for every source.

    Args:
        sources: by source, method and number of probes.
        ours: the method that stands out.
        title: of the picture.
    """
    figure = new_figure(5.4 * len(sources), 4.6)
    panels = figure.subplots(1, len(sources), squeeze=False, sharey=True)[0]
    methods = dict.fromkeys(method for found in sources.values() for method in found)
    means = [m for found in sources.values() for row in found.values() for m in row.values()]
    for axes, (source, found) in zip(panels, sources.items(), strict=True):
        for index, method in enumerate(methods):
            if method not in found:
                continue
            axes.plot(
                *zip(*sorted(found[method].items()), strict=True), marker="o", markersize=3.5,
                label=method, linewidth=2.6 if method == ours else 1.4, **line(index),
            )  # fmt: skip
        axes.set(title=source, xlabel="probes beside which the unseen job was measured")
        axes.title.set_size(TEXT)
        axes.set_ylim(0, 1.05 * max(means))
        frame(axes)
        axes.legend(frameon=False, fontsize=SMALL)
    panels[0].set_ylabel("mean absolute error, alone = 1")
    return titled(figure, title)


def draw_search(
    rounds: Sequence[int],
    exams: Sequence[Interval],
    start: Mapping[str, float],
    found: Mapping[str, float],
    title: str,
) -> Figure:
    """The exams, and the weights before and after.

    Args:
        rounds: (E,) after which the exams were.
        exams: (E,) mean JCT / that of the weights before.
        start: weights before.
        found: weights after.
        title: of the picture.
    """
    figure = new_figure(11.0, 5.2)
    left, right = figure.subplots(1, 2)
    low, high = [exam.low for exam in exams], [exam.high for exam in exams]
    left.fill_between(rounds, low, high, color=BLUE, alpha=0.2, linewidth=0)
    left.plot(rounds, [exam.mean for exam in exams], color=BLUE, marker=".", linewidth=2.0)
    left.axhline(1.0, **LEVEL)
    left.set(xlabel="rounds", ylabel="mean JCT of an exam / with the weights before")
    places = range(len(start))
    right.barh(places, [found[name] for name in start], 0.7, color=BLUE, label="after")
    right.plot(list(start.values()), places, "|", color="black", markersize=9, label="before")
    right.axvline(0.0, color=NOTE, linewidth=0.8)
    right.set_yticks(places, [name.replace("_", " ") for name in start])
    right.invert_yaxis()
    right.set(xlabel="weight: what is added to a log index")
    right.legend(frameon=False, fontsize=SMALL)
    frame(left)
    frame(right, "x")
    return titled(figure, title)
