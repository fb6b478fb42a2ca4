"""The processes of a run: started together, ended together, and with the process that started them.

python -m experiments.execution.processes <module of this folder> <folder> <number>
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envs.errors import InputError
from envs.files import read_json
from experiments.run.artifacts import write_json
from experiments.run.threads import THREAD_VARIABLES

TASK, RESULT, LOG = "task.json", "process{}.json", "process{}.log"
MEETING, PLAN = "meeting", "plan.json"
POLL_S = 0.05


def run_processes(
    folder: Path, task: Mapping[str, Any], worker: str = "worker"
) -> list[dict[str, Any]]:
    """Have as many processes as the task says do it, by a module of here; what each has seen.

    They meet through a file of `folder` and talk over the loopback interface, one thread each. The
    first that fails ends all, as does an interrupt, and the end of this process, however it comes.

    Raises:
        InputError: a process refused the task, failed, or took longer than the task's `limit_s`.
        ModuleNotFoundError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    write_json(folder / TASK, task)
    variables = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    numbers = range(task["processes"])
    with ExitStack() as ending:
        running = []
        for number in numbers:
            log = ending.enter_context((folder / LOG.format(number)).open("ab"))
            one = subprocess.Popen(
                [sys.executable, "-m", __name__, worker, str(folder), str(number)],
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,  # a signal to its group reaches all it has started
            )
            running.append(ending.enter_context(one))
            ending.callback(_kill, one.pid)
        _wait(running, folder, time.monotonic() + task["limit_s"])
    return [read_json(folder / RESULT.format(number)) for number in numbers]


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _wait(running: Sequence[subprocess.Popen[bytes]], folder: Path, until: float) -> None:
    waiting = dict(enumerate(running))
    while waiting:
        for process, one in list(waiting.items()):
            code = one.poll()
            if code is None:
                continue
            del waiting[process]
            result, log = folder / RESULT.format(process), folder / LOG.format(process)
            if code != 0 or not result.is_file():
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                last = next((x for x in reversed(lines) if x.strip()), "")
                raise InputError(f"process {process} ended with {code}: {last}", file=log)
            if (fault := read_json(result).get("error")) is not None:
                raise InputError(fault)
        if time.monotonic() > until:
            raise InputError(f"config key 'limit_s': {sorted(waiting)} of the processes still ran")
        time.sleep(POLL_S)


def _end_with_the_starter() -> None:
    """Kill this process and all it has started once the other end of its input is closed."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def main(worker: str, folder: Path, process: int) -> None:
    """In such a process: have the worker do the task; what it saw, or its refusal, to a file."""
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    try:
        seen = import_module(f"{__package__}.{worker}").work(folder, process)
    except InputError as error:
        seen = {"error": str(error)}
    write_json(folder / RESULT.format(process), seen)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
