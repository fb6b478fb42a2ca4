"""CP-SAT as a program: it reads one constraint program and writes what it finds as it goes.

OR-tools and highspy bring different builds of HiGHS and cannot be loaded into one process, so this
file imports nothing of the project and is run by its path.

Standard input: one line of JSON, {"size": bytes of the program, "parameters": `SatParameters` in
text format, "watched": variables}, then the program, a `CpModelProto` in text format. The input
stays open for the life of the search: when it closes, the process ends.

Standard output: lines of JSON. {"values": of the watched variables} for every solution,
{"bound": on the objective} whenever it rises, and at the end {"status", "bound",
"deterministic_time"}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from ortools.sat.python import cp_model_helper as cp  # without the modelling layer: loads in 50 ms

_PROVED = {cp.CpSolverStatus.OPTIMAL, cp.CpSolverStatus.FEASIBLE}


class _Solutions(cp.SolutionCallback):
    def __init__(self, watched: list[int]) -> None:
        super().__init__()
        self._watched = watched

    def OnSolutionCallback(self) -> None:  # noqa: N802
        """Called by CP-SAT for every better solution."""
        solution = self.Response().solution  # type: ignore[no-untyped-call]
        _write({"values": [solution[variable] for variable in self._watched]})


def main() -> None:
    """One search."""
    request = json.loads(sys.stdin.buffer.readline())
    text = sys.stdin.buffer.read(request["size"]).decode()
    threading.Thread(target=_end_with_input, daemon=True).start()
    program, parameters = cp.CpModelProto(), cp.SatParameters()
    if not program.parse_text_format(text) or not parameters.parse_text_format(
        request["parameters"]
    ):
        raise ValueError("the request is not in the text format of its message")
    solver = cp.SolveWrapper()
    solver.set_parameters(parameters)
    solutions = _Solutions(request["watched"])  # the solver does not keep it alive
    solver.add_solution_callback(solutions)
    solver.add_best_bound_callback(lambda bound: _write({"bound": bound}))
    response = solver.solve(program)  # type: ignore[no-untyped-call]
    if response.status == cp.CpSolverStatus.MODEL_INVALID:
        raise ValueError(response.solution_info)
    end: dict[str, Any] = {
        "status": response.status.name,
        "deterministic_time": response.deterministic_time,
    }
    if response.status in _PROVED:
        end["bound"] = response.best_objective_bound
    _write(end)


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()
