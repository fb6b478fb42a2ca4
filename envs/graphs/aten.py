"""What is known of each ATen operator: its kind, its FLOP count, its memory traffic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import (
    conv_flop_count,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from envs.errors import InputError
from envs.graphs.op_graph import Kind
from envs.units import DTYPES

FlopCount = Callable[..., int]

_COUNT_ATTENTION: FlopCount = sdpa_flop_count
_COUNT_ATTENTION_BACKWARD: FlopCount = sdpa_backward_flop_count
_COUNT_CONVOLUTION: FlopCount = conv_flop_count
_BROADCAST: Callable[..., torch.Size] = torch.broadcast_shapes

_KINDS: dict[Kind, str] = {
    Kind.MATMUL: "mm addmm bmm baddbmm addbmm mv addmv dot vdot addr ger _trilinear _scaled_mm "
    "_addmm_activation _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm_v2 _int_mm",
    Kind.CONVOLUTION: "convolution convolution_backward _convolution cudnn_convolution",
    Kind.ATTENTION: "_scaled_dot_product_flash_attention_for_cpu _flash_attention_forward "
    "_scaled_dot_product_flash_attention_for_cpu_backward _flash_attention_backward "
    "_scaled_dot_product_fused_attention_overrideable _efficient_attention_forward "
    "_scaled_dot_product_fused_attention_overrideable_backward _efficient_attention_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
    Kind.NORMALIZATION: "native_layer_norm native_layer_norm_backward native_batch_norm "
    "native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional "
    "native_group_norm native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward "
    "_weight_norm_interface _weight_norm_interface_backward _safe_softmax "
    "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data",
    Kind.REDUCTION: "sum mean amax amin max min argmax argmin any all prod var var_mean std "
    "cumsum cumprod topk sort nll_loss_forward nll_loss_backward nll_loss2d_forward "
    "mse_loss logsumexp linalg_vector_norm norm avg_pool2d avg_pool2d_backward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward",
    Kind.EMBEDDING: "embedding embedding_dense_backward _embedding_bag "
    "_embedding_bag_forward_only _embedding_bag_dense_backward",
    Kind.DATA_MOVEMENT: "clone copy copy_ _to_copy cat stack index index_select index_put "
    "index_put_ _index_put_impl_ _unsafe_index index_add index_add_ index_copy index_copy_ "
    "gather scatter scatter_ scatter_add scatter_add_ slice_backward select_backward "
    "slice_scatter select_scatter constant_pad_nd arange full full_like zeros zeros_like ones "
    "ones_like new_zeros new_ones new_full scalar_tensor fill fill_ zero_ roll flip repeat tril "
    "triu _reshape_copy as_strided_scatter new_empty_strided embedding_renorm_ one_hot",
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}

_BLANK = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
                    "new_empty_strided"})  # fmt: skip
_CONSTANT = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})
_SELECTS = frozenset({"embedding", "index", "index_select", "gather", "_unsafe_index",
                      "nll_loss_forward"})  # fmt: skip
_OVERWRITE = frozenset({"bernoulli_", "copy_", "exponential_", "fill_", "normal_", "random_",
                        "uniform_", "zero_"})  # fmt: skip
_PRODUCT = re.compile(  # a word of the name of an operator that multiplies matrices
    r"(^|_)([a-z]*mm|(fb)?gemm|matmul|linear|conv(olution|_?[a-z]*\dd)?|attention|attn|"
    r"(add)?mv|v?dot|vecdot|ger|addr|rnn|mha|transformer)(_|$)"
)
_TORCH = frozenset({"aten", "prims", "_c10d_functional", "c10d_functional", "profiler"})


@dataclass(frozen=True)
class Traits:
    """What the recorder needs to know of an operator overload.

    `flop` follows the convention of torch's flop registry: only matrix multiplications,
    convolutions and attention count (a multiplication and an addition are 2 FLOP). Every other
    operator has 0 FLOP: it is bound by memory, and its bytes say how long it takes.
    """

    name: str
    kind: Kind
    flop: FlopCount | None  # called with the operator's arguments and `out_val`
    composite: bool  # runs as its decomposition, by which it must be costed
    blank: bool  # allocates without writing: no operator
    constant: bool  # makes a constant of the program known: no operator
    selects: bool  # reads a selected part only of its first tensor argument
    overwrites: bool  # writes its first argument without reading it
    written: tuple[int | str, ...]  # positions and keywords of the arguments it mutates


@cache
def traits(func: Any) -> Traits:
    """The traits of an `OpOverload`.

    Raises:
        InputError: the operator may multiply matrices, and its FLOP cannot be counted.
    """
    name: str = func._overloadpacket.__name__
    composite = _has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "CPU")
    flop = _flop_count(func.namespace, name)
    if flop is None and not composite and _may_multiply(func, name):
        raise InputError(
            f"{func.name()} may multiply matrices and its FLOP is unknown; "
            "name a formula with torch.utils.flop_counter.register_flop_formula"
        )
    written: list[int | str] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    return Traits(
        name=name,
        kind=_kind(func, name, flop is not None),
        flop=flop,
        composite=composite and flop is None,
        blank=name in _BLANK,
        constant=name in _CONSTANT,
        selects=name in _SELECTS,
        overwrites=name in _OVERWRITE,
        written=tuple(written),
    )


def dtype_index(dtype: torch.dtype) -> int:
    """The index into `DTYPES` of a torch type; complex numbers count as their components."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("complex"):
        name = f"float{int(name.removeprefix('complex')) // 2}"
    if name.startswith("float8"):
        name = "float8"
    name = name.replace("uint16", "int16").replace("uint32", "int32").replace("uint64", "int64")
    if name not in DTYPES:
        raise InputError(f"tensors of type {name} cannot be costed", field="dtype")
    return DTYPES.index(name)


def traffic(tensors: Iterable[torch.Tensor]) -> dict[int, float]:
    """Bytes touched of each storage (by its address) when all `tensors` are read or written once.

    Expanded dimensions (stride 0) are stored once; a storage is never touched for more bytes than
    it has, however many views of it are read.
    """
    seen: set[tuple[object, ...]] = set()
    total: dict[int, float] = {}
    limit: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage._cdata
        size, stride = tuple(tensor.shape), tensor.stride()
        view = (key, tensor.storage_offset(), size, stride)
        if view not in seen:
            seen.add(view)
            limit[key] = storage.nbytes()
            total[key] = total.get(key, 0.0) + stored_elements(size, stride) * tensor.itemsize
    return {key: min(nbytes, float(limit[key])) for key, nbytes in total.items()}


def stored_elements(size: Sequence[int], stride: Sequence[int]) -> int:
    """Distinct elements of a view: its expanded dimensions (stride 0) count once."""
    if 0 in size:
        return 0
    return prod(n for n, step in zip(size, stride, strict=True) if step != 0)


def _flop_count(namespace: str, name: str) -> FlopCount | None:
    """The formula of an operator; `addmm_` has that of `addmm`."""
    plain = name.removesuffix("_")
    if plain in _COUNTS:
        return _COUNTS[plain]
    registered: dict[str, FlopCount] = {str(known): count for known, count in flop_registry.items()}
    return registered.get(f"{namespace}.{name}", registered.get(f"{namespace}.{plain}"))


def _may_multiply(func: Any, name: str) -> bool:
    """Whether it is a product by its name, or is not torch's own, so that it is unknown."""
    if torch.Tag.pointwise in func.tags or name == "_cudnn_rnn_flatten_weight":
        return False
    return func.namespace not in _TORCH or _PRODUCT.search(name.removesuffix("_")) is not None


def _has_kernel(func: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _kind(func: Any, name: str, counted: bool) -> Kind:
    kind = _KIND_OF.get(name)
    if kind is not None:
        return kind
    if counted:
        return Kind.MATMUL
    if torch.Tag.pointwise in func.tags or name.startswith("native_dropout"):
        return Kind.ELEMENTWISE
    if torch.Tag.reduction in func.tags:
        return Kind.REDUCTION
    inplace = name.endswith("_") and not name.endswith("__")
    return _KIND_OF.get(name.removesuffix("_"), Kind.ELEMENTWISE if inplace else Kind.OTHER)


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(_COUNT_ATTENTION(query.shape, key.shape, value.shape))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kw: Any) -> int:
    return int(_COUNT_ATTENTION_BACKWARD(grad.shape, query.shape, key.shape, value.shape))


def _convolution_backward(grad: Any, x: Any, weight: Any, *args: Any, **kwargs: Any) -> int:
    """Each gradient costs what the forward convolution does.

    The registry counts the gradient of the weight of a grouped convolution `groups` times.
    """
    transposed, output_mask = args[4], args[7]
    forward = _COUNT_CONVOLUTION(x.shape, weight.shape, grad.shape, transposed=transposed)
    return int(forward * (output_mask[0] + output_mask[1]))


def _product(a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
    return int(2 * a.numel() * b.shape[-1])


def _grouped_product(a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
    """Every row of `a` meets one group of `b`, or, where only `a` has groups, the reverse."""
    if a.dim() == 3 and b.dim() == 2:
        return int(2 * a.shape[1] * b.numel())
    return _product(a, b)


def _trilinear(
    i1: Any, i2: Any, i3: Any, expand1: Any, expand2: Any, expand3: Any, *args: Any, **kwargs: Any
) -> int:
    """Products over the broadcast of three operands: two multiplications, one addition."""
    shapes = []
    for tensor, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        view = tensor
        for dimension in expand:
            view = view.unsqueeze(dimension)
        shapes.append(tuple(view.shape))
    return int(3 * prod(_BROADCAST(*shapes)))


_COUNTS: dict[str, FlopCount] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "convolution_backward": _convolution_backward,
    "addbmm": lambda added, a, b, *args, **kwargs: _product(a, b),
    **dict.fromkeys(("mv", "dot", "vdot"), lambda a, *args, **kwargs: 2 * a.numel()),
    "addmv": lambda added, matrix, *args, **kwargs: 2 * matrix.numel(),
    **dict.fromkeys(("addr", "ger"), lambda *args, out_val, **kwargs: 2 * out_val.numel()),
    "_trilinear": _trilinear,
    "_addmm_activation": lambda bias, a, b, *args, **kwargs: _product(a, b),
    "_int_mm": _product,
    "_scaled_mm_v2": _product,
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "_scaled_grouped_mm_v2": _grouped_product,
    "grouped_mm_fallback": _grouped_product,  # of transformers
    "grouped_mm_fallback_backward": lambda a, b, *args, **kwargs: 2 * _grouped_product(a, b),
}
