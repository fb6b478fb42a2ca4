"""A captured module as layers in a row: its own operators, cut where a plan cuts them.

The module is exported as a program of operators, of which the names that a capture gives them are
found again by recording the program. A layer takes what the layers before it made and it, or a
layer behind it, reads; data of a micro-batch are there in every layer. Dropout is left out: what it
drops would differ between the plan and the unsplit model.
"""

from __future__ import annotations

import copy
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from envs.errors import InputError, in_one_line
from envs.graphs.capture import Workload, reference_kernels, unique_names
from envs.graphs.fake_module import faked
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.recorder import Recorder

_ATEN = torch.ops.aten
_MODULE = "module"  # of `Whole`
_OF = "of_"  # before the names of data, which may be those of torch's own arguments


class Whole(nn.Module):
    """A module and its loss; `fixed` are arguments that are no tensors."""

    def __init__(
        self, module: nn.Module, loss: Callable[[Any], Tensor], fixed: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.module, self._loss, self._fixed = module, loss, fixed

    def forward(self, **data: Tensor) -> Tensor:
        return self._loss(self.module(**data, **self._fixed))


class CapturedLayers:
    """What `execute` trains: the layers of `workload` that begin with the operators `names`.

    A sample is a micro-batch of `workload`, of which a plan's is `micro_batch`, one for each
    pipeline side by side.

    Raises:
        InputError: the module cannot be exported, or has no such operators in this order.
    """

    def __init__(self, workload: Workload, names: Sequence[str], replicas: int, seed: int) -> None:
        self.micro_batch = replicas
        self._workload, self._names, self._seed = workload, names, seed
        torch.manual_seed(seed)
        given = workload.inputs()
        self._data = {k: v for k, v in given.items() if isinstance(v, Tensor)}
        fixed = {k: v for k, v in given.items() if k not in self._data}
        self._whole = Whole(workload.module(), workload.loss, fixed).train()
        try:
            exported = torch.export.export(self._whole, (), self._data, strict=False)
        except Exception as error:  # anything that the module's own code raises
            reason = in_one_line(error)[:200]
            raise InputError(f"the module cannot be exported by torch ({reason})") from error
        self._program = exported.module(check_guards=False)
        self._layer = self._assigned()
        for node in self._program.graph.find_nodes(
            op="call_function", target=_ATEN.dropout.default
        ):
            node.replace_all_uses_with(node.args[0])
            self._program.graph.erase_node(node)

    def whole(self) -> nn.Module:
        """The module in one piece, as it begins."""
        return copy.deepcopy(self._whole)

    def layers(self) -> dict[str, nn.Module]:
        """The layers by name, as they begin; a parameter of several is one object."""
        program = copy.deepcopy(self._program)
        return {name: self._cut(program, number) for number, name in enumerate(self._names)}

    def batch(self, step: int, samples: int) -> tuple[dict[str, Tensor], Tensor]:
        """Data of that many micro-batches of the workload, one after the other; no targets."""
        torch.manual_seed(self._seed + 1 + step)
        drawn = [self._workload.inputs() for _ in range(samples)]
        data = {f"{_OF}{key}": torch.stack([one[key] for one in drawn]) for key in self._data}
        return data, torch.zeros(samples)

    @staticmethod
    def one(data: Mapping[str, Tensor], sample: int) -> dict[str, Tensor]:
        """One of `batch`, as the module takes it."""
        return {key.removeprefix(_OF): x[sample] for key, x in data.items()}

    @staticmethod
    def loss(output: Tensor, target: Tensor) -> Tensor:
        """The last layer computes it."""
        return output.mean()

    def _assigned(self) -> dict[str, int]:
        """The layer of every node of the program, by name."""
        place = _Place()
        recorder, mode = Recorder(modules=place), FakeTensorMode()  # type: ignore[arg-type]
        with faked(self._program, mode), mode, reference_kernels():
            replay = _Replay(self._program, recorder, place)
            with recorder.during(Phase.FORWARD):
                replay.run(*(mode.from_tensor(x) for x in self._data.values()))
        index = {name: at for at, name in enumerate(unique_names(recorder))}
        records = [index.get(f"forward/{name}", NONE) for name in self._names]
        for name, here, before in zip(self._names, records, [NONE, *records], strict=False):
            if here <= before:
                reason = f"layer {name!r} of the plan is no operator of the module"
                raise InputError(f"{reason}, or not behind those before it", field="layers")
        order = {node: number for number, node in enumerate(self._program.graph.nodes)}
        of = replay.nodes
        begins = [order[of[k]] + (of[k] is of[k - 1]) for k in records[1:]]  # or behind a whole one
        found: dict[str, int] = {}
        for node, number in order.items():
            one_of = node.target is operator.getitem
            found[node.name] = found[node.args[0].name] if one_of else bisect_right(begins, number)
        return found

    def _cut(self, program: fx.GraphModule, layer: int) -> fx.GraphModule:
        """A layer: (values of the layers before it, data by name) to what it hands on."""
        graph, made = fx.Graph(), dict[fx.Node, Any]()
        nodes = [n for n in program.graph.nodes if n.op == "call_function"]
        end, number = next(iter(program.graph.find_nodes(op="output"))), self._layer
        last = {n: max((number[user.name] for user in n.users), default=0) for n in nodes}
        mine = [n for n in nodes if number[n.name] == layer]
        entering = [n for n in nodes if number[n.name] < layer <= last[n]]
        for node in entering:
            made[node] = graph.placeholder(f"from_{node.name}")
        data = list(zip(program.graph.find_nodes(op="placeholder"), self._data, strict=True))
        for node, key in data:
            made[node] = graph.placeholder(f"{_OF}{key}")
        for node, _ in data:
            made[node] = graph.call_function(_ATEN.select.int, (made[node], 0, 0))
        for node in entering:
            made[node] = graph.call_function(_handed, (made[node],))
        for node in mine:
            for held in node.all_input_nodes:
                if held.op == "get_attr" and held not in made:
                    made[held] = graph.node_copy(held)
            if getattr(node.target, "_schema", None) and node.target._schema.is_mutable:
                for held in set(node.all_input_nodes) & set(entering):
                    made[held] = graph.call_function(_ATEN.clone.default, (made[held],))
            made[node] = graph.node_copy(node, made.__getitem__)
        if layer == len(self._names) - 1:
            graph.output(made[end.all_input_nodes[0]])
        else:
            leaving = [n for n in [*entering, *mine] if last[n] > layer]
            graph.output(tuple(graph.call_function(_handed, (made[n],)) for n in leaving))
        return fx.GraphModule(program, graph)


class _Handed(torch.autograd.Function):
    """What goes from process to process, and its gradient, lies in one piece."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def _handed(x: Tensor) -> Tensor:
    """`x`, which may be a stage's input or output, as a result of its own."""
    handed: Callable[[Tensor], Tensor] = _Handed.apply
    return handed(x) if x.requires_grad else x.contiguous()


class _Place:
    """Of the operator that runs: the module's path, as `ModulePaths` tells it."""

    path = "loss"
    call = NONE


class _Replay(fx.Interpreter):
    """Runs a program; `nodes` are those of the recorded operators."""

    def __init__(self, program: fx.GraphModule, recorder: Recorder, place: _Place) -> None:
        super().__init__(program)
        self.nodes: list[fx.Node] = []
        self._recorder, self._place = recorder, place

    def run_node(self, n: fx.Node) -> Any:
        stack = list(n.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0] if stack else ""
        self._place.path = path.removeprefix(_MODULE).removeprefix(".") if path else "loss"
        result = super().run_node(n)
        self.nodes += [n] * (len(self._recorder.records) - len(self.nodes))
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is _ATEN.dropout.default and args[2] and 0 < args[1] < 1:
            return torch.native_dropout(args[0], args[1], True)[0]
        return super().call_function(target, args, kwargs)


class WithoutDropout(TorchFunctionMode):
    """Leaves dropout out."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.dropout:
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))
