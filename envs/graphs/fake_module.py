"""Modules as the tracer runs them: without weights, followed by name, with fused dropout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as global_hooks
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from envs.errors import InputError
from envs.graphs.op_graph import NONE


def build_module(factory: Callable[[], nn.Module]) -> nn.Module:
    """Call `factory` so that the parameters it makes have shapes and types but no memory.

    Everything that names no device of its own is made on the meta device. Initialisation has
    nothing to initialise; where it asks whether values are in range, the answer is that none is
    out of it.
    """
    with torch.device("meta"), FakeScalars({torch.bool: False}):
        return factory()


@contextmanager
def faked(module: nn.Module, mode: FakeTensorMode) -> Iterator[nn.Module]:
    """`module` with every tensor replaced by a fake one on the CPU; restored afterwards.

    Parameters, buffers and plain attributes, also inside lists and dictionaries, are replaced; a
    tensor that stands in several places (tied weights) is replaced by one fake tensor.

    Raises:
        InputError: a parameter has no shape before the first forward pass (a lazy module).
    """
    fakes: dict[int, Tensor] = {}
    originals: list[tuple[Any, Any, Tensor]] = []

    def replace(container: Any, key: Any, value: Tensor) -> None:
        if id(value) not in fakes:
            fakes[id(value)] = _fake(value, mode, key)
        originals.append((container, key, value))
        container[key] = fakes[id(value)]

    def visit(container: Any, items: Iterator[tuple[Any, Any]]) -> None:
        for key, value in list(items):
            if isinstance(value, Tensor):
                replace(container, key, value)
            elif type(value) is list:
                visit(value, enumerate(value))
            elif isinstance(value, dict):
                visit(value, iter(value.items()))

    try:
        for part in module.modules():
            attributes: MutableMapping[str, Any] = vars(part)
            visit(attributes, iter(attributes.items()))
        yield module
    finally:
        for container, key, value in reversed(originals):
            container[key] = value


def _fake(tensor: Tensor, mode: FakeTensorMode, name: object) -> Tensor:
    if is_lazy(tensor):
        raise InputError("has no shape yet: lazy modules cannot be captured", record=name)
    with mode, torch.no_grad():
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake


class FakeScalars(TorchDispatchMode):
    """Answers programs that ask the meta device for a number: there is none.

    Args:
        answers: what a scalar of each type reads as; other types cannot be read.
    """

    def __init__(self, answers: Mapping[torch.dtype, bool | float]) -> None:
        TorchDispatchMode.__init__(self)
        self._answers = answers

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, or answer in its place."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            dtype = args[0].dtype
            if dtype not in self._answers:
                raise InputError(
                    f"a number of type {dtype} is read of a tensor that has none "
                    "(no weight is allocated); make that tensor with device='cpu'"
                )
            return self._answers[dtype]
        try:
            return func(*args, **(kwargs or {}))
        except NotImplementedError as error:
            raise InputError(
                f"{func.name()} needs numbers that its tensors do not have (no weight is "
                "allocated); make them with device='cpu'"
            ) from error


class ModulePaths:
    """Follows which module of `root` is running forward; `path` is its dotted name.

    Every call of a module of `whole`, outside of another such call, has a number: `call` while it
    runs. `calls` holds their labels, path and class of the module; `ran` the modules that did run.
    """

    def __init__(self, root: nn.Module, whole: Collection[nn.Module] = ()) -> None:
        self.call = NONE
        self.calls: list[str] = []
        self.ran: set[nn.Module] = set()
        self._names = {module: name for name, module in root.named_modules()}
        self._whole = whole
        self._depth = 0  # of the stack where the call began
        self._stack: list[str] = []
        self._handles: list[Any] = []

    @property
    def path(self) -> str:
        """Name of the innermost running module; "loss" outside of all of them."""
        return self._stack[-1] if self._stack else "loss"

    def __enter__(self) -> Self:
        self._handles = [
            global_hooks.register_module_forward_pre_hook(self._enter),
            global_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._stack.append(self._names.get(module, type(module).__name__))
        if module in self._whole:
            self.ran.add(module)
            if self.call == NONE:
                self.call, self._depth = len(self.calls), len(self._stack)
                label = (self._stack[-1], type(module).__name__.lower())
                self.calls.append("/".join(filter(None, label)))

    def _leave(self, _module: nn.Module, _args: Any, _out: Any) -> None:
        if len(self._stack) == self._depth:
            self.call, self._depth = NONE, 0
        self._stack.pop()


class FusedDropout(TorchFunctionMode):
    """Dropout as accelerators run it: one operator, and a mask of one byte per element.

    On CPU tensors torch would draw the mask into a tensor of the input's type, and multiply twice.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace `torch.nn.functional.dropout` by `torch.native_dropout`."""
        kwargs = kwargs or {}
        if func is nn.functional.dropout:
            rate, training, inplace = _dropout_arguments(*args, **kwargs)
            if training and not inplace and 0 < rate < 1:
                tensor = args[0] if args else kwargs["input"]
                return torch.native_dropout(tensor, rate, True)[0]
        return func(*args, **kwargs)


def _dropout_arguments(
    input: Any = None,  # noqa: A002
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> tuple[float, bool, bool]:
    return p, training, inplace
