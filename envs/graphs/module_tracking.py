"""What the tracer needs to know of a module's forward pass above the level of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.overrides import TorchFunctionMode


class ModulePaths:
    """Follows which module of `root` is running forward; `path` is its dotted name."""

    def __init__(self, root: nn.Module) -> None:
        self._names = {module: name for name, module in root.named_modules()}
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._stack.append(self._names.get(module, type(module).__name__))

    def _leave(self, _module: nn.Module, _args: Any, _out: Any) -> None:
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
