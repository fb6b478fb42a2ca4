"""Asynchronous training: the loss over virtual time, a line per policy."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from envs.asynchronous.simulation import Training
from experiments.pictures.style import LEVEL, colour, frame, new_figure, note, titled


def draw_losses(played: Mapping[str, Mapping[str, Training]], target: float, title: str) -> Figure:
    """A panel per setting; dashed: the loss at which runs end."""
    figure = new_figure(max(5.0, 3.2 * len(played)), 3.4)
    panels = figure.subplots(1, len(played), squeeze=False, sharey=True)[0]
    for axes, (name, runs) in zip(panels, played.items(), strict=True):
        for number, (policy, run) in enumerate(runs.items()):
            label = policy.replace("_", " ") if axes is panels[0] else None
            axes.plot(run.times, run.losses, color=colour(number), linewidth=1.1, label=label)
        axes.axhline(target, **LEVEL)
        axes.set_xlabel("virtual seconds")
        note(axes, name)
        frame(axes)
    panels[0].set_ylabel("loss, nats")
    return titled(figure, title, legend=len(next(iter(played.values()))))
