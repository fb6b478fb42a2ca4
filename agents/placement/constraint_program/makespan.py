"""The step time of a plan as a constraint program: placement, order, ports and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agents.placement.constraint_program.live_memory import add_live_memory
from agents.placement.constraint_program.no_delay import add_no_delay
from agents.placement.constraint_program.operators import OperatorVariables
from agents.placement.constraint_program.program import ConstraintProgram
from agents.placement.constraint_program.scaling import TimeScale
from agents.placement.constraint_program.transfers import TransferVariables
from agents.placement.symmetry import canonical
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

IntArray = NDArray[np.int64]


class MakespanModel:
    """The least step time of the plans of `problem` under `single_port`, in units of `scale`.

    Devices and ports follow one permutation of the operators, as in the simulator
    (`OperatorVariables`, `TransferVariables`). The times of the model may be later than the
    simulator's, which starts everything as soon as it can, never sooner: played, a solution of
    value T takes at most T, and every plan of at most `horizon` units is a solution of the value
    that it takes.

    Where live tensors can overflow a device, its cumulative memory is limited. A solution may still
    overflow when it is played sooner than in the model: `forbid_delay` and `forbid` are then to
    rule it out.

    Args:
        problem: at least one operator.
        scale: how times become integers; where it rounds down, so does the optimum.
        horizon: units, the largest step time of interest.
        lower: units, below which no step time is.
    """

    def __init__(self, problem: StepProblem, scale: TimeScale, horizon: int, lower: int) -> None:
        seconds, moves = (
            np.minimum(scale.units(times), horizon + 1).astype(np.int64)  # out of reach is out
            for times in (problem.op_seconds, problem.transfer_seconds)
        )
        self.program = ConstraintProgram()
        self._operators = OperatorVariables(self.program, problem, seconds, horizon, lower)
        self._transfers = TransferVariables(self._operators, moves)
        self.program.minimize(self._operators.finish)
        # whether live tensors can overflow a device
        self.tight = add_live_memory(self._operators, self._transfers)
        self._slack = 0 if scale.exact else 1
        self._rounded = StepProblem(
            problem.graph,
            problem.topology,
            seconds.astype(np.float64),
            moves.astype(np.float64),
            problem.capacity,
        )

    @property
    def watched(self) -> list[int]:
        """The variables that `plan` reads."""
        return [*self._operators.position, *self._operators.place.watched]

    def plan(self, values: Sequence[int]) -> tuple[IntArray, IntArray]:
        """(N,) devices and (N,) order of a solution, given the values of `watched`."""
        n = len(self._operators.position)
        order = np.argsort(np.array(values[:n]), kind="stable")
        return self._operators.place.devices(values[n:]), order.astype(np.int64)

    def set_hint(self, device: IntArray, order: IntArray) -> None:
        """Start the search from the plan of `device` (N,) and `order` (N,)."""
        operators = self._operators
        device = canonical(device, operators.place.classes)
        played = StepSimulator(self._rounded).run(device, order)
        position = _positions(order)
        hint = operators.place.hint(device)
        for variables, numbers in (
            (operators.start, played.op_start),
            (operators.end, played.op_finish),
            (operators.position, position),
        ):
            hint.update(zip(variables, numbers.astype(np.int64).tolist(), strict=True))
        hint[operators.finish] = int(played.op_finish.max())
        for literal in operators.order_literals(position):
            hint[literal if literal >= 0 else ~literal] = int(literal >= 0)
        moved = {
            (tensor, target): (begin, end)
            for tensor, target, begin, end in zip(
                played.transfer_tensor.tolist(),
                played.transfer_destination.tolist(),
                played.transfer_start.astype(np.int64).tolist(),
                played.transfer_finish.astype(np.int64).tolist(),
                strict=True,
            )
        }
        for transfer in self._transfers.all:
            done = int(played.op_finish[transfer.producer])
            key = (transfer.tensor, transfer.target)
            hint[transfer.start], hint[transfer.end] = moved.get(key, (done, done))
        self.program.set_hint(hint)

    def forbid_delay(self) -> None:
        """Where memory matters, nothing starts later than it can, but for the rounding.

        Makes the program larger, and often slower to solve.
        """
        if self.tight:
            add_no_delay(self._operators, self._transfers, self._slack)

    def forbid(self, device: IntArray, order: IntArray) -> None:
        """Rule out the plan of `device` (N,) and `order` (N,), and all that play alike.

        These have the same placement, and order alike all pairs of operators that may meet on a
        device or on a port.
        """
        place = self._operators.place.literals(device)
        alike = [*place, *self._operators.order_literals(_positions(order))]
        self.program.add_clause([~literal for literal in alike])


def _positions(order: IntArray) -> IntArray:
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position
