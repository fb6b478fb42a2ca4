"""CP-SAT in a process of its own, and the lines it writes while it searches."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agents.constraint_program.program import ConstraintProgram

_PROCESS = Path(__file__).with_name("process.py")
_CHUNK = 1 << 16  # bytes read at once
_GRACE = 0.05  # seconds after its limit at which a search that has not ended is killed


@dataclass(frozen=True)
class CpSettings:
    """How CP-SAT searches.

    Args:
        workers: parallel searches; one makes a deterministic limit reproducible.
        seed: of all searches.
    """

    workers: int
    seed: int


@dataclass(frozen=True)
class Event:
    """Something a search has found."""

    values: list[int] | None = None  # of the watched variables in a better solution
    bound: float | None = None  # no solution has a smaller objective
    status: str = ""  # of the finished search: OPTIMAL, INFEASIBLE, or stopped by a limit
    deterministic_time: float = 0.0  # of the finished search


class CpSolver:
    """One search by CP-SAT.

    The process starts with the object, and loads OR-tools while the program is still being made.
    Leaving the `with` block ends it, whatever it is doing; it also ends when its parent does.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROCESS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # an interrupt at the terminal is this process's to handle
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()

    def search(
        self,
        program: ConstraintProgram,
        watched: Sequence[int],
        settings: CpSettings,
        *,
        seconds: float,
        deterministic_limit: float | None,
    ) -> Iterator[Event]:
        """What CP-SAT finds in `program` within `seconds` of wall time, as it finds it.

        Coefficients and bounds must stay below 2^31: with some beyond 2^33, CP-SAT of OR-tools 9.15
        has called programs of four operators optimal at a value that is not.

        `deterministic_limit` caps the work in CP-SAT's deterministic seconds. Ends with an event
        that has a status; without one, the process had to be killed at the limit.

        Raises:
            RuntimeError: the process failed, or refused the program.
        """
        end = time.perf_counter() + seconds
        parameters = (
            f"max_time_in_seconds:{max(seconds, 0.0)!r} random_seed:{settings.seed % 2**31} "
            "catch_sigint_signal:false "
        )
        parameters += f"num_workers:{settings.workers} "
        if settings.workers == 1:
            parameters += "interleave_search:true "  # all strategies take turns
        if deterministic_limit is not None:
            parameters += f"max_deterministic_time:{float(deterministic_limit)!r}"
        text = program.text().encode()
        request = {"size": len(text), "parameters": parameters, "watched": list(watched)}
        self._send(json.dumps(request).encode() + b"\n" + text)
        for line in self._lines(end + _GRACE):
            event = Event(**json.loads(line))
            yield event
            if event.status:
                return

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()  # and left open: the process ends with its input
        except BrokenPipeError as error:
            raise RuntimeError(f"CP-SAT's process failed: {self._complaint()}") from error

    def _lines(self, end: float) -> Iterator[bytes]:
        """Complete lines of output until `end` of the clock."""
        assert self._process.stdout is not None
        output, rest = self._process.stdout.fileno(), b""
        while True:
            left = end - time.perf_counter()
            if left <= 0.0 or not select.select([output], [], [], left)[0]:
                return
            chunk = os.read(output, _CHUNK)
            if not chunk:
                raise RuntimeError(f"CP-SAT's process failed: {self._complaint()}")
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def _complaint(self) -> str:
        """The last line the process wrote to its standard error."""
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}, no message"
