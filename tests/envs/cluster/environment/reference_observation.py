"""The observation and the mask of a scheduler, worked out slowly from the tables of their docs."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log
from typing import Any

import numpy as np

from envs.cluster.environment.actions import QUEUE, REMAINING_SERVICE, REMAINING_TIME, SERVICE
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.nodes import UNLIMITED
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace


def count(number: float) -> float:
    return min(log(1 + number) / 4, 4.0)


def time(seconds: float) -> float:
    return 4.0 if seconds == inf else min(log(1 + seconds / 60) / 4, 4.0)


def exponential(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard deviation in which the n-th value came in with weight max(0.05, 1 / n)."""
    seen, weights = np.array(list(values)), np.zeros(0)
    for number in range(1, len(seen) + 1):
        weight = max(0.05, 1 / number)
        weights = np.append(weights * (1 - weight), weight)
    mean = float(weights @ seen)
    return mean, float(np.sqrt(weights @ (seen - mean) ** 2))


def kin(trace: Trace, job: int) -> tuple[list[int], list[int]]:
    """The jobs of the same gang size, user and queue before a job and after it, nearest first."""
    kinds = list(
        zip(trace.num_gpus, trace.gpu_milli, trace.user.codes, trace.queue.codes, strict=True)
    )
    alike = [j for j, kind in enumerate(kinds) if kind == kinds[job]]
    place = alike.index(job)
    return alike[:place][::-1], alike[place + 1 :]


class Reference:
    """One scheduler's part of an episode, settled."""

    def __init__(self, episode: SchedulingEpisode, me: int, owner: np.ndarray) -> None:
        self.episode, self.me, self.owner = episode, me, owner
        self.sim: ClusterSimulator = episode.simulator.copy()
        self.sim.settle()
        self.now = self.sim.now
        self.cluster, self.jobs = self.sim.cluster, self.sim.state.jobs
        self.sizes, self.book = episode.action_table, episode.book
        self.nodes = sorted(np.flatnonzero(owner == me), key=lambda n: (self.cluster.rack[n], n))
        self.racks = sorted({int(self.cluster.rack[n]) for n in self.nodes})
        self.gpus = int(self.cluster.gpus[self.nodes].sum())
        self.largest = episode.observation.bounds.gpus
        mine = [int(j) for j in self.sim.pending() if self.book.home[j] == me]
        self.queue = [j for j in mine if self.book.there[j] <= self.now]
        self.coming = [j for j in mine if self.book.there[j] > self.now]
        self.running = [int(j) for j in self.sim.running() if self.book.home[j] == me]
        held = {
            QUEUE: lambda j: 0.0,
            SERVICE: lambda j: self.service(j, "executed"),
            REMAINING_TIME: lambda j: self.jobs[j]["remaining"],
            REMAINING_SERVICE: lambda j: self.service(j, "remaining"),
        }[self.sizes.key]
        self.window = sorted(self.queue, key=held)[: self.sizes.window]

    def service(self, job: int, seconds: str) -> float:
        """Seconds of a job times thousandths of GPUs: ties are those of the kernel's products."""
        return float(self.jobs[job][seconds] * self.jobs[job]["gpus"] * self.jobs[job]["milli"])

    def fraction(self, job: int) -> float:
        """GPUs a job holds."""
        return self.jobs[job]["gpus"] * self.jobs[job]["milli"] / 1000

    def on(self, node: int) -> list[int]:
        """Jobs that run on a node."""
        return [j for j in self.running if node in dict(self.sim.shares(j))]

    def area(self, nodes: list[int], gpus: float) -> list[float]:
        """The eight columns of a rack or of all."""
        state = self.sim.state.nodes
        here = [(j, len(self.sim.shares(j))) for n in nodes for j in self.on(n)]
        total = sum(int(self.cluster.gpus[n]) for n in nodes)
        rates = [self.jobs[j]["rate"] for j, _ in here]
        return [
            total / gpus,
            sum(state[n]["free"] for n in nodes) / total,
            max(state[n]["free"] for n in nodes) / self.largest,
            sum(state[n]["free"] == state[n]["gpus"] and state[n]["up"] for n in nodes)
            / len(nodes),
            sum(state[n]["up"] for n in nodes) / len(nodes),
            min(len(here) / total, 4.0),
            sum(width > 1 for _, width in here) / max(len(here), 1),
            1 - sum(rates) / len(rates) if rates else 0.0,
        ]

    def server(self, node: int) -> list[float]:
        """The columns of a server."""
        state = self.sim.state.nodes[node]
        gpus, here = int(self.cluster.gpus[node]), self.on(node)
        whole = sum(dict(self.sim.shares(j))[node] for j in here if self.jobs[j]["milli"] == 1000)
        parts = sum(
            self.jobs[j]["milli"] * dict(self.sim.shares(j))[node]
            for j in here
            if self.jobs[j]["milli"] < 1000
        )
        shared = gpus - whole - int(state["free"]) if state["up"] else 0
        cpu = self.cluster.cpu_milli[node]
        taken = 0
        for j in here:
            share, asked = dict(self.sim.shares(j))[node], int(self.jobs[j]["cpu"])
            taken += -(-asked * share // int(self.jobs[j]["gpus"]))
        spanning = [j for j in here if len(self.sim.shares(j)) > 1]
        rates = [self.jobs[j]["rate"] for j in here]
        speed = self.sim.tables.speed.mean(axis=0)
        kind = int(self.cluster.gpu_type[node])
        return [
            gpus / self.largest,
            state["free"] / gpus,
            state["free"] / self.largest,
            float(state["up"]),
            min(len(here) / gpus, 4.0),
            len(spanning) / max(len(here), 1),
            1 - sum(rates) / len(rates) if rates else 0.0,
            (shared - parts / 1000) / gpus,
            1.0 if cpu == UNLIMITED else (cpu - taken) / cpu,
            1.0,
            speed[kind] / speed.max(),
            *(float(t == kind) for t in range(self.sizes.gpu_types)),
        ]

    def job(self, job: int) -> list[float]:
        """The columns of a job."""
        record, shares = self.jobs[job], self.sim.shares(job)
        runs, known = bool(shares), bool(self.sizes.known)
        racks = {int(self.cluster.rack[n]) for n, _ in shares}
        limits = self.cluster.cpu_milli[self.cluster.cpu_milli < UNLIMITED]
        tables, gpu_type = self.sim.tables, self.sim.trace.gpu_type[job]
        types = [
            tables.speed[0, t] if gpu_type in (None, name) else 0.0
            for t, name in enumerate(self.cluster.gpu_types)
        ]
        return [
            min(record["gpus"] / self.largest, 4.0),
            min(record["gpus"] / self.gpus, 4.0),
            record["milli"] / 1000,
            len(shares) / len(self.nodes),
            0.0 if len(shares) < 2 else 0.5 if len(racks) == 1 else 1.0,
            time(self.now - record["submit"]),
            time(self.now - record["since"]),
            time(record["executed"]),
            time(record["executed"] * self.fraction(job)),
            record["rate"] if runs else 0.0,
            time(max(record["ready"] - self.now, 0.0)) if runs else 0.0,
            min(record["preemptions"] / 4, 4.0),
            self.book.forwards[job] / max(self.sizes.most_forwards, 1),
            time(record["remaining"]) if known else 0.0,
            time(record["work"]) if known else 0.0,
            1 - record["remaining"] / record["work"] if known else 0.0,
            time(record["end"] - self.now) if known and runs else 0.0,
            tables.communication.max(),
            tables.demand.max(),
            tables.pair[0, 0],
            tables.pair[0, 0],
            tables.locality[0, 0, 1, 0],
            tables.locality[0, 0, 2, 0],
            min(record["cpu"] / max(limits), 4.0) if len(limits) else 0.0,
            0.0,
            *types,
            *[0.0] * (self.sizes.gpu_types - len(types)),
            *(self.history(job) if self.sizes.history else []),
        ]

    def history(self, job: int) -> list[float]:
        """The columns about jobs of the same kind and about finished ones."""
        trace, most = self.sim.trace, self.sizes.history

        out: list[float] = []
        for others in kin(trace, job):
            for j in others[:most] + [None] * (most - len(others)):
                if j is None or trace.submit_s[j] > self.now:
                    out += [0.0] * 4
                else:
                    apart = abs(float(trace.submit_s[j] - trace.submit_s[job]))
                    record = self.jobs[j]
                    out += [1.0, time(record["executed"]), record["finish"] >= 0, time(apart)]
        over = [j for j in range(len(trace)) if self.jobs[j]["finish"] >= 0]
        over.sort(key=lambda j: (self.jobs[j]["finish"], j))
        gang = list(zip(trace.num_gpus, trace.gpu_milli, strict=True))
        alike = [j for j in over if gang[j] == gang[job]]
        mean, deviation = exponential(time(self.jobs[j]["executed"]) for j in alike)
        return [
            *out,
            mean,
            deviation,
            count(len(alike)),
            *exponential(time(self.jobs[j]["executed"]) for j in over),
        ]

    def edges(self, seen: dict[str, Any]) -> dict[tuple[int, int], tuple[float, float]]:
        """(row of a running job, slot of a server): the columns of the share, from what is seen."""
        m = seen["share_mask"].astype(bool)
        return {
            (int(row), int(slot)): tuple(map(float, features))
            for row, slot, features in zip(
                *seen["share_index"][:, m], seen["share_features"][m], strict=True
            )
        }

    def expected_edges(self, rows: list[int]) -> dict[tuple[int, int], tuple[float, float]]:
        """The same from the simulator, for running jobs in the rows of the observation."""
        out = {}
        for row, job in enumerate(rows):
            for node, gpus in self.sim.shares(job):
                held = gpus * self.jobs[job]["milli"] / 1000
                out[row, self.nodes.index(node)] = (
                    held / int(self.cluster.gpus[node]),
                    gpus / int(self.jobs[job]["gpus"]),
                )
        return out

    def summary(self) -> list[float]:
        """What others are shown of this scheduler; the first column in GPUs."""
        asked = sum(self.fraction(j) for j in self.queue)
        free = self.sim.state.nodes["free"][self.nodes]
        return [
            self.gpus,
            free.sum() / self.gpus,
            free.max() / self.largest,
            count(len(self.queue)),
            min(asked / self.gpus, 4.0),
            count(len(self.running)),
            count(len(self.coming)),
            *(
                self.cluster.gpus[self.nodes][self.cluster.gpu_type[self.nodes] == t].sum()
                / self.gpus
                for t in range(self.sizes.gpu_types)
            ),
        ]

    def room(self, job: int, node: int) -> int:
        """GPUs of a job that could go to a node now."""
        record, state = self.jobs[job], self.sim.state.nodes[node]
        wanted = int(record["gpus"])
        if not state["up"]:
            return 0
        if self.sim.trace.gpu_type[job] not in (None, self.cluster.gpu_types[state["type"]]):
            return 0
        free = int(state["free"])
        shares = record["milli"] < 1000 and record["cpu"] <= state["cpu"]
        if shares and any(
            one["gpus"] == wanted and one["left"] >= record["milli"] for one in self._opened(node)
        ):
            return wanted
        for gpus in range(min(free, wanted), 0, -1):
            if -(-int(record["cpu"]) * gpus // wanted) <= state["cpu"]:
                return gpus
        return 0

    def _opened(self, node: int) -> list[Any]:
        """The sets of partial GPUs of a node."""
        sets, index = [], int(self.sim.state.nodes[node]["partial"])
        while index >= 0:
            sets.append(self.sim.state.partials[index])
            index = int(self.sim.state.partials[index]["next"])
        return sets

    def groups(self, job: int) -> list[int]:
        """Server groups a job is offered."""
        table, wanted = self.episode.action_table, int(self.jobs[job]["gpus"])
        rooms = [self.room(job, node) for node in self.nodes]
        out, with_rack = [], False
        if table.allow_servers:
            out += [slot for slot, there in enumerate(rooms) if there >= wanted]
        inside = bool(out)
        for number, rack in enumerate(self.racks):
            here = [
                r for r, n in zip(rooms, self.nodes, strict=True) if self.cluster.rack[n] == rack
            ]
            alone = max(here) >= wanted
            if table.allow_racks and sum(here) >= wanted and not (table.allow_servers and alone):
                out.append(table.servers + number)
                with_rack = True
        if table.allow_all and sum(rooms) >= wanted and not inside and not with_rack:
            out.append(table.groups - 1)
        return out
