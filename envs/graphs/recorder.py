"""`Recorder`: writes down every operator that runs below autograd on fake or meta tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch._library.utils import has_fake_kernel
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from envs.errors import InputError
from envs.graphs.aten import Traits, dtype_index, stored_elements, traffic, traits
from envs.graphs.fake_module import ModulePaths
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.unroll import Operator, Value


@dataclass(kw_only=True)
class Record(Operator):
    """One recorded operator; its name is ATen's."""

    path: str  # module it ran in; of a backward operator: filled in from its mirror
    node: int  # number of the autograd node that ran it (backward), or NONE
    call: int | None = NONE  # of a module, see `ModulePaths`; None: of its mirror


_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


class Recorder(TorchDispatchMode):
    """Records operators, the values they exchange and the outside storages they touch.

    Stands above a fake tensor mode (or meta tensors), below autograd: composite operators arrive
    decomposed, and are decomposed here where they do not. An operator whose outputs all share
    storage with its inputs, and that writes none of them, is a view and leaves no record. A
    storage that is read before any recorded operator wrote it is *external*: data, parameter or
    buffer.

    A backward operator is linked to its forward operator by the sequence number of the autograd
    node that runs it. The node of a forward operator is created just before the operator is
    dispatched below autograd, so the first operator seen after a new number was given out is the
    one it belongs to.
    """

    supports_higher_order_operators = True

    def __init__(self, phase: Phase = Phase.FORWARD, modules: ModulePaths | None = None) -> None:
        TorchDispatchMode.__init__(self)
        self.phase = phase
        self.records: list[Record] = []
        self.values: list[Value] = []
        self.current: dict[int, int] = {}  # storage -> its newest value
        self.external: dict[int, list[int]] = {}  # storage -> records that touch it
        self.external_read: set[int] = set()
        self.external_written: set[int] = set()
        self.storages: dict[int, torch.UntypedStorage] = {}  # kept alive: addresses stay unique
        self._modules = modules
        self._blank: set[int] = set()  # allocated, never written
        self._record_of_node: dict[int, int] = {}
        self._storage_of_node: dict[int, int] = {}
        self._call_of_node: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator and write it down."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            reason = "runs operators of its own; write its loop in Python, where it can be traced"
            raise InputError(f"{self._where()}: {func.name()} {reason}")
        if func.namespace == "prim":  # asks for a property of a tensor
            return func(*args, **kwargs)
        if func is _CONVOLUTION_BACKWARD and args[10][0] and any(args[10][1:]):
            with self:  # two operators, as of a matrix: nothing waits for the weight's gradient
                of_input, _, _ = func(*args[:10], [True, False, False])
                _, of_weight, of_bias = func(*args[:10], [False, *args[10][1:]])
            return of_input, of_weight, of_bias
        try:
            known = traits(func)
        except InputError as error:
            raise InputError(f"{self._where()}: {error.message}") from error
        if known.composite:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        node = torch._C._autograd._get_sequence_nr() - 1
        self._call_of_node.setdefault(node, self._call)
        out = self._run(func, args, kwargs)
        self._write_down(known, args, kwargs, out, node)
        return out

    @property
    def _call(self) -> int:
        return NONE if self._modules is None else self._modules.call

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The operator on tensors without values: shapes and types alone.

        Raises:
            InputError: what it returns depends on values, or what it returns is not declared.
        """
        try:
            return func(*args, **kwargs)
        except DataDependentOutputException as error:
            cause: RuntimeError = error
            fault = "reads a number of a tensor; make that number without tensors"
        except DynamicOutputShapeException as error:
            cause = error
            fault = "has a shape that depends on data; use torch.where, topk or a fixed buffer"
        except RuntimeError as error:  # NotImplementedError is one
            cause = error
            if isinstance(error, UnsupportedOperatorException) or not has_fake_kernel(func):
                fault = "has no fake kernel; name one with torch.library.register_fake"
            else:
                fault = f"cannot run: {(str(error) or type(error).__name__).splitlines()[0]}"
        raise InputError(f"{self._where()}: {func.name()} {fault}") from cause

    def _where(self) -> str:
        """The module that is running, in words; of a backward pass: the forward module."""
        if self.phase is Phase.OPTIMIZER:
            return "the optimizer"
        path = self._modules.path if self._modules is not None else ""
        if self.phase is Phase.BACKWARD:
            ran: Any = torch._C._current_autograd_node()
            forward = self._mirror(NONE if ran is None else int(ran._sequence_nr()))
            path = self.records[forward].path if forward is not None else ""
        return {"": "the model", "loss": "the loss"}.get(path, f"module {path!r}")

    def _write_down(
        self, known: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, node: int
    ) -> None:
        inputs = list(_tensors((*args, *kwargs.values())))
        outputs = list(_tensors((out,)))
        written = list(
            _tensors(
                kwargs.get(argument) if isinstance(argument, str) else args[argument]
                for argument in known.written
                if isinstance(argument, str) or argument < len(args)
            )
        )
        if known.constant:
            return
        if known.blank:
            self._blank.update(self._key(tensor) for tensor in outputs)
            return
        given = {self._key(tensor) for tensor in inputs}
        fresh = [tensor for tensor in outputs if self._key(tensor) not in given]
        if not fresh and not written:
            self._note_view(node, inputs)
            return
        index = len(self.records)
        reads, read_bytes = self._reads(known, inputs, outputs)
        self._use(reads, index)
        write_bytes = sum(traffic([*fresh, *written]).values())
        for tensor in fresh:
            self._define(tensor, index, mutates=False)
        for tensor in written:
            self._define(tensor, index, mutates=True)
        flop = float(known.flop(*args, **kwargs, out_val=out)) if known.flop is not None else 0.0
        self._record_of_node.setdefault(node, index)
        running, call = self._running(known, inputs)
        self.records.append(
            Record(
                name=known.name,
                path=self._modules.path if self._modules is not None else "",
                kind=known.kind,
                phase=self.phase,
                flop=flop,
                bytes_read=read_bytes,
                bytes_written=write_bytes,
                dtype=_arithmetic_dtype([*fresh, *written, *inputs]),
                node=running,
                call=call,
            )
        )

    def _key(self, tensor: torch.Tensor) -> int:
        if tensor.layout is not torch.strided:
            raise InputError(f"{tensor.layout} tensors cannot be captured", field="layout")
        storage = tensor.untyped_storage()
        return int(self.storages.setdefault(storage._cdata, storage)._cdata)

    def _reads(
        self, known: Traits, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> tuple[list[int], float]:
        """Storages that are read, and the bytes read of them."""
        if known.overwrites:
            whole = stored_elements(inputs[0].shape, inputs[0].stride()) * inputs[0].itemsize
            target = self._key(inputs[0])
            sources = [tensor for tensor in inputs[1:] if self._key(tensor) != target]
            reads = [self._key(tensor) for tensor in sources]
            if whole < inputs[0].untyped_storage().nbytes():
                reads.append(target)  # the rest of the storage lives on
            return reads, sum(traffic(sources).values())
        sources = [tensor for tensor in inputs if self._key(tensor) not in self._blank]
        touched = traffic(sources)
        if known.selects:
            key = self._key(inputs[0])
            others = sum(size for other, size in touched.items() if other != key)
            selected = max(others, sum(traffic(outputs).values()))
            touched[key] = min(touched.get(key, 0.0), selected)
        return list(touched), sum(touched.values())

    def _use(self, reads: list[int], index: int) -> None:
        for key in reads:
            if key in self._blank:
                continue
            if key in self.current:
                consumers = self.values[self.current[key]].consumers
                if not consumers or consumers[-1] != index:
                    consumers.append(index)
            else:
                self.external_read.add(key)
                self.external.setdefault(key, [])
            self._touch(key, index)

    def _define(self, tensor: torch.Tensor, index: int, *, mutates: bool) -> None:
        """Operator `index` leaves a new value in the storage of `tensor`."""
        key = self._key(tensor)
        newest = self.current.get(key)
        if newest is not None and self.values[newest].producer == index:
            return
        if mutates and newest is None and key not in self._blank:
            self.external.setdefault(key, [])
        nbytes = float(tensor.untyped_storage().nbytes())
        self._touch(key, index)
        if key in self.external:
            self.external_written.add(key)
        self._blank.discard(key)
        self.current[key] = len(self.values)
        self.values.append(Value(nbytes, dtype_index(tensor.dtype), index))

    def _touch(self, key: int, index: int) -> None:
        users = self.external.get(key)
        if users is not None and (not users or users[-1] != index):
            users.append(index)

    def _note_view(self, node: int, inputs: list[torch.Tensor]) -> None:
        if not inputs or node in self._record_of_node:
            return
        key = self._key(inputs[0])
        if key in self.current:
            self._record_of_node[node] = self.values[self.current[key]].producer
        else:
            self._storage_of_node.setdefault(node, key)

    def _running(self, known: Traits, inputs: list[torch.Tensor]) -> tuple[int, int | None]:
        """Sequence number of the forward operator whose backward is running, and its call."""
        ran: Any = torch._C._current_autograd_node()
        if self.phase is not Phase.BACKWARD:
            return NONE, self._call
        if ran is None:
            return NONE, None
        number = int(ran._sequence_nr())
        call = self._call_of_node.get(number)
        if known.name in {"add", "add_"} and len(inputs) == 2:
            number = _summed_for(ran, inputs[0].shape)
        return number, call

    def during(self, phase: Phase) -> Self:
        """This recorder, for operators that belong to `phase`."""
        self.phase = phase
        return self

    def link(self) -> None:
        """Give every backward record its mirror and its path.

        The forward record of the node that ran it; where that node's operator was a view, the
        producer of what was viewed (of an external storage: its first forward user); otherwise
        the mirror of the producer of its first input; otherwise the last forward record (the
        loss).
        """
        forward = [i for i, record in enumerate(self.records) if record.phase is Phase.FORWARD]
        last = forward[-1]
        inputs: dict[int, int] = {}
        for value in self.values:
            for consumer in value.consumers:
                inputs.setdefault(consumer, value.producer)
        for index, record in enumerate(self.records):
            if record.phase is not Phase.BACKWARD:
                continue
            mirror = record.mirror if record.mirror != NONE else self._mirror(record.node)
            if mirror is None or mirror >= index:
                mirror = inputs.get(index, last)
            if self.records[mirror].phase is Phase.BACKWARD:
                mirror = self.records[mirror].mirror
            record.mirror = mirror
            record.path = self.records[mirror].path
            if record.call is None:
                record.call = self.records[mirror].call

    def first_forward_user(self, storage: int) -> int | None:
        """The first forward record that touches an external storage."""
        users = self.external.get(storage, [])
        return next((i for i in users if self.records[i].phase is Phase.FORWARD), None)

    def gradient_producers(self, value: int) -> set[int]:
        """The records that produce a gradient, and the partial gradients summed into it."""
        producer = self.values[value].producer
        found = {producer}
        if self.records[producer].name in {"add", "add_"}:
            for partial, other in enumerate(self.values[:value]):
                if producer in other.consumers and other.bytes == self.values[value].bytes:
                    found |= self.gradient_producers(partial)
        return found

    def _mirror(self, node: int) -> int | None:
        if node == NONE:
            return None
        if node in self._record_of_node:
            return self._record_of_node[node]
        storage = self._storage_of_node.get(node)
        return None if storage is None else self.first_forward_user(storage)


def _tensors(items: Any) -> Iterator[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _tensors(item)


def _arithmetic_dtype(tensors: list[torch.Tensor]) -> int:
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return dtype_index((floating or tensors)[0].dtype)


def _summed_for(node: Any, shape: torch.Size) -> int:
    """The node whose incoming gradient autograd is summing: the one that made the tensor."""
    for following, position in node.next_functions:
        if following is not None and hasattr(following, "_input_metadata"):
            metadata = following._input_metadata
            if position < len(metadata) and tuple(metadata[position].shape) == tuple(shape):
                number = int(following._sequence_nr())
                return number if number < 2**63 else int(node._sequence_nr())
    return int(node._sequence_nr())
