"""Which GPU of a node each run is drawn on, from a log that says only how many it held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.cluster.workload.trace import WHOLE_GPU


@dataclass(frozen=True)
class Bar:
    """A run on some of the height of a node, counted in GPUs from 0."""

    run: int  # its number in the log
    low: float
    high: float


def assign_lanes(runs: NDArray[np.void], gpus: int) -> list[Bar]:
    """Bars of the runs of one node; no two overlap, and their height is what the run held.

    A run takes the lowest free GPUs, a fraction the fullest GPU that has room for it; where the
    room is in pieces, so is the bar.

    Args:
        runs: `cluster_state.RUN` of one node.
        gpus: of the node.

    Raises:
        ValueError: the runs hold more than there is.
    """
    free = [[(0, WHOLE_GPU)] for _ in range(gpus)]  # of each GPU: gaps, from bottom to top
    ends: list[tuple[float, int]] = []  # of runs that hold something
    held: dict[int, list[tuple[int, int, int]]] = {}  # (GPU, from, to) of each of them
    bars: list[Bar] = []
    for run in np.lexsort((runs["job"], runs["start"])):
        start, end = float(runs[run]["start"]), float(runs[run]["end"])
        for ended in [number for at, number in ends if at <= start]:
            for gpu, low, high in held.pop(ended):
                free[gpu] = _joined([*free[gpu], (low, high)])
        ends = [(at, number) for at, number in ends if at > start]
        if end <= start:
            continue
        need = int(runs[run]["gpus"]) * int(runs[run]["milli"])
        pieces = _take(free, need)
        held[int(run)] = pieces
        ends.append((end, int(run)))
        bars += _merged(int(run), pieces)
    return bars


def _take(free: list[list[tuple[int, int]]], need: int) -> list[tuple[int, int, int]]:
    whole = [gpu for gpu, gaps in enumerate(free) if gaps == [(0, WHOLE_GPU)]]
    pieces: list[tuple[int, int, int]] = []
    if need % WHOLE_GPU == 0 and len(whole) >= need // WHOLE_GPU:
        pieces = [(gpu, 0, WHOLE_GPU) for gpu in whole[: need // WHOLE_GPU]]
    elif need < WHOLE_GPU:
        room = [
            (high - low, gpu, low)
            for gpu, gaps in enumerate(free)
            for low, high in gaps
            if high - low >= need
        ]
        if room:
            _, gpu, low = min(room)
            pieces = [(gpu, low, low + need)]
    if not pieces:
        for gpu, gaps in enumerate(free):
            for low, high in gaps:
                part = min(need - sum(b - a for _, a, b in pieces), high - low)
                if part > 0:
                    pieces.append((gpu, low, low + part))
    if sum(high - low for _, low, high in pieces) < need:
        raise ValueError("the runs hold more GPUs than the node has")
    for gpu, low, high in pieces:
        free[gpu] = [
            gap
            for a, b in free[gpu]
            for gap in (((a, low), (high, b)) if a <= low < b else ((a, b),))
            if gap[0] < gap[1]
        ]
    return pieces


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(gaps):
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def _merged(run: int, pieces: list[tuple[int, int, int]]) -> list[Bar]:
    """Pieces that touch as one bar."""
    spans = _joined([(gpu * WHOLE_GPU + low, gpu * WHOLE_GPU + high) for gpu, low, high in pieces])
    return [Bar(run, low / WHOLE_GPU, high / WHOLE_GPU) for low, high in spans]
