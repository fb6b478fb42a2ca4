"""The processes of a run: started together, ended together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.files import read_json
from experiments.config.verbs import EXPERIMENTS
from experiments.execution.local import LocalProcess, Work
from experiments.run.artifacts import write_json

TASK, RESULT, MEETING, PLAN = "task.json", "process{}.json", "meeting", "plan.json"
POLL_S = 0.05


def run_processes(
    folder: Path, task: Mapping[str, Any], worker: str = "worker"
) -> list[dict[str, Any]]:
    """Have as many processes as the task says do it, by a module of here; what each has seen.

    They meet through a file of `folder` and talk over the loopback interface, one thread each. The
    first that fails ends all, as does an interrupt.

    Raises:
        InputError: a process refused the task, failed, or took longer than the task's `limit_s`.
    """
    write_json(folder / TASK, task)
    variables = dict(os.environ)
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    running: list[LocalProcess] = []
    try:
        for process in range(task["processes"]):
            words = ("-m", f"{EXPERIMENTS}.execution.{worker}", str(folder), str(process))
            place = folder / f"process{process}"
            running.append(LocalProcess(Work(words, place, place.with_suffix(".log")), variables))
        _wait(running, folder, time.monotonic() + task["limit_s"])
    finally:
        for one in running:
            one.kill()
    return [read_json(folder / RESULT.format(process)) for process in range(task["processes"])]


def report(work: Callable[[Path, int], dict[str, Any]]) -> None:
    """In such a process: do the task of the folder and the number on its command line."""
    folder, process = Path(sys.argv[1]), int(sys.argv[2])
    try:
        seen = work(folder, process)
    except InputError as error:
        seen = {"error": str(error)}
    write_json(folder / RESULT.format(process), seen)


def _wait(running: Sequence[LocalProcess], folder: Path, until: float) -> None:
    waiting = dict(enumerate(running))
    while waiting:
        for process, one in list(waiting.items()):
            code = one.poll()
            if code is None:
                continue
            del waiting[process]
            result, log = folder / RESULT.format(process), folder / f"process{process}.log"
            if code != 0 or not result.is_file():
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                last = next((x for x in reversed(lines) if x.strip()), "")
                raise InputError(f"process {process} ended with {code}: {last}", file=log)
            if (fault := read_json(result).get("error")) is not None:
                raise InputError(fault)
        if time.monotonic() > until:
            raise InputError(f"config key 'limit_s': {sorted(waiting)} of the processes still ran")
        time.sleep(POLL_S)
