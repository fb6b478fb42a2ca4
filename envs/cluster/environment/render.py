"""Draw a cluster: which job holds which GPUs now, and who waits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import WHOLE_GPU
from envs.frame import new_frame, pixels

FREE, DOWN, ABSENT = (0.93, 0.93, 0.93), (0.25, 0.25, 0.25), (1.0, 1.0, 1.0)
QUEUE_ROWS = 40  # pending jobs drawn
GREYS = (14, 15)  # of the colours of jobs, too near to those of free GPUs
COLORS = 18  # job numbers that are far apart share one
LABELLED = 16  # servers, up to which each has its name


def cluster_frame(episode: SchedulingEpisode) -> NDArray[np.uint8]:
    """(320, 640, 3) a row for each server, a cell for each GPU, and a bar for each pending job.

    A job has the same colour on all of its GPUs; a GPU that fractional jobs share is as pale as it
    is free. Free GPUs are light, servers that are down dark. White lines separate schedulers.
    """
    from matplotlib import colormaps

    simulator, facts = episode.simulator, episode.facts()
    tab20 = np.array(colormaps["tab20"](np.arange(20))[:, :3])
    palette = np.delete(tab20, GREYS, axis=0)
    order = np.concatenate([view.node for view in episode.views])
    cells = np.stack([_row(simulator, int(node), palette) for node in order])
    figure = new_frame()
    servers, queue = figure.subplots(1, 2, width_ratios=(3, 2))
    servers.imshow(cells, aspect="auto", interpolation="nearest")
    for column in range(1, cells.shape[1]):
        servers.axvline(column - 0.5, color="white", linewidth=0.5)
    ends = np.cumsum([len(view.node) for view in episode.views])
    for row in range(1, len(order)):
        servers.axhline(row - 0.5, color="white", linewidth=4.0 if row in ends else 0.5)
    if len(order) <= LABELLED:
        servers.set_yticks(range(len(order)), [f"server {node}" for node in order], fontsize=8)
    servers.set_xticks([])
    servers.set_xlabel(f"GPUs: {facts['free_gpus']} of {simulator.cluster.num_gpus} free")
    servers.set_title(f"{facts['now_s']:.6g} s, running: {facts['running']}")
    shown = simulator.pending()[:QUEUE_ROWS]
    gpus = simulator.state.jobs["gpus"][shown]
    queue.barh(np.arange(len(shown)), gpus, color=palette[shown % COLORS], height=0.8)
    queue.set_ylim(max(len(shown), 8) - 0.5, -0.5)
    queue.set_yticks([])
    queue.set_xlabel("GPUs asked for")
    finished = f"finished: {facts['finished']} of {facts['jobs']}"
    queue.set_title(f"waiting: {facts['pending']}, {finished}")
    return pixels(figure)


def _row(simulator: ClusterSimulator, node: int, palette: Any) -> NDArray[np.float64]:
    """(G, 3) colours of the GPUs of a server; G of the largest."""
    state, place, seen = simulator.state, simulator.state.nodes[node], {NONE}
    cells = np.tile(np.array(ABSENT), (int(simulator.cluster.gpus.max()), 1))
    cells[: place["gpus"]] = FREE if place["up"] else DOWN
    at, index = 0, int(place["share"])
    while index != NONE:
        share = state.shares[index]
        gpus, left, partial = int(share["gpus"]), 0.0, int(share["partial"])
        if partial == NONE or partial not in seen:
            seen.add(partial)
            if partial != NONE:  # several jobs share it: it has the colour of the first
                left = int(state.partials[partial]["left"]) / WHOLE_GPU
            color = palette[int(share["job"]) % COLORS]
            cells[at : at + gpus] = left * np.array(FREE) + (1.0 - left) * color
            at += gpus
        index = int(share["after"])
    return cells
