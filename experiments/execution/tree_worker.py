"""A vertex of a synchronisation: its part of every tree, chunk by chunk, point to point over gloo.

Started by `experiments.execution.processes` with a folder and a number; what it saw goes to a file.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
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

WINDOW = 2  # chunks of a tree under way on a connection
PRIORITY = -10  # niceness: links wait for no core
LARGEST = 256  # of the whole numbers that are added: float32 sums of 65,536 of them are exact
Document = dict[str, Any]
c10d: Any = distributed  # torch declares no types of the process groups themselves


class Connection:
    """Two processes: one sends, one receives, in chunks with numbers."""

    def __init__(self, group: Any, peer: int) -> None:
        self._group, self._peer = group, peer

    def send(self, chunk: Tensor, tag: int) -> Work:
        work: Work = self._group.send([chunk], self._peer, tag)
        return work

    def receive(self, chunk: Tensor, tag: int) -> Work:
        work: Work = self._group.recv([chunk], self._peer, tag)
        return work


class Sender:
    """Sends chunks on several connections, at most `WINDOW` at a time on each."""

    def __init__(self, to: Sequence[Connection]) -> None:
        self._to, self._leaving = to, deque[Work]()

    def send(self, chunk: Tensor, tag: int) -> None:
        while len(self._leaving) > (WINDOW - 1) * len(self._to):
            self._leaving.popleft().wait()
        self._leaving.extend(to.send(chunk, tag) for to in self._to)

    def finish(self) -> None:
        for work in self._leaving:
            work.wait()


class TreePart:
    """What this vertex does for a tree: adds what children send, passes on what the root formed."""

    def __init__(self, part: Mapping[str, Any], connections: Mapping[int, Connection]) -> None:
        def those(key: str) -> list[Connection]:
            return [connections[way] for way in part[key]]

        self._first, self._end, self._chunk = part["first"], part["end"], part["chunk"]
        self._own, self._tag, self._is_root = part["own"], part["tag"], part["root"]
        self._children, self._parent = those("reduce_from"), those("reduce_to")
        self._source, self._targets = those("broadcast_from"), those("broadcast_to")

    def tasks(self, vector: Tensor) -> list[Callable[[], None]]:
        """What runs side by side, on the vector in place."""
        chunks = vector[self._first : self._end].split(self._chunk)
        tag = self._tag + len(chunks)
        found: list[Callable[[], None]] = []
        if self._children or self._parent:
            found.append(lambda: self._reduce(chunks, tag))
        elif self._is_root and self._targets:
            found.append(lambda: self._broadcast(chunks, tag))
        if self._source:
            found.append(lambda: self._broadcast(chunks, tag))
        return found

    def _reduce(self, chunks: Sequence[Tensor], tag: int) -> None:
        rooms = [
            [torch.empty_like(chunks[0]) for _ in range(min(WINDOW, len(chunks)))]
            for _ in self._children
        ]

        def post(c: int) -> list[tuple[Work, Tensor]]:
            arriving = [room[c % WINDOW][: len(chunks[c])] for room in rooms]
            both = zip(self._children, arriving, strict=True)
            return [(child.receive(into, self._tag + c), into) for child, into in both]

        up, down = Sender(self._parent), Sender(self._targets if self._is_root else ())
        coming = deque(post(c) for c in range(min(WINDOW, len(chunks))))
        for c, chunk in enumerate(chunks):
            held = self._own
            for work, arriving in coming.popleft():
                work.wait()
                if held:
                    chunk.add_(arriving)
                else:
                    chunk.copy_(arriving)
                held = True
            if c + WINDOW < len(chunks):
                coming.append(post(c + WINDOW))
            up.send(chunk, self._tag + c)
            down.send(chunk, tag + c)
        up.finish()
        down.finish()

    def _broadcast(self, chunks: Sequence[Tensor], tag: int) -> None:
        down, coming = Sender(self._targets), deque[list[Work]]()
        for c, chunk in enumerate(chunks):
            while len(coming) < WINDOW and (ahead := c + len(coming)) < len(chunks):
                coming.append([x.receive(chunks[ahead], tag + ahead) for x in self._source])
            for work in coming.popleft():
                work.wait()
            down.send(chunk, tag + c)
        down.finish()


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
    connections = {
        x["way"]: Connection(group(f"way{x['way']}", x["end"], 2, x["address"]), 1 - x["end"])
        for x in mine["connections"]
    }
    parts = [TreePart(part, connections) for part in mine["trees"]]
    vectors = [_vector(task, rank) for rank in range(task["participants"])]
    rank = mine["rank"]
    own = torch.zeros(task["elements"]) if rank is None else torch.from_numpy(vectors[rank])
    total = torch.from_numpy(np.sum(vectors, axis=0))
    vector = own.clone()
    pool = ThreadPoolExecutor(max(1, 2 * len(parts)))

    def trees() -> None:
        for done in [pool.submit(one) for part in parts for one in part.tasks(vector)]:
            done.result()

    ways: dict[str, Callable[[], object]] = {"plan": trees}
    if task["ring"]:
        ring = None
        if rank is not None:
            ring = group("ring", rank, task["participants"], mine["address"])
        ways["gloo"] = lambda: ring and ring.allreduce([vector]).wait()
    seen: dict[str, list[list[float]]] = {name: [] for name in ways}
    equal = dict.fromkeys(ways, True)
    for _ in range(task["warm_up"] + task["repetitions"]):
        for name, run in ways.items():
            vector.copy_(own)
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
