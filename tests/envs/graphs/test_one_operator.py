"""Calls of modules as one operator: nothing may be lost against the unrolled capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.utils.checkpoint import checkpoint

from envs.graphs.capture import capture_training_step
from envs.graphs.one_operator import Calls
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.unroll import MicroBatch
from tests.refusal import refusal

TOTALS = (
    "flop", "bytes_read", "bytes_written", "parameter_bytes", "gradient_bytes", "optimizer_bytes",
)  # fmt: skip


class Recurrent(nn.Module):
    """Tokens, a recurrent layer, a classifier of every position."""

    def __init__(self, layer: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4)
        self.rnn = layer(4, 8, batch_first=True, **options)
        self.out = nn.Linear(8 * (1 + self.rnn.bidirectional), 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.rnn(self.embed(x))[0])
        return out


class Cells(nn.Module):
    """A recurrent loop in Python: one cell called for every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4)
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros((len(x), 4), dtype=torch.float32)
        for token in self.embed(x).unbind(1):
            state = self.cell(token, state)
        return state


class Recomputed(nn.Module):
    """Its activations are computed twice; the module between them is called once."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, self.embed(x), use_reentrant=False)
        return out


def capture(module: nn.Module, one_operator: Sequence[str], micro_batches: int = 2) -> OpGraph:
    return capture_training_step(
        lambda: module,
        lambda: {"x": torch.zeros((2, 4), dtype=torch.int64)},
        lambda output: output.sum(),
        name="test",
        micro_batches=micro_batches,
        optimizer=torch.optim.Adam,
        one_operator=one_operator,
    )


def interface(graph: OpGraph, inside: str) -> dict[tuple[bool, bool, Phase, Phase], float]:
    """Bytes of the tensors that are read in another phase than they are made, or cross `inside`."""
    within = [f"/{inside}/" in f"/{name}/" for name in graph.op_names]
    found: dict[tuple[bool, bool, Phase, Phase], float] = {}
    for tensor in range(graph.num_tensors):
        source = int(graph.producer[tensor])
        sides = {
            (within[source], within[user], Phase(graph.phase[source]), Phase(graph.phase[user]))
            for user in graph.consumers(tensor).tolist()
        }
        for side in sides:
            if not (side[0] and side[1] and side[2] == side[3]):
                found[side] = found.get(side, 0.0) + float(graph.tensor_bytes[tensor])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_is_one_operator_each_way(layer: type[nn.RNNBase]) -> None:
    module = Recurrent(layer, num_layers=2, dropout=0.1, bidirectional=layer is nn.LSTM)
    unrolled, one = capture(module, []), capture(module, [layer.__name__])
    for column in TOTALS:
        assert getattr(one, column).sum() == getattr(unrolled, column).sum(), column
    assert unrolled.parameter_names == one.parameter_names
    kind = layer.__name__.lower()
    layers = {
        f"mb{m}/{part}" for m in range(2)
        for part in (f"forward/rnn/{kind}", f"backward/rnn/{kind}", f"backward/rnn/{kind}_weight")
    }  # fmt: skip
    assert {name for name in one.op_names if "/rnn/" in name} == layers
    number = {name: index for index, name in enumerate(one.op_names)}
    forward, back = number[f"mb1/forward/rnn/{kind}"], number[f"mb1/backward/rnn/{kind}"]
    weight = number[f"mb1/backward/rnn/{kind}_weight"]
    assert (one.mirror[[forward, back, weight]] == [NONE, forward, forward]).all()
    assert (one.kind[[forward, back, weight]] == Kind.FUSED).all()
    assert one.weight_gradient[[forward, back, weight]].tolist() == [False, False, True]
    assert one.colocation[forward] == one.colocation[back] == one.colocation[weight] != NONE
    waiting = {one.op_names[op] for t in np.flatnonzero(one.producer == weight)
               for op in one.consumers(int(t))}  # fmt: skip
    assert waiting == {f"mb1/accumulate/rnn.{name}" for name, _ in module.rnn.named_parameters()}


def test_its_saved_activations_and_its_interface_are_those_of_the_loop() -> None:
    module = nn.Sequential(nn.Embedding(50, 4), Recurrent(nn.LSTM).rnn)
    module.forward = lambda x: module[1](module[0](x))[0]  # type: ignore[method-assign,assignment]
    unrolled, one = capture(module, []), capture(module, ["1"])
    assert interface(one, "1") == interface(unrolled, "1")
    assert sum("/1/" in name for name in one.op_names) == 6


def test_every_call_of_a_cell_is_one_operator_and_so_is_the_loop_around_it() -> None:
    module = Cells()
    cells, loop, unrolled = (capture(module, names, 1) for names in (["cell"], ["Cells"], []))
    assert sum("forward/cell/grucell" in name for name in cells.op_names) == 4
    assert [n for n in loop.op_names if "/forward/" in n and "loss" not in n] == [
        "mb0/forward/cells"
    ]
    for graph in (cells, loop):
        assert graph.flop.sum() == unrolled.flop.sum()
        assert graph.bytes_read.sum() == unrolled.bytes_read.sum()


def test_what_is_computed_again_belongs_to_the_backward_operator() -> None:
    graph = capture(Recomputed(), ["block"], 1)
    flop = {name: graph.flop[i] for i, name in enumerate(graph.op_names) if "/block/" in name}
    forward = 2 * (2 * 4) * 4 * 4 * 2
    assert flop == {
        "mb0/forward/block/sequential": forward,
        "mb0/backward/block/sequential": forward // 2 + forward,  # of the last, nothing is saved
        "mb0/backward/block/sequential_weight": forward,
    }


def test_a_call_that_waits_for_itself_is_refused() -> None:
    """Operators 0 -> 1 -> 2, of which 0 and 2 are to be one."""
    column = np.zeros(3, dtype=np.int64)
    step = MicroBatch(
        names=("a", "b", "c"), kind=column, phase=column, flop=np.zeros(3),
        bytes_read=np.zeros(3), bytes_written=np.zeros(3), dtype=column, mirror=column - 1,
        tensor_bytes=np.ones(2), tensor_dtype=column[:2], producer=np.array([0, 1]),
        uses=np.array([[0, 1], [1, 2]]),
    )  # fmt: skip
    with refusal(r"record m/loop: .*cannot be one operator: it waits for"):
        Calls(np.array([0, NONE, 0]), ["m/loop"]).merged(step, [], [])
    merged, _, _ = Calls(np.array([0, 0, NONE]), ["m/loop"]).merged(step, [], [])
    assert merged.names == ("forward/m/loop", "c")
    assert merged.uses.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nosuch"], "'nosuch' is no path of a module and none of its classes"),
        (["rnn", "LSTN"], "'LSTN' is no path"),
        (["embed", "idle"], "'idle' names a module that is not called"),
    ],
)
def test_names_that_mean_nothing_are_refused(names: list[str], message: str) -> None:
    module = Recurrent(nn.GRU)
    module.add_module("idle", nn.Linear(2, 2))
    with refusal(message):
        capture(module, names)


class Scanned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = scan(lambda carry, row: (carry + row, row.clone()), x[0], x)[1]
        return out


@pytest.mark.proof  # loads the compiler of torch
def test_a_loop_that_torch_runs_itself_is_refused_by_name() -> None:
    with refusal(r"the model: scan runs operators of its own; write its"):
        capture(Scanned(), [])
