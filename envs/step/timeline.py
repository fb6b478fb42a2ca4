"""`Timeline`: everything that happened in one simulated step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.step.memory import peak_memory
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Starts and finishes in seconds from the beginning of the step."""

    device: IntArray  # (N,) where each operator ran
    op_start: FloatArray  # (N,)
    op_finish: FloatArray  # (N,)
    transfer_tensor: IntArray  # (K,)
    transfer_source: IntArray  # (K,) device
    transfer_destination: IntArray  # (K,) device
    transfer_start: FloatArray  # (K,)
    transfer_finish: FloatArray  # (K,)
    peak_memory: FloatArray  # (D,) bytes: resident state and the peak of live activations

    @classmethod
    def of(
        cls,
        problem: StepProblem,
        device: IntArray,  # (N,)
        op_start: FloatArray,  # (N,)
        op_finish: FloatArray,  # (N,)
        tensor: IntArray,  # (K,)
        source: IntArray,  # (K,) device
        destination: IntArray,  # (K,) device
        start: FloatArray,  # (K,)
        finish: FloatArray,  # (K,)
    ) -> Timeline:
        """What happened, with the peak memory that follows."""
        peak = peak_memory(
            problem.graph, problem.topology.num_devices, device, op_start, op_finish, tensor,
            destination, start, finish,
        )  # fmt: skip
        return cls(device, op_start, op_finish, tensor, source, destination, start, finish, peak)

    @property
    def step_time(self) -> float:
        """Seconds until the last operator ends."""
        return float(self.op_finish.max(initial=0.0))

    def busy_seconds(self, num_devices: int) -> FloatArray:
        """(D,) seconds each device computed."""
        busy = np.zeros(num_devices)
        np.add.at(busy, self.device, self.op_finish - self.op_start)
        return busy
