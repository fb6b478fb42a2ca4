"""Capture of the training step of any `torch.nn.Module` as an `OpGraph`, without its weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer

from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.graphs.aten import dtype_index
from envs.graphs.fake_module import FakeScalars, FusedDropout, ModulePaths, build_module, faked
from envs.graphs.one_operator import Calls, named_modules
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.graphs.recorder import Recorder
from envs.graphs.unroll import MicroBatch, ParameterUse, numbered, unrolled

ModuleFactory = Callable[[], nn.Module]
InputFactory = Callable[[], Mapping[str, Tensor]]
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Workload:
    """A module, made anew at every call, its data and its loss."""

    module: ModuleFactory
    inputs: InputFactory
    loss: Loss


@bounded
def capture_training_step(
    module_factory: ModuleFactory,
    inputs: InputFactory,
    loss: Loss,
    *,
    name: str,
    micro_batches: Count,
    optimizer: OptimizerFactory,
    one_operator: Sequence[str] = (),
) -> OpGraph:
    """The whole training step of a module: forward, backward, optimizer update.

    Everything runs on fake tensors: no weight is allocated and no number is computed. One
    micro-batch is traced below autograd, in training mode; the trace is unrolled
    `micro_batches` times (see `unrolled`). Costs of an operator:

    * FLOP: torch's flop registry (matrix multiplications, convolutions, attention; elementwise
      and normalisation have 0 and are bound by memory).
    * bytes read and written: every distinct storage once, parameters and data included, expanded
      dimensions not counted; table look-ups read the rows they select.
    * dropout is one operator with a mask of one byte per element, as on accelerators.
    * the update of a parameter is one operator that reads and writes each of its tensors once.

    A tensor is a storage between two writes: views share it, an in-place operator makes a new one.
    Buffers are resident like data, and are no parameters. Operators that touch a buffer which the
    step mutates are co-located, with the parameters of the module that owns it; the order in which
    micro-batches update running statistics is left open.

    Args:
        module_factory: builds the module, on the meta device unless it names another. A module
            that exists already is left as it is.
        inputs: keyword arguments of one micro-batch; called under a fake tensor mode.
        loss: the scalar loss, from what the module returns.
        micro_batches: how many micro-batches make one step.
        optimizer: builds the optimizer of a list of parameters.
        one_operator: modules of which every call becomes one operator, and its backward pass one
            or two: dotted paths (with `*`), or classes such as LSTM. See `Calls`.

    Raises:
        InputError: a name of `one_operator` means no module, or none that is called; the module is
            lazy; the loss is no scalar, or depends on no parameter; an operator cannot be costed: a
            product without a formula, or an operator of another library that is not pointwise and
            has none (`register_flop_formula`).
    """
    module = build_module(module_factory)
    mode = FakeTensorMode()
    with faked(module, mode), mode:
        module.train()
        batch = {key: _faked(mode, value) for key, value in inputs().items()}
        named = {p: label for label, p in module.named_parameters()}
        states = {b.untyped_storage()._cdata: label for label, b in module.named_buffers()}
        whole = named_modules(module, one_operator)
        with ModulePaths(module, whole) as paths, FusedDropout(), reference_kernels():
            recorder = Recorder(modules=paths)
            with recorder.during(Phase.FORWARD):
                result = loss(module(**batch))
            trained = [p for p in named if p.requires_grad]
            if result.numel() != 1 or not result.requires_grad:
                raise InputError(
                    "must be a scalar that depends on the parameters",
                    file=f"graph {name}",
                    field="loss",
                )
            with recorder.during(Phase.BACKWARD):
                gradients = torch.autograd.grad(result, trained, allow_unused=True)
                buffers = _gradient_buffers(recorder, trained, gradients)
    recorder.link()
    costs = update_cost(optimizer)
    uses = [_parameter_use(recorder, p, label, buffers.get(p), costs) for p, label in named.items()]
    shared = _shared_buffers(recorder, states, uses)
    step = MicroBatch.of(unique_names(recorder), recorder.records, recorder.values)
    if whole:
        still = set(whole.values()) - {whole[ran] for ran in paths.ran}
        if still:
            reason = f"{min(still)!r} names a module that is not called"
            raise InputError(reason, file=f"graph {name}", field="one_operator")
        call = np.array([record.call for record in recorder.records], dtype=np.int64)
        step, uses, shared = Calls(call, paths.calls).merged(step, uses, shared)
    return unrolled(name, step, uses, shared, micro_batches)


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Without oneDNN, whose recurrent layers are single operators that hide their products.

    Torch logs the traceback of an operator that cannot run; here its error says enough.
    """
    enabled, log = torch._C._get_mkldnn_enabled(), logging.getLogger(FakeTensorMode.__module__)
    logged, log.disabled = log.disabled, True
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
        log.disabled = logged


def _faked(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
        return mode.from_tensor(value)
    return value


def _gradient_buffers(
    recorder: Recorder, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]
) -> dict[nn.Parameter, int]:
    """The value that is the gradient buffer of each parameter.

    A gradient that shares its storage with anything else (an expanded tensor, the gradient of a
    second parameter, a tensor that later operators read) is copied into a buffer of its own, as
    autograd does when it accumulates.
    """
    buffers: dict[nn.Parameter, int] = {}
    taken: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        held = gradient
        storage = held.untyped_storage()
        value = recorder.current.get(storage._cdata)
        if (
            value is None
            or value in taken
            or recorder.values[value].consumers
            or storage.nbytes() != held.numel() * held.itemsize
        ):
            held = gradient.clone(memory_format=torch.contiguous_format)
            user = recorder.first_forward_user(parameter.untyped_storage()._cdata)
            recorder.records[-1].mirror = NONE if user is None else user
            value = recorder.current[held.untyped_storage()._cdata]
        taken.add(value)
        buffers[parameter] = value
    return buffers


def _parameter_use(
    recorder: Recorder,
    parameter: nn.Parameter,
    label: str,
    buffer: int | None,
    costs: UpdateCost,
) -> ParameterUse:
    nbytes = float(parameter.numel() * parameter.itemsize)
    users = recorder.external.get(parameter.untyped_storage()._cdata, [])
    dtype = dtype_index(parameter.dtype)
    if buffer is None:
        return ParameterUse(label, nbytes, dtype, tuple(users))
    users = sorted({*users, *recorder.gradient_producers(buffer)})
    update = costs(parameter.shape, parameter.dtype)
    return ParameterUse(label, nbytes, dtype, tuple(users), gradient=buffer, **update)


def _shared_buffers(
    recorder: Recorder, states: Mapping[int, str], parameters: Sequence[ParameterUse]
) -> list[tuple[int, ...]]:
    """For every mutated buffer its users, and one user of a parameter of the same module."""
    owner: dict[str, int] = {}
    for use in parameters:
        if use.users:
            owner.setdefault(use.name.rpartition(".")[0], use.users[0])
    shared = []
    for key in sorted(recorder.external_written, key=lambda key: recorder.external[key]):
        module = states[key].rpartition(".")[0] if key in states else None
        beside = [owner[module]] if module in owner else []
        shared.append((*recorder.external[key], *beside))
    return shared


def unique_names(recorder: Recorder) -> tuple[str, ...]:
    """`phase/module.path/operator`, and `#2`, `#3`, ... where that repeats."""
    return numbered(
        "/".join(filter(None, (record.phase.name.lower(), record.path, record.name)))
        for record in recorder.records
    )


OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]

OPTIMIZERS: Mapping[str, OptimizerFactory] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd": partial(torch.optim.SGD, lr=0.1),
}

_SCALARS = {
    torch.bool: False, torch.float16: 1.0, torch.bfloat16: 1.0, torch.float32: 1.0,
    torch.float64: 1.0,
}  # fmt: skip


UpdateCost = Callable[[torch.Size, torch.dtype], dict[str, float]]


def update_cost(factory: OptimizerFactory) -> UpdateCost:
    """The update of a parameter by its shape and type, as `ParameterUse` has it; each traced once.

    It is one fused operator: FLOP of matrix multiplications only (0 for SGD and Adam); parameter,
    gradient and state are read once, parameter and state written once. Host scalars such as Adam's
    step counter are no state. The second step is costed: the first one creates the state. A norm
    that the optimizer reads back reads as 1, which changes no cost.
    """

    @cache
    def cost(shape: torch.Size, dtype: torch.dtype) -> dict[str, float]:
        parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
        parameter.grad = torch.empty_like(parameter)
        optimizer = factory([parameter])
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
        read, written = (
            sum(sizes.get(key, 0.0) for key in touched)
            for touched in (recorder.external_read, recorder.external_written)
        )
        return {
            "update_flop": sum(record.flop for record in recorder.records),
            "update_read": read,
            "update_written": written,
            "state_bytes": sum(state.values()),
        }

    return cost
