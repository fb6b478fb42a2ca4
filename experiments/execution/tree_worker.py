"""A vertex of a synchronisation: its part of every tree, chunk by chunk, point to point over gloo.

Started by `experiments.execution.processes` with a folder and a number; what it saw goes to a file.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from threading import Condition
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed import Work

from envs.errors import InputError
from envs.files import read_json
from experiments.execution.namespaces import enter
from experiments.execution.processes import MEETING, RESULT, TASK
from experiments.run.artifacts import write_json

WINDOW = 2  # chunks under way on a connection
PRIORITY = -10  # niceness: links wait for no core
LARGEST = 256  # of the whole numbers that are added: float32 sums of 65,536 of them are exact
Document = dict[str, Any]
c10d: Any = distributed  # torch declares no types of the process groups themselves


class Line:
    """A connection of two processes, on which trees take turns in proportion to their shares.

    Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a chunk's turn comes when what
    its tree has sent, over the tree's share, is least; a tree that had nothing to send saves none.
    """

    def __init__(self, group: Any, peer: int) -> None:
        self._group, self._peer = group, peer
        self._ready: list[tuple[float, int, Tensor]] = []  # begin, tag, chunk
        self._changed, self._now, self._end = Condition(), 0.0, dict[int, float]()

    def put(self, chunk: Tensor, tag: int, number: int, share: float) -> None:
        """Have a chunk of a tree sent; its tag is the first of the tree and its number."""
        with self._changed:
            begin = max(self._now, self._end.get(tag, 0.0))
            self._end[tag] = begin + len(chunk) / share
            heappush(self._ready, (begin, tag + number, chunk))
            self._changed.notify()

    def send(self, count: int) -> None:
        """Send that many chunks, as they are put."""
        leaving = deque[Work]()
        for _ in range(count):
            with self._changed:
                self._changed.wait_for(lambda: self._ready)
                self._now, tag, chunk = heappop(self._ready)
            leaving.append(self._group.send([chunk], self._peer, tag))
            if len(leaving) == WINDOW:
                leaving.popleft().wait()
        for work in leaving:
            work.wait()

    def receive(self, into: Tensor, tag: int) -> Work:
        work: Work = self._group.recv([into], self._peer, tag)
        return work


class TreePart:
    """What this vertex does for a tree: adds what children send, passes on what the root formed."""

    def __init__(self, part: Mapping[str, Any], lines: Mapping[int, Line]) -> None:
        self._first, self._end, self._chunk = part["first"], part["end"], part["chunk"]
        self._own, self._tag = part["own"], part["tag"]
        self._children, self._parent, self._source, self._targets = (
            [lines[way] for way in part[key]]
            for key in ("reduce_from", "reduce_to", "broadcast_from", "broadcast_to")
        )
        self.chunks = -((self._first - self._end) // self._chunk)

    @property
    def leaving(self) -> list[Line]:
        """Where this vertex sends each chunk."""
        return [*self._parent, *self._targets]

    def tasks(self, vector: Tensor) -> list[Callable[[], None]]:
        """What runs side by side, on the vector in place; all that arrives has a place already.

        Otherwise a chunk that nobody waits for yet could hold up a line, and lines each other.
        """
        chunks = vector[self._first : self._end].split(self._chunk)
        rooms = [torch.empty_like(vector[self._first : self._end]) for _ in self._children]
        parts = [room.split(self._chunk) for room in rooms]
        into = [self._expected(*x, self._tag) for x in zip(self._children, parts, strict=True)]
        found: list[Callable[[], None]] = []
        if self._children or self._parent:
            found.append(partial(self._reduce, chunks, parts, into))
        if self._source or (self._targets and not found):
            tag = self._tag + len(chunks)
            whole = [self._expected(line, chunks, tag) for line in self._source]
            found.append(partial(self._broadcast, chunks, whole))
        return found

    def _expected(self, line: Line, chunks: Sequence[Tensor], tag: int) -> list[Work]:
        return [line.receive(chunk, tag + c) for c, chunk in enumerate(chunks)]

    def _reduce(
        self,
        chunks: Sequence[Tensor],
        parts: Sequence[Sequence[Tensor]],
        into: Sequence[Sequence[Work]],
    ) -> None:
        for c, chunk in enumerate(chunks):
            held = self._own
            for part, works in zip(parts, into, strict=True):
                works[c].wait()
                if held:
                    chunk.add_(part[c])
                else:
                    chunk.copy_(part[c])
                held = True
            self._put(self._parent, chunk, self._tag, c)
            if not self._parent:
                self._put(self._targets, chunk, self._tag + len(chunks), c)

    def _broadcast(self, chunks: Sequence[Tensor], into: Sequence[Sequence[Work]]) -> None:
        for c, chunk in enumerate(chunks):
            for works in into:
                works[c].wait()
            self._put(self._targets, chunk, self._tag + len(chunks), c)

    def _put(self, lines: Sequence[Line], chunk: Tensor, tag: int, number: int) -> None:
        for line in lines:
            line.put(chunk, tag, number, self._end - self._first)


def work(folder: Path, process: int) -> Document:
    """Run the programme in `folder` for this process; seconds of every repetition, by what ran."""
    task = read_json(folder / TASK)
    mine = task["programmes"][process]
    if mine["namespace"] is not None:
        enter(mine["namespace"])
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    torch.set_num_threads(1)
    meeting = c10d.FileStore(str(folder / MEETING), task["processes"])

    def group(name: str, rank: int, size: int, address: str) -> Any:
        options = c10d.ProcessGroupGloo._Options()
        options._threads, options._timeout = 1, timedelta(seconds=task["limit_s"])
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=address)]
        return c10d.ProcessGroupGloo(c10d.PrefixStore(name, meeting), rank, size, options)

    control = group("control", process, task["processes"], mine["control"])
    lines = {
        x["way"]: Line(group(f"way{x['way']}", x["end"], 2, x["address"]), 1 - x["end"])
        for x in mine["connections"]
    }
    parts = [TreePart(part, lines) for part in mine["trees"]]
    sent = Counter[Line]()
    for part in parts:
        for line in part.leaving:
            sent[line] += part.chunks
    vectors = [_vector(task, rank) for rank in range(task["participants"])]
    rank = mine["rank"]
    own = torch.zeros(task["elements"]) if rank is None else torch.from_numpy(vectors[rank])
    total = torch.from_numpy(np.sum(vectors, axis=0))
    vector = own.clone()
    pool = ThreadPoolExecutor(2 * len(parts) + len(lines))

    def trees() -> Callable[[], None]:
        tasks = [one for part in parts for one in part.tasks(vector)]
        tasks += [partial(line.send, count) for line, count in sent.items()]

        def run() -> None:
            for done in [pool.submit(task) for task in tasks]:
                done.result()

        return run

    ring = None
    if task["ring"] and rank is not None:
        ring = group("ring", rank, task["participants"], mine["address"])

    def gloo() -> Callable[[], None]:
        return lambda: ring and ring.allreduce([vector]).wait()

    prepared = {"plan": trees, **({"gloo": gloo} if task["ring"] else {})}
    seen: dict[str, list[list[float]]] = {name: [] for name in prepared}
    equal = dict.fromkeys(prepared, True)
    for _ in range(task["warm_up"] + task["repetitions"]):
        for name, prepare in prepared.items():
            vector.copy_(own)
            run = prepare()
            control.barrier().wait()
            start = time.perf_counter()
            run()
            seen[name].append([start, time.perf_counter()])
            equal[name] &= all(torch.equal(vector[a:b], total[a:b]) for a, b in mine["owned"])
    control.barrier().wait()
    return {"seconds": seen, "equal": equal}


def _vector(task: Mapping[str, Any], rank: int) -> NDArray[np.float32]:
    """(E,) what a rank holds: of all-gather its own block, and zeros."""
    random = np.random.default_rng((task["seed"], rank))
    values: NDArray[np.float32] = random.integers(0, LARGEST, task["elements"]).astype(np.float32)
    first, end = task["blocks"][rank]
    values[:first] = values[end:] = 0
    return values


if __name__ == "__main__":
    place, number = Path(sys.argv[1]), int(sys.argv[2])
    try:
        seen = work(place, number)
    except InputError as error:
        seen = {"error": str(error)}
    write_json(place / RESULT.format(number), seen)
