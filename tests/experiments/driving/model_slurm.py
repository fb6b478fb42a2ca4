"""A Slurm in memory, as strict as the real one: what a driver may assume, and no more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envs.cluster.slurm.commands import Job, Node, Run, Slurm, SlurmError


@dataclass
class Asked:
    """A job, and what is left of it."""

    job: Job
    work_s: float
    past: list[Run] = field(default_factory=list)
    starts: int = 0


class ModelSlurm(Slurm):
    """Jobs of one partition on equal nodes; `tick` lets time pass and Slurm do what it would."""

    def __init__(self, nodes: int, gpus: int, now: float, rng: random.Random) -> None:
        super().__init__("gpu")
        self.table = {f"n{n}": Node(f"n{n}", gpus, "v100", 0, True) for n in range(nodes)}
        self.asked: dict[str, Asked] = {}
        self.now, self.rng = now, rng
        self.changes = 0
        self.silent = False  # the controller is dead

    def submit(self, gpus: int, work_s: float, *, label: str, held: bool, nodes: int = 1) -> str:
        name = str(len(self.asked) + 1)
        job = Job(
            name=name, label=label, user="ann", partition="gpu", state="PENDING",
            submit_s=self.now, start_s=None, end_s=None, limit_s=3600.0, gpus=gpus * nodes,
            gpu_type=None, nodes=nodes, per_node=gpus, held=held, eligible_s=0.0, depends=False,
            wants=(), restarts=0, most_nodes=nodes, movable=True,
        )  # fmt: skip
        self.asked[name] = Asked(job, work_s)
        return name

    def jobs(self) -> list[Job]:
        self._answer()
        return [one.job for one in self.asked.values()]

    def nodes(self) -> list[Node]:
        self._answer()
        return [replace(node, used=self.used(node.name)) for node in self.table.values()]

    def runs(self) -> list[Run]:
        return [run for one in self.asked.values() for run in one.past]

    def used(self, node: str) -> int:
        return sum(one.job.holds.get(node, 0) for one in self.asked.values())

    def hold(self, job: str) -> None:
        self._change(job, "PENDING", held=True)

    def release(self, job: str) -> None:
        self._change(job, "PENDING", held=False)

    def leave(self, job: str) -> None:
        self._change(job, "PENDING", wants=(), held=False)

    def glance(self) -> bytes:
        self._answer()
        jobs = (one.job for one in self.asked.values())
        return repr([(job.name, job.state, job.held) for job in jobs]).encode()

    def start(self, job: str, nodes: Sequence[str], returned: bool = True) -> None:
        if unknown := [node for node in nodes if node not in self.table]:
            raise SlurmError(f"scontrol update: Invalid node name specified {unknown}")
        one = self.asked[job].job
        assert not one.restarts or self.now >= one.submit_s + 1  # or a node would refuse it
        assert returned or not one.restarts  # or it would wait two minutes
        self._change(job, "PENDING", wants=tuple(nodes))
        self._change(job, "PENDING", held=False)

    def stop(self, job: str) -> None:
        self._change(job, "RUNNING", state="COMPLETING", held=True)
        self._leave(job, "PENDING")

    def complete(self, job: str, code: int, ended_s: float) -> None:
        self._change(job, "RUNNING", state="OVER", holds={})

    def cancel(self, job: str) -> None:
        if self.asked[job].job.state != "OVER":
            if self.asked[job].job.state == "RUNNING":
                self._leave(job, "CANCELLED")
            self._set(job, state="OVER", holds={}, end_s=self.now)

    def tick(self, seconds: float) -> None:
        """Time passes; jobs end, those that were stopped come back, released ones begin."""
        self.now += seconds
        for name, one in self.asked.items():
            job = one.job
            if job.state == "COMPLETING":
                again = {"restarts": job.restarts + 1, "submit_s": self.now}
                self._set(name, state="PENDING", holds={}, **again)
            elif job.state == "RUNNING" and self.now - (job.start_s or 0) >= one.work_s:
                self._leave(name, "COMPLETED")
                self._set(name, state="OVER", holds={}, end_s=self.now)
        for name in self.rng.sample(sorted(self.asked), len(self.asked)):
            self._begin(name)

    def _begin(self, name: str) -> None:
        job = self.asked[name].job
        if job.state != "PENDING" or job.held:
            return
        room = [n for n, node in self.table.items()
                if node.up and node.gpus - self.used(n) >= (job.per_node or 0)]  # fmt: skip
        chosen = list(job.wants) if job.wants else room[: job.nodes]
        if len(chosen) == job.nodes and set(chosen) <= set(room):
            self.asked[name].starts += 1
            holds = dict.fromkeys(chosen, job.per_node or 0)
            self._set(name, state="RUNNING", holds=holds, start_s=self.now)

    def _leave(self, name: str, state: str) -> None:
        one = self.asked[name]
        start = one.job.start_s or self.now
        one.past.append(Run(name, state, one.job.submit_s, start, self.now, 0, "ann"))
        one.work_s -= self.now - start

    def _change(self, name: str, wanted: str, **fields: object) -> None:
        self._answer()
        if name not in self.asked or self.asked[name].job.state != wanted:
            raise SlurmError(f"scontrol {name}: Job is not {wanted.lower()}")
        self.changes += 1
        self._set(name, **fields)

    def _set(self, name: str, **fields: object) -> None:
        self.asked[name].job = replace(self.asked[name].job, **fields)  # type: ignore[arg-type]

    def _answer(self) -> None:
        if self.silent:
            raise SlurmError("squeue: Unable to contact slurm controller (connect failure)")
