"""Pictures of what was predicted for unseen models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from envs.cluster.interference.rates import FloatArray
from experiments.learning.interference_errors import NETWORK, Errors
from experiments.pictures.anytime import COLOURS, STYLES

Points = Mapping[str, tuple[FloatArray, FloatArray]]  # by unseen model: measured, predicted


def draw_predicted(tables: Mapping[str, Points], title: str) -> Figure:
    """Predicted over measured rates of unseen models, a panel for every table."""
    figure = Figure(figsize=(4.2 * len(tables), 5.3), dpi=130, layout="constrained")
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    for axes, (table, models) in zip(panels, tables.items(), strict=True):
        for index, (model, (measured, predicted)) in enumerate(models.items()):
            axes.scatter(
                measured, predicted, s=7, alpha=0.6, linewidths=0,
                color=COLOURS[index % len(COLOURS)], label=model,
            )  # fmt: skip
        error = np.concatenate([np.abs(a - b) for a, b in models.values()]).mean()
        axes.plot([0, 1], [0, 1], color="#888888", linewidth=0.8, zorder=0)
        axes.set(
            xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal", xlabel="measured, alone = 1",
            ylabel="predicted", title=f"{table}: mean absolute error {error:.3f}",
        )  # fmt: skip
        axes.title.set_size(9.5)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False,
            fontsize=7.5, columnspacing=1.0, handletextpad=0.2, markerscale=1.6,
        )  # fmt: skip
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def draw_errors(rows: Mapping[str, Sequence[Errors]], title: str) -> Figure:
    """Mean absolute error on unseen models over the number of probes, a panel for every source."""
    figure = Figure(figsize=(5.4 * len(rows), 4.6), dpi=130, layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    methods = dict.fromkeys(row.method for found in rows.values() for row in found)
    top = max(row.mean for found in rows.values() for row in found)
    for axes, (source, found) in zip(panels, rows.items(), strict=True):
        for index, method in enumerate(methods):
            if all(row.method != method for row in found):
                continue
            points = sorted((row.probes, row.mean) for row in found if row.method == method)
            axes.plot(
                *zip(*points, strict=True), marker="o", markersize=3.5, label=method,
                color=COLOURS[index % len(COLOURS)],
                linestyle=STYLES[index // len(COLOURS) % len(STYLES)],
                linewidth=2.6 if method == NETWORK else 1.4,
            )  # fmt: skip
        axes.set(title=source, xlabel="probes beside which the unseen job was measured")
        axes.set_ylim(0, 1.05 * top)
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("mean absolute error, alone = 1")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
