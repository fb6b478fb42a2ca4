"""The cost of one optimizer step, traced for one parameter at a time on meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from envs.graphs.fake_module import FakeScalars
from envs.graphs.op_graph import Phase
from envs.graphs.recorder import Recorder

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]

_SCALARS = {
    torch.bool: False, torch.float16: 1.0, torch.bfloat16: 1.0, torch.float32: 1.0,
    torch.float64: 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class UpdateCost:
    """The update of one parameter as a single fused operator.

    Attributes:
        flop: matrix multiplications only (0 for SGD and Adam).
        bytes_read: distinct tensors read once: parameter, gradient, state.
        bytes_written: distinct tensors written once: parameter, state.
        state_bytes: the state the optimizer keeps for the parameter (host scalars such as Adam's
            step counter are left out).
    """

    flop: float
    bytes_read: float
    bytes_written: float
    state_bytes: float


@dataclass
class OptimizerTrace:
    """Update costs by shape and type of the parameter; equal parameters are traced once.

    The second step is costed: the first one creates the state. A norm that the optimizer reads
    back reads as 1, which changes no cost.
    """

    factory: OptimizerFactory

    def __post_init__(self) -> None:
        self._known: dict[tuple[torch.Size, torch.dtype], UpdateCost] = {}

    def cost(self, parameter: nn.Parameter) -> UpdateCost:
        """The update of a parameter of this shape and type."""
        key = (parameter.shape, parameter.dtype)
        if key not in self._known:
            self._known[key] = self._trace(*key)
        return self._known[key]

    def _trace(self, shape: torch.Size, dtype: torch.dtype) -> UpdateCost:
        parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
        parameter.grad = torch.empty_like(parameter)
        optimizer = self.factory([parameter])
        for group in optimizer.param_groups:
            group["foreach"] = False
        recorder = Recorder(Phase.OPTIMIZER)
        with FakeScalars(_SCALARS):
            optimizer.step()
            with recorder:
                optimizer.step()
        sizes = {
            key: float(storage.nbytes())
            for key, storage in recorder.storages.items()
            if storage.device.type == "meta"
        }
        state = {
            value.untyped_storage()._cdata: float(value.untyped_storage().nbytes())
            for value in optimizer.state[parameter].values()
            if isinstance(value, torch.Tensor) and value.device.type == "meta"
        }
        return UpdateCost(
            flop=sum(record.flop for record in recorder.records),
            bytes_read=sum(sizes.get(key, 0.0) for key in recorder.external_read),
            bytes_written=sum(sizes.get(key, 0.0) for key in recorder.external_written),
            state_bytes=sum(state.values()),
        )
