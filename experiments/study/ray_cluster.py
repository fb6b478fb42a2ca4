"""The cells of a grid on a Ray cluster: the only file of `experiments` that knows Ray.

Every machine of the cluster has this package installed, its extras that the cells need, and the
public data where they need that (`MESHWRIGHT_DATA`). A cell has the same absolute paths everywhere.
Where a machine sees the run folder, as on a shared file system, the cell writes there; where it
does not, the folders that the cell reads are sent to it and its own comes back when it has ended.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import ray
from annotated_types import Ge, Gt
from ray import exceptions

from agents.rllib.connection import connect
from envs.bounds import Count, bounded
from envs.errors import InputError
from experiments.study.processes import LocalProcess, Running, Work, WorkerLost

POLL_S = 0.1
STOP_S = 1.5  # how long a command may take to stop before it is killed
TERMINATED = -15
OURS, RAYS = "MESHWRIGHT_", "RAY_"  # how variables begin that a cell has of its driver, or must not
LOST: Mapping[type[Exception], str] = {
    exceptions.WorkerCrashedError: "its process died",
    exceptions.NodeDiedError: "its machine died",
    exceptions.LocalRayletDiedError: "its machine died",
    exceptions.OutOfMemoryError: "its machine ran out of memory",
    exceptions.ObjectLostError: "its machine died before its result was fetched",
    exceptions.OwnerDiedError: "its machine died",
}


class Ended(NamedTuple):
    """What a command came to; `files` is the archive of its folder where that was not seen."""

    code: int
    said: bytes = b""
    files: bytes | None = None


@bounded
@dataclass(frozen=True)
class RayCluster:
    """Commands on the machines of a Ray cluster; see `experiments.study.processes.Executor`.

    Args:
        address: of the cluster; None: one is started on this machine.
        workers: commands at a time; those for which there is no CPU yet wait in Ray.
        cpus: that each of them takes.
        gpus: that each of them takes.
        shared: whether all machines see the run folder; None: each looks.

    Raises:
        InputError: there is no such cluster, no machine in it has so many CPUs or GPUs, or this
            Python cannot lay out archives safely.
    """

    address: str | None
    workers: Count
    cpus: Annotated[float, Gt(0.0)]
    gpus: Annotated[float, Ge(0.0)]
    shared: bool | None
    _sent: dict[Path, ray.ObjectRef] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not hasattr(tarfile, "data_filter"):
            raise InputError("a grid on a Ray cluster needs Python 3.11.4 or newer")
        connect(self.address)
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for kind, asked in (("CPU", self.cpus), ("GPU", self.gpus)):
            most = max((machine.get(kind, 0.0) for machine in machines), default=0.0)
            if asked > most:
                message = f"no machine of the cluster has {asked:g} {kind}s, but {most:g} at most"
                raise InputError(message, field=f"{kind.lower()}s")

    def start(self, work: Work) -> Running:
        """Submit a command; Ray has it wait where no machine is free."""
        token = secrets.token_hex(8)
        work.lock.write_text(token, encoding="utf-8")
        archives = [] if self.shared else [self._archive(path) for path in work.reads]
        driver = {name: text for name, text in os.environ.items() if name.startswith(OURS)}
        remote = ray.remote(run_here).options(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_retries=0,  # the grid itself tells of a loss, and goes on where the cell stood
            scheduling_strategy="SPREAD",
        )
        sees = token if self.shared is None else self.shared
        return _Task(remote.remote(work, archives, sees, driver, os.getcwd()), work)

    def _archive(self, folder: Path) -> ray.ObjectRef:
        """A folder that is done, in Ray's object store."""
        if folder not in self._sent:
            self._sent[folder] = ray.put(packed(folder))
        return self._sent[folder]


class _Task:
    """A command on some machine; see `Running`."""

    def __init__(self, reference: ray.ObjectRef, work: Work) -> None:
        self._reference, self._work = reference, work
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None and ray.wait([self._reference], timeout=0)[0]:
            ended = self._result()
            if ended.files is not None:
                unpack(ended.files, self._work.folder)
            if ended.said:
                with self._work.log.open("ab") as log:
                    log.write(ended.said)
            self._code = ended.code
        return self._code

    def stop(self) -> None:
        ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        ray.cancel(self._reference, force=True)
        ray.wait([self._reference], timeout=STOP_S)

    def _result(self) -> Ended:
        try:
            return Ended(*ray.get(self._reference))
        except exceptions.TaskCancelledError:
            return Ended(TERMINATED)
        except tuple(LOST) as error:
            why = next(text for kind, text in LOST.items() if isinstance(error, kind))
            raise WorkerLost(why) from error
        except exceptions.RayError as error:
            cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
            lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
            needed = "needs the package, installed or on PYTHONPATH, and the run folder's path"
            message = f"a worker {needed} ({lines[-1] if lines else type(error).__name__})"
            raise InputError(message, field="executor") from error


def run_here(
    work: Work,
    archives: Sequence[ray.ObjectRef],
    sees: str | bool,
    driver: Mapping[str, str],
    directory: str,
) -> tuple[int, bytes, bytes | None]:
    """Run a command on this machine; the fields of `Ended`.

    `archives` are of the folders that it reads; `sees` is whether this machine sees what the
    driver sees, or the text of the lock file that is there if it does. `driver` are variables that
    hold where this machine has none of its own, `directory` is the one to work in if it is here.
    """
    seen = sees if isinstance(sees, bool) else _text(work.lock) == sees
    made = [] if seen else _received(work, archives)
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(RAYS)}
    before = work.log.stat().st_size if work.log.exists() else 0
    place = directory if Path(directory).is_dir() else None
    process = LocalProcess(work, {**driver, **inherited}, place)
    try:
        while (code := process.poll()) is None:
            time.sleep(POLL_S)
    except BaseException:  # this task is cancelled
        process.stop()
        until = time.monotonic() + STOP_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(POLL_S)
        raise
    finally:
        process.kill()
    if seen:
        return code, b"", None
    said, files = work.log.read_bytes()[before:], packed(work.folder)
    for path in (*made, work.folder):
        shutil.rmtree(path, ignore_errors=True)
    for path in (work.log, work.lock):
        path.unlink(missing_ok=True)
    return code, said, files


def _received(work: Work, archives: Sequence[ray.ObjectRef]) -> list[Path]:
    """Lay out the folders that a command reads; those that were not here before."""
    work.folder.parent.mkdir(parents=True, exist_ok=True)
    made = []
    for path, archive in zip(work.reads, archives, strict=bool(archives)):
        if not path.exists():
            unpack(ray.get(archive), path)
            made.append(path)
    return made


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def packed(folder: Path) -> bytes:
    """An archive of a folder; of nothing where there is none."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        if folder.is_dir():
            archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Lay out an archive as `folder`, whole or not at all, in place of what is there."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        archive.extractall(part, filter="data")
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)
