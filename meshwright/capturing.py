"""From a module and an example of its input to the graph of its training step; needs torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from envs.errors import InputError
from envs.graphs.capture import OPTIMIZERS, OptimizerFactory, capture_training_step
from envs.graphs.op_graph import OpGraph


def captured(
    module: nn.Module,
    example: Any,
    loss: Callable[[Any], Tensor] | None,
    optimizer: str | OptimizerFactory,
    micro_batches: int,
    dtype: str | None,
    name: str | None,
    one_operator: Sequence[str],
) -> OpGraph:
    """See `meshwright.capture`."""
    if isinstance(one_operator, str):
        raise InputError(f"{one_operator!r} is no list of names", field="one_operator")
    if not isinstance(module, nn.Module):
        raise InputError(f"{type(module).__name__} is no torch.nn.Module", field="module")
    kind = _dtype(dtype)
    inputs = {key: _cast(value, kind) for key, value in _arguments(module, example).items()}
    light = module if kind is None else _retyped(module, kind)
    return capture_training_step(
        lambda: light,
        lambda: inputs,
        loss or default_loss,
        name=name or type(module).__name__,
        micro_batches=micro_batches,
        optimizer=_optimizer(optimizer),
        one_operator=one_operator,
    )


def default_loss(output: Any) -> Tensor:
    """The `loss` of an output that has one, else the mean square of its first float tensor.

    Raises:
        InputError: it has neither.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    for tensor in _tensors(output):
        if tensor.is_floating_point():
            return tensor.float().square().mean()
    raise InputError("the module returns no floating-point tensor: give a loss", field="loss")


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _arguments(module: nn.Module, example: Any) -> dict[str, Any]:
    """The example as keyword arguments of `forward`."""
    if isinstance(example, Mapping):
        return dict(example)
    values = tuple(example) if isinstance(example, list | tuple) else (example,)
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*values)
    except TypeError as error:
        raise InputError(f"does not fit forward{signature}: {error}", field="example") from error
    for parameter in signature.parameters.values():
        starred = parameter.kind is parameter.VAR_POSITIONAL
        if starred and parameter.name in bound.arguments:
            reason = (
                f"forward takes *{parameter.name}: wrap the module in one that names its inputs"
            )
            raise InputError(reason, field="example")
    return dict(bound.arguments)


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    kind = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        reason = f"{name!r} is no floating-point type of torch, such as bfloat16"
        raise InputError(reason, field="dtype")
    return kind


def _cast(value: Any, kind: torch.dtype | None) -> Any:
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(kind) if floats and kind is not None else value


def _retyped(module: nn.Module, kind: torch.dtype) -> nn.Module:
    """A copy whose floating-point weights are of another type and have no memory."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta", dtype=_of(parameter, kind))
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta", dtype=_of(buffer, kind))
    return copy.deepcopy(module, memo)


def _of(tensor: Tensor, kind: torch.dtype) -> torch.dtype:
    return kind if tensor.is_floating_point() else tensor.dtype


def _optimizer(optimizer: str | OptimizerFactory) -> OptimizerFactory:
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer not in OPTIMIZERS:
        reason = f"{optimizer!r} is unknown (known: {', '.join(OPTIMIZERS)}, or a function)"
        raise InputError(reason, field="optimizer")
    return OPTIMIZERS[optimizer]
