"""`Slurm`: a cluster by the commands of its own, `squeue`, `sinfo` and `scontrol`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from envs.bounds import Positive, bounded
from envs.cluster.slurm.forms import gpus_in, hosts_in, instant, number, numbers_in, words
from envs.errors import InputError
from envs.files import parse_json

RUNNING = {"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"}
OVER = {
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL",
    "NODE_FAIL", "PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip
USABLE = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"}
LONGEST = 256  # characters of a name
KEPT = 20_000  # runs that are remembered
PAIRS = re.compile(r"(\w+)=((?:(?! \w+=).)*)")


class SlurmError(InputError):
    """A command failed or did not answer in time; later it may answer."""


class Run(NamedTuple):
    """One time that a job held its nodes, as `jobcomp/filetxt` writes it down."""

    job: str
    state: str  # PENDING: it was sent back to the queue
    submit_s: float
    start_s: float | None
    end_s: float
    gpus: int  # 0: that is not written there
    user: str

    @property
    def seconds(self) -> float:
        """For which it held them."""
        return 0.0 if self.start_s is None else max(self.end_s - self.start_s, 0.0)


@dataclass(frozen=True)
class Node:
    """A server."""

    name: str
    gpus: int
    gpu_type: str
    used: int  # GPUs, whoever holds them
    up: bool  # whether jobs may start there


@dataclass(frozen=True)
class Job:
    """A job, or one task of an array, that Slurm still lists."""

    name: str  # 17, or 17_3 of an array
    label: str  # its `--job-name`
    user: str
    partition: str
    state: str  # PENDING, RUNNING, COMPLETING or OVER
    submit_s: float  # since its last return to the queue
    start_s: float | None
    end_s: float | None
    limit_s: float | None
    gpus: int
    gpu_type: str | None
    nodes: int
    most_nodes: int  # 0: any number
    per_node: int | None  # GPUs on each; None: Slurm may divide them as it likes
    held: bool
    eligible_s: float  # the begin that it waits for
    depends: bool  # on other jobs, or on the operator who holds it
    movable: bool  # whether it may be sent back to the queue
    wants: tuple[str, ...]  # nodes it must have
    restarts: int  # times that it was sent back
    holds: Mapping[str, int] = field(default_factory=dict)  # GPUs by node
    comment: str = ""


@bounded
class Slurm:
    """What runs and waits in one partition, and changes to single jobs of it.

    Args:
        partition: no other is looked at.
        config: its `slurm.conf`; None: this machine's.
        timeout_s: seconds for one command.
    """

    def __init__(
        self, partition: str, config: str | None = None, timeout_s: Positive = 10.0
    ) -> None:
        self.partition, self.timeout_s = partition, timeout_s
        path = str(Path(config).resolve()) if config else os.environ.get("SLURM_CONF")
        own = ("SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_")  # what a shell may have set for people
        kept = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        named = {"SLURM_CONF": path} if path else {}
        self.environment = {**kept, **named, "LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}
        self._record: Path | None = None
        self._offset, self._runs = 0, list[Run]()

    def call(self, *command: str, stdin: bytes = b"") -> bytes:
        """What a command of Slurm's prints.

        Raises:
            SlurmError: it failed.
            InputError: there is no such program.
        """
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, timeout=self.timeout_s, check=True,
                env=self.environment,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise InputError(f"there is no program {command[0]!r}: is Slurm installed?") from error
        except subprocess.TimeoutExpired as error:
            late = f"{' '.join(command[:3])}: no answer in {self.timeout_s:g} s"
            raise SlurmError(late) from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr or error.stdout).decode(errors="replace").strip() or "failed"
            raise SlurmError(f"{' '.join(command[:3])}: {said.splitlines()[0]}") from error
        return done.stdout

    def jobs(self) -> list[Job]:
        """All jobs of the partition that Slurm lists, tasks of arrays one by one.

        Raises:
            SlurmError: it does not answer.
            InputError: its JSON has other keys.
        """
        listed = self._listed("jobs", "squeue", "--all", "--json")
        jobs = (job for row in listed for job in _jobs_of(row))
        return [job for job in jobs if self.partition in job.partition.split(",")]

    def glance(self) -> bytes:
        """A text that changes when jobs come, begin, end or are held; a fifth of `jobs`' work."""
        wanted = f"--partition={self.partition}"
        return self.call("squeue", "--all", "--noheader", wanted, "--format=%i %T %r %N")

    def nodes(self) -> list[Node]:
        """The nodes of the partition that have GPUs; raises as `jobs` does."""
        listed = self._listed("nodes", "sinfo", "--all", "--json")
        if not listed:  # later than Slurm 23.02 `sinfo` groups them
            listed = self._listed(
                "nodes", "scontrol", "--details", "--all", "show", "nodes", "--json"
            )
        own = (row for row in listed if self.partition in (row.get("partitions") or ()))
        return [node for node in map(_node_of, own) if node.gpus]

    def runs(self) -> Sequence[Run]:
        """What the file of ended jobs says of this partition's last `KEPT` runs, in its order.

        Lines that are no such record are left out: users can write into it, by folder and name.
        """
        path = self._record
        if path is not None and path.is_file():
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:  # it was begun anew
                    self._offset = 0
                file.seek(self._offset)
                added = file.read()
            whole = added[: added.rfind(b"\n") + 1]  # Slurm may be writing the last line
            self._offset += len(whole)
            if whole:
                lines = whole.decode(errors="replace").split("\n")
                self._runs = [*self._runs, *filter(None, map(self._run, lines))][-KEPT:]
        return self._runs

    def find_record(self) -> bool:
        """Whether Slurm writes down what has ended in a file that can be read here."""
        config = self._config()
        if config.get("JobCompType") == "jobcomp/filetxt":
            self._record = Path(config.get("JobCompLoc", ""))
        return self._record is not None and os.access(self._record.parent, os.R_OK)

    def hold(self, job: str) -> None:
        """As its user would: what an operator holds is the operator's to release."""
        self.call("scontrol", "uhold", job)

    def release(self, job: str) -> None:
        self.call("scontrol", "release", job)

    def leave(self, job: str) -> None:
        """Release a job to whatever nodes Slurm finds."""
        self.call("scontrol", "update", f"JobId={job}", "ReqNodeList=")
        self.release(job)

    def start(self, job: str, nodes: Sequence[str], returned: bool = True) -> None:
        """Let a held job run on nodes as soon as they are free.

        Args:
            job: its number.
            nodes: their names.
            returned: it may have been sent back to the queue: then it would wait two minutes.
        """
        self.call("scontrol", "update", f"JobId={job}", f"ReqNodeList={','.join(nodes)}")
        self.release(job)
        if returned:
            with suppress(SlurmError):  # it runs already
                self.call("scontrol", "update", f"JobId={job}", "StartTime=now")

    def stop(self, job: str) -> None:
        """Send a running job back to the queue, where it is held; one that has ended stays so."""
        self.call("scontrol", "requeuehold", "Incomplete", job)

    def complete(self, job: str, code: int, ended_s: float) -> None:
        """End a job that a controller takes to be running and has forgotten: no command does that.

        Args:
            job: its number.
            code: its exit code.
            ended_s: when it ended.

        Raises:
            SlurmError: the controller has not begun since, or Slurm's library refuses or is absent.
        """
        config = self._config()
        if ended_s > (instant(config.get("BOOT_TIME", "Unknown")) or 0.0):
            raise SlurmError(f"job {job}: the controller that saw its end goes on")
        told = self.call("scontrol", "--oneliner", "show", "job", job).decode(errors="replace")
        number = told.partition("=")[2].partition(" ")[0]
        script = str(Path(__file__).with_name("complete.py"))
        library = Path(config.get("PluginDir", "").partition(":")[0], "libslurmfull.so")
        self.call(sys.executable, script, str(library), number, str(code))

    def _config(self) -> dict[str, str]:
        said = self.call("scontrol", "show", "config").decode(errors="replace")
        return dict(re.findall(r"^(\w+)\s+= (.*)$", said, re.MULTILINE))

    def _listed(self, key: str, *command: str) -> list[dict[str, Any]]:
        name = " ".join(command)
        text = self.call(*command).decode(errors="replace")  # users name jobs as they like
        document = parse_json(text.encode(), name)
        found = document.get(key) if isinstance(document, dict) else None
        if found is None and isinstance(document, dict) and "sinfo" in document:
            return []
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise InputError("has no such list: a Slurm of another kind", file=name, field=key)
        return found

    def _run(self, line: str) -> Run | None:
        """A line of the file: what users write, their folder, stands between what Slurm writes."""
        before, _, others = line.partition(" WorkDir=")
        behind = others.rpartition(" ReservationName=")[2]
        row = {key: value for key, value in reversed(PAIRS.findall(before)) if key != "Name"}
        late = dict(reversed(PAIRS.findall(behind)))
        if row.get("Partition") != self.partition:
            return None
        try:
            submit = instant(late["SubmitTime"])
            start, end = instant(row["StartTime"]), instant(row["EndTime"])
            array = late.get("ArrayJobId")
            name = f"{array}_{late['ArrayTaskId']}" if array else row["JobId"]
            state, user = row["JobState"], row["UserId"].partition("(")[0][:LONGEST]
        except (KeyError, InputError):
            return None
        if submit is None or end is None:
            return None
        return Run(name, state, submit, start, end, gpus_in(late.get("Tres"))[0], user)


def _jobs_of(row: Mapping[str, Any]) -> Iterator[Job]:
    """A job of Slurm's JSON; of an array of which no task has begun, each of them."""
    try:
        identity, states, _ = int(row["job_id"]), words(row["job_state"]), row["partition"]
    except (KeyError, TypeError, ValueError) as error:
        reason = f"has no job_id, job_state or partition that can be read ({error})"
        raise InputError(reason, file="squeue --json", record=row.get("job_id")) from error
    array, task = number(row.get("array_job_id")), number(row.get("array_task_id"))
    waiting = str(row.get("array_task_string") or "")
    names = [str(identity)]
    if array and waiting:
        names = [f"{array:.0f}_{one}" for one in numbers_in(waiting)]
    elif array and task is not None:
        names = [f"{array:.0f}_{task:.0f}"]
    if names:
        job = _job_of(row, names[0], states)
        yield from (replace(job, name=name) for name in names)


def _job_of(row: Mapping[str, Any], name: str, states: set[str]) -> Job:
    nodes = int(number(row.get("node_count")) or 1)
    total, kind = gpus_in(row.get("tres_alloc_str") or row.get("tres_req_str"))
    per_job, per_node, per_task = (
        gpus_in(row.get(f"tres_per_{one}")) for one in ("job", "node", "task")
    )
    each = per_node[0] or None
    total = total or per_job[0] or (each or 0) * nodes
    total = total or per_task[0] * int(number(row.get("tasks")) or 1)
    hosts = hosts_in(str(row.get("nodes") or ""))
    detail = [gpus_in(one)[0] for one in row.get("gres_detail") or ()]
    if len(detail) != len(hosts):
        detail = [each or total // max(len(hosts), 1)] * len(hosts)
    ended = bool(states & OVER) and "REQUEUED" not in states
    state = (
        "COMPLETING" if "COMPLETING" in states
        else "OVER" if ended
        else "RUNNING" if states & RUNNING
        else "PENDING"
    )  # fmt: skip
    limit = number(row.get("time_limit"))
    return Job(
        name=name,
        label=str(row.get("name") or ""),
        user=str(row.get("user_name") or row.get("user_id") or "unknown")[:LONGEST],
        partition=str(row.get("partition"))[:LONGEST],
        state=state,
        submit_s=number(row.get("submit_time")) or 0.0,
        start_s=number(row.get("start_time")),
        end_s=number(row.get("end_time")),
        limit_s=None if not limit else 60.0 * limit,
        gpus=total,
        gpu_type=kind or per_job[1] or per_node[1] or per_task[1],
        nodes=nodes,
        most_nodes=int(number(row.get("max_nodes")) or 0),
        per_node=each,
        held=number(row.get("priority")) == 0,
        eligible_s=number(row.get("eligible_time")) or 0.0,
        depends=any(word in str(row.get("dependency")) for word in ("unfulfilled", "failed"))
        or "SPECIAL_EXIT" in states
        or row.get("state_reason") == "JobHeldAdmin",
        movable=row.get("requeue") not in (False, 0),
        wants=tuple(hosts_in(str(row.get("required_nodes") or ""))),
        restarts=int(number(row.get("restart_cnt")) or 0),
        holds=dict(zip(hosts, detail, strict=True)) if state in {"RUNNING", "COMPLETING"} else {},
        comment=str(row.get("comment") or ""),
    )


def _node_of(row: Mapping[str, Any]) -> Node:
    if "name" not in row or "state" not in row:
        raise InputError("has no name or no state", file="sinfo --json", record=row.get("name"))
    gpus, kind = gpus_in(row.get("gres"))
    states = words(row["state"]) | words(row.get("state_flags") or [])
    idle = number(row.get("idle_cpus"))
    up = bool(states) and states <= USABLE and idle != 0
    return Node(str(row["name"]), gpus, kind or "GPU", gpus_in(row.get("gres_used"))[0], up)
