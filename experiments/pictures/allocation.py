"""Malleable jobs: who has how many workers when."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from envs.cluster.allocation.problem import AllocationPlan, AllocationProblem, play
from experiments.pictures.style import colour, frame, mixed_with_white, new_figure, titled


def draw_workers(problem: AllocationProblem, plan: AllocationPlan, title: str) -> Figure:
    """The workers of every job over slots, one above the other; those not done in light colours."""
    workers = plan.workers.sum(axis=2).T  # (J, T)
    finished = play(problem, plan).finished < problem.slots
    figure = new_figure(8.0, 3.6)
    axes = figure.subplots()
    shades = [colour(j) if done else mixed_with_white(colour(j), 0.6)
              for j, done in enumerate(finished)]  # fmt: skip
    edges = np.arange(problem.slots + 1)
    base = np.zeros(problem.slots)
    for row, shade in zip(workers, shades, strict=True):
        axes.stairs(base + row, edges, baseline=base, fill=True, color=shade)
        base = base + row
    axes.axhline(float(problem.capacity[:, 0].sum()), color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="slot", ylabel="workers", xlim=(0, problem.slots))
    frame(axes, "y")
    return titled(figure, title)
