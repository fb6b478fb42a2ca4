"""A vertex of a synchronisation: its part of every tree, chunk by chunk, point to point over gloo.

`experiments.execution.processes` starts it.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from functools import partial
from heapq import heappop, heappush
from math import ceil
from pathlib import Path
from threading import Condition
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed import Work

from envs.files import read_json
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from experiments.execution.namespaces import address, enter
from experiments.execution.processes import MEETING, PLAN, TASK
from experiments.network.plan_file import read_plan

WINDOW = 2  # chunks under way on a connection
PRIORITY = -10  # niceness: links wait for no core
ELEMENT, LARGEST = 4, 256  # bytes of a float32; whole numbers below, so that all sums are exact
c10d: Any = distributed  # torch declares no types of the process groups themselves


class Line:
    """A connection of two processes, on which trees take turns in proportion to their shares.

    Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a chunk's turn comes when what
    its tree has sent, over the tree's share, is least; a tree that had nothing to send saves none.
    """

    def __init__(self, group: Any, peer: int) -> None:
        self._group, self._peer, self.count = group, peer, 0  # chunks to send
        self._ready: list[tuple[float, int, Tensor]] = []  # begin, tag, chunk
        self._changed, self._now, self._end = Condition(), 0.0, dict[int, float]()

    def put(self, chunk: Tensor, tag: int, number: int, share: float) -> None:
        """Have a chunk of a tree sent; its tag is the first of the tree and its number."""
        with self._changed:
            begin = max(self._now, self._end.get(tag, 0.0))
            self._end[tag] = begin + len(chunk) / share
            heappush(self._ready, (begin, tag + number, chunk))
            self._changed.notify()

    def send(self) -> None:
        """Send `count` chunks, as they are put."""
        leaving = deque[Work]()
        for _ in range(self.count):
            with self._changed:
                self._changed.wait_for(lambda: self._ready)
                self._now, tag, chunk = heappop(self._ready)
            leaving.append(self._group.send([chunk], self._peer, tag))
            if len(leaving) == WINDOW:
                leaving.popleft().wait()
        for work in leaving:
            work.wait()

    def expect(self, chunks: Sequence[Tensor], tag: int) -> list[Work]:
        """What arrives goes into `chunks`."""
        return [self._group.recv([chunk], self._peer, tag + c) for c, chunk in enumerate(chunks)]


class TreePart:
    """What a vertex does for a tree: adds what children send, passes on what the root formed."""

    def __init__(
        self,
        tree: Tree,
        vertex: int,
        own: bool,
        part: slice,
        chunk: int,
        tag: int,
        lines: Mapping[Way, Line],
    ) -> None:
        self._own, self._part, self._chunk, self._tag = own, part, chunk, tag
        self._share = part.stop - part.start
        self._children = [lines[way] for way in tree.reduce if way[-1] == vertex]
        self._parent = [lines[way] for way in tree.reduce if way[0] == vertex]
        self._source = [lines[way] for way in tree.broadcast if way[-1] == vertex]
        self._targets = [lines[way] for way in tree.broadcast if way[0] == vertex]
        self.chunks = ceil(self._share / chunk)
        for line in (*self._parent, *self._targets):
            line.count += self.chunks

    def tasks(self, vector: Tensor) -> list[Callable[[], None]]:
        """What runs side by side, on the vector in place; all that arrives has a place already.

        Otherwise a chunk that no rank waits for yet could hold up a line, and lines each other.
        """
        whole = vector[self._part]
        chunks, formed = whole.split(self._chunk), self._tag + self.chunks
        arriving, found = [], list[Callable[[], None]]()
        for line in self._children:
            room = torch.empty_like(whole).split(self._chunk)
            arriving.append((room, line.expect(room, self._tag)))
        if self._parent:
            found.append(partial(self._carry, chunks, arriving, self._parent, self._tag))
        elif self._children:
            found.append(partial(self._carry, chunks, arriving, self._targets, formed))
        if self._source or (self._targets and not found):
            sums = [(chunks, line.expect(chunks, formed)) for line in self._source]
            found.append(partial(self._carry, chunks, sums, self._targets, formed))
        return found

    def _carry(
        self,
        chunks: Sequence[Tensor],
        arriving: Sequence[tuple[Sequence[Tensor], list[Work]]],
        lines: Sequence[Line],
        tag: int,
    ) -> None:
        """Send on every chunk once all that arrives is added to it, or has arrived in its place."""
        for c, chunk in enumerate(chunks):
            held = self._own
            for room, works in arriving:
                works[c].wait()
                if room is not chunks:
                    combine = chunk.add_ if held else chunk.copy_
                    combine(room[c])
                    held = True
            for line in lines:
                line.put(chunk, tag, c, self._share)


def parts_of(
    problem: SynchronisationProblem,
    plan: SynchronisationPlan,
    vertex: int,
    lines: Mapping[Way, Line],
) -> list[TreePart]:
    """Of a vertex, in every tree."""
    found, tag = list[TreePart](), 0
    takes_part = vertex in problem.network.participants
    for tree, span in zip(plan.trees, plan.spans(problem), strict=True):
        part = _elements(problem, span)
        if part.start < part.stop:
            chunk = max(1, round(min(plan.chunk / ELEMENT, part.stop - part.start)))
            own = takes_part if problem.primitive.reduces else vertex == tree.root
            found.append(TreePart(tree, vertex, own, part, chunk, tag, lines))
            tag += 2 * found[-1].chunks
    return found


def vectors_of(problem: SynchronisationProblem, seed: int) -> list[Tensor]:
    """What every rank holds: of all-gather its own block, and zeros."""
    found = []
    for rank in range(len(problem.network.participants)):
        whole = _elements(problem, (Fraction(0), Fraction(1)))
        given = whole if problem.primitive.reduces else _elements(problem, problem.block_of(rank))
        random = np.random.default_rng((seed, rank)).integers(0, LARGEST, whole.stop)
        found.append(torch.zeros(whole.stop))
        found[-1][given] = torch.from_numpy(random)[given].float()
    return found


def _elements(problem: SynchronisationProblem, span: tuple[Fraction, Fraction]) -> slice:
    elements = max(1, round(problem.size / ELEMENT))
    return slice(*(ceil(share * elements) for share in span))


def work(folder: Path, process: int) -> dict[str, Any]:
    """Execute the plan in `folder` for a vertex, in turns with gloo's ring where the task has it.

    Returns:
        `seconds`: begin and end of every repetition, by what ran; `equal`: whether all were right.
    """
    task = read_json(folder / TASK)
    problem, plan = read_plan(folder / PLAN)
    ranks, vertices = problem.network.participants, plan.vertices(problem)
    vertex = vertices[process]
    rank = ranks.index(vertex) if vertex in ranks else None
    if task["namespaces"]:
        enter(task["namespaces"][vertex])
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    meeting = c10d.FileStore(str(folder / MEETING), task["processes"])

    def group(kind: str, number: int, member: int, size: int, end: int = 0) -> Any:
        options, gloo = c10d.ProcessGroupGloo._Options(), c10d.ProcessGroupGloo
        options._threads, options._timeout = 1, timedelta(seconds=task["limit_s"])
        host = address(kind, number, end) if task["namespaces"] else "127.0.0.1"
        options._devices = [gloo.create_device(hostname=host)]
        name = f"{kind}{number}" if kind == "way" else kind
        return gloo(c10d.PrefixStore(name, meeting), member, size, options)

    control = group("control", vertex, process, len(vertices))
    lines = {}
    for number, way in enumerate(plan.ways):
        if vertex in (way[0], way[-1]):
            end = int(vertex == way[-1])
            lines[way] = Line(group("way", number, end, 2, end), 1 - end)
    parts = parts_of(problem, plan, vertex, lines)
    vectors = vectors_of(problem, task["seed"])
    wanted = torch.stack(vectors).sum(0)
    checked = slice(None if rank is not None else 0)
    if problem.primitive is Primitive.REDUCE_SCATTER and rank is not None:
        checked = _elements(problem, problem.block_of(rank))
    own = torch.zeros_like(wanted) if rank is None else vectors[rank]
    vector = own.clone()
    pool = ThreadPoolExecutor(2 * len(parts) + len(lines))
    ring = None
    if task["ring"] and rank is not None:
        ring = group("own", vertex, rank, len(ranks))

    def trees() -> Callable[[], object]:
        tasks = [one for part in parts for one in part.tasks(vector)]
        tasks += [line.send for line in lines.values()]
        return lambda: [done.result() for done in [pool.submit(one) for one in tasks]]

    def gloo() -> Callable[[], object]:
        return lambda: ring and ring.allreduce([vector]).wait()

    prepared = {"plan": trees, **({"gloo": gloo} if task["ring"] else {})}
    seconds: dict[str, list[list[float]]] = {name: [] for name in prepared}
    right = Counter[str]()
    for _ in range(task["repetitions"]):
        for name, prepare in prepared.items():
            vector.copy_(own)
            run = prepare()
            control.barrier().wait()
            start = time.perf_counter()
            run()
            seconds[name].append([start, time.perf_counter()])
            right[name] += torch.equal(vector[checked], wanted[checked])
    control.barrier().wait()
    return {"seconds": seconds, "equal": {x: right[x] == task["repetitions"] for x in prepared}}
