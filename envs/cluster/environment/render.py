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

    simulator = episode.simulator
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
        parts = row in ends
        servers.axhline(row - 0.5, color="white", linewidth=4.0 if parts else 0.5)
    if len(order) <= LABELLED:
        servers.set_yticks(range(len(order)), [f"server {node}" for node in order], fontsize=8)
    servers.set_xticks([])
    clock = simulator.state.clock[0]
    servers.set_xlabel(f"GPUs: {int(clock['free'])} of {simulator.cluster.num_gpus} free")
    servers.set_title(f"{float(clock['now']):.6g} s, running: {int(clock['running'])}")
    pending = simulator.pending()
    shown = pending[:QUEUE_ROWS]
    queue.barh(
        np.arange(len(shown)),
        simulator.state.jobs["gpus"][shown],
        color=palette[shown % COLORS],
        height=0.8,
    )
    queue.set_ylim(max(len(shown), 8) - 0.5, -0.5)
    queue.set_yticks([])
    queue.set_xlabel("GPUs asked for")
    finished, jobs = int(clock["finished"]), len(simulator.trace)
    queue.set_title(f"waiting: {len(pending)}, finished: {finished} of {jobs}")
    return pixels(figure)


def _row(simulator: ClusterSimulator, node: int, palette: Any) -> NDArray[np.float64]:
    """(G, 3) colours of the GPUs of a server; G of the largest."""
    state, place = simulator.state, simulator.state.nodes[node]
    cells = np.tile(np.array(ABSENT), (int(simulator.cluster.gpus.max()), 1))
    gpus = int(place["gpus"])
    cells[:gpus] = FREE if place["up"] else DOWN
    at = 0
    seen: set[int] = set()
    index = int(place["share"])
    while index != NONE:
        share = state.shares[index]
        color = palette[int(share["job"]) % COLORS]
        partial = int(share["partial"])
        if partial == NONE:
            cells[at : at + int(share["gpus"])] = color
            at += int(share["gpus"])
        elif partial not in seen:
            seen.add(partial)
            left = int(state.partials[partial]["left"]) / WHOLE_GPU
            gpus = int(state.partials[partial]["gpus"])
            cells[at : at + gpus] = left * np.array(FREE) + (1.0 - left) * color
            at += gpus
        index = int(share["after"])
    return cells
