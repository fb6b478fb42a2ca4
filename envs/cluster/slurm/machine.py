"""A Slurm of its own on this machine: many nodes with GPUs that are none, for jobs that sleep."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from envs.bounds import Count, bounded
from envs.cluster.slurm.commands import Slurm, SlurmError
from envs.errors import InputError

NEEDED = ("slurmctld", "slurmd", "squeue", "sinfo", "scontrol", "sbatch", "scancel")
PARTITION = "gpu"
# It sleeps for the work that is left. What it has slept is kept for after a requeue, and a log has
# when it began and stopped, in milliseconds since 1970.
SLEEPER = """#!/bin/bash
#SBATCH --output=/dev/null --error=/dev/null --requeue
of={folder}/slept/{name}
before=$(cat "$of" 2>/dev/null || echo 0)
begun=$(date +%s%3N)
keep() {{
    now=$(date +%s%3N)
    echo "$((before + now - begun))" > "$of.new" && mv "$of.new" "$of"
    printf '%s\\n' "$begun" "$now" >> "$of.log"
}}
trap 'keep; exit 143' TERM
left=$(({milliseconds} - before))
(( left > 0 )) && {{ sleep "$((left / 1000)).$(printf %03d $((left % 1000)))" & wait $!; }}
keep
"""


def missing_programs() -> list[str]:
    """Programs of Slurm that are not installed here."""
    return [name for name in NEEDED if shutil.which(name) is None]


@bounded
class LocalSlurm:
    """One `slurmctld` and as many `slurmd` as nodes, in a folder, on 127.0.0.1; a context manager.

    GPUs are character devices, which only root can make.

    Args:
        folder: of configuration, state and logs; it must not exist or be empty.
        nodes: how many.
        gpus_per_node: of each.
        gpu_type: their type.
        settings: further lines of `slurm.conf`.
        once: a killed controller begins no job again (`once.sh`), for up to six seconds at a start.

    Raises:
        InputError: Slurm is not installed, this is not root, or it does not become ready.
    """

    def __init__(
        self,
        folder: str | Path,
        nodes: Count = 8,
        gpus_per_node: Count = 8,
        gpu_type: str = "v100",
        settings: Sequence[str] = (),
        once: bool = False,
    ) -> None:
        self.folder, self.nodes, self.gpus_per_node = Path(folder).resolve(), nodes, gpus_per_node
        missing = missing_programs()
        if missing:
            raise InputError(f"{', '.join(missing)}: not installed (Debian: slurm-wlm)")
        if os.geteuid() != 0:
            raise InputError("a Slurm with GPUs that are none can only be started by root")
        for name in ("state", "log", "slept"):
            (self.folder / name).mkdir(parents=True)
        self._spool = tempfile.mkdtemp(prefix="slurm-")  # paths of its sockets must be short
        self.config = self.folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        script = self.folder / "once.sh"
        if once:
            shutil.copy(Path(__file__).with_name("once.sh"), script)
            script.chmod(0o755)
            settings = [*settings, f"PrologSlurmctld={script}", f"Prolog={script}"]
        self._configure(gpu_type, settings)
        self.slurm = Slurm(PARTITION, str(self.config))

    def __enter__(self) -> LocalSlurm:
        with ExitStack() as failed:
            failed.push(self)
            self.start_controller()
            for number in range(self.nodes):
                self._start("slurmd", "-D", "-f", str(self.config), "-N", f"n{number}")
            self._wait_until_ready(60.0)
            failed.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        controller = self._processes.get("slurmctld")
        if controller is not None and controller.poll() is None:
            with suppress(InputError):  # jobs would sleep on
                self.cancel(5.0)
        for signal_ in signal.SIGTERM, signal.SIGKILL:
            for process in self._processes.values():
                if process.poll() is None:
                    process.send_signal(signal_)
            until = time.monotonic() + 5.0
            while time.monotonic() < until and any(
                process.poll() is None for process in self._processes.values()
            ):
                time.sleep(0.05)
        shutil.rmtree(self._spool, ignore_errors=True)

    def start_controller(self) -> None:
        """Start `slurmctld`, as after it was killed."""
        self._start("slurmctld", "-D", "-f", str(self.config))

    def kill_controller(self) -> None:
        """`kill -9` of `slurmctld`."""
        self._processes["slurmctld"].kill()
        self._processes["slurmctld"].wait()

    def submit(
        self, name: str, gpus: int, seconds: float, *, held: bool = True, comment: str = ""
    ) -> str:
        """Queue a job that sleeps for some seconds of its own; returns its number.

        Gangs that one node does not hold have whole nodes, and the rest of the last is not asked
        for: they must be a multiple of a node's GPUs.
        """
        nodes, per_node = 1, gpus
        if gpus > self.gpus_per_node:
            nodes, per_node = -(-gpus // self.gpus_per_node), self.gpus_per_node
        script = SLEEPER.format(
            folder=self.folder, name=name, milliseconds=max(round(1000 * seconds), 1)
        )
        words = [f"--job-name={name}", f"-N{nodes}", "--ntasks-per-node=1", f"--comment={comment}"]
        words += [f"--gres=gpu:{per_node}"] if gpus else []
        words += ["--hold"] if held else []
        said = self.slurm.call("sbatch", "--parsable", *words, stdin=script.encode())
        return said.decode().strip().partition(";")[0]

    def cancel(self, timeout_s: float = 60.0) -> None:
        """End all jobs, and wait until nothing of them runs.

        Raises:
            SlurmError: they do not end, or Slurm does not answer.
        """
        self.slurm.call("scancel", f"--partition={PARTITION}")
        until = time.monotonic() + timeout_s
        while any(job.state != "OVER" for job in self.slurm.jobs()):
            if time.monotonic() > until:
                raise SlurmError(f"cancelled jobs do not end in {timeout_s:g} s")
            time.sleep(0.1)

    def slept(self, name: str) -> list[tuple[float, float]]:
        """When a job began to sleep and when it stopped, in seconds since 1970."""
        log = self.folder / "slept" / f"{name}.log"
        times = [int(line) / 1000 for line in log.read_text().split()] if log.exists() else []
        return list(zip(times[::2], times[1::2], strict=False))

    def _start(self, *command: str) -> None:
        name = command[-1] if command[0] == "slurmd" else command[0]
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.slurm.environment, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def _wait_until_ready(self, timeout_s: float) -> None:
        until, said = time.monotonic() + timeout_s, "no answer"
        while time.monotonic() < until:
            try:
                ready = [node for node in self.slurm.nodes() if node.up]
                if len(ready) == self.nodes:
                    return
                said = f"{len(ready)} of {self.nodes} nodes are ready"
            except SlurmError as error:
                said = str(error)
            time.sleep(0.1)
        raise InputError(f"not ready in {timeout_s:g} s: {said}", file=self.folder)

    def _configure(self, gpu_type: str, settings: Sequence[str]) -> None:
        folder, gpus = self.folder, self.gpus_per_node
        for number in range(gpus):
            os.mknod(folder / f"gpu{number}", 0o20666, os.makedev(1, 3))  # /dev/null
        ports = _free_ports(1 + self.nodes)
        cpus = 2 * gpus
        lines = [
            "ClusterName=meshwright", "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={ports[0]}", "AuthType=auth/none", "CredType=cred/none",
            "SlurmUser=root", "SlurmdUser=root",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny", "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none", "MpiDefault=none",
            "SwitchType=switch/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core", "SlurmdParameters=config_overrides",
            "ReturnToService=2", "GresTypes=gpu", "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={folder}/ended.txt", f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={self._spool}/%n", f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/%n.log", f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/%n.pid", "KillWait=1", "MinJobAge=300",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1",
            *settings,
            *(f"NodeName=n{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
              f"Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=100000 "
              f"Gres=gpu:{gpu_type}:{gpus}" for n, port in enumerate(ports[1:])),
            f"PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        ]  # fmt: skip
        self.config.write_text("\n".join(lines) + "\n")
        devices = f"{folder}/gpu[0-{gpus - 1}]" if gpus > 1 else f"{folder}/gpu0"
        gres = f"AutoDetect=off\nName=gpu Type={gpu_type} File={devices}\n"
        (folder / "gres.conf").write_text(gres)


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens at now."""
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    found = [int(one.getsockname()[1]) for one in opened]
    for one in opened:
        one.close()
    return found
