"""What was learned: curves of training and evaluations, posteriors, interference, a priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import cycle, product
from pathlib import Path
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.files import check_file
from experiments.pictures.style import (
    BLUE,
    DASHES,
    IDLE,
    LEVEL,
    LIMIT,
    NOTE,
    ORANGE,
    PALE,
    PALETTE,
    Panel,
    bars,
    colour,
    curves,
    draw_curves,
    legend,
    note,
    picture,
)
from experiments.run.artifacts import METRICS_FILE, read_metrics
from experiments.run.statistics import Interval

ABOVE_START = 1.1  # baselines slower than this times the curve's start are named, not drawn


def improvements(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (time, value) in order those whose value is less than all before."""
    found: list[tuple[float, float]] = []
    for at, value in points:
        if value < (found[-1][1] if found else np.inf):
            found.append((at, value))
    return found


@dataclass(frozen=True)
class Curve:
    """One training run.

    Args:
        seconds: (I,) wall time at the end of each iteration.
        mean: (I,) mean step time of the iteration's episodes, seconds.
        best: (I,) best step time found so far, seconds.
        own: (wall time, step time of the policy's most probable plan) of every evaluation, seconds.
        begun: whose the first of them is.
    """

    seconds: Sequence[float]
    mean: Sequence[float]
    best: Sequence[float]
    own: Sequence[tuple[float, float]] = ()
    begun: str = ""

    @property
    def improvements(self) -> list[tuple[float, float]]:
        """(wall time, step time) of every plan that was the best so far."""
        return improvements(zip(self.seconds, self.best, strict=True))


def draw_learning_curve(
    curve: Curve, baselines: Mapping[str, float], lower_bound: float, title: str
) -> Figure:
    """The curve over wall time; every baseline and the proved bound as a horizontal line."""
    figure, (axes,) = picture(title, 10, 5.6)
    mean, best = 1e3 * np.array([curve.mean, curve.best])
    own = np.array([one for one in curve.own if np.isfinite(one[1])]).reshape(-1, 2) * (1, 1e3)
    axes.plot(curve.seconds, mean, color=PALE, label="PPO, mean plan of an iteration")
    better = np.flatnonzero(best < np.append(np.inf, best[:-1]))
    axes.plot(
        curve.seconds, best, "-o", drawstyle="steps-post", color=BLUE, linewidth=2.2, markersize=4,
        markevery=better.tolist(), label="PPO, best plan so far",
    )  # fmt: skip
    if len(own):
        axes.plot(
            *own.T, "-o", markevery=[int(own[:, 1].argmin())], color=ORANGE,
            label=f"PPO, the policy's most probable plan\n(at 0 {curve.begun}; dot: exported)",
        )  # fmt: skip
    lines = {name: 1e3 * value for name, value in baselines.items() if np.isfinite(value)}
    bound = 1e3 * lower_bound
    # far worse baselines and the worst of the iterations lie above the axis
    every = [*best, *mean, *own[:, 1]]
    known = [one for one in every if np.isfinite(one)] or [*lines.values(), bound]
    start = max([np.quantile(known, 0.98), *own[:, 1]])
    top = max([start, *(value for value in lines.values() if value <= ABOVE_START * start)])
    low = min([bound, *lines.values(), *known])
    margin = 0.05 * max(top - low, 0.01 * top)
    inks = product(DASHES[1:], (ink for ink in PALETTE if ink not in (BLUE, ORANGE)))
    looks = zip(sorted(lines, key=lines.__getitem__), cycle(inks), strict=False)
    for name, (dashes, ink) in reversed([*looks]):
        label = f"{name}  {lines[name]:.1f}" + (", above" if lines[name] > top + margin else "")
        axes.axhline(lines[name], color=ink, linestyle=dashes, linewidth=1.1, label=label)
    axes.axhline(bound, label=f"proved lower bound  {bound:.1f}", **LIMIT)
    axes.set(ylim=(low - margin, top + margin), xlim=(0, max([*curve.seconds, 1.0])))
    axes.set(xlabel="wall time of training (s)", ylabel="step time (ms)")
    if without := [name for name in baselines if name not in lines]:
        note(axes, f"no plan: {', '.join(without)}")
    return legend(figure, 1, place="outside right upper")


RESAMPLED, QUANTILES = 2_000, (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The evaluations of one run."""

    name: str
    steps: FloatArray  # (K,) of environments, when it was evaluated
    scores: FloatArray  # (K,) mean JCT / the reference's
    clones: float  # steps of cloning; 0 without


def read_evaluations(run_folder: Path, scores: Sequence[tuple[int, float]] = ()) -> Evaluations:
    """The evaluations of a run, from its metrics.

    `scores`, by iteration, adds those that are no iteration's: the first and the last.

    Raises:
        InputError: the folder holds no training of schedulers, or one without any evaluation.
    """
    path = run_folder / METRICS_FILE
    columns = "charts/global_step", "evaluation/score", "charts/cloning"
    try:
        check_file(path)
        rows = [[float(row[name]) for name in columns] for row in read_metrics(path)]
    except (InputError, OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"holds no evaluations of schedulers ({error})", file=path) from error
    at = [0.0, *(steps for steps, *_ in rows)]
    known = {steps: score for steps, score, _ in rows if not np.isnan(score)}
    known |= {at[iteration]: score for iteration, score in scores}
    clones = max([steps for steps, _, cloning in rows if cloning], default=0.0)
    at_steps, found = np.array(sorted(known.items()), np.float64).reshape(-1, 2).T
    return Evaluations(run_folder.name, at_steps, found, clones)


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


def common(runs: Sequence[Evaluations]) -> tuple[FloatArray, FloatArray]:
    """(K,) steps at which all runs were evaluated, and (S, K) scores there."""
    shared = reduce(np.intersect1d, [run.steps for run in runs])
    scores = [run.scores[np.searchsorted(run.steps, shared)] for run in runs]
    return shared, np.stack(scores)


def draw_evaluations(
    runs: Sequence[Evaluations], title: str, measure: str = "mean JCT",
    reference: str = "reference", rules: Mapping[str, float] = MappingProxyType({}),
) -> Figure:  # fmt: skip
    """Scores, `measure` over the reference's, over steps; 1 is the reference.

    Of `rules`, scores of rules, the first is a line.
    """
    figure, (axes,) = picture(title, 8, 5)
    own, width = (PALE, 1.0) if len(runs) > 1 else (BLUE, 2.0)
    for run in runs:
        axes.plot(run.steps, run.scores, color=own, linewidth=width, marker=".")
        failed = run.steps[~np.isfinite(run.scores)]
        if len(failed):
            axes.plot(
                failed, np.full(len(failed), 0.985), "x", color=BLUE, clip_on=False,
                transform=axes.get_xaxis_transform(), label="given up: jobs that never finished",
            )  # fmt: skip
    if len(runs) > 1:
        steps, scores = common(runs)
        band = interval(scores, np.random.default_rng(0))
        label = f"interquartile mean of {len(runs)} seeds, 95 % interval"
        series = {label: (steps, interquartile_mean(scores), *band)}
        curves(axes, series, color=BLUE, linewidth=2.2, marker=".")
    axes.axhline(1.0, label=reference, **LEVEL)
    for name, score in [*rules.items()][:1]:
        axes.axhline(score, label=f"rule: {name}", color=ORANGE, linewidth=1.2)
    if clones := max(run.clones for run in runs):
        axes.axvline(clones, color=ORANGE, linewidth=1.0, linestyle=":", label="end of cloning")
    axes.set(xlabel="steps", ylabel=f"{measure} / reference's")
    return legend(figure, 3)


def draw_each(runs: Mapping[str, tuple[Evaluations, float | None]], columns: int = 3) -> Figure:
    """A panel for each run, by its name: its best score so far, and that of the best rule.

    A dashed line is the reference, whose score is 1.
    """
    panels = []
    for name, (run, rule) in runs.items():
        share = run.steps / max(run.steps[-1], 1.0)
        series = {"learned": (share, np.minimum.accumulate(run.scores))}
        if rule is not None:
            series["the best simple rule"] = ((0.0, 1.0), np.full(2, rule))
        panels.append(Panel(series, {"ylim": (0.0, None)}, name, 1.0))
    panels += [Panel({}, {}) for _ in range(-len(panels) % columns)]
    title = "best evaluation so far over the reference's, by the share of the training"
    return draw_curves(title, panels, 12.0, 2.2 * (len(panels) // columns), columns)


def draw_reliability(
    ranks: Mapping[str, FloatArray], by_trace: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Shares of jobs below predicted quantiles, and the cross entropy on every trace.

    Args:
        ranks: by method, the chance it gave to as much work as was left, or less.
        by_trace: mean loss of each of them, by the name of the trace.
        title: of the picture.
    """
    figure, (left, right) = picture(title, 11.0, 5.2, 1, 2, ("both", "x"), width_ratios=(1.0, 1.3))
    asked = np.linspace(0.0, 1.0, 101)
    below = {
        method: (asked, np.searchsorted(np.sort(rank), asked, side="right") / len(rank))
        for method, rank in ranks.items()
    }
    curves(left, below)
    _diagonal(left, 1.0)
    left.set(xlabel="quantile that was predicted", ylabel="share of the jobs that needed no more")
    losses = zip(ranks, zip(*by_trace.values(), strict=True), strict=True)
    bars(right, [*by_trace], dict(losses), across=True)
    right.set_xlabel("cross entropy (nats)")
    return legend(figure, len(ranks))


def _diagonal(axes: Axes, end: float) -> None:
    axes.plot([0, 1], [0, 1], color=NOTE, linewidth=0.8, zorder=0)
    axes.set(xlim=(0, end), ylim=(0, end), aspect="equal")


Points = Mapping[str, tuple[FloatArray, FloatArray]]  # by unseen model: measured, predicted


def draw_predicted(tables: Mapping[str, Points], title: str) -> Figure:
    """Predicted over measured rates of unseen models, a panel for every table."""
    figure, panels = picture(title, 4.2 * len(tables), 5.3, 1, len(tables))
    known = list(dict.fromkeys(model for models in tables.values() for model in models))
    for axes, (table, models) in zip(panels, tables.items(), strict=True):
        for model, points in models.items():
            shade = colour(known.index(model))
            axes.scatter(*points, s=7, alpha=0.6, linewidths=0, color=shade, label=model)
        error = np.concatenate([np.abs(a - b) for a, b in models.values()]).mean()
        _diagonal(axes, 1.02)
        axes.set(xlabel="measured, alone = 1", ylabel="predicted")
        note(axes, f"{table}: mean absolute error {error:.3f}")
    return legend(figure, 3 * len(tables))


def draw_ratios(points: Points, title: str, band: float = 0.2) -> Figure:
    """Predicted over measured seconds by group, on logarithmic axes, with a band of the error."""
    figure, (axes,) = picture(title, 7.2, 6.6)
    known = np.concatenate([np.concatenate(both) for both in points.values()])
    ends = np.array([known.min() / 1.5, known.max() * 1.5])
    label = f"within {band:.0%}"
    axes.fill_between(ends, ends * (1 - band), ends * (1 + band), color=IDLE, label=label)
    axes.plot(ends, ends, **LEVEL)
    size = float(np.clip(6e3 / len(known), 5.0, 30.0))
    for number, (name, both) in enumerate(points.items()):
        axes.scatter(*both, s=size, alpha=0.6, linewidths=0, color=colour(number))
        axes.scatter([], [], s=30, color=colour(number), label=name)  # of the legend
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="measured (s)", ylabel="predicted (s)")
    error = np.concatenate([np.abs(b / a - 1.0) for a, b in points.values()]).mean()
    note(axes, f"mean absolute error {error:.1%}")
    return legend(figure, 5)


def draw_errors(
    sources: Mapping[str, Mapping[str, Mapping[int, float]]], ours: str, title: str
) -> Figure:
    """Mean absolute error on unseen models over the number of probes, a panel for every source.

    Args:
        sources: by source, method and number of probes.
        ours: the method that stands out.
        title: of the picture.
    """
    labels = {
        "xlabel": "probes beside which the unseen job was measured",
        "ylabel": "mean absolute error, alone = 1", "ylim": (0, None),
    }  # fmt: skip
    panels = [
        Panel({x: tuple(zip(*sorted(errors.items()), strict=True)) for x, errors in found.items()},
              labels, source)
        for source, found in sources.items()
    ]  # fmt: skip
    count = len(panels)
    size = 5.4 * count, 4.6, count
    return draw_curves(title, panels, *size, sharey=True, bold=ours, marker=".")


def draw_search(
    rounds: Sequence[int],
    evaluations: Sequence[Interval],
    start: Mapping[str, float],
    found: Mapping[str, float],
    title: str,
) -> Figure:
    """The evaluations, and the weights before and after.

    Args:
        rounds: (E,) after which the evaluations were.
        evaluations: (E,) mean JCT / that of the weights before.
        start: weights before.
        found: weights after.
        title: of the picture.
    """
    figure, (left, right) = picture(title, 11.0, 5.2, 1, 2, ("both", "x"))
    series = np.array(
        [(evaluation.mean, evaluation.low, evaluation.high) for evaluation in evaluations]
    ).T
    curves(left, {"evaluations": (rounds, *series)}, color=BLUE, marker=".")
    left.axhline(1.0, **LEVEL)
    left.set(xlabel="rounds", ylabel="mean JCT of an evaluation / with the weights before")
    after = [found[name] for name in start]
    bars(right, [*start], {"before": [*start.values()], "after": after}, across=True)
    right.axvline(0.0, color=NOTE, linewidth=0.8)
    right.set_xlabel("weight: what is added to a log index")
    return legend(figure, 3)
