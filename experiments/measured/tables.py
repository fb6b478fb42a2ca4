"""Tables of measured times, as published: kernels, whole models, layers and training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError, refused_in, require_one_of
from envs.graphs.kernels import Family, Kernels
from envs.graphs.transformer import Part, TransformerSize
from envs.hardware.devices import DeviceSpec, device_spec
from envs.text_table import RowChecks, Table, read_table
from experiments.measured.models import (
    NO_OTHERS,
    KernelSeconds,
    family_of,
    known_as,
    mode_of,
    named_size,
)

FLOAT32, BYTES = "float32", 4.0  # of all measured kernels
# Operators that are called otherwise in the table; a trailing u: the second operand is a number.
FAMILIES = {
    "linear": Family.LINEAR,
    "bmm": Family.PRODUCT,
    "conv": Family.CONVOLUTION,
    "ln": Family.NORM,
    "softmax": Family.SOFTMAX,
    **dict.fromkeys(
        ("add", "addu", "div", "divu", "mul", "mulu", "pow", "powu", "gelu", "relu", "tanh"),
        Family.ELEMENTWISE,
    ),
}
BINARY = ("add", "div", "mul", "pow")


def devices_of(
    checks: RowChecks, field: str, others: Mapping[str, str] = NO_OTHERS
) -> tuple[DeviceSpec, ...]:
    """(R,) the device that each row names; `others` are meant by some names.

    Raises:
        InputError: naming row and field: the catalogue does not know it.
    """
    names = checks.text(field).to_list()
    checks.finish(strict=True)
    known = known_of(checks.table, field, names, lambda name: device_spec(others.get(name, name)))
    return tuple(known[name] for name in names)


_T = TypeVar("_T")


def known_of(
    table: Table, field: str, names: Sequence[str], read: Callable[[str], _T]
) -> dict[str, _T]:
    """What each different name stands for; the fault of one names its first row."""
    known: dict[str, _T] = {}
    for row, name in enumerate(names):
        if name and name not in known:
            try:
                known[name] = read(name)
            except InputError as error:
                place = table.place(row)
                raise InputError(
                    error.message, file=table.path, record=place, field=field
                ) from error
    return known


def found_table(folder: str | Path, kind: str) -> str:
    """The table of a kind in a folder, compressed or not."""
    names = f"{kind}.csv.gz", f"{kind}.csv"
    found = next((path for name in names if (path := Path(folder) / name).is_file()), None)
    if found is None:
        raise InputError(f"holds neither {' nor '.join(names)}", file=folder)
    return str(found)


def plain_rate(spec: DeviceSpec) -> str:
    """Whose peak products in float32 without TF32 reach: of matrix cores, where they are exact."""
    return "float32_matrix" if "float32_matrix" in spec.peak_flops else FLOAT32


@dataclass(frozen=True, eq=False)
class MeasuredKernels:
    """R kernels in float32, without TF32."""

    device: IntArray  # (R,) number in `devices`
    devices: tuple[DeviceSpec, ...]
    operators: tuple[str, ...]  # (R,)
    kernels: Kernels
    seconds: FloatArray  # (R,)

    def predicted(self, seconds_of: KernelSeconds) -> FloatArray:
        """(R,) what a cost model says."""
        found = np.zeros(len(self.seconds))
        for number, spec in enumerate(self.devices):
            rows = np.flatnonzero(self.device == number)
            found[rows] = seconds_of(self.kernels.take(rows), spec)
        return found


def read_kernels(path: str, others: Mapping[str, str] = NO_OTHERS) -> MeasuredKernels:
    """A table of kernels: gpu, operator, its sizes, seconds.

    Raises:
        InputError: naming row and column.
    """
    table = read_table(path, ("gpu", "operator", "seconds"))
    checks = RowChecks(table)
    specs = devices_of(checks, "gpu", others)
    operator = checks.text("operator").to_numpy()
    checks.reject(~np.isin(operator, list(FAMILIES)), "operator", "is no known operator")
    seconds = checks.numbers("seconds")
    checks.reject(seconds == 0, "seconds", "is zero")
    family = np.array([FAMILIES.get(name, Family.ELEMENTWISE) for name in operator])
    product, convolution = family <= Family.PRODUCT, family == Family.CONVOLUTION
    batch = checks.whole("batch", 1).astype(np.float64)
    m, n, k = (_sizes(checks, name, product) for name in "mnk")
    width = _sizes(checks, "width", ~product & ~convolution)
    inputs, outputs, window, edge, stride = (
        _sizes(checks, name, convolution)
        for name in ("in_channels", "out_channels", "kernel_size", "input_size", "stride")
    )
    padding = _sizes(checks, "padding", convolution, least=0)
    checks.finish(strict=True)
    after = np.floor((edge + 2 * padding - window) / np.maximum(stride, 1)) + 1
    linear = family == Family.LINEAR
    m = np.select([linear, convolution, product], [batch * m, batch * after**2, m], batch)
    n = np.select([product, convolution], [n, outputs], width)
    k = np.select([product, convolution], [k, inputs * window**2], 1.0)
    many = np.where(family == Family.PRODUCT, batch, 1.0)
    read = np.select(
        [product, convolution],
        [many * (m * k + k * n), batch * inputs * edge**2 + k * n],
        m * n * np.where(np.isin(operator, BINARY), 2.0, 1.0),
    )
    names = list(dict.fromkeys(spec.name for spec in specs))
    return MeasuredKernels(
        device=np.array([names.index(spec.name) for spec in specs]),
        devices=tuple(next(spec for spec in specs if spec.name == name) for name in names),
        operators=tuple(operator.tolist()),
        kernels=Kernels(
            family=family,
            batch=many,
            m=m,
            n=n,
            k=k,
            flop=np.where(product | convolution, 2.0 * many * m * n * k, 0.0),
            bytes_read=BYTES * read,
            bytes_written=BYTES * many * m * n,
            window=window,
            stride=stride,
            rate=tuple(map(plain_rate, specs)),
        ),
        seconds=seconds,
    )


def _sizes(checks: RowChecks, field: str, where: BoolArray, least: int = 1) -> FloatArray:
    """A column of whole numbers that only some rows need; 0 in the others."""
    if not where.any():
        return np.zeros(len(where))
    text = checks.table.columns[field].to_list()
    numbers = np.zeros(len(where))
    for row in np.flatnonzero(where):
        try:
            numbers[row] = int(text[row])
        except ValueError:
            numbers[row] = -1
    checks.reject(where & (numbers < least), field, f"is no whole number from {least}")
    return numbers


class Measured(NamedTuple):
    """Seconds of a row; 0 where the table has none."""

    forward_s: float
    backward_s: float


class ModelRow(NamedTuple):
    """A run of a whole model."""

    place: str
    gpu: str  # as the table calls it
    device: DeviceSpec
    model: str
    mode: str
    size: TransformerSize
    batch: int
    parallel: str  # as it stands there
    precision: str
    seconds: float
    parts: Measured


class LayerRow(NamedTuple):
    """A layer of a transformer for a micro-batch, shared by `tensor` devices."""

    place: str
    gpu: str
    device: DeviceSpec
    model: str
    layer: str
    part: Part
    size: TransformerSize
    micro_batch: int
    tensor: int
    precision: str
    parts: Measured


def read_models(path: str, others: Mapping[str, str] = NO_OTHERS) -> list[ModelRow]:
    """A table of whole models: gpu, model, mode, sequence, batch, total_s.

    There may be parallel, precision, and forward_s and backward_s.

    Raises:
        InputError: naming row and column.
    """
    table = read_table(path, ("gpu", "model", "mode", "sequence", "batch", "total_s"))
    checks = RowChecks(table)
    specs = devices_of(checks, "gpu", others)
    sequence, batch = (checks.whole(name, 1).tolist() for name in ("sequence", "batch"))
    seconds = _times(checks, "total_s")
    parts = _parts(checks)
    model, mode = (checks.text(name).to_list() for name in ("model", "mode"))
    sizes = known_of(table, "model", model, lambda name: named_size(name, 1))
    modes = known_of(table, "mode", mode, mode_of)
    precision = words_of(table, "precision", word_of(RATES), "")
    checks.finish(strict=True)
    gpu, parallel = texts_of(table, "gpu"), texts_of(table, "parallel")
    return [
        ModelRow(
            table.place(row), gpu[row], specs[row], known_as(model[row]), modes[mode[row]],
            replace(sizes[model[row]], sequence=sequence[row]), batch[row],
            parallel[row], precision[row], seconds[row], parts[row],
        )
        for row in range(len(table))
    ]  # fmt: skip


LAYERS = {"embedding": Part.EMBEDDING, "block": Part.BLOCK, "head": Part.HEAD}
_LAYER_COLUMNS = (
    "model", "hidden", "layers", "heads", "vocabulary", "sequence", "gpu", "micro_batch",
    "tensor_parallel", "layer", "forward_s",
)  # fmt: skip


def read_layers(path: str, others: Mapping[str, str] = NO_OTHERS) -> list[LayerRow]:
    """A table of layers; the family of a model is what its name begins with.

    Without a backward_s, only the pass forward was measured. There may be a precision.

    Raises:
        InputError: naming row and column.
    """
    table = read_table(path, _LAYER_COLUMNS)
    checks = RowChecks(table)
    specs = devices_of(checks, "gpu", others)
    whole = {
        name: checks.whole(name, 1).tolist()
        for name in (*_LAYER_COLUMNS[1:6], *_LAYER_COLUMNS[7:9])
    }
    _times(checks, "forward_s")
    parts = _parts(checks)
    model, layer = (checks.text(name).to_list() for name in ("model", "layer"))
    families = known_of(table, "model", model, family_of)
    known = known_of(table, "layer", layer, _layer_of)
    precision = words_of(table, "precision", word_of(RATES), "")
    checks.finish(strict=True)
    gpu = texts_of(table, "gpu")
    found = []
    for row in range(len(table)):
        sizes = {name: whole[name][row] for name in _LAYER_COLUMNS[1:6]}
        with refused_in(path, table.place(row)):
            size = TransformerSize(families[model[row]], **sizes, name=model[row])
        found.append(
            LayerRow(
                table.place(row), gpu[row], specs[row], model[row], known_as(layer[row]),
                known[layer[row]], size, whole["micro_batch"][row], whole["tensor_parallel"][row],
                precision[row], parts[row],
            )
        )  # fmt: skip
    return found


RATES = {  # whose peak products of a precision reach
    "fp32": FLOAT32, FLOAT32: FLOAT32, "tf32": "tfloat32", "tfloat32": "tfloat32",
    "fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
}  # fmt: skip


def _layer_of(text: str) -> Part:
    require_one_of(known_as(text), tuple(LAYERS), field="layer")
    return LAYERS[known_as(text)]


def texts_of(table: Table, field: str) -> list[str]:
    """A column, or blanks."""
    column = table.get(field)
    return [""] * len(table) if column is None else column.to_list()


def word_of(known: Mapping[str, _T]) -> Callable[[str], _T]:
    """Reads one of these words, in any case of its letters."""

    def read(text: str) -> _T:
        require_one_of(text.lower(), tuple(known))
        return known[text.lower()]

    return read


def words_of(table: Table, field: str, read: Callable[[str], _T], otherwise: _T) -> list[_T]:
    """What stands in each row of a column; `otherwise` where nothing does.

    Raises:
        InputError: naming row and column.
    """
    texts = texts_of(table, field)
    known = known_of(table, field, texts, read)
    return [known.get(text, otherwise) for text in texts]


def numbers_or(checks: RowChecks, field: str, otherwise: float) -> FloatArray:
    """A column that may be missing or blank."""
    if checks.table.get(field) is None:
        return np.full(len(checks.table), otherwise)
    return checks.numbers(field, str(otherwise))


def _times(checks: RowChecks, field: str) -> list[float]:
    seconds = checks.numbers(field)
    checks.reject(seconds == 0, field, "is zero")
    return [float(x) for x in seconds]


def _parts(checks: RowChecks) -> list[Measured]:
    """Columns that may be missing or blank."""
    columns = [numbers_or(checks, name, 0.0).tolist() for name in Measured._fields]
    return [Measured(*row) for row in zip(*columns, strict=True)]
