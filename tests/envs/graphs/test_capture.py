"""Capture: what the traced graph of a training step must hold, for any module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from envs.graphs.aten import traits
from envs.graphs.capture import capture_training_step
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.storage import graph_hash
from tests.refusal import refusal

Factory = Callable[[], nn.Module]
SGD = partial(torch.optim.SGD, lr=0.1)


def total(output: Any) -> Tensor:
    return output.sum()


def capture(
    factory: Factory,
    *shape: int,
    micro_batches: int = 1,
    optimizer: Any = torch.optim.Adam,
    inputs: Callable[[], Mapping[str, Tensor]] | None = None,
    loss: Callable[[Any], Tensor] = total,
) -> OpGraph:
    return capture_training_step(
        factory,
        inputs or (lambda: {"x": torch.zeros(shape)}),
        loss,
        name="test",
        micro_batches=micro_batches,
        optimizer=optimizer,
    )


def operators(graph: OpGraph, suffix: str) -> list[int]:
    """Operators whose ATen name is `suffix`."""
    return [
        i
        for i, name in enumerate(graph.op_names)
        if name.rsplit("/", 1)[-1].split("#")[0] == suffix
    ]


def outputs(graph: OpGraph, operator: int) -> np.ndarray:
    return np.flatnonzero(graph.producer == operator)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.first(x)))


class TiedConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.relu_(self.norm(self.conv(x)))).mean((2, 3))


class Attention(nn.Module):
    """`nn.TransformerEncoderLayer`: packed projections and scaled_dot_product_attention."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Contraction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ijk->bjk", x, self.weight)


class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.scales = [torch.ones(4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scales[0]


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.depthwise(self.stem(x))


MODULES: list[tuple[Factory, tuple[int, ...]]] = [
    (Perceptron, (5, 8)),
    (TiedConvolutions, (2, 4, 8, 8)),
    (partial(Attention, 0.0), (2, 6, 16)),
    (partial(Attention, 0.1), (2, 6, 16)),
    (Recurrent, (2, 5, 8)),
    (Contraction, (2, 4)),
    (Parametrized, (2, 4)),
    (Grouped, (2, 3, 8, 8)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "shape"), MODULES)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_any_module_keeps_the_promises(
    factory: Factory, shape: tuple[int, ...], micro_batches: int
) -> None:
    graph = capture(factory, *shape, micro_batches=micro_batches)
    module = factory()
    assert graph.parameter_bytes.sum() == sum(4 * p.numel() for p in module.parameters())
    assert graph.parameter_names == tuple(name for name, _ in module.named_parameters())
    assert graph.optimizer_bytes.sum() == 2 * graph.parameter_bytes.sum()
    assert graph.num_micro_batches == micro_batches
    assert not np.isin(graph.kind, [Kind.COLLECTIVE, Kind.FUSED]).any()
    backward = graph.phase == Phase.BACKWARD
    mirrors = graph.mirror[backward]
    assert (graph.phase[mirrors] == Phase.FORWARD).all()
    assert (graph.micro_batch[mirrors] == graph.micro_batch[backward]).all()
    assert (graph.mirror[~backward] == NONE).all()


@pytest.mark.parametrize(
    ("factory", "shape"), [case for case in MODULES if case[0] not in {Grouped, Recurrent}]
)
def test_flop_agree_with_a_real_run(factory: Factory, shape: tuple[int, ...]) -> None:
    module = factory().train()
    x = torch.zeros(shape)
    # torch's counter knows no fused attention on CPUs: count its plain form there
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            loss = module(x).sum()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        graph = capture(factory, *shape)
    assert graph.forward_flop() == forward.get_total_flops() > 0
    assert graph.backward_flop() == backward.get_total_flops() > 0


def test_the_perceptron_is_what_one_writes_down_by_hand() -> None:
    graph = capture(Perceptron, 5, 8)
    assert graph.op_names[:4] == (
        "mb0/forward/first/addmm",
        "mb0/forward/relu",
        "mb0/forward/second/addmm",
        "mb0/forward/loss/sum",
    )
    assert graph.kind[:4].tolist() == [
        Kind.MATMUL,
        Kind.ELEMENTWISE,
        Kind.MATMUL,
        Kind.REDUCTION,
    ]
    assert graph.flop[:4].tolist() == [2 * 5 * 8 * 16, 0, 2 * 5 * 16 * 4, 0]
    assert graph.bytes_read[0] == 4 * (5 * 8 + 8 * 16 + 16)
    assert graph.bytes_written[0] == 4 * 5 * 16
    assert graph.consumers(int(outputs(graph, 0)[0])).tolist() == [1]
    relu = int(outputs(graph, 1)[0])
    assert graph.tensor_bytes[relu] == 4 * 5 * 16
    # second layer, its weight gradient, and the gradient of the relu itself
    assert len(graph.consumers(relu)) == 3
    updates = operators(graph, "first.weight")
    assert graph.kind[updates].tolist() == [Kind.UPDATE]
    assert graph.bytes_read[updates[0]] == 4 * graph.parameter_bytes[0]
    assert graph.bytes_written[updates[0]] == 3 * graph.parameter_bytes[0]


def test_views_are_no_operators() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))

        def forward(self, x: Tensor) -> Tensor:
            y = (x @ self.weight).view(3, 2, 3, 2).transpose(1, 2).unsqueeze(0)[0].detach()
            return y * self.weight.t()[:2, :2]

    graph = capture(Views, 6, 4)
    forward = [n.split("/")[-1] for n, p in zip(graph.op_names, graph.phase, strict=True) if p == 0]
    assert forward == ["mm", "mul", "sum"]


def test_an_in_place_operator_makes_a_new_tensor_of_the_same_storage() -> None:
    graph = capture(TiedConvolutions, 2, 4, 8, 8)
    (relu,) = operators(graph, "relu_")
    (norm,) = operators(graph, "native_batch_norm")
    second = operators(graph, "convolution")[1]
    before = [t for t in outputs(graph, norm) if relu in graph.consumers(int(t))]
    (after,) = outputs(graph, relu)
    assert graph.tensor_bytes[before].tolist() == [graph.tensor_bytes[after]]
    assert graph.consumers(int(before[0])).tolist() == [relu]
    assert second in graph.consumers(int(after))


def test_tied_weights_are_one_parameter_and_one_group() -> None:
    graph = capture(TiedConvolutions, 2, 4, 8, 8, micro_batches=2)
    assert graph.parameter_names.count("conv.weight") == 1
    users = [
        *operators(graph, "convolution"),
        *operators(graph, "convolution_backward"),
        *operators(graph, "conv.weight"),  # accumulate and update
        *operators(graph, "conv.bias"),
    ]
    assert len(users) == 4 + 4 + 2 + 2 + 2  # the second call has a gradient of its input, too
    assert len({graph.colocation[user] for user in users}) == 1
    assert graph.colocation[users[0]] != NONE


def test_operators_without_a_parameter_are_free() -> None:
    graph = capture(Perceptron, 5, 8)
    for name in ("relu", "threshold_backward", "ones_like"):
        assert (graph.colocation[operators(graph, name)] == NONE).all()
    assert graph.num_groups == 2


def test_operators_that_mutate_one_buffer_stand_together() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1)
            y = self.layer(x)
            self.seen.mul_(0.5)
            return y + self.seen

    graph = capture(Counter, 2, 4, micro_batches=2)
    touching = [*operators(graph, "add_"), *operators(graph, "mul_"), *operators(graph, "add")]
    groups = set(graph.colocation[[i for i in touching if graph.phase[i] == Phase.FORWARD]])
    assert len(groups) == 1
    assert NONE not in groups
    (written,) = outputs(graph, operators(graph, "add_")[0])
    assert graph.consumers(int(written)).tolist() == [operators(graph, "mul_")[0]]


def test_running_statistics_stand_with_the_parameters_of_their_module() -> None:
    graph = capture(TiedConvolutions, 2, 4, 8, 8, micro_batches=2)
    together = [*operators(graph, "add_"), *operators(graph, "native_batch_norm")]
    assert len(together) == 4
    assert len(set(graph.colocation[together])) == 1
    assert graph.num_groups == 2  # the tied convolution, the normalisation


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_micro_batches_share_parameters_and_accumulate(micro_batches: int) -> None:
    one = capture(Perceptron, 5, 8)
    graph = capture(Perceptron, 5, 8, micro_batches=micro_batches)
    assert graph.forward_flop() == micro_batches * one.forward_flop()
    assert graph.backward_flop() == micro_batches * one.backward_flop()
    assert graph.state_bytes.sum() == one.state_bytes.sum()
    assert graph.num_groups == one.num_groups
    updates = np.flatnonzero(graph.phase == Phase.OPTIMIZER)
    assert len(updates) == 4
    assert (graph.micro_batch[updates] == NONE).all()
    for parameter, update in zip(graph.parameter_names, updates, strict=True):
        # walk the chain gradient of micro-batch 0 -> accumulates -> update
        chain = [name for name in graph.op_names if name.endswith(f"/accumulate/{parameter}")]
        assert chain == [f"mb{m}/accumulate/{parameter}" for m in range(1, micro_batches)]
        last = graph.op_names.index(chain[-1]) if chain else None
        (read,) = [t for t in range(graph.num_tensors) if update in graph.consumers(t)]
        assert graph.tensor_bytes[read] == 0  # the gradient buffer is resident
        assert last is None or graph.producer[read] == last


def test_only_later_micro_batches_hold_a_gradient_beside_the_buffer() -> None:
    graph = capture(Perceptron, 5, 8, micro_batches=2)
    accumulate = graph.op_names.index("mb1/accumulate/first.weight")
    read = [t for t in range(graph.num_tensors) if accumulate in graph.consumers(t)]
    sizes = {int(graph.micro_batch[graph.producer[t]]): graph.tensor_bytes[t] for t in read}
    assert sizes == {0: 0.0, 1: 4.0 * 8 * 16}
    assert graph.bytes_read[accumulate] == 2 * 4 * 8 * 16
    assert graph.phase[accumulate] == Phase.BACKWARD


def test_frozen_and_unused_parameters_are_resident_without_gradient() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
            self.unused = nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.frozen(x))

    graph = capture(Partial, 2, 4)
    sizes = dict(zip(graph.parameter_names, graph.parameter_bytes, strict=True))
    gradients = dict(zip(graph.parameter_names, graph.gradient_bytes, strict=True))
    states = dict(zip(graph.parameter_names, graph.optimizer_bytes, strict=True))
    assert sizes["unused.weight"] == 36
    assert gradients["unused.weight"] == gradients["frozen.weight"] == 0
    assert states["unused.weight"] == states["frozen.weight"] == 0
    assert gradients["used.weight"] == 64
    assert (graph.phase == Phase.OPTIMIZER).sum() == 2


def test_gradients_that_share_a_storage_are_copied_into_their_buffers() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.zeros(4, 4))
            self.b = nn.Parameter(torch.zeros(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.a + self.b

    graph = capture(Sum, 4, 4)
    copies = [i for i in operators(graph, "clone") if graph.phase[i] == Phase.BACKWARD]
    assert len(copies) == 2
    assert graph.colocation[copies[0]] != graph.colocation[copies[1]]
    assert graph.bytes_read[copies].tolist() == [4, 4]  # an expanded scalar
    assert graph.bytes_written[copies].tolist() == [64, 64]


def test_dropout_is_one_operator_with_a_byte_mask() -> None:
    graph = capture(lambda: nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1)), inputs=lambda: {
        "input": torch.zeros(5, 8)
    })  # fmt: skip
    (dropout,) = operators(graph, "native_dropout")
    assert sorted(graph.tensor_bytes[outputs(graph, dropout)]) == [5 * 16, 4 * 5 * 16]
    (backward,) = operators(graph, "native_dropout_backward")
    assert graph.mirror[backward] == dropout


def test_fused_attention_is_counted() -> None:
    graph = capture(partial(Attention, 0.0), 2, 6, 16)
    (attention,) = operators(graph, "_scaled_dot_product_flash_attention_for_cpu")
    assert graph.kind[attention] == Kind.ATTENTION
    assert graph.flop[attention] == 2 * 2 * 2 * 6 * 6 * 16
    plain = capture(partial(Attention, 0.1), 2, 6, 16)
    assert plain.forward_flop() == graph.forward_flop()


def test_depthwise_convolutions_cost_the_same_in_each_direction() -> None:
    graph = capture(Grouped, 2, 3, 8, 8)
    forward = graph.flop[operators(graph, "convolution")]
    backward = graph.flop[operators(graph, "convolution_backward")][::-1]
    assert forward.tolist() == [2 * 2 * 64 * 3 * 8, 2 * 2 * 64 * 9 * 8]
    assert backward.tolist() == [forward[0], forward[1], forward[1]]  # data needs no gradient


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((16, 32), (4, 32, 64)),
        ((4, 8, 32), (32, 64)),
        ((16, 32), (32, 64)),
        ((4, 8, 32), (4, 32, 64)),
    ],
)
def test_grouped_products_are_counted(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    groups = 4

    class GroupedProduct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(b, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            size = 64 if len(a) == 3 else 32 if len(b) == 2 else 16
            offsets = torch.arange(1, groups + 1, dtype=torch.int32) * (size // groups)
            both = len(a) == len(b) == 3
            return torch._grouped_mm(x, self.weight, offs=None if both else offsets)

    graph = capture(
        GroupedProduct,
        inputs=lambda: {"x": torch.zeros(a, dtype=torch.bfloat16)},
        loss=lambda output: output.float().square().sum(),
        optimizer=SGD,
    )
    (product,) = [i for i in operators(graph, "_grouped_mm") if graph.phase[i] == Phase.FORWARD]
    assert graph.kind[product] == Kind.MATMUL
    # every one of the 16 rows (8 of each group, where groups are columns or batches) x 32 x 64
    rows = a[0] * a[1] if len(a) == len(b) == 3 else a[-2]
    assert graph.forward_flop() == 2 * rows * 32 * 64
    assert graph.backward_flop() == graph.forward_flop()  # the input needs no gradient


@pytest.mark.slow
def test_experts_in_one_grouped_product_cost_what_their_tokens_do() -> None:
    import transformers

    sizes = transformers.MixtralConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=1, use_cache=False,
        num_attention_heads=4, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2,
        attn_implementation="eager", experts_implementation="grouped_mm",
    )  # fmt: skip
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    graph = capture(
        lambda: transformers.MixtralForCausalLM(sizes).to(torch.bfloat16),
        inputs=lambda: {"input_ids": tokens, "labels": tokens},
        loss=lambda output: output.loss,
        optimizer=SGD,
    )
    attention = 4 * 64 * 64 + 2 * 16 * 64
    assert graph.forward_flop() == 2 * 32 * (attention + 64 * 8 + 2 * 3 * 64 * 128 + 64 * 96)
    assert graph.backward_flop() == 2 * graph.forward_flop()


@pytest.mark.parametrize(
    "name",
    [
        "_transformer_encoder_layer_fwd",
        "linear_backward",
        "_mixed_dtypes_linear",
        "mkldnn_rnn_layer",
        "conv_tbc",
    ],
)
def test_every_product_without_a_formula_is_refused(name: str) -> None:
    with refusal(f"{name} may multiply matrices"):
        traits(getattr(torch.ops.aten, name).default)


def test_an_in_place_product_costs_what_the_plain_one_does() -> None:
    x = torch.zeros(3, 5)
    count = traits(torch.ops.aten.addmm_.default).flop
    assert count is not None
    assert (
        count(torch.zeros(3, 4), x, torch.zeros(5, 4), out_val=torch.zeros(3, 4)) == 2 * 3 * 5 * 4
    )


@torch.library.custom_op("meshwright_test::unknown", mutates_args=())
def unknown(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("meshwright_test::shapeless", mutates_args=())
def shapeless(x: Tensor) -> Tensor:
    return x.clone()


register_flop_formula(torch.ops.meshwright_test.shapeless)(lambda x, **kwargs: 0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda y: y[torch.nonzero(y[:, 0] > 0)[:, 0]], r"aten::nonzero .* depends on data; use"),
        (lambda y: y.masked_select(y > 0), r"aten::masked_select .* depends on data; use"),
        (lambda y: y * y.sum().item(), r"_local_scalar_dense reads a number of a tensor; make"),
        (lambda y: y if y.sum() > 0 else -y, r"_local_scalar_dense reads a number"),
        (unknown, r"unknown may multiply matrices .*register_flop_formula"),
        (shapeless, r"shapeless has no fake kernel; name one with torch\.library\.register_fake"),
        (lambda y: y @ y, r"aten::mm cannot run: .* reduction dim"),
    ],
)
def test_what_cannot_be_traced_ends_in_one_line_with_the_module_and_the_way_out(
    fault: Callable[[Tensor], Tensor], message: str
) -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fault(x)

    with refusal(f"^module '1': .*{message}"):
        capture(lambda: nn.Sequential(nn.Linear(4, 3), Inner()), inputs=lambda: {
            "input": torch.zeros(2, 4)
        })  # fmt: skip


@pytest.mark.parametrize(
    "number",
    [lambda: float(torch.linspace(0, 0.5, 3)[1]), lambda: 0.1 * len(torch.ones(3).nonzero())],
)
def test_a_module_that_needs_a_number_while_it_is_built_is_told_how_to_make_it(
    number: Callable[[], float],
) -> None:
    with refusal(r"no weight is allocated\); make .* device='cpu'"):
        capture(lambda: nn.Dropout(number()), 2, 4)


def test_embeddings_read_the_rows_they_select() -> None:
    graph = capture(
        lambda: nn.Embedding(1000, 4),
        inputs=lambda: {"input": torch.zeros(3, dtype=torch.int64)},
        optimizer=SGD,
    )
    (embedding,) = operators(graph, "embedding")
    assert graph.bytes_read[embedding] == 3 * 4 * 4 + 3 * 8
    (backward,) = operators(graph, "embedding_dense_backward")
    assert graph.bytes_written[backward] == 1000 * 4 * 4
    assert graph.mirror[backward] == embedding


def test_recomputation_counts_in_the_backward_phase() -> None:
    class Recomputed(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoint(
                lambda y: torch.tanh(self.first(torch.tanh(y))), x, use_reentrant=False
            )
            return self.second(hidden)

    graph = capture(Recomputed, 5, 8)
    again = [i for i in operators(graph, "addmm") if graph.phase[i] == Phase.BACKWARD]
    assert len(again) == 1
    assert graph.flop[again[0]] == 2 * 5 * 8 * 16
    assert graph.colocation[again[0]] == graph.colocation[0 + operators(graph, "addmm")[0]]


@pytest.mark.parametrize(
    ("optimizer", "state", "read", "written"),
    [
        (SGD, 0, 2, 1),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1, 3, 2),
        (torch.optim.Adam, 2, 4, 3),
        (torch.optim.AdamW, 2, 4, 3),
        (partial(torch.optim.RMSprop, lr=0.1), 1, 3, 2),
    ],
)
def test_updates_read_and_write_each_tensor_once(
    optimizer: Any, state: int, read: int, written: int
) -> None:
    graph = capture(Perceptron, 5, 8, optimizer=optimizer)
    sizes = graph.parameter_bytes
    updates = graph.phase == Phase.OPTIMIZER
    assert_array_equal(graph.optimizer_bytes, state * sizes)
    assert_array_equal(graph.bytes_read[updates], read * sizes)
    assert_array_equal(graph.bytes_written[updates], written * sizes)
    assert (graph.parameter_owner == np.flatnonzero(updates)).all()


def test_optimizers_that_multiply_matrices_are_counted() -> None:
    graph = capture(
        lambda: nn.Linear(8, 16, bias=False),
        inputs=lambda: {"input": torch.zeros(5, 8)},
        optimizer=partial(torch.optim.Muon, lr=0.1),
    )
    assert graph.flop[graph.phase == Phase.OPTIMIZER].sum() > 0


def test_no_weight_is_allocated() -> None:
    side = 1_000_000  # 4 TB of weights
    graph = capture(
        lambda: nn.Linear(side, side, bias=False).to(torch.float32),
        inputs=lambda: {"input": torch.zeros(1, side)},
    )
    assert graph.parameter_bytes.sum() == 4 * side**2


def test_a_type_chosen_after_construction_is_kept() -> None:
    graph = capture(
        lambda: nn.Linear(4, 4).to(torch.bfloat16),
        inputs=lambda: {"input": torch.zeros(2, 4, dtype=torch.bfloat16)},
    )
    assert graph.parameter_bytes.sum() == 2 * 20


def test_a_module_that_exists_already_is_left_as_it_is() -> None:
    module = Perceptron()
    weight, values = module.first.weight, module.first.weight.detach().clone()
    capture(lambda: module, 5, 8)
    assert module.first.weight is weight
    assert torch.equal(weight, values)
    assert weight.grad is None


def test_capture_is_deterministic() -> None:
    one, two = (capture(partial(Attention, 0.1), 2, 6, 16, micro_batches=2) for _ in range(2))
    assert graph_hash(one) == graph_hash(two)


def test_bad_input_is_named() -> None:
    with refusal("micro_batches"):
        capture(Perceptron, 5, 8, micro_batches=0)
    with refusal("loss"):
        capture(Perceptron, 5, 8, loss=lambda output: output)
    with refusal("loss"):
        capture(Perceptron, 5, 8, loss=lambda output: output.detach().sum())
    with refusal("lazy"):
        capture(lambda: nn.LazyLinear(4), inputs=lambda: {"input": torch.zeros(2, 4)})
