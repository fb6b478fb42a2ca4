"""A picture of a search for the weights of a priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from experiments.cluster.generalise_statistics import Interval


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
    figure = Figure(figsize=(11.0, 5.2), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    low, high = [exam.low for exam in exams], [exam.high for exam in exams]
    left.fill_between(rounds, low, high, color="#08519c", alpha=0.2, linewidth=0)
    left.plot(rounds, [exam.mean for exam in exams], color="#08519c", marker=".", linewidth=2.0)
    left.axhline(1.0, color="black", linewidth=1.0, linestyle="--")
    left.set(xlabel="rounds", ylabel="mean JCT of an exam / with the weights before")
    left.grid(color="#e5e5e5", linewidth=0.6)
    places = range(len(start))
    right.barh(places, [found[name] for name in start], 0.7, color="#08519c", label="after")
    right.plot(list(start.values()), places, "|", color="black", markersize=9, label="before")
    right.axvline(0.0, color="#888888", linewidth=0.8)
    right.set_yticks(places, [name.replace("_", " ") for name in start])
    right.invert_yaxis()
    right.set(xlabel="weight: what is added to a log index")
    right.grid(axis="x", color="#e5e5e5", linewidth=0.6)
    right.set_axisbelow(True)
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
